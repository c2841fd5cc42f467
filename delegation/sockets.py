"""Sockets to agents: opened to addresses that were checked, with every wait bounded by the exchange at hand."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import httpcore

from delegation.exchange import Exchange, current
from delegation.origins import refused_address, resolve

#: A black-holed address must not hold a worker for the whole call.
CONNECT_AT_MOST_S = 10.0
#: How often a wait is interrupted to see whether the answer is still wanted.
GLANCE_S = 0.02


class Wire(httpcore.NetworkStream):
    """A socket whose every wait ends at the deadline of the exchange in this thread, whoever opened it.

    What is written leaves with the first read: headers and body in one packet, and one place that counts it.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._unsent = b""

    def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002  the exchange's deadline counts
        self._unsent += buffer

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002  as above
        exchange = current()
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
            self._sock.settimeout(current().seconds_left())
            return Wire(ssl_context.wrap_socket(self._sock, server_hostname=server_hostname))
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


class CheckedBackend(httpcore.NetworkBackend):
    """Opens connections to addresses that were checked, and only to those."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ARG002  as above
        local_address: str | None = None,  # noqa: ARG002  httpcore's signature
        socket_options: Iterable[Any] | None = None,  # noqa: ARG002  httpcore's signature
    ) -> httpcore.NetworkStream:
        until = time.monotonic() + min(CONNECT_AT_MOST_S, current().seconds_left())
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
                return Wire(sock)
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
