"""Certificates for tests: an authority of our own, and every way in which a certificate can be wrong.

An authority that nobody trusts is a second ``Authority`` in another directory.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.identity_tls import ServerTls

HOSTS = ("127.0.0.1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate and its key, each in a PEM file."""

    certificate: Path
    key: Path

    @property
    def references(self) -> dict[str, str]:
        """As `[[agents.auth]]` of type mtls takes them."""
        return {"certificate": f"file:{self.certificate}", "key": f"file:{self.key}"}

    @property
    def pair(self) -> tuple[str, str]:
        """As `ssl.SSLContext.load_cert_chain` takes them."""
        return str(self.certificate), str(self.key)

    def as_server(self, *, clients_of: Authority | None = None, version: str = "") -> ServerTls:
        """What a server shows; with `clients_of` it asks its clients for a certificate of that authority (mTLS)."""
        client_ca = clients_of.ca_bundle if clients_of is not None else None
        return ServerTls(certificate=self.certificate, key=self.key, client_ca=client_ca, version=version)


class Authority:
    """A certificate authority with its files in a directory; ``ca_bundle`` is what to trust."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.ca_bundle = directory / "ca.pem"
        self._ca = trustme.CA()
        self._ca.cert_pem.write_to_path(str(self.ca_bundle))
        self._issued = 0

    def server(self, *hosts: str) -> Identity:
        """For 127.0.0.1 and localhost, or just these hosts."""
        return self._keep("server", self._ca.issue_cert(*(hosts or HOSTS)))

    def wrong_host(self) -> Identity:
        return self.server("agent.elsewhere.example")

    def expired(self) -> Identity:
        """A server's, out of date since yesterday."""
        return self._keep("expired", self._ca.issue_cert(*HOSTS, not_before=_days(-30), not_after=_days(-1)))

    def self_signed(self) -> Identity:
        """A server's that no authority has signed."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self-signed")])
        hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        certificate = (
            x509.CertificateBuilder(subject_name=name, issuer_name=name, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_days(-1))
            .not_valid_after(_days(30))
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return self._write("self-signed", certificate.public_bytes(serialization.Encoding.PEM), private)

    def client(self, name: str = "delegation") -> Identity:
        """A client's, with this common name."""
        return self._keep("client", self._ca.issue_cert(f"{name}@clients.example", common_name=name))

    def expired_client(self, name: str = "delegation") -> Identity:
        issued = self._ca.issue_cert(
            f"{name}@clients.example", common_name=name, not_before=_days(-30), not_after=_days(-1)
        )
        return self._keep("expired-client", issued)

    def _keep(self, kind: str, issued: trustme.LeafCert) -> Identity:
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        return self._write(kind, chain, issued.private_key_pem.bytes())

    def _write(self, kind: str, certificate: bytes, key: bytes) -> Identity:
        self._issued += 1
        stem = self.directory / f"{kind}-{self._issued}"
        identity = Identity(certificate=stem.with_suffix(".pem"), key=stem.with_suffix(".key"))
        identity.certificate.write_bytes(certificate)
        identity.key.touch(mode=0o600)
        identity.key.write_bytes(key)
        return identity


def _days(count: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=count)
