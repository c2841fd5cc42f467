"""The shipped proxy examples, run as they are but for addresses and paths."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import trustme

from tests.support.child import ROOT, ChildProcess, free_port, wait_until

PROXIES = ("haproxy", "nginx")
#: Daemons are often outside a user's PATH.
_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
_FILES = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}


class Proxy(ChildProcess):
    """HAProxy or nginx in front of `web_port`; skips the test when the program is not there.

    With `authority` it speaks TLS: the lines shown as comments take the place of the plain ones.
    """

    def __init__(self, name: str, directory: Path, *, web_port: int, authority: trustme.CA | None = None) -> None:
        if shutil.which(name, path=_PATH) is None:
            pytest.skip(f"needs {name} (apt-get install {'nginx-light' if name == 'nginx' else name})")
        self.name = name
        self.port = free_port()
        config = directory / _FILES[name]
        text = (ROOT / "deploy" / _FILES[name]).read_text()
        if authority is not None:
            text = _with_tls(name, text, authority, directory)
        config.write_text(_with_our_addresses(name, text, self.port, web_port, directory))
        command = {
            "haproxy": ["haproxy", "-db", "-f", str(config)],
            "nginx": ["nginx", "-c", str(config), "-e", "stderr", "-g", "daemon off;"],
        }
        super().__init__(
            command[name], log=directory / f"{name}.log", env={"PATH": "/usr/sbin:/usr/bin:/usr/local/sbin"}
        )

    def wait_for_line(self, text: str) -> str:
        """The first line of its log with this text; a log is written after the answer."""

        def found() -> str | None:
            return next((line for line in self.output().splitlines() if text in line), None)

        return wait_until(found, what=f"log line with {text}") or ""


def _with_our_addresses(name: str, text: str, port: int, web_port: int, directory: Path) -> str:
    replacements = {r"\b127\.0\.0\.1:8000\b": f"127.0.0.1:{web_port}"}
    if name == "haproxy":
        replacements[r"(?m)^(    bind) :\d+"] = rf"\1 127.0.0.1:{port}"
    else:
        replacements[r"(?m)^(        listen) \d+"] = rf"\1 127.0.0.1:{port}"
        replacements[r"/run/nginx\.pid"] = str(directory / "nginx.pid")
    return _replaced(text, replacements)


def _with_tls(name: str, text: str, authority: trustme.CA, directory: Path) -> str:
    certificate = authority.issue_cert("127.0.0.1")
    chain, key = directory / "certificate.pem", directory / "key.pem"
    certificate.private_key_pem.write_to_path(key)
    if name == "haproxy":
        certificate.private_key_and_cert_chain_pem.write_to_path(chain)
        return _replaced(
            text,
            {
                r"(?m)^    bind :80\n": "",
                r"(?m)^    #bind :443": "    bind :443",
                r"/etc/haproxy/delegations\.example\.com\.pem": str(chain),
            },
        )
    for blob in certificate.cert_chain_pems:
        blob.write_to_path(chain, append=True)
    return _replaced(
        text,
        {
            r"(?m)^        listen 80;\n": "",
            r"(?m)^        #listen 443": "        listen 443",
            r"(?m)^        #(ssl_certificate .*)": r"        \1",
            r"(?m)^        #(ssl_certificate_key .*)": r"        \1",
            r"(?m)^        #(ssl_protocols .*)": r"        \1",
            r"/etc/nginx/delegations\.example\.com\.pem": str(chain),
            r"/etc/nginx/delegations\.example\.com\.key": str(key),
        },
    )


def _replaced(text: str, replacements: dict[str, str]) -> str:
    for pattern, replacement in replacements.items():
        text, count = re.subn(pattern, replacement, text)
        assert count == 1, pattern
    return text
