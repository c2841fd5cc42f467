"""The scripted agent's streams that a test has written down: event by event, or as raw bytes, with any kind of end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

from tests.support.streams import Event, EventStream, Streams

ENDS = ("close", "cut", "reset", "half")
_HOLD = re.compile(r"hold(?: (?P<for_s>\d+(?:\.\d+)?) ?s)?(?:,.*)?")


def is_an_end(end: str) -> bool:
    return end in ENDS or _HOLD.fullmatch(end) is not None


class PlayedStream(EventStream):
    """Plays a list of events (rules.py says what can be in it), then ends.

    ``happened`` hears of each event, also after the client has gone: who hangs up does not stop the agent's work.
    """

    def __init__(
        self,
        streams: Streams,
        events: Sequence[Event],
        *,
        end: str = "close",
        happened: Callable[[Event], None] | None = None,
        **facts: Any,
    ) -> None:
        super().__init__(streams, **facts)
        self._events = events
        self._end = end
        self._happened = happened
        self._playing: asyncio.Task[None] | None = None

    def begin(self) -> None:
        self._playing = asyncio.get_running_loop().create_task(self._play())

    async def _play(self) -> None:
        for event in self._events:
            if "delay_s" in event:
                await asyncio.sleep(float(event["delay_s"]))
            elif "raw" in event:
                await self._repeat(str(event["raw"]).encode(), float(event.get("every_s", 0)), event.get("for_s", 0))
            elif "error" in event:
                self.send_error(event["error"])
            elif "note" not in event:
                self.send(event)
                if self._happened is not None:
                    self._happened(event)
        await self._come_to_its_end()

    async def _repeat(self, data: bytes, every_s: float, for_s: float) -> None:
        self.send_raw(data)
        stop_at = asyncio.get_running_loop().time() + float(for_s)
        while every_s > 0 and asyncio.get_running_loop().time() + every_s <= stop_at:
            await asyncio.sleep(every_s)
            self.send_raw(data)

    async def _come_to_its_end(self) -> None:
        hold = _HOLD.fullmatch(self._end)
        if hold is None:
            self.finish(self._end, why="end" if self._end == "close" else "cut")
        elif hold["for_s"] is not None:
            await asyncio.sleep(float(hold["for_s"]))
            self.finish()
