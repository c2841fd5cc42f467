"""The guarded way out: one HTTP exchange with one agent, within its origins, a byte cap and a deadline.

The SDK's client is async. Nothing in a call has to suspend if the I/O beneath is synchronous, so
:class:`GuardedTransport` does it over httpcore's synchronous pool and :func:`drive` runs a coroutine in one step.
No event loop, nothing to fork, no cancellation that could leak a connection.

Only this module opens sockets to agents. It raises our errors alone, by what is certain: nothing was sent
(`AgentUnreachable`), we refused to send (`AgentRefused`), or it may have happened (`CallAmbiguous`).
"""

from __future__ import annotations

import functools
import io
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import httpcore
import httpx

from delegation.answers import one_line
from delegation.errors import AgentRefused, AgentUnreachable, AnswerTooLarge, CallAmbiguous
from delegation.events import EventSplitter
from delegation.origins import Origin, origin_of, read_origin, refused_address, resolve

#: A black-holed address must not hold a worker for the whole call.
CONNECT_AT_MOST_S = 10.0
#: Twice the threads of a recommended worker: the pool is never what a call waits for.
MAX_CONNECTIONS = 64
#: Below the 5 s after which uvicorn and node close an idle connection, so that we rarely write to a closing one.
KEEPALIVE_S = 4.0
_OURS = frozenset({b"accept-encoding", b"cookie", b"content-length", b"transfer-encoding"})
#: How often a wait is interrupted to see whether the answer is still wanted.
GLANCE_S = 0.02
#: Redirects that keep method and body (RFC 9110 sections 15.4.8 and 15.4.9).
_MOVED = (307, 308)

T = TypeVar("T")
#: Names and values as they go over the wire.
Headers = list[tuple[bytes, bytes]]
Present = Callable[[httpx.URL, Headers], tuple[httpx.URL, Headers]] | None


class Presenter(Protocol):
    """Where credentials come from (see credentials.py); ``until`` is on the monotonic clock."""

    def present(self, until: float) -> Present: ...
    def present_others(self, refused: Any, until: float) -> Present: ...


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


@contextmanager
def exchanging(exchange: Exchange) -> Iterator[Exchange]:
    """Every request of this thread within the block is `exchange`."""
    token = _exchange.set(exchange)
    try:
        yield exchange
    finally:
        _exchange.reset(token)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends. One that does is a RuntimeError, never a hang."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        value: T = finished.value
        return value
    coroutine.close()
    raise RuntimeError("a coroutine suspended where nothing can resume it")


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """How an agent may be reached: where, whom we trust to be it, and by way of whom."""

    origins: frozenset[Origin]
    tls: ssl.SSLContext | None = None
    proxy: str | None = None


class GuardedTransport(httpx.AsyncBaseTransport):
    """All connections of one process to one agent. Threads share it; after a fork it starts afresh.

    ``make_tls`` is asked once per process, before the first connection; ``proxy`` is the operator's, never the
    environment's: with one, the addresses behind it are its job to check. ``presenter`` is for :meth:`get`.
    """

    def __init__(
        self,
        origins: Iterable[str | Origin],
        *,
        make_tls: Callable[[], ssl.SSLContext] | None = None,
        proxy: str | None = None,
        presenter: Presenter | None = None,
        keep_alive: bool = True,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.origins = frozenset(o if isinstance(o, Origin) else read_origin(o) for o in origins)
        self._make_tls = functools.cache(make_tls or _usual_tls)
        self._proxy = proxy
        self._presenter = presenter
        self._max_connections = max_connections
        self._max_idle = max_connections if keep_alive else 0
        # By process id: a forked child must not write to its parent's sockets, nor wait for its parent's locks.
        self._pools: dict[int, httpcore.ConnectionPool] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """For the SDK. Sends within the current :class:`Exchange`; never suspends."""
        exchange = _exchange.get()
        content = await request.aread()
        self._send(request.method, request.url, request.headers.raw, content, exchange)
        is_moved = exchange.may_move and exchange.status in _MOVED
        if is_moved and (moved_to := _same_origin_target(request.url, exchange)) is not None:
            exchange.sent = 0  # the first was turned away unread
            self._send(request.method, moved_to, request.headers.raw, content, exchange)
        if exchange.stand_in is not None:
            return httpx.Response(200, content=exchange.stand_in, request=request)
        return httpx.Response(exchange.status, content=exchange.body, request=request)

    def get(self, url: str, *, headers: Mapping[str, str], deadline_s: float, max_bytes: int) -> Exchange:
        """One plain GET under the same guards; after a 401 once more, where there are other credentials by then."""
        until = time.monotonic() + deadline_s
        present = self._presenter.present(until) if self._presenter else None
        found = self._plain("GET", url, headers, b"", deadline_at=until, max_bytes=max_bytes, present=present)
        if found.status == 401 and self._presenter and (other := self._presenter.present_others(present, until)):
            found = self._plain("GET", url, headers, b"", deadline_at=until, max_bytes=max_bytes, present=other)
        return found

    def post(
        self, url: str, *, headers: Mapping[str, str], content: bytes, deadline_s: float, max_bytes: int
    ) -> Exchange:
        """One plain POST under the same guards."""
        until = time.monotonic() + deadline_s
        return self._plain("POST", url, headers, content, deadline_at=until, max_bytes=max_bytes)

    def close(self) -> None:
        """Close this process's connections. The transport can be used again afterwards."""
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    def route(self) -> Route:
        """For whoever opens connections of its own to this agent."""
        return Route(origins=self.origins, tls=self._tls(), proxy=self._proxy)

    @property
    def connections(self) -> int:
        """Connections open or opening in this process."""
        pool = self._pools.get(os.getpid())
        return len(pool.connections) if pool else 0

    async def aclose(self) -> None:
        self.close()

    def _plain(self, method: str, url: str, headers: Mapping[str, str], content: bytes, **limits: Any) -> Exchange:
        exchange = Exchange(**limits)
        framed = httpx.Request(method, url, headers=dict(headers)).headers.raw
        with exchanging(exchange):
            self._send(method, httpx.URL(url), framed, content, exchange)
        return exchange

    def _send(self, method: str, url: httpx.URL, headers: Headers, content: bytes, exchange: Exchange) -> None:
        if origin_of(url) not in self.origins:
            raise AgentRefused(f"not an allowed origin of this agent: {origin_of(url)}"[:200])
        if exchange.edit_body is not None:
            content = exchange.edit_body(content)
        exchange.request_body = content
        headers = [(name, value) for name, value in headers if name.lower() not in _OURS]
        if exchange.present is not None:
            url, headers = exchange.present(url, headers)
        try:
            exchange.url = str(url)
            exchange.request = _build(method, url, headers, content, exchange)
            if not exchange.only_build:
                self._exchange(exchange.request, exchange)
        except httpcore.ProxyError as error:
            status = re.match(r"\d{3}\b", str(error))
            raise AgentUnreachable(
                f"the proxy lets nothing through{f': HTTP {status[0]}' if status else ''}"
            ) from error
        except (httpcore.TimeoutException, httpcore.NetworkError, httpcore.RemoteProtocolError, OSError) as error:
            raise _explain(error, exchange) from error
        except (httpcore.LocalProtocolError, httpcore.UnsupportedProtocol) as error:
            outcome = CallAmbiguous if exchange.sent else AgentRefused
            # Not its text, which may repeat a header.
            raise outcome(f"the request cannot be sent ({type(error).__name__})") from error

    def _exchange(self, request: httpcore.Request, exchange: Exchange) -> None:
        response = self._pool().handle_request(request)
        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
            _check_framing(headers, exchange.max_bytes)
            if exchange.on_event is not None and response.status == 200 and _is_event_stream(headers):
                exchange.headers, exchange.status, exchange.is_stream = headers, response.status, True
                _read_events(response, exchange, exchange.on_event)
            else:
                exchange.body = _read_capped(response, exchange)
                exchange.headers, exchange.status = headers, response.status
        finally:
            response.close()  # after a body not read to its end, this closes the connection as well

    def _pool(self) -> httpcore.ConnectionPool:
        pid = os.getpid()
        pool = self._pools.get(pid)
        if pool is None:
            pool = self._pools.setdefault(pid, self._new_pool())
            for other in [key for key in list(self._pools) if key != pid]:
                self._pools.pop(other, None)
        return pool

    def _new_pool(self) -> httpcore.ConnectionPool:
        options: dict[str, Any] = {
            "ssl_context": self._tls(),
            "max_connections": self._max_connections,
            "max_keepalive_connections": self._max_idle,
            "keepalive_expiry": KEEPALIVE_S,
            "network_backend": _Backend(),
        }
        return httpcore.HTTPProxy(self._proxy, **options) if self._proxy else httpcore.ConnectionPool(**options)

    def _tls(self) -> ssl.SSLContext | None:
        """Reading all authorities takes milliseconds, and most agents on loopback need none."""
        return self._make_tls() if any(origin.scheme == "https" for origin in self.origins) else None


def _same_origin_target(url: httpx.URL, exchange: Exchange) -> httpx.URL | None:
    """Where the same request may be sent once more; None for another origin: nothing of ours follows there."""
    try:
        target = url.join(exchange.headers.get("location", ""))
    except (httpx.InvalidURL, ValueError):
        return None
    return target if target != url and not target.userinfo and origin_of(target) == origin_of(url) else None


def _build(method: str, url: httpx.URL, headers: Headers, content: bytes, exchange: Exchange) -> httpcore.Request:
    kept = [*headers, (b"Accept-Encoding", b"identity")]
    if content or method not in ("GET", "DELETE"):
        kept.append((b"Content-Length", str(len(content)).encode()))
    return httpcore.Request(
        method,
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=kept,
        content=content,
        extensions={"timeout": {"pool": exchange.seconds_left()}},
    )


def _check_framing(headers: Mapping[str, str], max_bytes: int) -> None:
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        # Asked for identity: unpacking could turn 200 KB into 200 MB.
        raise CallAmbiguous("the answer is compressed though identity was asked for")
    length = headers.get("content-length", "")
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise AnswerTooLarge(f"the answer is larger than {max_bytes} bytes")


def _read_capped(response: httpcore.Response, exchange: Exchange) -> bytes:
    body = io.BytesIO()  # not a list of chunks: of two bytes each they would take twenty times their size
    for chunk in response.iter_stream():
        if body.tell() + len(chunk) > exchange.max_bytes:
            raise AnswerTooLarge(f"the answer is larger than {exchange.max_bytes} bytes")
        body.write(chunk)
    return body.getvalue()


def _is_event_stream(headers: Mapping[str, str]) -> bool:
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "text/event-stream"


def _read_events(response: httpcore.Response, exchange: Exchange, on_event: Callable[[bytes], bool]) -> None:
    splitter = EventSplitter(exchange.event_bytes)
    size = 0
    for chunk in response.iter_stream():
        verdicts = [on_event(event) for event in splitter.feed(chunk)]  # all of them: they are here anyway
        if any(verdicts):
            return
        size += len(chunk)
        if size > exchange.max_bytes:
            raise AnswerTooLarge(f"the stream is longer than {exchange.max_bytes} bytes")
        exchange.seconds_left()  # one read may bring thousands of chunks
    exchange.was_cut = splitter.finish()


def _explain(error: Exception, exchange: Exchange) -> AgentUnreachable | CallAmbiguous:
    """Certain is only what no byte was written for: a pooled connection may break after the agent has read it all."""
    late = isinstance(error, httpcore.TimeoutException)
    if not exchange.sent:
        return AgentUnreachable("no connection within the time allowed" if late else f"no connection: {say(error)}")
    return CallAmbiguous("no answer within the deadline" if late else f"the connection broke: {say(error)}")


def say(error: Exception) -> str:
    """What broke, in words of ours: those of a parser quote what the peer sent, our own credential perhaps."""
    if isinstance(error, httpcore.ProtocolError):
        is_early = "without sending" in str(error) or "unexpectedly closed" in str(error)
        return "closed before the answer was whole" if is_early else "the answer is not HTTP"
    return one_line(str(error), 160) or type(error).__name__


class _Wire(httpcore.NetworkStream):
    """A socket whose every wait ends at the deadline of the exchange in this thread, whoever opened it.

    What is written leaves with the first read: headers and body in one packet, and one place that counts it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent = b""

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002  the exchange's deadline counts
        self._unsent += buffer

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002  as above
        exchange = _exchange.get()
        if self._unsent:
            self._flush(exchange)
        try:
            return _receive(self._sock, max_bytes, exchange)
        except TimeoutError:
            raise httpcore.ReadTimeout("deadline") from None
        except ssl.SSLError as error:
            if _is_about_our_certificate(error):  # TLS 1.3 says so after the handshake, and before it reads a request
                exchange.sent = 0
                raise httpcore.ConnectError(f"TLS: {_say_alert(error)}") from error
            raise httpcore.ReadError(_say(error)) from error
        except OSError as error:
            raise httpcore.ReadError(_say(error)) from error

    def _flush(self, exchange: Exchange) -> None:
        is_for_proxy = self._unsent.startswith(b"CONNECT ")  # the agent gets nothing of it, and A2A has no such method
        pending, self._unsent = memoryview(self._unsent), b""
        try:
            while pending:
                self._sock.settimeout(exchange.seconds_left())
                taken = self._sock.send(pending)
                exchange.sent += 0 if is_for_proxy else taken
                pending = pending[taken:]
        except TimeoutError:
            raise httpcore.WriteTimeout("deadline") from None
        except OSError as error:
            if not exchange.sent:
                raise httpcore.WriteError(_say(error)) from error
            # The agent may have answered early and closed; the read that follows tells.

    def close(self) -> None:
        self._sock.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002  as above
    ) -> httpcore.NetworkStream:
        try:
            self._sock.settimeout(_exchange.get().seconds_left())
            return _Wire(ssl_context.wrap_socket(self._sock, server_hostname=server_hostname))
        except TimeoutError:
            self.close()
            raise httpcore.ConnectTimeout("TLS") from None
        except (OSError, ValueError) as error:
            self.close()
            raise httpcore.ConnectError(f"TLS: {getattr(error, 'verify_message', '') or _say_alert(error)}") from error

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return _is_readable(self._sock)
        if info == "ssl_object":
            return self._sock if isinstance(self._sock, ssl.SSLSocket) else None
        return self._sock if info == "socket" else None


class _Backend(httpcore.NetworkBackend):
    """Opens connections to addresses that were checked, and only to those."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002  as above
        local_address: str | None = None,  # noqa: ARG002  httpcore's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002  httpcore's signature
    ) -> httpcore.NetworkStream:
        until = time.monotonic() + min(CONNECT_AT_MOST_S, _exchange.get().seconds_left())
        try:
            addresses = resolve(host, port, until - time.monotonic())
        except TimeoutError:
            raise httpcore.ConnectTimeout("resolve") from None
        except (OSError, UnicodeError) as failure:
            raise httpcore.ConnectError(f"resolve: {_say(failure)}") from failure
        error: Exception = httpcore.ConnectError("no address")
        for position, address in enumerate(addresses):
            if (refusal := refused_address(address)) is not None:
                error = httpcore.ConnectError(refusal)
                continue
            # A dead first address must leave time for the others.
            patience = (until - time.monotonic()) / (len(addresses) - position)
            try:
                sock = socket.create_connection((address, port), timeout=max(patience, 0.001))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return _Wire(sock)
            except TimeoutError:
                error = httpcore.ConnectTimeout("connect")
            except OSError as failure:
                error = httpcore.ConnectError(_say(failure))
        raise error


def _receive(sock: socket.socket, max_bytes: int, exchange: Exchange) -> bytes:
    while exchange.is_unwanted is not None:
        sock.settimeout(min(GLANCE_S, exchange.seconds_left()))
        with suppress(TimeoutError):
            return sock.recv(max_bytes)
    sock.settimeout(exchange.seconds_left())
    return sock.recv(max_bytes)


def _is_readable(sock: socket.socket) -> bool:
    """Whether an idle connection was closed by the agent (or speaks out of turn): either way not to be used."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def _say(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__


def _is_about_our_certificate(error: ssl.SSLError) -> bool:
    reason = getattr(error, "reason", None) or ""
    return "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)


def _say_alert(error: Exception) -> str:
    """OpenSSL's words for it, without the place in its source."""
    reason = getattr(error, "reason", None)
    return reason.lower().replace("_", " ") if isinstance(reason, str) else _say(error)


@functools.cache
def _usual_tls() -> ssl.SSLContext:
    return httpx.create_ssl_context(trust_env=False)
