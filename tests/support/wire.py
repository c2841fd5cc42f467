"""Minimal HTTP/1.1 for the scripted agent: a keep-alive server that can misbehave on purpose, and one POST.

Written by hand because the faults are the point (reset, half an answer, silence), and because the agent has to
cost far less than what is measured against it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from tests.support.identity_tls import common_name

_REASONS = {status.value: status.phrase for status in HTTPStatus}
_ESTABLISHED = 1  # TCP_INFO's first byte, on Linux
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER with zero seconds: the kernel answers with RST, not FIN


@dataclass(slots=True)
class Request:
    """One request; ``closed`` resolves when the client's connection is gone, ``was_left`` knows it even earlier."""

    method: str
    path: str
    query: str
    headers: dict[str, str]  #: names in lower case
    body: bytes
    connection: int
    closed: asyncio.Future[None]
    was_left: Callable[[], bool]  #: the client has closed its end, though the loop may not have come to it yet
    certificate: str = ""  #: the common name in the client's certificate, if it had to show one


@dataclass(slots=True)
class Response:
    """One answer, or the lack of one.

    ``end``: "reset" (RST without an answer), "close" (FIN without an answer), "hang" (nothing until the client goes).
    ``cut_after``: close after that many bytes of the body although the header promised all of them.
    ``drip_s``: send the body byte by byte, that many seconds apart.
    ``open_body``: the body comes by and by, chunked, instead of ``body``.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    end: str | None = None
    cut_after: int | None = None
    drip_s: float = 0.0
    open_body: OpenBody | None = None

    @classmethod
    def of_json(cls, value: Any, status: int = 200) -> Response:
        return cls(status=status, body=json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())


class OpenBody:
    """A chunked body: its owner writes and ends it, the connection says when it is open and when the client has gone.

    Ways to ``end``: "close" (the last chunk, and the connection goes on), "cut" (FIN without the last chunk),
    "reset" (RST), "half" (nothing is sent any more, not even an end; the connection stays until the client goes).
    """

    def __init__(self) -> None:
        self._connection: _Connection | None = None
        self._is_silent = False

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def write(self, data: bytes) -> None:
        """Send one chunk; nothing happens before the body is open and after its end."""
        if data and self._connection is not None and not self._is_silent:
            self._connection.write_chunk(data)

    def end(self, how: str = "close") -> bool:
        """Whether this ended it: false for one that is silent for good, is over, or was never open."""
        if self._connection is None or self._is_silent:
            return False
        if how == "half":
            self._is_silent = True
            return False
        connection, self._connection = self._connection, None
        connection.end_body(how)
        return True

    def attach(self, connection: _Connection) -> None:
        """The head of the answer has been sent."""
        self._connection = connection
        self.opened(connection.number)

    def detach(self) -> None:
        """The connection is gone."""
        if self._connection is not None:
            self._connection = None
            self.left()

    def opened(self, connection: int) -> None:
        """What to do once chunks can be written."""

    def left(self) -> None:
        """What to do when the client went away before the end."""


Answer = Response | Awaitable[Response]


class HttpServer:
    """Listens, and hands each request to ``handle``, which answers at once or later."""

    def __init__(self, handle: Callable[[Request], Answer]) -> None:
        self.handle = handle
        self.open: set[_Connection] = set()
        self.accepted = 0

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> tuple[asyncio.Server, int]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), host, port, backlog=1024, ssl=tls)
        return server, int(server.sockets[0].getsockname()[1])

    def open_numbers(self) -> list[int]:
        """The numbers of the connections that are open now."""
        return [connection.number for connection in self.open]


class _Connection(asyncio.Protocol):
    """One client connection: requests in order, the next one only after the answer to the last."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._is_answering = False
        self._closes_after_body = False
        self._running: asyncio.Task[None] | None = None
        self._open_body: OpenBody | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._certificate = common_name(transport.get_extra_info("peercert"))
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server.open.add(self)
        self._server.accepted += 1
        self.number = self._server.accepted

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self)
        if not self._closed.done():
            self._closed.set_result(None)
        self._lose_body()

    def eof_received(self) -> None:
        self._lose_body()  # at once, though the transport may have bytes left that nobody will read

    def _lose_body(self) -> None:
        body, self._open_body = self._open_body, None
        if body is not None:
            body.detach()

    def _was_left(self) -> bool:
        if self._transport.is_closing() or not hasattr(socket, "TCP_INFO"):
            return self._transport.is_closing()
        kernel: bytes = self._transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return kernel[0] != _ESTABLISHED

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def _advance(self) -> None:
        while not self._is_answering:
            request = self._take_request()
            if request is None:
                return
            answer = self._server.handle(request)
            if isinstance(answer, Response) and answer.drip_s == 0:
                self._write(answer, request)
            else:
                self._is_answering = True
                self._running = asyncio.get_running_loop().create_task(self._answer_later(answer, request))

    async def _answer_later(self, answer: Answer, request: Request) -> None:
        response = answer if isinstance(answer, Response) else await answer
        if self._transport.is_closing():
            return
        if response.drip_s:
            await self._drip(response)
        else:
            self._write(response, request)
        self._is_answering = response.end == "hang" or self._open_body is not None
        self._advance()

    # -------------------------------------------------------- a body that stays open

    def write_chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end_body(self, how: str) -> None:
        self._open_body = None
        if how == "reset":
            self._reset()
        elif how == "cut":
            self._transport.close()
        else:
            self._transport.write(b"0\r\n\r\n")
            self._is_answering = False
            if self._closes_after_body:
                self._transport.close()
            else:
                asyncio.get_running_loop().call_soon(self._advance)

    def _begin_body(self, response: Response, body: OpenBody, request: Request) -> None:
        self._is_answering = True
        self._closes_after_body = _wants_close(request.headers)
        self._open_body = body
        self._transport.write(_head(response))
        body.attach(self)

    def _reset(self) -> None:
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._transport.abort()

    # -------------------------------------------------------- single requests and answers

    def _take_request(self) -> Request | None:
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        lines = self._buffer[:head_end].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body_start = head_end + 4
        body_end = body_start + int(headers.get("content-length", 0))
        if len(self._buffer) < body_end:
            return None
        body = bytes(self._buffer[body_start:body_end])
        del self._buffer[:body_end]
        method, target, _ = lines[0].split(" ", 2)
        path, _, query = target.partition("?")
        facts = (self.number, self._closed, self._was_left, self._certificate)
        return Request(method, path, query, headers, body, *facts)

    def _write(self, response: Response, request: Request) -> None:
        if response.end == "hang":
            self._is_answering = True
            return
        if response.end == "reset":
            self._reset()
            return
        if response.end == "close":
            self._transport.close()
            return
        if response.open_body is not None:
            self._begin_body(response, response.open_body, request)
            return
        body = response.body if response.cut_after is None else response.body[: response.cut_after]
        self._transport.write(_head(response) + body)
        if response.cut_after is not None or _wants_close(response.headers) or _wants_close(request.headers):
            self._transport.close()

    async def _drip(self, response: Response) -> None:
        self._transport.write(_head(response))
        for byte in response.body:
            if self._transport.is_closing():
                return
            self._transport.write(bytes([byte]))
            await asyncio.sleep(response.drip_s)


def _head(response: Response) -> bytes:
    lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Unknown')}"]
    named = {name.lower() for name in response.headers}
    if "content-type" not in named and (response.body or response.open_body):
        lines.append(f"Content-Type: {'text/event-stream' if response.open_body else 'application/json'}")
    if response.open_body is not None:
        lines.append("Transfer-Encoding: chunked")
    elif "content-length" not in named:
        lines.append(f"Content-Length: {len(response.body)}")
    lines += [f"{name}: {value}" for name, value in response.headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _wants_close(headers: Mapping[str, str]) -> bool:
    return any(name.lower() == "connection" and value.lower() == "close" for name, value in headers.items())


async def post(url: str, headers: Mapping[str, str], body: bytes, deadline_s: float = 10.0) -> int:
    """POST once on a connection of its own and return the status; never repeated, so one call is one delivery.

    Raises OSError or TimeoutError (which is one) when no status came.
    """
    async with asyncio.timeout(deadline_s):
        return await _post(url, headers, body)


async def _post(url: str, headers: Mapping[str, str], body: bytes) -> int:
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"POST {target} HTTP/1.1", f"Host: {parts.netloc}", f"Content-Length: {len(body)}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port or 80)
    try:
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
        status_line = await reader.readline()
        if not status_line.startswith(b"HTTP/"):
            raise ConnectionError("the receiver closed the connection without an answer")
        await reader.read()
        return int(status_line.split()[1])
    finally:
        writer.close()
