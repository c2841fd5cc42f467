"""A TCP server, with TLS or without, that answers HTTP requests with whatever bytes a test wants, and counts them."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

#: Answers one request on a connection. False: close it.
Behaviour = Callable[["Seen", socket.socket], bool]


@dataclass(slots=True)
class Seen:
    """One request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def rpc(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.body)
        return value


@dataclass
class RawServer:
    """``with RawServer(behaviour) as server``; the behaviour can be changed at any time."""

    behaviour: Behaviour
    tls: ssl.SSLContext | None = None
    seen: list[Seen] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"{'https' if self.tls else 'http'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self.stopping = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._changed = threading.Condition()
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connection in self._sockets:
            try:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of the TCP beneath, where there is TLS
            except OSError:
                continue
        for thread in self._threads:
            thread.join()

    def wait_until_open(self, count: int, timeout_s: float = 5.0) -> bool:
        """Whether just `count` connections were open at some moment within the time."""
        with self._changed:
            return self._changed.wait_for(lambda: self.open == count, timeout_s)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(self._open(connection), self.connections))
            self._threads.append(thread)
            thread.start()

    def _open(self, connection: socket.socket) -> socket.socket:
        """With TLS the handshake is left to the connection's own thread: it comes with the first read."""
        if self.tls is not None:
            connection = self.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self._sockets.append(connection)
        return connection

    def _serve(self, connection: socket.socket, number: int) -> None:
        self._count(+1)
        try:
            with connection, connection.makefile("rb") as reader:
                while (request := _read(reader, number)) is not None:
                    self.seen.append(request)
                    if not self.behaviour(request, connection):
                        break
        except (OSError, ValueError):  # gone, or not HTTP at all
            pass
        finally:
            self._count(-1)  # closed by now: whoever waits for that may rely on it

    def _count(self, change: int) -> None:
        with self._changed:
            self.open += change
            self._changed.notify_all()


def _read(reader: Any, number: int) -> Seen | None:
    line = reader.readline().decode().strip()
    if not line:
        return None
    headers: dict[str, str] = {}
    while header := reader.readline().decode().strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    return Seen(line, headers, reader.read(int(headers.get("content-length", 0))), number)


def http(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A complete answer."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def says(status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Behaviour:
    """The same complete answer to every request."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.sendall(http(status, body, headers))
        return True

    return behave


def answers(result: Any, **envelope: Any) -> Behaviour:
    """A JSON-RPC answer with the request's id; `envelope` adds or replaces members (None removes one)."""

    def behave(request: Seen, connection: socket.socket) -> bool:
        members = {"jsonrpc": "2.0", "id": request.rpc["id"], "result": result, **envelope}
        body = json.dumps({name: value for name, value in members.items() if value is not None})
        connection.sendall(http(200, body.encode()))
        return True

    return behave


STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """A piece of a chunked body; an empty one ends it."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def tells(*results: Any, then: Behaviour | None = None, rpc: bool = True) -> Behaviour:
    """An event stream with one event for each of `results` (bytes as they are), then its end, or `then` in its place.

    In JSON-RPC, each in an envelope with the request's id.
    """

    def behave(request: Seen, connection: socket.socket) -> bool:
        connection.sendall(STREAM_HEAD)
        for result in results:
            event = result if isinstance(result, bytes) else _as_event(request, result, rpc)
            connection.sendall(chunk(event))
        if then is not None:
            return then(request, connection)
        connection.sendall(chunk(b""))
        return True

    return behave


def _as_event(request: Seen, result: Any, rpc: bool) -> bytes:
    body = {"jsonrpc": "2.0", "id": request.rpc["id"], "result": result} if rpc else result
    return b"data: " + json.dumps(body, ensure_ascii=False).encode() + b"\n\n"


def refuses(code: Any, message: str = "no", *, status: int = 200) -> Behaviour:
    """A JSON-RPC error."""

    def behave(request: Seen, connection: socket.socket) -> bool:
        body = {"jsonrpc": "2.0", "id": request.rpc["id"], "error": {"code": code, "message": message}}
        connection.sendall(http(status, json.dumps(body).encode()))
        return True

    return behave


def resets(after: bytes = b"") -> Behaviour:
    """Sends `after`, then an RST."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.sendall(after)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return False

    return behave


def closes(after: bytes = b"") -> Behaviour:
    """Sends `after`, then an orderly end."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.sendall(after)
        return False

    return behave


def hangs() -> Behaviour:
    """Not a byte until the client goes away."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.recv(1)
        return False

    return behave


def drips(server: Callable[[], RawServer], head: bytes, every_s: float) -> Behaviour:
    """Sends `head`, then a byte now and then until the client goes away."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.sendall(head)
        while not server().stopping.wait(every_s):
            connection.sendall(b" ")
        return False

    return behave
