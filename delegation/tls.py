"""TLS towards one agent: who vouches for it, and which certificate we show. Verification cannot be switched off."""

from __future__ import annotations

import ssl

import httpx

from delegation.auth_settings import Credential, MutualTlsCredential
from delegation.errors import CredentialUnavailable
from delegation.secret_values import file_of


def make_context(ca_bundle: str | None, credentials: tuple[Credential, ...]) -> ssl.SSLContext:
    """A context for connections to an agent, TLS 1.2 or newer. Files are read here, once.

    Raises CredentialUnavailable when one of them cannot be used: nothing is sent then.
    """
    context = _trusting(ca_bundle)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate = next((each for each in credentials if isinstance(each, MutualTlsCredential)), None)
    if certificate is not None:
        try:
            # Encrypted keys would be asked for on the terminal.
            context.load_cert_chain(file_of(certificate.certificate), file_of(certificate.key), password="")
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: see file_of
            where = f"{certificate.certificate}, {certificate.key}"
            raise CredentialUnavailable(f"the client certificate ({where}) cannot be used: {_say(error)}") from None
    return context


def _trusting(ca_bundle: str | None) -> ssl.SSLContext:
    if ca_bundle is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=file_of(ca_bundle))
    except (OSError, ValueError, RuntimeError) as error:
        raise CredentialUnavailable(f"ca_bundle ({ca_bundle}) cannot be used: {_say(error)}") from None


def _say(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
