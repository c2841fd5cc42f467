"""The scripted agent's answers that stay open: Server-Sent Events in JSON-RPC envelopes, counted, cut, disturbed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from tests.support.ledger import Ledger
from tests.support.wire import OpenBody

Event = dict[str, Any]  #: a StreamResponse: {"task" | "statusUpdate" | "artifactUpdate" | "message": …}
_PING = b": ping\r\n\r\n"


class Streams:
    """The streams of one scripted agent: which are open, how many there were, how many at once."""

    def __init__(self, ledger: Ledger) -> None:
        self.opened = 0
        self.most = 0
        self._open: dict[EventStream, None] = {}  # in the order they were opened
        self._ledger = ledger

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[EventStream]:
        return iter(list(self._open))

    def of(self, task_id: str = "") -> list[EventStream]:
        """The open streams of one task, or all."""
        return [stream for stream in self if task_id in ("", stream.task_id)]

    def add(self, stream: EventStream) -> None:
        self._open[stream] = None
        self.opened += 1
        self.most = max(self.most, len(self._open))
        self._ledger.add("stream_opened", **stream.facts())

    def remove(self, stream: EventStream, why: str) -> None:
        del self._open[stream]
        self._ledger.add("stream_closed", **stream.facts(), why=why)


class EventStream(OpenBody):
    """One answer of text/event-stream; what comes in it is up to the subclass's ``begin``.

    ``why`` it closed is in the ledger: "end" (it was at its end), "client" (who went away), "cut" (on purpose).
    """

    def __init__(self, streams: Streams, *, method: str, rpc_id: Any, task_id: str, keepalive_s: float = 0.0) -> None:
        super().__init__()
        self.method = method
        self.task_id = task_id
        self._streams = streams
        self._rpc_id = rpc_id
        self._keepalive_s = keepalive_s
        self._number = 0

    def begin(self) -> None:
        """The client has the head of the answer and waits for events."""

    def closed(self) -> None:
        """It is over, for whichever reason."""

    def facts(self) -> dict[str, Any]:
        return {"method": self.method, "task_id": self.task_id, "connection": self._number}

    # -------------------------------------------------------- say

    def send(self, event: Event) -> None:
        self._send_envelope({"result": event})

    def send_error(self, error: dict[str, Any]) -> None:
        """A JSON-RPC error in the middle of the stream, under SSE's event name "error" as a2a-sdk sends it."""
        self._send_envelope({"error": error}, head="event: error\r\n")

    def send_raw(self, data: bytes) -> None:
        self.write(data)

    def finish(self, how: str = "close", why: str = "end") -> None:
        """End it in one of OpenBody's ways; after "half" it still counts as open until the client goes."""
        if self.end(how):
            self._is_over(why)

    def _send_envelope(self, outcome: dict[str, Any], head: str = "") -> None:
        # Characters beyond ASCII as they are: U+2028 and the like must not end a line for a reader of SSE.
        envelope = {"jsonrpc": "2.0", "id": self._rpc_id, **outcome}
        text = json.dumps(envelope, ensure_ascii=False, separators=(",", ":"))
        self.write(f"{head}data: {text}\r\n\r\n".encode())

    # -------------------------------------------------------- its life

    def opened(self, connection: int) -> None:
        self._number = connection
        self._streams.add(self)
        self._ping_later()
        self.begin()

    def left(self) -> None:
        self._is_over("client")

    def _is_over(self, why: str) -> None:
        self._streams.remove(self, why)
        self.closed()

    def _ping_later(self) -> None:
        if self._keepalive_s > 0:
            asyncio.get_running_loop().call_later(self._keepalive_s, self._ping)

    def _ping(self) -> None:
        if self.is_open:
            self.write(_PING)
            self._ping_later()
