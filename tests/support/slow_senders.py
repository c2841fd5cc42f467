"""Many clients that never finish what they send: a byte now and then, in the header or in the body."""

from __future__ import annotations

import contextlib
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass
from typing import Self

HALF_HEADER = "half a header"
HALF_BODY = "half a body"
#: More than a proxy's buffer holds unless it is told to: it would begin to hand on what has not come in whole.
LARGE_HALF_BODY = "two thirds of a large body"
SILENT_BODY = "half a body, then nothing"


@dataclass
class SlowSender:
    kind: str
    connection: socket.socket
    began: float
    cut_after_s: float | None = None


class SlowSenders:
    """``with SlowSenders(port, {HALF_HEADER: 150, HALF_BODY: 150}) as slow: …``; one thread drips for all of them."""

    def __init__(self, port: int, counts: dict[str, int], *, every_s: float = 0.5) -> None:
        self._port = port
        self._counts = counts
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._drip)
        self.senders: list[SlowSender] = []

    def __enter__(self) -> Self:
        self.senders = [self._open(kind) for kind, count in self._counts.items() for _ in range(count)]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for sender in self.senders:
            sender.connection.close()

    def still_open(self, *kinds: str) -> list[SlowSender]:
        return [each for each in self.senders if each.cut_after_s is None and each.kind in (kinds or self._counts)]

    def _open(self, kind: str) -> SlowSender:
        connection = socket.create_connection(("127.0.0.1", self._port), timeout=10)
        head = f"POST /a2a/push/{secrets.token_hex(16)}.1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n"
        rest = "X-Slow: " if kind == HALF_HEADER else "Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n{"
        connection.sendall((head + rest).encode() + (b"x" * 40_000 if kind == LARGE_HALF_BODY else b""))
        connection.setblocking(False)
        return SlowSender(kind, connection, time.monotonic())

    def _drip(self) -> None:
        with selectors.DefaultSelector() as selector:
            for sender in self.senders:
                selector.register(sender.connection, selectors.EVENT_READ, sender)
            while not self._stopped.is_set():
                for key, _ in selector.select(timeout=self._every_s) if selector.get_map() else ():
                    if _has_ended(key.data):
                        selector.unregister(key.data.connection)
                if self._stopped.wait(self._every_s):
                    return
                for sender in self.still_open(HALF_HEADER, HALF_BODY, LARGE_HALF_BODY):
                    with contextlib.suppress(OSError):
                        sender.connection.send(b"x")


def _has_ended(sender: SlowSender) -> bool:
    """An answer is not the end yet: the connection has to be closed as well."""
    try:
        ended = not sender.connection.recv(65_536)
    except BlockingIOError:
        return False
    except OSError:
        ended = True
    if ended:
        sender.cut_after_s = time.monotonic() - sender.began
    return ended
