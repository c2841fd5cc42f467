"""Which addresses an agent may be spoken to at: origins pinned by the operator, and addresses no agent has."""

from __future__ import annotations

import ipaddress
import socket
import threading
from typing import NamedTuple

import httpx

#: Addresses no agent has: cloud metadata outside the link-local range (AWS and Google by IPv6, Alibaba, Azure, Oracle).
METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "fd20:ce::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)

#: Forms of IPv6 that hold another address: NAT64 (RFC 6052, RFC 8215), Teredo, and the IPv4-compatible ones.
_DISGUISES = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "::/96")))
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Origin(NamedTuple):
    """Scheme, host and port: what an operator pins an agent to."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def read_origin(url: str) -> Origin:
    """The origin of an absolute http(s) URL without userinfo. Raises ValueError with a reason that omits the URL."""
    if not url.isascii() or not url.isprintable() or any(char in url for char in ' \\"<>'):
        raise ValueError("is not a URL of printable ASCII")
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise ValueError("is not a URL") from None
    if parts.scheme not in _DEFAULT_PORTS or not parts.host:
        raise ValueError("must be an absolute http or https URL")
    if parts.userinfo or "@" in url.split("/", 3)[2]:
        raise ValueError("must not hold a user name or password")
    origin = origin_of(parts)
    if not 0 < origin.port < 65_536:
        raise ValueError("is not a URL with a possible port")
    return origin


def origin_of(url: httpx.URL) -> Origin:
    port = url.port if url.port is not None else _DEFAULT_PORTS.get(url.scheme, 0)
    return Origin(url.scheme, url.raw_host.decode("ascii"), port)


def refused_address(address: str) -> str | None:
    """Why we never connect to `address`, configured or not; None if we may. Private and loopback ones we may."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if _is_disguised(ip) or ip.is_link_local or ip.is_multicast or ip.is_unspecified or ip in METADATA:
        return "the address is link-local, multicast, unspecified or disguised"
    return None


def _is_disguised(ip: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    if ip.version == 4 or ip.is_loopback:
        return False
    return bool(ip.ipv4_mapped or ip.sixtofour) or any(ip in network for network in _DISGUISES)


def resolve(host: str, port: int, patience_s: float) -> list[str]:
    """The addresses of `host`. The system's resolver knows no time limit, so a name is looked up beside us.

    Raises TimeoutError after `patience_s`, OSError or UnicodeError as the resolver does.
    """
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    answer: list[str] = []
    failure: list[OSError | UnicodeError] = []

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer.extend(dict.fromkeys(str(entry[4][0]) for entry in found))
        except (OSError, UnicodeError) as error:
            failure.append(error)

    lookup = threading.Thread(target=look_up, name="resolve", daemon=True)
    lookup.start()
    lookup.join(patience_s)
    if lookup.is_alive():
        raise TimeoutError
    if failure:
        raise failure[0]
    return answer
