"""What a server of the tests shows over TLS, and what it asks of its clients."""

from __future__ import annotations

import ssl
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTls:
    """The server's certificate and key (PEM), and maybe whose certificates its clients must show."""

    certificate: Path
    key: Path
    client_ca: Path | None = None  #: PEM; a client without a certificate of this authority is turned away
    version: str = ""  #: "1.0" speaks that and nothing newer; empty: as OpenSSL likes

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self.client_ca)
        context.load_cert_chain(self.certificate, self.key)
        if self.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        if self.version:
            _allow_only(context, ssl.TLSVersion[f"TLSv{self.version.replace('1.0', '1').replace('.', '_')}"])
        return context

    def to_json(self) -> dict[str, str]:
        """For the command line of an agent in another process."""
        client_ca = {"client_ca": str(self.client_ca)} if self.client_ca is not None else {}
        return {"certificate": str(self.certificate), "key": str(self.key), "version": self.version, **client_ca}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        paths = {name: Path(value[name]) for name in ("certificate", "key", "client_ca") if name in value}
        return cls(**paths, version=value.get("version", ""))


def common_name(certificate: dict[str, Any] | None) -> str:
    """Who a verified certificate, as `getpeercert` gives it, is about."""
    pairs = [pair for group in (certificate or {}).get("subject", ()) for pair in group]
    return str(dict(pairs).get("commonName", ""))


def _allow_only(context: ssl.SSLContext, version: ssl.TLSVersion) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old versions are the point
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = version
        context.maximum_version = version
