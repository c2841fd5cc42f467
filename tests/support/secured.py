"""Ways to an agent that wants credentials, as the roster opens them; and what such an agent, or a proxy, does."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlsplit

from delegation.access import AgentAccess
from delegation.agent_task import AgentTask, AgentTaskId, ContextId
from delegation.card_fetch import ask_for_card
from delegation.cards import CheckedCard, Interface
from delegation.client import AgentClient
from delegation.security import choose_credentials
from delegation.settings import AgentSettings, LimitSettings
from tests.support.clients import DEADLINE_S, message
from tests.support.raw_server import Behaviour, Seen, http, says

TASK = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
T1 = AgentTaskId("t1")
CARD = {"name": "n", "description": "d", "version": "1"}
_RESULTS: dict[str, Any] = {
    "SendMessage": {"task": TASK},
    "SendStreamingMessage": {"task": TASK},
    "GetTask": TASK,
    "CancelTask": TASK,
    "ListTasks": {"tasks": []},
}


class Way:
    """``with Way(url, auth=[…]) as way``: `way.client` for calls, `way.card()` for the card; further ``settings`` are
    those of ``[[agents]]``."""

    def __init__(
        self,
        url: str,
        *,
        binding: str = "JSONRPC",
        interface: str = "",
        auth: Sequence[Mapping[str, Any]] = (),
        card: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        self.agent = AgentSettings.model_validate(
            {"id": "agent", "url": url, "auth": list(auth), "allow_http": True, **settings}
        )
        self.access = AgentAccess(self.agent)
        uses = choose_credentials(card or {}, self.agent.auth)
        checked = CheckedCard(
            **CARD,
            interface=Interface(url=interface or f"{url}/rpc", binding=binding, protocol_version="1.0"),
            can_push=True,
            can_stream=True,
            credentials=uses,
        )
        self.client = AgentClient(
            self.agent,
            checked,
            "us",
            transport=self.access.calls,
            limits=LimitSettings(answer_bytes=100_000, event_bytes=50_000),
            credentials=self.access.credentials(uses),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.access.close()

    def card(self) -> Any:
        found = ask_for_card(self.agent, self.access.cards, participant_id="us", max_bytes=100_000)
        return found.card

    def get(self, deadline_s: float = DEADLINE_S) -> AgentTask:
        return self.client.get_task(T1, deadline_s=deadline_s)


def every_call(client: AgentClient) -> dict[str, Callable[[], object]]:
    """Each call that leaves by the client itself; a subscription leaves by the follower."""
    return {
        "SendStreamingMessage": lambda: client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S),
        "SendMessage": lambda: client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S),
        "GetTask": lambda: client.get_task(T1, deadline_s=DEADLINE_S),
        "ListTasks": lambda: client.find_task(ContextId("c1"), "m1", deadline_s=DEADLINE_S),
        "CancelTask": lambda: client.cancel_task(T1, deadline_s=DEADLINE_S),
        "DeleteTaskPushNotificationConfig": lambda: client.delete_push_config(T1, "p1", deadline_s=DEADLINE_S),
        "GetExtendedAgentCard": lambda: client.extended_card(deadline_s=DEADLINE_S, max_bytes=1_000_000),
    }


def works(seen: Seen, connection: socket.socket) -> bool:
    """An agent at work, in both bindings, that sets a cookie with every answer; its card is one word."""
    body: Any = {"card": "yes"}
    if seen.line.startswith("POST") and b'"jsonrpc"' in seen.body:
        body = {"jsonrpc": "2.0", "id": seen.rpc["id"], "result": _RESULTS.get(seen.rpc["method"], {})}
    elif "agent-card" not in seen.line:
        body = _http_json(seen.line)
    connection.sendall(http(200, json.dumps(body).encode(), {"Set-Cookie": "theirs=1; Path=/"}))
    return True


def _http_json(line: str) -> Any:
    path = urlsplit(line.split(" ")[1]).path
    if "/message:" in path:
        return {"task": TASK}
    if path.endswith("/tasks"):
        return {"tasks": []}
    return TASK if "/tasks/" in path and "pushNotificationConfigs" not in path else {}


def wants(is_good: Callable[[Seen], bool], then: Behaviour = works) -> Behaviour:
    """401 for a request that is not good."""
    refuses = says(401, b"no", {"WWW-Authenticate": 'Bearer error="invalid_token"'})
    return lambda seen, connection: (then if is_good(seen) else refuses)(seen, connection)


def carries_bearer(*tokens: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.headers.get("authorization") in [f"Bearer {token}" for token in tokens]


# ------------------------------------------------------------------ a proxy


def forwards(seen: Seen, connection: socket.socket) -> bool:
    """What a forward proxy does (RFC 9110 sections 7.6 and 9.3.6), for servers on this machine alone."""
    method, target, _ = seen.line.split(" ")
    if method == "CONNECT":
        with _connect(target) as upstream:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            _splice(connection, upstream)
        return False
    parts = urlsplit(target)
    path = parts._replace(scheme="", netloc="").geturl() or "/"
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in seen.headers.items()), "", ""]
    with _connect(parts.netloc) as upstream:
        upstream.sendall("\r\n".join(lines).encode() + seen.body)
        return _pass_on_answer(upstream, connection)


def _connect(host_and_port: str) -> socket.socket:
    host, _, port = host_and_port.rpartition(":")
    assert host in ("127.0.0.1", "localhost"), host
    return socket.create_connection(("127.0.0.1", int(port)), timeout=30)


def _pass_on_answer(upstream: socket.socket, connection: socket.socket) -> bool:
    """To its declared end, or to the end of the connection."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        if not (data := upstream.recv(65_536)):
            return False
        answer += data
    connection.sendall(answer)
    head, _, body = answer.partition(b"\r\n\r\n")
    declared = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    left = int(declared[1]) - len(body) if declared else None
    while left is None or left > 0:
        if not (data := upstream.recv(65_536)):
            return False
        connection.sendall(data)
        left = None if left is None else left - len(data)
    return True


def _splice(one: socket.socket, other: socket.socket) -> None:
    back = threading.Thread(target=_pump, args=(other, one))
    back.start()
    _pump(one, other)
    back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            sink.sendall(data)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue
