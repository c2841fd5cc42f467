"""The way out for streams: one guarded connection per stream, in the follower's event loop.

The guards are those of ``delegation/outbound.py``: pinned origins, checked addresses, no redirects, no proxies but the
operator's, no compression. A stream has a connection of its own, not one of a pool: nothing is ever used twice, a pool
of thousands would look through all of them at each change, and closing one is closing its socket.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpcore
import httpx

from delegation.errors import AgentRefused, AgentUnreachable, CallAmbiguous
from delegation.events import PreparedRequest
from delegation.origins import Origin, origin_of, refused_address, resolve
from delegation.outbound import CONNECT_AT_MOST_S, Route, say
from workers.follow_flights import Flights

#: Streams of one agent that are being opened at the same time.
OPENING_AT_ONCE = 32
#: Of an answer that is no stream.
MOST_ERROR_BYTES = 65_536
#: One of its own, or a proxy's "pool" of one.
_Connection = httpcore.AsyncHTTPConnection | httpcore.AsyncHTTPProxy
#: A peer that is gone without a word is found by the idle limit; this one finds it where comments are sent by a proxy.
_KEEPALIVE = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]


class Silence(Exception):
    """Nothing came for too long on a stream that was open."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What the agent sends, its body not read yet."""

    status: int
    headers: Mapping[str, str]  #: names in lower case
    response: httpcore.Response

    @property
    def is_stream(self) -> bool:
        media_type = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        return self.status == 200 and media_type == "text/event-stream"

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, to the end. Raises Silence, CallAmbiguous. To be closed with ``aclosing``."""
        try:
            async with aclosing(_body(self.response)) as body:
                async for chunk in body:
                    yield chunk
        except httpcore.ReadTimeout:
            raise Silence from None
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise CallAmbiguous(f"the connection broke: {say(error)}") from error

    async def read(self, within_s: float) -> bytes:
        """The first bytes of a body that is no stream. Raises CallAmbiguous."""
        body = b""
        try:
            async with asyncio.timeout(within_s), aclosing(self.chunks()) as chunks:
                async for chunk in chunks:
                    body += chunk
                    if len(body) >= MOST_ERROR_BYTES:
                        break
        except (Silence, TimeoutError):
            raise CallAmbiguous("the answer did not come within the time allowed") from None
        return body[:MOST_ERROR_BYTES]


async def _body(response: httpcore.Response) -> AsyncGenerator[bytes, None]:
    async for chunk in response.aiter_stream():
        yield chunk


class Connections:
    """All connections of a follower to agents; each ends with its block. ``threads`` look up names."""

    def __init__(self, threads: Executor, *, answer_within_s: float, idle_s: float) -> None:
        self._answer_within_s = answer_within_s
        self._idle_s = idle_s
        self._backend = _CheckedBackend(threads)
        self._open: set[_Connection] = set()
        self._opening: dict[Origin, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(OPENING_AT_ONCE))

    @property
    def open(self) -> int:
        """Connections that are open or opening."""
        return len(self._open)

    @asynccontextmanager
    async def send(self, request: PreparedRequest, route: Route) -> AsyncIterator[Answer]:
        """Send the request and yield the answer. Raises AgentRefused, AgentUnreachable, CallAmbiguous."""
        url = httpx.URL(request.url)
        origin = origin_of(url)
        if origin not in route.origins:
            raise AgentRefused(f"not an allowed origin of this agent: {origin}"[:200])
        async with self._connection(url, route) as connection:
            timeouts = {"connect": CONNECT_AT_MOST_S, "read": self._answer_within_s, "write": self._answer_within_s}
            async with self._opening[origin]:
                answer = await self._ask(connection, _build(request, url, timeouts))
            # httpcore reads it anew for the body, which may be quiet for longer than an answer may take.
            timeouts["read"] = self._idle_s
            yield answer

    async def _ask(self, connection: _Connection, request: httpcore.Request) -> Answer:
        """In all, for headers may drip, and what is no answer yet (HTTP's 1xx) may come for ever."""
        try:
            async with asyncio.timeout(CONNECT_AT_MOST_S + self._answer_within_s):
                return await _ask(connection, request)
        except TimeoutError:
            raise CallAmbiguous("no answer within the time allowed") from None

    @asynccontextmanager
    async def _connection(self, url: httpx.URL, route: Route) -> AsyncIterator[_Connection]:
        options: dict[str, Any] = {
            "ssl_context": route.tls,
            "network_backend": self._backend,
            "socket_options": _KEEPALIVE,
        }
        connection: _Connection
        if route.proxy is not None:
            connection = httpcore.AsyncHTTPProxy(route.proxy, max_connections=1, **options)
        else:
            connection = httpcore.AsyncHTTPConnection(_target(url).origin, **options)
        self._open.add(connection)
        try:
            yield connection
        finally:
            try:
                await connection.aclose()
            finally:
                self._open.discard(connection)


def _build(request: PreparedRequest, url: httpx.URL, timeouts: dict[str, float]) -> httpcore.Request:
    extensions: dict[str, Any] = {"timeout": timeouts}
    return httpcore.Request(
        request.method, _target(url), headers=request.headers, content=request.content, extensions=extensions
    )


def _target(url: httpx.URL) -> httpcore.URL:
    return httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


async def _ask(connection: _Connection, request: httpcore.Request) -> Answer:
    try:
        response = await connection.handle_async_request(request)
    except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.ProxyError) as error:
        raise AgentUnreachable(f"no connection: {say(error)}") from error
    except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
        raise CallAmbiguous(f"no answer: {say(error)}") from error
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise CallAmbiguous("the answer is compressed though identity was asked for")
    return Answer(status=response.status, headers=headers, response=response)


class _CheckedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections to addresses that were checked, and only to those."""

    def __init__(self, threads: Executor) -> None:
        self._look_ups: Flights[tuple[str, int], list[str]] = Flights(threads)
        self._sockets = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  httpcore's signature
        local_address: str | None = None,  # noqa: ARG002  httpcore's signature
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        until = time.monotonic() + (timeout or CONNECT_AT_MOST_S)
        addresses = await self._addresses(host, port, until - time.monotonic())
        error: Exception = httpcore.ConnectError("no address")
        for position, address in enumerate(addresses):
            if (refusal := refused_address(address)) is not None:
                error = httpcore.ConnectError(refusal)
                continue
            # A dead first address must leave time for the others.
            patience = max(0.001, (until - time.monotonic()) / (len(addresses) - position))
            try:
                return await self._sockets.connect_tcp(address, port, patience, None, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as failure:
                error = failure
        raise error

    async def _addresses(self, host: str, port: int, patience_s: float) -> list[str]:
        try:
            return await self._look_ups.ask((host, port), functools.partial(resolve, host, port, patience_s))
        except TimeoutError:
            raise httpcore.ConnectTimeout("resolve") from None
        except (OSError, UnicodeError) as failure:
            raise httpcore.ConnectError(f"resolve: {type(failure).__name__}") from failure
