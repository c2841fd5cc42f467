"""A light load generator: one thread, raw sockets kept alive, requests built beforehand, answers read and counted."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

CONNECTIONS = 16
PATIENCE_S = 60.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def post(path: str, headers: Mapping[str, str], body: bytes) -> bytes:
    """One request as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


def send_all(port: int, requests: Sequence[bytes]) -> tuple[float, Counter[int]]:
    """Seconds and statuses of all requests, over connections that each send the next one when they have an answer.

    Raises TimeoutError, or ConnectionError when the server closes a connection.
    """
    waiting = iter(requests)
    statuses: Counter[int] = Counter()
    give_up_at = time.monotonic() + PATIENCE_S
    with selectors.DefaultSelector() as selector:
        connections = [_Connection(port) for _ in range(min(CONNECTIONS, len(requests)))]
        try:
            began = time.monotonic()
            for connection in connections:
                selector.register(connection.socket, selectors.EVENT_READ, connection)
                connection.send_next(waiting)
            while statuses.total() < len(requests):
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"{statuses.total()} of {len(requests)} answers within {PATIENCE_S:.0f} s")
                for key, _ in selector.select(timeout=1.0):
                    status = key.data.take_answer()
                    if status:
                        statuses[status] += 1
                        key.data.send_next(waiting)
            return time.monotonic() - began, statuses
        finally:
            for connection in connections:
                connection.socket.close()


class _Connection:
    """One request at a time; requests are far smaller than a socket's buffer, so sending never has to wait."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._received = b""

    def send_next(self, waiting: Iterator[bytes]) -> None:
        request = next(waiting, None)
        if request is not None:
            self.socket.sendall(request)

    def take_answer(self) -> int | None:
        """The status, once the whole answer is here."""
        piece = self.socket.recv(65_536)
        if not piece:
            raise ConnectionError("the server closed a connection that was to be kept")
        self._received += piece
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if not separator:
            return None
        length = _LENGTH.search(head)
        if length is not None and len(body) < int(length[1]):
            return None
        self._received = b""
        return int(head[9:12])
