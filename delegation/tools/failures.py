"""What the seed calls a request that brought no answer: one of four kinds, and nothing of the address. Pure."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator

import httpcore

TIMEOUT, DNS, CONNECT_FAILED, TRANSPORT = "timeout", "dns", "connect-failed", "transport"


#: Celery's, by its name: the plain tools know no Celery. Its signal may arrive in the middle of anything.
_TIME_LIMIT = "SoftTimeLimitExceeded"


def raise_time_limit(error: BaseException) -> None:
    """Raise it again if a Celery worker's soft time limit is what ``error`` is, or comes from.

    Called wherever every exception is made an answer: the job that calls a tool has then to end, not to go on.
    """
    for cause in _causes(error):
        if any(kind.__name__ == _TIME_LIMIT for kind in type(cause).__mro__):
            raise cause


def transport_text(error: BaseException) -> str:
    return f"HTTP transport {transport_kind(error)}"


def transport_kind(error: BaseException) -> str:
    """By what the guarded transport met (`outbound.py`): its errors tell what is certain, and their causes this."""
    for cause in _causes(error):
        if isinstance(cause, httpcore.TimeoutException):
            return TIMEOUT
        if isinstance(cause, socket.gaierror | UnicodeError):
            return DNS
        if isinstance(cause, ssl.SSLError):
            return TRANSPORT
    return CONNECT_FAILED if any(map(_is_no_connection, _causes(error))) else TRANSPORT


def _is_no_connection(error: BaseException) -> bool:
    if isinstance(error, httpcore.RemoteProtocolError):  # closed in place of an answer; else the answer is not HTTP
        return "disconnected" in str(error)
    return isinstance(error, httpcore.NetworkError)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    met: set[int] = set()
    while error is not None and id(error) not in met:
        met.add(id(error))
        yield error
        error = error.__cause__ or error.__context__  # httpcore's pool raises again `from None`
