"""Speak A2A 1.0 to one agent through the official SDK's client; a synchronous face.

The SDK builds and sends every request, over our transport (`outbound.py`). What comes back is read by us from the
bytes of the answer (`replies.py`, `answers.py`): the SDK does not compare JSON-RPC ids, loses an answer over one
unreadable field and leaks many kinds of exceptions, so it is given a stand-in for the answer instead.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx
from a2a.client import Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    AgentInterface,
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from google.protobuf.struct_pb2 import Value

from delegation.agent_task import AgentMessage, AgentTask, AgentTaskId, ContextId, OutgoingMessage, PushConfig
from delegation.answers import PATH_SAFE_ID, find_tasks, history_message_ids, read_send_answer, read_task
from delegation.cards import CheckedCard, standard_headers
from delegation.errors import AgentError, AgentRefused, AgentUnreachable, CallAmbiguous
from delegation.outbound import Exchange, GuardedTransport, drive, exchanging
from delegation.replies import JSONRPC, Question, read_reply
from delegation.settings import AgentSettings, LimitSettings

#: Enough to hold the agent's last message, which may stand before one of ours.
HISTORY = 2
#: How far ListTasks is read when we look for a message: our context is new, so it holds a handful of tasks.
LIST_HISTORY = 20
LIST_PAGE = 50
LIST_PAGES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class _Method:
    """A2A's name of a method, and what the SDK is told the agent answered."""

    name: str
    result: str = "{}"
    names_task: bool = True

    def stand_in(self, binding: str) -> bytes:
        return (f'{{"result":{self.result}}}' if binding == JSONRPC else self.result).encode()


_SEND = _Method(name="SendMessage", result='{"task":{}}', names_task=False)
_GET = _Method(name="GetTask")
_LIST = _Method(name="ListTasks", names_task=False)
_CANCEL = _Method(name="CancelTask")
_DELETE_PUSH = _Method(name="DeleteTaskPushNotificationConfig")


class AgentClient:
    """One per agent and process; all threads share it. Every method raises `AgentError` kinds only, by certainty:

    AgentUnreachable (certainly not sent), AgentBusy, AgentRefused and its kinds (nothing was started), CallAmbiguous
    (may have happened) and AnswerTooLarge. `deadline_s` bounds the whole call, the reading of the answer included.
    """

    def __init__(
        self,
        agent: AgentSettings,
        card: CheckedCard,
        participant_id: str,
        *,
        transport: GuardedTransport,
        limits: LimitSettings,
    ) -> None:
        self.agent_id = agent.id
        self.card = card
        self._participant_id = participant_id
        self._binding = card.interface.binding
        self._max_bytes = limits.answer_bytes
        self._secrets = tuple(value for value in agent.headers.values() if len(value) >= 8)
        self._sdk = _build_sdk_client(card, _build_http(agent, card, participant_id, transport))

    def send_message(
        self, message: OutgoingMessage, *, push: PushConfig | None, deadline_s: float
    ) -> AgentTask | AgentMessage:
        """SendMessage with `returnImmediately`. PushNotAccepted: nothing was started, send again without `push`."""
        result = self._call(
            _SEND,
            lambda: _exhaust(self._sdk.send_message(self._build_send(message, push))),
            deadline_s,
            push=push,
            edit_body=self._restore_json(message) if _holds_json(message) else None,
        )
        answer = read_send_answer(result)
        return self._usable(answer) if isinstance(answer, AgentTask) else answer

    def _usable(self, task: AgentTask) -> AgentTask:
        """HTTP+JSON puts the id into a path, where some ids would be another request."""
        if self._binding != JSONRPC and not PATH_SAFE_ID.fullmatch(task.id):
            raise CallAmbiguous("the agent's task has an id that cannot stand in a path")
        return task

    def get_task(self, agent_task_id: AgentTaskId, *, deadline_s: float) -> AgentTask:
        """GetTask. An answer about another task is CallAmbiguous."""
        request = GetTaskRequest(id=agent_task_id, history_length=HISTORY)
        return _same_task(read_task(self._call(_GET, lambda: self._sdk.get_task(request), deadline_s)), agent_task_id)

    def cancel_task(self, agent_task_id: AgentTaskId, *, deadline_s: float) -> AgentTask:
        """CancelTask. The state in the answer is the truth: some agents answer with a task still at work."""
        request = CancelTaskRequest(id=agent_task_id)
        return _same_task(
            read_task(self._call(_CANCEL, lambda: self._sdk.cancel_task(request), deadline_s)), agent_task_id
        )

    def find_task(self, context_id: ContextId, message_id: str, *, deadline_s: float) -> AgentTask | None:
        """The task that the message `message_id`, sent in our context `context_id`, started; None when there is none.

        Proof is our message id in a task's history. An agent may keep no history, or send none in lists. Then the
        context speaks: its id is ours, unguessable and used for one delegation, so a single task in it can only be
        the one its first message started; two or more prove nothing, and neither does one for a later message of
        the context. A task whose history lacks our message is not ours, context or not.
        """
        until = time.monotonic() + deadline_s
        without_history: list[AgentTask] = []
        page_token = ""
        for _ in range(LIST_PAGES):
            result = self._list_tasks(context_id, page_token, until - time.monotonic())
            for raw in find_tasks(result):
                sent = history_message_ids(raw)
                if message_id in sent:
                    return self._usable(read_task(raw))
                if not sent and raw.get("contextId") == context_id:
                    without_history.append(read_task(raw))
            page_token = result.get("nextPageToken", "")
            if not isinstance(page_token, str) or not page_token:
                break
        return without_history[0] if len(without_history) == 1 else None

    def delete_push_config(self, agent_task_id: AgentTaskId, config_id: str, *, deadline_s: float) -> None:
        """DeleteTaskPushNotificationConfig; deleting it twice is no error (spec section 3.1.10)."""
        request = DeleteTaskPushNotificationConfigRequest(task_id=agent_task_id, id=config_id)
        self._call(_DELETE_PUSH, lambda: self._sdk.delete_task_push_notification_config(request), deadline_s)

    def _list_tasks(self, context_id: ContextId, page_token: str, deadline_s: float) -> Any:
        request = ListTasksRequest(
            context_id=context_id,
            page_size=LIST_PAGE,
            page_token=page_token,
            history_length=LIST_HISTORY,
            include_artifacts=True,  # what is found may have ended already, and is then settled from this answer
        )
        return self._call(_LIST, lambda: self._sdk.list_tasks(request), deadline_s)

    def _call(
        self,
        method: _Method,
        start: Callable[[], Coroutine[Any, Any, Any]],
        deadline_s: float,
        *,
        push: PushConfig | None = None,
        edit_body: Callable[[bytes], bytes] | None = None,
    ) -> Any:
        """One exchange. The only place where anything the SDK may raise becomes one of our errors."""
        exchange = Exchange(
            deadline_at=time.monotonic() + deadline_s,
            max_bytes=self._max_bytes,
            stand_in=method.stand_in(self._binding),
            edit_body=edit_body,
        )
        try:
            with exchanging(exchange):
                drive(start())
        except AgentError:
            raise
        except Exception as error:
            if not exchange.status:
                raise _explain(method, error, exchange) from error
            # The answer is here all the same; what the SDK thought of its stand-in does not matter.
        question = Question(
            method=method.name,
            binding=self._binding,
            request_id=_request_id(exchange.request_body) if self._binding == JSONRPC else "",
            names_task=method.names_task,
            had_push_config=push is not None,
            secrets=(*self._secrets, push.token) if push else self._secrets,
        )
        return read_reply(question, exchange.status, exchange.headers, exchange.body)

    def _build_send(self, message: OutgoingMessage, push: PushConfig | None) -> SendMessageRequest:
        texts = [Part(text=text) for text in (message.text, *message.extra_texts)]
        data = [Part(data=Value(null_value=0)) for _ in message.data]  # type: ignore[arg-type]  # see _restore_json
        request = SendMessageRequest(
            message=Message(
                message_id=message.message_id,
                context_id=message.context_id,
                task_id=message.agent_task_id or "",
                role=Role.ROLE_USER,
                parts=[*texts, *data],
                metadata={key: value for key, value in self._metadata(message).items() if isinstance(value, str)},
            ),
            configuration=SendMessageConfiguration(return_immediately=True, history_length=HISTORY),
        )
        if push is not None:
            request.configuration.task_push_notification_config.CopyFrom(_build_push_config(push))
        return request

    def _metadata(self, message: OutgoingMessage) -> dict[str, Any]:
        """What a delegation was opened with wins over our settings: agents know its sender by that id."""
        return {"participant_id": self._participant_id, **message.metadata}

    def _restore_json(self, message: OutgoingMessage) -> Callable[[bytes], bytes]:
        """Put the caller's own JSON into the request: by way of protobuf its integers would become floats."""

        def edit(body: bytes) -> bytes:
            request = json.loads(body)
            sent = (request["params"] if self._binding == JSONRPC else request)["message"]
            for part, value in zip(sent["parts"][1 + len(message.extra_texts) :], message.data, strict=True):
                part["data"] = value
            sent["metadata"] = self._metadata(message)
            return json.dumps(request, allow_nan=False).encode()

        return edit


class _NoCookies(httpx.Cookies):
    def extract_cookies(self, response: httpx.Response) -> None:
        """Keep none: what one agent sets must not reach another on the same host."""


class _CookielessClient(httpx.AsyncClient):
    """The SDK's HTTP client over our transport."""

    @property
    def cookies(self) -> httpx.Cookies:
        return _NO_COOKIES

    @cookies.setter
    def cookies(self, cookies: object) -> None:
        raise NotImplementedError("no cookies are kept")


_NO_COOKIES = _NoCookies()


def _holds_json(message: OutgoingMessage) -> bool:
    return bool(message.data) or not all(isinstance(value, str) for value in message.metadata.values())


def _build_http(
    agent: AgentSettings, card: CheckedCard, participant_id: str, transport: GuardedTransport
) -> httpx.AsyncClient:
    return _CookielessClient(
        transport=transport,
        headers=standard_headers(agent, participant_id, extensions=card.active_extensions),
        timeout=httpx.Timeout(None),  # the exchange's deadline bounds every wait
        follow_redirects=False,
        trust_env=False,
    )


def _build_sdk_client(card: CheckedCard, client: httpx.AsyncClient) -> Client:
    """The SDK gets a card with the one interface that was checked, so it cannot choose another."""
    interface = AgentInterface(
        url=card.interface.url,
        protocol_binding=card.interface.binding,
        protocol_version=card.interface.protocol_version,
        tenant=card.interface.tenant,
    )
    config = ClientConfig(streaming=False, httpx_client=client, supported_protocol_bindings=[card.interface.binding])
    return ClientFactory(config).create(
        AgentCard(name=card.name, version=card.version, supported_interfaces=[interface])
    )


def _build_push_config(push: PushConfig) -> TaskPushNotificationConfig:
    """Both ways to prove a push, since senders differ in which of the two headers they send."""
    return TaskPushNotificationConfig(
        id=push.id,
        url=push.url,
        token=push.token,
        authentication=AuthenticationInfo(scheme="Bearer", credentials=push.token),
    )


def _same_task(task: AgentTask, asked: AgentTaskId) -> AgentTask:
    if task.id != asked:
        raise CallAmbiguous("the agent answered about another task than the one asked for")
    return task


def _request_id(body: bytes) -> str:
    request_id: str = json.loads(body)["id"]
    return request_id


def _explain(method: _Method, error: Exception, exchange: Exchange) -> AgentError:
    """For what neither we nor the network raised: a request that cannot be built, or an interruption."""
    detail = f"{method.name}: the call could not be made ({type(error).__name__})"
    if exchange.sent:
        return CallAmbiguous(detail)
    return AgentRefused(detail) if isinstance(error, ValueError | TypeError) else AgentUnreachable(detail)


async def _exhaust(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass
