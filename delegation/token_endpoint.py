"""Tokens by OAuth 2.0 client credentials, kept in memory: asked for once for all threads, renewed before they end.

Authlib builds and reads the exchange; it goes out over a guarded transport of its own, pinned to the token endpoint.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.client import OAuth2Client

from delegation.answers import load_json, one_line
from delegation.auth_settings import OAuth2Credential, OpenIdCredential
from delegation.errors import AgentError, ConfigurationError, CredentialUnavailable
from delegation.origins import read_origin
from delegation.outbound import Exchange, GuardedTransport
from delegation.redaction import conceal, mask_known
from delegation.secret_values import read_secret

DISCOVERY_PATH = "/.well-known/openid-configuration"
#: For discovery and token together.
DEADLINE_S = 10.0
MAX_BYTES = 65_536
#: Everybody who needs the token meanwhile hears of a failure, and nobody asks again sooner.
FAILURE_S = 5.0
#: The same, while it goes on and on.
FAILURE_MAX_S = 60.0
#: Whoever does not ask himself waits no longer: threads that wait are threads that other agents lack.
PATIENCE_S = 2.0
#: An agent that refuses the token it got in place of a refused one would refuse the next one as well.
REPLACED_S = 30.0
#: However short its life is said to be: a token is asked for at most this often.
LEAST_S = 5.0
#: A token that does not say when it ends is asked for anew after this long.
UNLIMITED_S = 3600.0
LONGEST_S = 7 * 86_400.0
#: RFC 6750 section 2.1. Anything else could be more than one header.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{1,8192}=*")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """A token, or why there is none, and until when (on the monotonic clock) that is so."""

    until: float
    token: str = field(default="", repr=False)
    failure: str = ""


class TokenSource:
    """The token of one credential and set of scopes; all threads of a process share it."""

    def __init__(
        self,
        credential: OAuth2Credential | OpenIdCredential,
        scopes: tuple[str, ...],
        make_transport: Callable[[str], GuardedTransport],
    ) -> None:
        self._credential = credential
        self._scopes = credential.scopes or scopes
        self._make_transport = make_transport
        # By process id: one that was held in the parent at a fork would never be let go in the child.
        self._locks: dict[int, threading.Lock] = {}
        self._kept: _Kept | None = None
        self._failures = 0
        self._replaced_at = -REPLACED_S

    def token(self, *, until: float, rejected: str = "") -> str:
        """A token that is good now and is not ``rejected``, unless that one has just replaced another refused one.

        ``until`` is on the monotonic clock. Raises CredentialUnavailable.
        """
        self.forget((rejected,))
        kept = self._good()
        if kept is None:
            lock = self._locks.setdefault(os.getpid(), threading.Lock())
            if not lock.acquire(timeout=min(max(until - time.monotonic(), 0.001), PATIENCE_S)):
                raise CredentialUnavailable("the token is being asked for, and does not come")
            try:
                kept = self._good() or self._renew(until)
            finally:
                lock.release()
        if kept.failure:
            raise CredentialUnavailable(kept.failure)
        return kept.token

    def forget(self, rejected: Collection[str]) -> None:
        """Ask for another one next time, if the present one is among those and may be replaced."""
        kept, now = self._kept, time.monotonic()
        if kept is not None and kept.token and kept.token in rejected and now - self._replaced_at >= REPLACED_S:
            self._replaced_at = now
            if self._kept is kept:
                self._kept = None

    def _good(self) -> _Kept | None:
        kept = self._kept
        return kept if kept is not None and kept.until > time.monotonic() else None

    def _renew(self, until: float) -> _Kept:
        """A failure counts for everybody, unless it was ours: a call that had little time left."""
        began_at = time.monotonic()
        try:
            kept = self._ask(min(until, began_at + DEADLINE_S))
        except (AgentError, ConfigurationError) as error:
            self._failures += 1
            wait_s = min(FAILURE_S * 2 ** min(self._failures - 1, 8), FAILURE_MAX_S)
            detail = mask_known(f"token endpoint: {error.detail}")
            kept = _Kept(until=time.monotonic() + wait_s, failure=detail)
            if time.monotonic() >= until and until < began_at + DEADLINE_S:
                return kept
        else:
            self._failures = 0
        self._kept = kept
        return kept

    def _ask(self, until: float) -> _Kept:
        credential = self._credential
        secret = read_secret(credential.client_secret)
        conceal(f"{credential.client_id}:{secret}")  # as it is encoded for client_secret_basic
        if isinstance(credential, OAuth2Credential):
            url = credential.token_url
        else:
            url = self._discover(credential.issuer, until)
        with closing(self._make_transport(url)) as transport:
            return self._fetch(url, _Session(transport, secret, until), secret)

    def _fetch(self, url: str, session: _Session, secret: str) -> _Kept:
        credential = self._credential
        client = OAuth2Client(
            session,
            client_id=credential.client_id,
            client_secret=secret,
            token_endpoint_auth_method=credential.auth_method,
            scope=" ".join(self._scopes) or None,
        )
        extra = {"audience": credential.audience} if credential.audience else {}
        asked_at = time.monotonic()
        try:
            answer = client.fetch_token(url, grant_type="client_credentials", **extra)
        except AgentError:
            raise
        except OAuth2Error as error:
            said = one_line(str(error.error or ""), 60, (secret,)) or "an error"
            raise CredentialUnavailable(f"it answers {said}") from None
        except Exception as error:  # noqa: BLE001  Authlib takes an answer as it comes, and fails at it in many ways
            raise CredentialUnavailable(f"its answer is not readable ({type(error).__name__})") from None
        token = _read_token(answer)
        if token == secret:
            raise CredentialUnavailable("its token is our own client secret")
        conceal(token)
        return _Kept(token=token, until=asked_at + _good_for_s(answer))

    def _discover(self, issuer: str, until: float) -> str:
        """The token endpoint in the issuer's metadata (OpenID Connect Discovery section 4)."""
        headers = {"Accept": "application/json", "User-Agent": "delegation"}
        with closing(self._make_transport(issuer)) as transport:
            left = until - time.monotonic()
            found = transport.get(issuer + DISCOVERY_PATH, headers=headers, deadline_s=left, max_bytes=MAX_BYTES)
        if found.status != 200:
            raise CredentialUnavailable(f"discovery: HTTP {found.status}")
        metadata = load_json(found.body)
        if not isinstance(metadata, dict) or str(metadata.get("issuer", "")).rstrip("/") != issuer:
            raise CredentialUnavailable("discovery: the metadata is of another issuer")
        url = metadata.get("token_endpoint")
        try:
            origin = read_origin(url if isinstance(url, str) else "")
        except ValueError as error:
            raise CredentialUnavailable(f"discovery: token_endpoint {error}") from None
        if origin.scheme != "https" and origin != read_origin(issuer):
            raise CredentialUnavailable("discovery: token_endpoint must be https")
        return str(url)


class _Session:
    """What Authlib asks of an HTTP client: one POST."""

    def __init__(self, transport: GuardedTransport, secret: str, until: float) -> None:
        self._transport = transport
        self._secret = secret
        self._until = until

    def post(self, url: str, *, data: Mapping[str, str], headers: Mapping[str, str], auth: Any) -> httpx.Response:
        url, sent, body = auth.prepare("POST", url, dict(headers), urlencode(data))
        answer = self._transport.post(
            url,
            headers=sent | {"User-Agent": "delegation"},
            content=body.encode(),
            deadline_s=self._until - time.monotonic(),
            max_bytes=MAX_BYTES,
        )
        if answer.status != 200:
            raise CredentialUnavailable(_explain(answer, self._secret))
        load_json(answer.body)  # bounded in depth; what Authlib parses next is known to be harmless
        return httpx.Response(answer.status, content=answer.body, request=httpx.Request("POST", url))


def _explain(answer: Exchange, secret: str) -> str:
    """Its status, and its error (RFC 6749 section 5.2) where it is one of OAuth's."""
    if 300 <= answer.status < 400:
        return f"HTTP {answer.status}: a redirect, not followed"
    try:
        found = load_json(answer.body)
    except AgentError:
        found = None
    said = one_line(found.get("error"), 60, (secret,)) if isinstance(found, dict) else ""
    return f"HTTP {answer.status}: {said}" if said else f"HTTP {answer.status}"


def _read_token(answer: Mapping[str, Any]) -> str:
    token, kind = answer.get("access_token"), answer.get("token_type", "bearer")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise CredentialUnavailable("its answer holds no usable access_token")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise CredentialUnavailable("its token is not a bearer token")
    return token


def _good_for_s(answer: Mapping[str, Any]) -> float:
    """Until shortly before it ends: a minute, or a tenth of its life."""
    said = answer.get("expires_in")
    try:
        life_s = UNLIMITED_S if said is None else float(said)
    except (TypeError, ValueError, OverflowError):
        life_s = UNLIMITED_S
    life_s = min(life_s, LONGEST_S) if life_s == life_s else UNLIMITED_S
    return max(life_s - min(60.0, life_s / 10), LEAST_S)
