"""Show an agent what its card asked for: in headers, the query or a cookie, and never to anybody else.

The transport lets a request leave for the agent's own origins only, and asks for the credentials last of all: so they
are on no request that could have gone astray, and in nothing that was built earlier.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_plus

import httpx

from delegation.auth_settings import (
    ApiKeyCredential,
    BasicCredential,
    BearerCredential,
    Credential,
    MutualTlsCredential,
    OAuth2Credential,
    OpenIdCredential,
)
from delegation.errors import ConfigurationError, CredentialUnavailable
from delegation.outbound import GuardedTransport, Headers
from delegation.redaction import conceal
from delegation.secret_values import read_secret
from delegation.security import CredentialUse
from delegation.token_endpoint import TokenSource

#: What a cookie and a query parameter may hold unescaped (RFC 6265 section 4.1.1).
_COOKIE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_SCHEME_WORD = re.compile(r"\Abearer +", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """One credential as it stands in a request; ``secrets``, the first of them itself, must be repeated nowhere."""

    place: str
    name: str
    value: str = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)
    source: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class Presented:
    """All that one request presents; made anew for each, so that a rotated secret counts at once."""

    shown: tuple[_Shown, ...] = ()

    def __call__(self, url: httpx.URL, headers: Headers) -> tuple[httpx.URL, Headers]:
        """The request's address and headers with the credentials in them, each in place of what stood there."""
        cookies = "; ".join(f"{each.name}={each.value}" for each in self.shown if each.place == "cookie")
        ours = [(each.name, each.value) for each in self.shown if each.place == "header"]
        ours += [("Cookie", cookies)] if cookies else []
        names = {name.lower().encode() for name, _ in ours}
        kept = [(name, value) for name, value in headers if name.lower() not in names]
        kept += [(name.encode(), value.encode()) for name, value in ours]
        for each in self.shown:
            if each.place == "query":
                url = _with_parameter(url, each.name, each.value)
        return url, kept

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must be repeated nowhere."""
        return tuple(dict.fromkeys(secret for each in self.shown for secret in each.secrets))


def _with_parameter(url: httpx.URL, name: str, value: str) -> httpx.URL:
    """The others stay as they are, in their order and spelling."""
    pieces = filter(None, url.query.decode("ascii").split("&"))
    others = [piece for piece in pieces if unquote_plus(piece.partition("=")[0]) != name]
    return url.copy_with(query="&".join([*others, f"{name}={quote(value, safe='')}"]).encode())


class Credentials:
    """The credentials for one agent, as far as its card asked for them."""

    def __init__(
        self,
        credentials: Sequence[Credential],
        uses: Sequence[CredentialUse],
        make_transport: Callable[[str], GuardedTransport],
    ) -> None:
        # A client certificate is shown by the connection (tls.py).
        used = [(credentials[use.position], use) for use in uses]
        self._used = [
            (credential, self._source(credential, use, make_transport))
            for credential, use in used
            if not isinstance(credential, MutualTlsCredential)
        ]

    @staticmethod
    def _source(
        credential: Credential, use: CredentialUse, make_transport: Callable[[str], GuardedTransport]
    ) -> TokenSource | None:
        if isinstance(credential, OAuth2Credential | OpenIdCredential):
            return TokenSource(credential, use.scopes, make_transport)
        return None

    def present(self, until: float) -> Presented:
        """For one request; a token is waited for until then (monotonic clock).

        Raises CredentialUnavailable: then nothing was sent.
        """
        return self._present(Presented(), until)

    def present_others(self, refused: Presented, until: float) -> Presented | None:
        """After a 401: other credentials than those; None when there are none, so that asking again is no use."""
        presented = self._present(refused, until)
        return None if presented.secrets == refused.secrets else presented

    def forget(self, rejected: Collection[str]) -> None:
        """Tokens among those were refused: the next request asks for others."""
        for _, source in self._used:
            if source is not None:
                source.forget(rejected)

    def _present(self, refused: Presented, until: float) -> Presented:
        refused_tokens = {id(each.source): each.secrets[0] for each in refused.shown if each.source is not None}
        try:
            shown = tuple(
                _show_token(source, refused_tokens.get(id(source), ""), until) if source else _show(credential)
                for credential, source in self._used
            )
        except ConfigurationError as error:
            raise CredentialUnavailable(error.detail) from None
        presented = Presented(shown)
        for secret in presented.secrets:
            conceal(secret)
        return presented


def _show_token(source: TokenSource, refused: str, until: float) -> _Shown:
    return _show_bearer(source.token(rejected=refused, until=until), source)


def _show_bearer(token: str, source: TokenSource | None = None) -> _Shown:
    return _Shown(place="header", name="Authorization", value=f"Bearer {token}", secrets=(token,), source=source)


def _show(credential: Credential) -> _Shown:
    match credential:
        case ApiKeyCredential():
            key = read_secret(credential.key)
            if credential.location == "cookie" and not _COOKIE.fullmatch(key):
                raise ConfigurationError(f"{credential.key} holds a character that no cookie may hold")
            return _Shown(place=credential.location, name=credential.name, value=key, secrets=(key,))
        case BearerCredential():
            # Many copy the token with the word before it.
            return _show_bearer(_SCHEME_WORD.sub("", read_secret(credential.token), count=1))
        case BasicCredential():
            password = read_secret(credential.password)
            pair = base64.b64encode(f"{credential.username}:{password}".encode()).decode()
            return _Shown(place="header", name="Authorization", value=f"Basic {pair}", secrets=(password, pair))
        case _:
            raise AssertionError(f"{credential.type} is shown otherwise")
