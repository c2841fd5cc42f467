"""`[[agents.auth]]` and `[[agents.card_auth]]`: what an agent may be shown of us. Secrets are there by reference alone.

A credential says which kind of security scheme it is for (A2A spec section 4.5, after OpenAPI), and where it goes is
decided here and not by the card: a card that names another header does not get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from delegation.config_values import FileReference, KeyName, Scope, SecretReference, WebUrl, is_open_http

_Line = Annotated[str, StringConstraints(pattern=r"^[\x21-\x7e]([\x20-\x7e]{0,510}[\x21-\x7e])?$")]
_UserName = Annotated[str, StringConstraints(pattern=r"^[\x21-\x39\x3b-\x7e]{1,256}$")]  # RFC 7617: no colon


class _Credential(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    #: The name of the one scheme on the card it is for; without it, any of its kind that fits.
    scheme: Annotated[str, StringConstraints(min_length=1, max_length=128)] | None = None

    @property
    def token_urls(self) -> tuple[str, ...]:
        """Where a token is asked for: origins of their own, pinned by the operator."""
        return ()


class ApiKeyCredential(_Credential):
    """An API key in a header, a query parameter or a cookie."""

    type: Literal["api_key"]
    location: Literal["header", "query", "cookie"] = Field(default="header", alias="in")
    name: KeyName
    key: SecretReference


class BearerCredential(_Credential):
    """A bearer token that somebody else renews (RFC 6750)."""

    type: Literal["bearer"]
    token: SecretReference


class BasicCredential(_Credential):
    """A user name and a password (RFC 7617)."""

    type: Literal["basic"]
    username: _UserName
    password: SecretReference


class _ClientCredentials(_Credential):
    client_id: _Line
    client_secret: SecretReference
    scopes: tuple[Scope, ...] = ()
    audience: _Line | None = None
    auth_method: Literal["client_secret_basic", "client_secret_post"] = "client_secret_basic"


class OAuth2Credential(_ClientCredentials):
    """OAuth 2.0 client credentials (RFC 6749 section 4.4)."""

    type: Literal["oauth2"]
    token_url: WebUrl

    @property
    def token_urls(self) -> tuple[str, ...]:
        return (self.token_url,)


class OpenIdCredential(_ClientCredentials):
    """The same, the token endpoint found by OpenID Connect Discovery: where the issuer says, by https (or at its own
    origin)."""

    type: Literal["oidc"]
    issuer: WebUrl

    @property
    def token_urls(self) -> tuple[str, ...]:
        return (self.issuer,)


class MutualTlsCredential(_Credential):
    """A client certificate, in PEM."""

    type: Literal["mtls"]
    certificate: FileReference
    key: FileReference


Credential = Annotated[
    ApiKeyCredential | BearerCredential | BasicCredential | OAuth2Credential | OpenIdCredential | MutualTlsCredential,
    Field(discriminator="type"),
]
#: What ``type`` may be.
CREDENTIAL_TYPES = ("api_key", "bearer", "basic", "oauth2", "oidc", "mtls")


def problems_of(key: str, credentials: tuple[Credential, ...], *, allow_http: bool) -> Iterator[tuple[str, str]]:
    """What is wrong with a list of them: pairs of a key and a reason."""
    for position, credential in enumerate(credentials):
        for url in credential.token_urls:
            if not allow_http and is_open_http(url):
                yield f"{key}.{position}", "must use https unless the host is loopback or allow_http = true"
    if sum(isinstance(credential, MutualTlsCredential) for credential in credentials) > 1:
        yield key, "must hold one client certificate at most"
