"""Scripted peers of the toolnexus dialect, in socket threads: the fixtures P1 and P2 of the tools face.

P1 is called `Demo Bot`; the text of a message chooses what its task comes to, after one answer of "working". P2 is
called `reviewer`: "fail" fails, "slow" works for ever, anything else is completed at the second GetTask.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from tests.support.raw_server import Behaviour, RawServer, Seen, answers, http, refuses

CARD_PATH = "/.well-known/agent-card.json"
#: One answer of a script: a task, or whatever a raw server can do.
Step = Mapping[str, Any] | Behaviour
#: Of the text of a message: the answer to it, and those to each GetTask; the last one for ever.
Script = Callable[[str], Sequence[Step]]
_P1_KINDS = ("multi", "history", "failed", "fail", "cancel", "hang", "slow", "rpc", "http", "data", "ask")


class ToolPeer:
    """``with ToolPeer(card, script) as peer``. What it was asked is in ``requests``; ``card`` may be changed."""

    def __init__(self, card: Mapping[str, Any] | Behaviour, script: Script) -> None:
        self.card = card
        self._script = script
        self._scripts: dict[str, Sequence[Step]] = {}
        self._asked: dict[str, int] = {}
        self.server = RawServer(self._answer)

    def __enter__(self) -> Self:
        self.server.__enter__()
        if not callable(self.card) and self.card.get("url") == "":
            self.card = {**self.card, "url": f"{self.server.url}/"}
        return self

    def __exit__(self, *why: object) -> None:
        self.server.__exit__(*why)

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def card_url(self) -> str:
        return f"{self.server.url}{CARD_PATH}"

    @property
    def card_requests(self) -> list[Seen]:
        return [seen for seen in self.server.seen if seen.line.startswith("GET ")]

    @property
    def posts(self) -> list[Seen]:
        return [seen for seen in self.server.seen if seen.line.startswith("POST ")]

    def calls(self, method: str) -> list[Seen]:
        return [seen for seen in self.posts if seen.rpc["method"] == method]

    def _answer(self, seen: Seen, connection: socket.socket) -> bool:
        if seen.line.startswith("GET "):
            return self._show_card(seen, connection)
        request = seen.rpc
        if request["method"] == "SendMessage":
            return self._begin(request["params"]["message"]["parts"][0]["text"])(seen, connection)
        if request["method"] == "GetTask":
            return self._go_on(request["params"]["id"])(seen, connection)
        return refuses(-32601, f"Method not found: {request['method']}")(seen, connection)

    def _show_card(self, seen: Seen, connection: socket.socket) -> bool:
        if seen.line.split()[1] != CARD_PATH:
            connection.sendall(http(404, b"no card here"))
            return True
        if callable(self.card):
            return self.card(seen, connection)
        connection.sendall(http(200, json.dumps(self.card).encode()))
        return True

    def _begin(self, text: str) -> Behaviour:
        steps = self._script(text)
        first = steps[0]
        task_id = next((step["id"] for step in steps if not callable(step) and "id" in step), "")
        self._scripts[task_id], self._asked[task_id] = steps, 0
        return _play(first)

    def _go_on(self, task_id: str) -> Behaviour:
        if task_id not in self._scripts:
            return refuses(-32001, f"Task not found: {task_id}")
        self._asked[task_id] += 1
        steps = self._scripts[task_id]
        return _play(steps[min(self._asked[task_id], len(steps) - 1)])


def p1() -> ToolPeer:
    skills = [{"id": "echo", "description": "Echoes what it is told"}, {"name": "Slow Work"}, {"id": "fail.now"}]
    return ToolPeer(make_card("Demo Bot", skills), p1_script)


def p2() -> ToolPeer:
    skills = [{"id": name, "name": name, "description": f"To {name}"} for name in ("review", "plan", "fail")]
    return ToolPeer(make_card("reviewer", skills), p2_script)


def make_card(name: str | None, skills: Any, **members: Any) -> dict[str, Any]:
    """As toolnexus serves it; an empty ``url`` becomes the peer's own."""
    card = {
        "name": name,
        "description": "",
        "version": "0.1.0",
        "protocolVersion": "0.3.0",
        "url": "",
        "capabilities": {"streaming": False, "pushNotifications": False},
        "defaultInputModes": ["text"],
        "defaultOutputModes": ["text"],
        "skills": skills,
        **members,
    }
    return {key: value for key, value in card.items() if value is not None}


def p1_script(text: str) -> list[Step]:
    kind = next((kind for kind in _P1_KINDS if text.startswith(kind)), "echo")
    return [task(kind, "submitted"), task(kind, "working"), P1_ENDS[kind]]


def p2_script(text: str) -> list[Step]:
    begin = [task("review", "submitted"), task("review", "working")]
    if "fail" in text:
        return [*begin, task("review", "failed", says="boom")]
    return begin if "slow" in text else [*begin, task("review", "completed", artifacts=[["REVIEWED"]])]


def task(
    kind: str,
    state: str | None,
    *,
    says: str | Sequence[str] = (),
    artifacts: Sequence[Sequence[str | dict[str, Any]]] = (),
    history: Sequence[tuple[str, str]] = (),
) -> dict[str, Any]:
    """A task as toolnexus tells of it: ``artifacts`` are lists of texts (or whole parts), ``history`` (role, text)."""
    said = [says] if isinstance(says, str) else says
    status: dict[str, Any] = {"state": state} if state is not None else {}
    if said:
        status["message"] = {"role": "agent", "parts": [text_part(text) for text in said]}
    found: dict[str, Any] = {"id": f"task-{kind}", "status": status}
    if artifacts:
        found["artifacts"] = [
            {"artifactId": str(number), "parts": [text_part(part) if isinstance(part, str) else part for part in parts]}
            for number, parts in enumerate(artifacts)
        ]
    if history:
        found["history"] = [
            {"role": role, "messageId": str(number), "parts": [text_part(text)] if text else []}
            for number, (role, text) in enumerate(history)
        ]
    return found


def text_part(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}


def _play(step: Step) -> Behaviour:
    return step if callable(step) else answers(dict(step))


P1_ENDS: dict[str, Step] = {
    "echo": task("echo", "completed", artifacts=[["line one", {"kind": "data", "data": {"x": 1}}, "line two"]]),
    "multi": task("multi", "completed", artifacts=[["part one"], ["part two"]]),
    "history": task(
        "history", "completed", history=[("agent", "first reply"), ("user", "and?"), ("agent", "final reply")]
    ),
    "fail": task("fail", "failed", says="boom"),
    "failed": task("failed", "failed"),
    "cancel": task("cancel", "canceled"),
    "hang": task("hang", "working"),
    "slow": task("slow", "working"),
    "data": task("data", "completed", artifacts=[[{"kind": "data", "data": 1}]]),
    "ask": task("ask", "input-required", says="which one?"),
    "rpc": refuses(-32000, "agent exploded"),
    "http": lambda _seen, connection: bool(connection.sendall(http(503, b"busy"))) or True,
}
