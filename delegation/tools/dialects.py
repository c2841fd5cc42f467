"""Speak one of three dialects to an agent, by the official client: A2A 1.0, A2A 0.3, and that of toolnexus.

1.0 and 0.3 are the SDK's own transports; toolnexus's is a transport of ours that its factory is given. As in
`client.py` the SDK builds and sends each request over the guarded transport, and the answer is read from its bytes.

Which dialect it is, is found out by the card where it says so. Else `message/send` is tried, and after "no such method"
(-32601), which leaves nothing behind anywhere, toolnexus's `SendMessage`. The body of 1.0 is never tried: toolnexus
would take it and work on an empty text.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.client.client import ClientCallContext
from a2a.client.transports.base import ClientTransport
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    Task,
)

from delegation.answers import load_json
from delegation.errors import CallAmbiguous
from delegation.exchange import Exchange, Headers, exchanging
from delegation.http_client import open_http
from delegation.origins import Origin
from delegation.outbound import GuardedTransport, drive
from delegation.replies import JSONRPC
from delegation.tools.descriptor import Dialect, Expanded
from delegation.tools.failures import raise_time_limit, transport_text
from delegation.tools.results import INVALID, Answer, http_error_text, read_rpc

ANSWER_BYTES = 8 * 1024 * 1024
#: For the courtesy of telling an agent that nobody waits any more.
CANCEL_AT_MOST_S = 5.0
METHOD_NOT_FOUND = -32601
TOOLNEXUS = "TOOLNEXUS"
_STAND_IN = b'{"jsonrpc":"2.0","id":"","result":{}}'
#: What httpx and the SDK add, and toolnexus's own clients do not send.
_NOT_TOOLNEXUS = frozenset({b"accept", b"a2a-version"})


@dataclass(slots=True)
class Target:
    """Where an agent is. ``dialect`` None: nobody has found out yet."""

    endpoint: str
    origins: frozenset[Origin]
    dialect: Dialect | None = None
    tenant: str = ""


@dataclass(kw_only=True, slots=True)
class SpokenLine:
    """A line (poll_loop.py) over connections of its own."""

    target: Target
    headers: Expanded
    timeout_s: float
    is_unwanted: Callable[[], bool] | None
    transport: GuardedTransport
    dialect: Dialect = Dialect.V0_3
    _clients: dict[Dialect, Client] = field(default_factory=dict)

    def send(self, text: str) -> Answer:
        known = self.target.dialect
        self.dialect = known or Dialect.V0_3
        # Who gave up before the call still has it made, and hears which task it began.
        watched = None if self.is_unwanted is None or self.is_unwanted() else self.is_unwanted
        answer = self._send(text, watched)
        if known is None and answer.code == METHOD_NOT_FOUND:
            self.dialect = Dialect.TOOLNEXUS
            answer = self._send(text, watched)
        if answer.error is None:
            self.target.dialect = self.dialect
        return answer

    def get(self, task_id: str) -> Answer:
        return self._ask(lambda: self._client().get_task(GetTaskRequest(id=task_id)), self.timeout_s, self.is_unwanted)

    def cancel(self, task_id: str) -> None:
        """Best effort; toolnexus has no such method."""
        if self.dialect is not Dialect.TOOLNEXUS:
            request = CancelTaskRequest(id=task_id)
            self._ask(lambda: self._client().cancel_task(request), min(self.timeout_s, CANCEL_AT_MOST_S), None)

    def _send(self, text: str, watched: Callable[[], bool] | None) -> Answer:
        def start() -> Coroutine[Any, Any, Any]:
            message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=text)])
            configuration = SendMessageConfiguration(return_immediately=True)
            return _exhaust(self._client(), SendMessageRequest(message=message, configuration=configuration))

        return self._ask(start, self.timeout_s, watched)

    def _ask(
        self, start: Callable[[], Coroutine[Any, Any, Any]], seconds: float, watched: Callable[[], bool] | None
    ) -> Answer:
        exchange = Exchange(
            deadline_at=time.monotonic() + seconds,
            max_bytes=ANSWER_BYTES,
            stand_in=_STAND_IN,
            present=self._add_headers,
            is_unwanted=watched,
            may_move=False,
        )
        try:
            with exchanging(exchange):
                drive(start())
        except Exception as error:  # noqa: BLE001  the SDK leaks many kinds; what it thinks of the stand-in is no matter
            raise_time_limit(error)
            if not exchange.status:
                return Answer(error=transport_text(error))
        return self._read(exchange)

    def _read(self, exchange: Exchange) -> Answer:
        if not 200 <= exchange.status < 300:
            return Answer(error=http_error_text(exchange.status, exchange.body, self.headers.secrets))
        try:
            return read_rpc(load_json(exchange.body), self.headers.secrets)
        except CallAmbiguous:
            return INVALID

    def _client(self) -> Client:
        client = self._clients.get(self.dialect)
        return client or self._clients.setdefault(
            self.dialect, _build_client(self.target, self.dialect, self.transport)
        )

    def _add_headers(self, url: httpx.URL, headers: Headers) -> tuple[httpx.URL, Headers]:
        """The user's, but for those that say what our request is."""
        is_toolnexus = self.dialect is Dialect.TOOLNEXUS
        kept = [pair for pair in headers if not (is_toolnexus and pair[0].lower() in _NOT_TOOLNEXUS)]
        theirs = [(name.encode(), value.encode()) for name, value in self.headers.headers.items()]
        if not is_toolnexus:
            theirs = [pair for pair in theirs if pair[0].lower() != b"a2a-version"]
        replaced = {name.lower() for name, _ in theirs}
        return url, [*(pair for pair in kept if pair[0].lower() not in replaced), *theirs]


@contextmanager
def open_line(
    target: Target, headers: Expanded, *, timeout_ms: float, is_unwanted: Callable[[], bool] | None
) -> Iterator[SpokenLine]:
    """For one call: its connections are reused between its requests, and closed with it."""
    transport = GuardedTransport(target.origins)
    try:
        yield SpokenLine(
            target=target,
            headers=headers,
            timeout_s=timeout_ms / 1000,
            is_unwanted=is_unwanted,
            transport=transport,
        )
    finally:
        transport.close()


class ToolnexusTransport(ClientTransport):
    """Toolnexus's dialect: 1.0's names, 0.3's bodies, `result` bare. It sends and polls, and offers nothing else.

    As everywhere here the answers are read from the exchange, so what these methods return is a stand-in.
    """

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def send_message(
        self,
        request: SendMessageRequest,
        *,
        context: ClientCallContext | None = None,  # noqa: ARG002  the SDK's signature
    ) -> SendMessageResponse:
        sent = request.message
        parts = [{"kind": "text", "text": part.text} for part in sent.parts]
        message = {"role": "user", "messageId": sent.message_id, "parts": parts}
        await self._post("SendMessage", {"message": message, "configuration": {"blocking": False}})
        return SendMessageResponse(task=Task())

    async def get_task(
        self,
        request: GetTaskRequest,
        *,
        context: ClientCallContext | None = None,  # noqa: ARG002  as above
    ) -> Task:
        await self._post("GetTask", {"id": request.id})
        return Task()

    async def _post(self, method: str, params: dict[str, Any]) -> None:
        request = {"jsonrpc": "2.0", "id": str(uuid.uuid4()), "method": method, "params": params}
        await self._http.post(self._url, json=request)

    async def close(self) -> None:
        """The HTTP client is shared."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise NotImplementedError("toolnexus offers SendMessage and GetTask alone")

    send_message_streaming = _refuse
    list_tasks = _refuse
    cancel_task = _refuse
    create_task_push_notification_config = _refuse
    get_task_push_notification_config = _refuse
    list_task_push_notification_configs = _refuse
    delete_task_push_notification_config = _refuse
    subscribe = _refuse
    get_extended_agent_card = _refuse


def _build_client(target: Target, dialect: Dialect, transport: GuardedTransport) -> Client:
    """The SDK gets a card with the one interface that was chosen, so it cannot choose another."""
    binding = TOOLNEXUS if dialect is Dialect.TOOLNEXUS else JSONRPC
    http = open_http(transport, {"Accept": "application/json", "User-Agent": "delegation"})
    config = ClientConfig(streaming=False, httpx_client=http, supported_protocol_bindings=[binding])
    factory = ClientFactory(config)
    factory.register(TOOLNEXUS, lambda _card, url, _config: ToolnexusTransport(http, url))
    version = "0.3" if dialect is Dialect.V0_3 else "1.0"
    interface = AgentInterface(
        url=target.endpoint, protocol_binding=binding, protocol_version=version, tenant=target.tenant
    )
    return factory.create(
        AgentCard(
            name="agent", version="0", supported_interfaces=[interface], capabilities=AgentCapabilities(streaming=False)
        )
    )


async def _exhaust(client: Client, request: SendMessageRequest) -> None:
    async for _ in client.send_message(request):
        pass
