"""What the Python peers share: how a goal is read, the log of requests, the hold. Nothing but the standard library."""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
from collections import defaultdict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

HOST = "127.0.0.1"
LINK = "https://files.example.com/report.pdf"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Any, Any, Any], Awaitable[None]]


def read_options(name: str, *flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m tests.peers.{name}")
    parser.add_argument("--port", type=int, default=0)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    return parser.parse_args()


@dataclass
class Talk:
    """What is left to do for one task, and what was answered so far."""

    steps: list[tuple[str, str]]
    answers: list[str] = field(default_factory=list)
    is_deaf: bool = False

    @classmethod
    def of(cls, goal: str) -> Talk:
        steps = (step.strip().partition(" ") for step in goal.split(";"))
        return cls([(verb, text) for verb, _, text in steps])

    def next_step(self) -> tuple[str, str] | None:
        return self.steps.pop(0) if self.steps else None

    @property
    def summary(self) -> str:
        return " and ".join(self.answers)


def made_parts(text: str) -> list[dict[str, Any]]:
    """One part of each kind, as A2A's JSON has them."""
    raw = base64.b64encode(text.encode()).decode()
    return [
        {"text": text},
        {"data": {"made": text}, "mediaType": "application/json"},
        {"raw": raw, "filename": "../report.txt", "mediaType": "text/plain"},
        {"url": LINK, "filename": "report.pdf", "mediaType": "application/pdf"},
    ]


class Stage:
    """An ASGI app around the agent's own: a log of its requests, and the hand that lets it go on."""

    def __init__(self) -> None:
        self.app: App | None = None
        self._seen: list[dict[str, Any]] = []
        self._gates: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def hold(self, context_id: str) -> None:
        gate = self._gates[context_id]
        await gate.wait()
        gate.clear()

    def go_on(self, context_id: str) -> None:
        self._gates[context_id].set()

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        assert self.app is not None
        if scope["type"] == "http" and scope["path"].startswith("/_"):
            await self._control(scope["path"], send)
        elif scope["type"] == "http":
            await self._record(self.app, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _control(self, path: str, send: Send) -> None:
        if path.startswith("/_go/"):
            self.go_on(path.removeprefix("/_go/"))
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(self._seen).encode()})

    async def _record(self, app: App, scope: Any, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        entry: dict[str, Any] = {"method": scope["method"], "path": scope["path"], "headers": headers}
        entry |= {"body": "", "status": None, "stream": False, "ended": None}
        self._seen.append(entry)
        is_whole = False

        async def receive_and_keep() -> Message:
            message = await receive()
            entry["body"] += message.get("body", b"").decode()
            return message

        async def send_and_keep(message: Message) -> None:
            nonlocal is_whole
            if message["type"] == "http.response.start":
                entry["status"] = message["status"]
                entry["stream"] = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body", False)

        try:
            await app(scope, receive_and_keep, send_and_keep)
        finally:
            entry["ended"] = "agent" if is_whole else "client"
