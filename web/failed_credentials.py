"""Counts failed credentials by source, a minute at a time, so that less can be done for the next of a noisy one.

Own code: the memory storage of the `limits` library keeps every source of a moving window for good, and scans them all
in a thread of its own.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Network, ip_address

import structlog

log = structlog.get_logger(__name__)

WINDOW_S = 60.0
#: As many are told apart in a minute; a flood from more counts the rest as one, which limits nobody's right credential.
MOST_SOURCES = 1024
REST = "others"
UNKNOWN = "unknown"


class FailedCredentials:
    """Of one web process, for the current minute."""

    def __init__(self, most_per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most_per_minute
        self._clock = clock
        self._lock = threading.Lock()
        self._window = 0
        self._counts: Counter[str] = Counter()

    def is_over(self, source: str) -> bool:
        """Whether this source has used up its failures for this minute."""
        with self._lock:
            return self._counts[self._counted_as(source)] >= self._most

    def count(self, source: str) -> None:
        """One more; the first one too many of a minute is a warning."""
        with self._lock:
            counted_as = self._counted_as(source)
            self._counts[counted_as] += 1
            failures = self._counts[counted_as]
        if failures == self._most + 1:
            log.warning("push.credentials_failing", source=counted_as, failures=failures)

    def _counted_as(self, source: str) -> str:
        window = int(self._clock() // WINDOW_S)
        if window != self._window:
            self._window = window
            self._counts.clear()
        return source if source in self._counts or len(self._counts) < MOST_SOURCES else REST


def source_of(address: str | None) -> str:
    """Who is counted together: an IPv4 address, or an IPv6 network of 64 bits, which is what one customer gets."""
    try:
        parsed = ip_address(address or "")
    except ValueError:  # a socket without an address, or a proxy that forwards something else
        return UNKNOWN
    if isinstance(parsed, IPv4Address):
        return str(parsed)
    return str(parsed.ipv4_mapped or IPv6Network((int(parsed), 64), strict=False))
