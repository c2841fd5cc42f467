"""`POST /a2a/push/<delegation id>`: one store script decides the answer, then a message makes the wake sooner.

Order of checks, cheapest first: method, id shape, declared length, read at most one byte more than the limit, content
type, and last the credential, which the store compares in the same script that records the wake. So a request costs
one Redis operation, accepted or rejected, and every answer before that script depends on the request alone.

A source whose credentials keep failing is asked for a right one first, and its body is read only then: a refusal still
costs one Redis operation, a push that is taken two. Its answers are the same, so a good agent behind the same address
loses nothing.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import structlog
from flask import Flask, Request, Response, request
from werkzeug.datastructures import Headers
from werkzeug.http import parse_options_header

from delegation.errors import StateLost, StoreUnavailable
from delegation.failpoints import failpoint
from delegation.store import PushAnswer
from web.answers import empty, not_found, unavailable
from web.claims import claimed_state
from web.failed_credentials import FailedCredentials, source_of

log = structlog.get_logger(__name__)

#: Id shape: `<workflow id>.<n>`. Not a secret (every agent sees it in its push URL); only the token counts.
_ID = re.compile(r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9._-]{21,127}")
_BEARER = re.compile(r"bearer +(.*)", re.IGNORECASE)
#: RFC 6750 b64token. A repeated header arrives joined by a comma, which no token holds.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,512}=*")

_JSON_TYPES = frozenset({"application/json", "application/a2a+json"})
#: Real senders use these (a2aproject/a2a-java#486, archestra-ai/archestra#6973): a wake, but never parsed.
_OPAQUE_TYPES = frozenset({"", "application/octet-stream", "text/plain"})


class PushStore(Protocol):
    """What this door needs of the store."""

    def receive_push(self, delegation_id: str, digest: str, *, acceptable: bool, claimed: str | None) -> PushAnswer: ...
    def check_push(self, delegation_id: str, digest: str) -> bool: ...


class BodyKind(Enum):
    """What a content type says about a body."""

    JSON = "json"
    OPAQUE = "opaque"
    REFUSED = "refused"


class KnownOutage(Exception):
    """A server that just failed is being asked by another thread; do not wait behind it."""


class OneProbe:
    """Lets one caller at a time through while a server is failing, and everybody else fail at once.

    Without it a frozen Redis holds every thread for its whole timeout, and the requests queued behind them are
    answered later than the 5 s we promise. Nothing is remembered by time: the first success opens the way again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_failing = False
        self._is_probed = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        is_probe = self._enter()
        try:
            yield
        except Exception:
            self._is_failing = True
            raise
        else:
            self._is_failing = False
        finally:
            if is_probe:
                self._is_probed = False

    def _enter(self) -> bool:
        with self._lock:
            if not self._is_failing:
                return False
            if self._is_probed:
                raise KnownOutage
            self._is_probed = True
            return True


@dataclass(frozen=True, kw_only=True)
class PushDoor:
    """The push endpoint: translates one request into one call of the store, and its verdict into an answer."""

    store: PushStore
    send_wake: Callable[[str], None]
    max_bytes: int
    failures: FailedCredentials
    _redis: OneProbe = field(default_factory=OneProbe)
    _broker: OneProbe = field(default_factory=OneProbe)

    def register(self, app: Flask) -> None:
        app.add_url_rule("/a2a/push/<delegation_id>", "push", self.receive, methods=["POST"])

    def receive(self, delegation_id: str) -> Response:
        if not _ID.fullmatch(delegation_id):
            return not_found()
        if (request.content_length or 0) > self.max_bytes:
            return empty(413)
        try:
            return self._answer(delegation_id, presented_token(request.headers), source_of(request.remote_addr))
        except (StoreUnavailable, StateLost, KnownOutage):
            return unavailable()

    def _answer(self, delegation_id: str, token: str | None, source: str) -> Response:
        if self.failures.is_over(source) and not self._is_right(delegation_id, token):
            return self._refuse(source)
        # Without a token the verdict is known, so nobody's body is waited for.
        body = b"" if token is None else read_body(request, self.max_bytes + 1)
        if body is None:
            return empty(400, {"Connection": "close"})
        is_too_long = len(body) > self.max_bytes
        verdict = self._ask_store(delegation_id, token, body, is_too_long)
        if verdict is PushAnswer.REFUSED:
            return self._refuse(source)
        if verdict is PushAnswer.UNACCEPTABLE:
            return empty(413 if is_too_long else 415)
        if verdict is PushAnswer.WOKEN:
            failpoint("push.after_wake")
            self._send_wake(delegation_id)
        return empty(202)

    def _is_right(self, delegation_id: str, token: str | None) -> bool:
        with self._redis():
            return self.store.check_push(delegation_id, digest_of(token))

    def _refuse(self, source: str) -> Response:
        self.failures.count(source)
        return not_found()

    def _ask_store(self, delegation_id: str, token: str | None, body: bytes, is_too_long: bool) -> PushAnswer:
        kind = body_kind(request.environ.get("CONTENT_TYPE", ""))
        acceptable = not is_too_long and kind is not BodyKind.REFUSED
        claimed = claimed_state(body) if acceptable and kind is BodyKind.JSON else None
        with self._redis():
            return self.store.receive_push(delegation_id, digest_of(token), acceptable=acceptable, claimed=claimed)

    def _send_wake(self, delegation_id: str) -> None:
        """Make the wake sooner. It is in the due index already, so a failure here costs time and nothing else."""
        try:
            with self._broker():
                self.send_wake(delegation_id)
        except KnownOutage:
            return
        except Exception as error:  # noqa: BLE001  the broker's seam: kombu leaks its transports' errors
            log.warning("push.wake_not_sent", delegation_id=delegation_id, error=type(error).__name__)


def presented_token(headers: Headers) -> str | None:
    """The one token a request presents, or None when it presents none, two, or something that cannot be one.

    `Authorization: Bearer` is the spec's, `X-A2A-Notification-Token` an SDK habit. Present means must be right: with
    both headers, both must carry the same token.
    """
    tokens = set()
    authorization = headers.get("Authorization")
    if authorization is not None:
        match = _BEARER.fullmatch(authorization)
        tokens.add(match[1] if match else "")
    notification_token = headers.get("X-A2A-Notification-Token")
    if notification_token is not None:
        tokens.add(notification_token)
    token = tokens.pop() if len(tokens) == 1 else ""
    return token if _TOKEN.fullmatch(token) else None


def digest_of(token: str | None) -> str:
    """SHA-256 of a token, in hex; empty when there is none, which matches no delegation and is counted all the same.

    The store's script compares digests with Lua's `==`, which compares interned strings by identity and so takes no
    longer for a longer common prefix. Nor would a prefix help: it is one of a digest, and no digest can be steered.
    """
    return "" if token is None else hashlib.sha256(token.encode("ascii")).hexdigest()


def body_kind(content_type: str) -> BodyKind:
    """Whether a body of this type is parsed for its claim, taken as a bare wake, or refused."""
    media_type, parameters = parse_options_header(content_type.lower())
    # A comma: two headers, joined by the server.
    if "," in content_type or parameters.get("charset", "utf-8") not in {"utf-8", "utf8"}:
        return BodyKind.REFUSED
    if media_type in _JSON_TYPES:
        return BodyKind.JSON
    return BodyKind.OPAQUE if media_type in _OPAQUE_TYPES else BodyKind.REFUSED


def read_body(received: Request, limit: int) -> bytes | None:
    """At most ``limit`` bytes of the body, or None when it breaks off.

    Read by hand: Flask's MAX_CONTENT_LENGTH lets a chunked body through under gunicorn, cut at the limit in silence.
    """
    try:
        body = received.stream.read(limit)
    except Exception:  # noqa: BLE001  the server's seam: gunicorn's parse errors, sockets' own, Werkzeug's 400
        return None
    is_cut_off = received.content_length is not None and len(body) < received.content_length
    return None if is_cut_off else body
