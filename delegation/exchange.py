"""One HTTP exchange with an agent: what bounds it going in, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import httpcore
import httpx

#: Names and values as they go over the wire.
Headers = list[tuple[bytes, bytes]]
Present = Callable[[httpx.URL, Headers], tuple[httpx.URL, Headers]] | None


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and its answer: the limits going in, what happened coming out.

    ``stand_in`` is handed to the SDK in place of the answer: what the agent said is read from ``body`` by us,
    so the SDK need not parse it and cannot lose it. ``edit_body`` has the last word on the request's bytes.

    ``present`` puts our credentials into a request that may leave, last of all.

    An answer that is an event stream goes to ``on_event``, where there is one, event by event, until it says stop
    (True); any other answer is read into ``body`` all the same. Whoever is told may bring ``deadline_at`` forward.

    Once ``is_unwanted`` says True, no more is waited for, as if the deadline had come.
    """

    deadline_at: float  #: on the monotonic clock
    max_bytes: int  #: of the whole answer
    stand_in: bytes | None = None
    edit_body: Callable[[bytes], bytes] | None = None
    present: Present = field(default=None, repr=False)
    on_event: Callable[[bytes], bool] | None = None
    event_bytes: int = 0
    only_build: bool = False  #: build the request and open no socket
    is_unwanted: Callable[[], bool] | None = None
    may_move: bool = True  #: a redirect within the origin that keeps method and body is followed, once
    url: str = field(default="", repr=False)  #: with a key of ours in its query, perhaps
    request: httpcore.Request | None = field(default=None, repr=False)
    request_body: bytes = field(default=b"", repr=False)
    sent: int = 0  #: bytes of the request the socket has taken
    status: int = 0  #: 0: no answer yet
    headers: Mapping[str, str] = field(default_factory=dict)  #: of the answer, names in lower case
    body: bytes = b""
    is_stream: bool = False  #: the answer was an event stream
    was_cut: bool = False  #: it ended within an event

    def seconds_left(self) -> float:
        """Seconds until the deadline; raises once there are none, so every wait is bounded by it."""
        left = self.deadline_at - time.monotonic()
        if left <= 0 or (self.is_unwanted is not None and self.is_unwanted()):
            raise httpcore.ReadTimeout("deadline")
        return left


_exchange: ContextVar[Exchange] = ContextVar("_exchange")


def current() -> Exchange:
    """That of this thread."""
    return _exchange.get()


@contextmanager
def exchanging(exchange: Exchange) -> Iterator[Exchange]:
    """Every request of this thread within the block is `exchange`."""
    token = _exchange.set(exchange)
    try:
        yield exchange
    finally:
        _exchange.reset(token)
