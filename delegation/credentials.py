"""Show an agent what its card asked for: in headers, the query or a cookie, and never to anybody else.

The transport lets a request leave for the agent's own origins only, and asks for the credentials last of all: so they
are on no request that could have gone astray, and in nothing that was built earlier.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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
from delegation.security import CredentialUse, slot_of
from delegation.token_endpoint import TokenSource

#: What a cookie and a query parameter may hold unescaped (RFC 6265 section 4.1.1).
_COOKIE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]*")
_SCHEME_WORD = re.compile(r"\Abearer +", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """One credential as it stands in a request."""

    place: str
    name: str
    value: str = field(repr=False)
    secret: str = field(repr=False)
    source: TokenSource | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """All that one request is signed with; made anew for each, so that a rotated secret counts at once."""

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
        pairs = (each.value.removeprefix("Basic ") for each in self.shown if each.value.startswith("Basic "))
        return tuple(dict.fromkeys((*(each.secret for each in self.shown), *pairs)))


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
        self._used = [
            (credentials[use.position], self._source(credentials[use.position], use, make_transport)) for use in uses
        ]

    @staticmethod
    def _source(
        credential: Credential, use: CredentialUse, make_transport: Callable[[str], GuardedTransport]
    ) -> TokenSource | None:
        if isinstance(credential, OAuth2Credential | OpenIdCredential):
            return TokenSource(credential, use.scopes, make_transport)
        return None

    def sign(self) -> Signature:
        """For one request. Raises CredentialUnavailable: then nothing was sent."""
        return self._sign(rejected=Signature())

    def sign_anew(self, rejected: Signature) -> Signature | None:
        """After a 401: other credentials than those; None when there are none, so that asking again is no use."""
        signature = self._sign(rejected)
        return None if signature.secrets == rejected.secrets else signature

    def forget(self, rejected: Collection[str]) -> None:
        """Tokens among those were refused: the next request asks for others."""
        for _, source in self._used:
            if source is not None:
                source.forget(rejected)

    def _sign(self, rejected: Signature) -> Signature:
        refused = {id(each.source): each.secret for each in rejected.shown if each.source is not None}
        try:
            shown = [_show(credential, source, refused) for credential, source in self._used]
        except ConfigurationError as error:
            raise CredentialUnavailable(error.detail) from None
        return Signature(tuple(each for each in shown if each is not None))


def _show(credential: Credential, source: TokenSource | None, refused: Mapping[int, str]) -> _Shown | None:
    place, _ = slot_of(credential)
    match credential:
        case ApiKeyCredential():
            key = read_secret(credential.key)
            if place == "cookie" and not _COOKIE.fullmatch(key):
                raise ConfigurationError(f"{credential.key} holds a character that no cookie may hold")
            return _Shown(place=place, name=credential.name, value=key, secret=key)
        case BearerCredential():
            # Many copy the token with the word before it.
            token = _SCHEME_WORD.sub("", read_secret(credential.token), count=1)
            conceal(token)
            return _Shown(place=place, name="Authorization", value=f"Bearer {token}", secret=token)
        case BasicCredential():
            password = read_secret(credential.password)
            pair = base64.b64encode(f"{credential.username}:{password}".encode()).decode()
            return _Shown(place=place, name="Authorization", value=f"Basic {pair}", secret=password)
        case OAuth2Credential() | OpenIdCredential():
            assert source is not None
            token = source.token(rejected=refused.get(id(source), ""))
            return _Shown(place=place, name="Authorization", value=f"Bearer {token}", secret=token, source=source)
        case MutualTlsCredential():
            return None  # shown by the connection (tls.py)
