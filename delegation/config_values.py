"""What a configuration value may look like, and the reason given when it may not.

No reason repeats the value it refuses: it may hold a password.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from datetime import timedelta
from typing import Annotated
from urllib.parse import SplitResult, parse_qs, parse_qsl, urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, StringConstraints, TypeAdapter
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from delegation.redaction import conceal
from delegation.secret_values import REFERENCE

LONGEST_DURATION = timedelta(days=3650)
LEAST_RETENTION = timedelta(seconds=1)

#: What the query of `redis.url` may hold. Others would undo our own timeouts and retries, or reach redis-py as
#: arguments that it does not have.
REDIS_PARAMETERS = frozenset({"db", "username", "password"})
TLS_PARAMETERS = frozenset({"ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_keyfile"})

#: Hop-by-hop headers (RFC 9110 section 7.6.1), those that frame a request, and those every call sets itself.
RESERVED_HEADERS = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"}
    | {"transfer-encoding", "upgrade", "host", "content-length", "content-type", "content-encoding", "accept-encoding"}
    | {"expect", "cookie", "a2a-version", "a2a-extensions", "x-participant-id"}
)


def refused(*problems: str | tuple[str, str]) -> PydanticCustomError:
    """An error about the value itself (a reason), or about keys below it (pairs of key and reason)."""
    pairs = [problem if isinstance(problem, tuple) else ("", problem) for problem in problems]
    return PydanticCustomError("refused", "{problems}", {"problems": pairs})


def _read_duration(value: object) -> timedelta:
    try:
        duration = _as_duration(value)
    except (ValueError, OverflowError):
        raise refused("must be an ISO 8601 duration such as PT30S, or a number of seconds") from None
    if not timedelta(0) < duration <= LONGEST_DURATION:
        raise refused(f"must be more than 0 and at most {LONGEST_DURATION.days} days")
    return duration


def _check_retention(value: timedelta) -> timedelta:
    if value < LEAST_RETENTION:
        raise refused("must be at least 1 second")
    return value


def _as_duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str) and value.strip().upper().startswith("P"):
        return _ISO_8601.validate_python(value.strip().upper())
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return timedelta(seconds=float(value))  # NaN and infinity raise here


_ISO_8601 = TypeAdapter(timedelta)


def _read_seconds(value: object) -> object:
    """An environment variable may hold `1,2,4` as well as `[1, 2, 4]`."""
    if isinstance(value, str):
        return [part.strip() for part in value.strip().strip("[]").split(",") if part.strip()]
    return value


def _check_seconds(value: tuple[float, ...]) -> tuple[float, ...]:
    if not all(math.isfinite(second) and second > 0 for second in value):
        raise refused("must be numbers of seconds above 0")
    return value


def _check_specifier(value: str) -> str:
    try:
        specifiers = SpecifierSet(value)
    except InvalidSpecifier:
        specifiers = SpecifierSet()
    if not len(specifiers):
        raise refused("must be a PEP 440 specifier such as >=1,<2")
    return value


def is_agent_id(value: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", value))


def _check_agent_id(value: str) -> str:
    if not is_agent_id(value):
        raise refused("must be 1 to 64 letters, digits, dots, underscores or hyphens, the first a letter or digit")
    if value.lower() == "self":
        raise refused("must not be 'self', which means the caller")
    return value


def _check_shown(value: str) -> str:
    if not value.strip():
        raise refused("must not be blank")
    return value


def _split_url(value: str, schemes: frozenset[str]) -> SplitResult:
    """`value` in its parts."""
    if not re.fullmatch(r"[\x21-\x7e]+", value) or "\\" in value:
        # urlsplit drops tabs and newlines in silence, and other readers take a backslash for a slash.
        raise refused("must be a URL of printable ASCII without spaces or backslashes")
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        raise refused("must be a URL; percent-encode special characters in a password") from None
    if parts.scheme not in schemes:
        raise refused(f"must be a URL that begins with {' or '.join(f'{scheme}://' for scheme in sorted(schemes))}")
    if port == 0:
        raise refused("must not name port 0")
    return parts


def _read_web_url(value: str) -> str:
    """An absolute http(s) URL without trailing slashes."""
    parts = _split_url(value, frozenset({"http", "https"}))
    if not parts.hostname:
        raise refused("must be an absolute URL with a host")
    if "@" in parts.netloc:
        raise refused("must not hold a user name or password")
    if "?" in value or "#" in value:
        raise refused("must not have a query or fragment")
    _check_host(parts.hostname)
    return value.rstrip("/")


def _check_host(host: str) -> None:
    """Refuse link-local addresses (cloud metadata), and forms that disguise an address: mapped, numeric."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if re.fullmatch(r"0x[0-9a-f]*|[0-9]+", host.rstrip(".").rpartition(".")[2]):
            raise refused("must not use a numeric form of an address other than a.b.c.d") from None
        return
    disguised = isinstance(address, ipaddress.IPv6Address) and (
        address.ipv4_mapped or address.sixtofour or address in _NAT64 or address.scope_id
    )
    if disguised or address.is_link_local or address.is_multicast or address.is_unspecified:
        raise refused("must not be a link-local, multicast, unspecified or mapped address")


_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


def _read_origin(value: str) -> str:
    url = _read_web_url(value)
    parts = urlsplit(url)
    if parts.path:
        raise refused("must be an origin: scheme, host and port only")
    return url.lower()


def _check_redis_url(value: SecretStr) -> SecretStr:
    _check_redis_address(value)
    parts = urlsplit(value.get_secret_value())
    known = REDIS_PARAMETERS | (TLS_PARAMETERS if parts.scheme == "rediss" else frozenset())
    for name, setting in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known:
            # The name is not repeated: a password with a ? in it ends up here.
            raise refused(f"has a parameter other than {', '.join(sorted(known))}")
        if name == "db" and not re.fullmatch(r"\d{1,9}", setting, re.ASCII):
            raise refused("must have a number as db")
        if name == "ssl_cert_reqs" and setting not in ("none", "optional", "required"):
            raise refused("must have none, optional or required as ssl_cert_reqs")
    return value


def _check_redis_address(value: SecretStr) -> SecretStr:
    parts = _split_url(value.get_secret_value(), frozenset({"redis", "rediss", "unix"}))
    if parts.scheme == "unix":
        if not parts.path.strip("/"):
            raise refused("must name the path of a socket")
        return value
    if not parts.hostname:
        raise refused("must name a host; percent-encode special characters in a password")
    if parts.fragment or not re.fullmatch(r"/?\d*", parts.path):
        # redis-py reads another path as database 0, in silence.
        raise refused("must end with a database number; percent-encode special characters in a password")
    return value


def _check_url(value: SecretStr) -> SecretStr:
    scheme = value.get_secret_value().partition("://")[0]
    if scheme in ("redis", "rediss", "unix"):
        return _check_redis_address(value)
    if not re.fullmatch(r"[a-z][a-z0-9+.-]*://\S*", value.get_secret_value()):
        raise refused("must be a URL")
    return value


def _check_header_name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
        raise refused("header names are 1 to 64 letters, digits or hyphens")
    if value.lower() in RESERVED_HEADERS:
        raise refused("this header is set by the connection or by us")
    return value


def _expand_header_value(value: object) -> object:
    """Put environment variables in the place of `${NAME}`, so that no secret is written into the file."""
    if not isinstance(value, str):
        return value
    expanded = re.sub(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", _environment_value, value)
    if "${" in re.sub(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", "", value):
        raise refused("has a ${ that is not followed by a variable name and }")
    if not re.fullmatch(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?", expanded):
        raise refused("must be printable ASCII without spaces or line breaks at its ends")
    return expanded


def _check_secret_reference(value: str) -> str:
    if not REFERENCE.fullmatch(value):
        raise refused("must be env:NAME or file:PATH; never write the secret itself here")
    return value


def _check_file_reference(value: str) -> str:
    if not REFERENCE.fullmatch(value) or not value.startswith("file:"):
        raise refused("must be file:PATH")
    return value


def _check_keys_reference(value: str) -> str:
    """Keys are public: a file, or a URL whose origin the operator thereby trusts."""
    return _check_file_reference(value) if value.startswith("file:") else _read_web_url(value)


def _check_key_name(value: str) -> str:
    """Of a header, a cookie or a query parameter that holds an API key."""
    if not _KEY_NAME.fullmatch(value):
        raise refused("must be 1 to 64 letters, digits, dots, underscores or hyphens")
    if not is_key_name(value):
        raise refused("this header is set by the connection or by us")
    return value


def is_key_name(name: str) -> bool:
    """Whether a key may stand in a request under this name, whoever asks for it."""
    lower = name.lower()
    return bool(_KEY_NAME.fullmatch(name)) and lower not in RESERVED_HEADERS and not lower.startswith("x-a2a-")


_KEY_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


def _environment_value(reference: re.Match[str]) -> str:
    value = os.environ.get(reference[1], "")
    if not value:
        raise refused(f"environment variable {reference[1]} is not set or empty")
    conceal(value, for_good=True)
    return value


Duration = Annotated[timedelta, BeforeValidator(_read_duration)]
Retention = Annotated[Duration, AfterValidator(_check_retention)]
Seconds = Annotated[tuple[float, ...], NoDecode, BeforeValidator(_read_seconds), AfterValidator(_check_seconds)]
WebUrl = Annotated[str, AfterValidator(_read_web_url)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
HeaderName = Annotated[str, AfterValidator(_check_header_name)]
HeaderValue = Annotated[SecretStr, BeforeValidator(_expand_header_value)]
RedisUrl = Annotated[SecretStr, AfterValidator(_check_redis_url)]
ServiceUrl = Annotated[SecretStr, AfterValidator(_check_url)]
Origin = Annotated[str, AfterValidator(_read_origin)]
ShownText = Annotated[str, AfterValidator(_check_shown)]
AgentId = Annotated[str, AfterValidator(_check_agent_id)]
Specifier = Annotated[str, AfterValidator(_check_specifier)]
SecretReference = Annotated[str, AfterValidator(_check_secret_reference)]
FileReference = Annotated[str, AfterValidator(_check_file_reference)]
KeysReference = Annotated[str, AfterValidator(_check_keys_reference)]
KeyName = Annotated[str, AfterValidator(_check_key_name)]
#: RFC 6749 section 3.3.
Scope = Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x5b\x5d-\x7e]{1,256}$")]


def is_open_http(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme == "http" and not _is_loopback(parts.hostname or "")


def is_open_redis(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or _is_loopback(parts.hostname or ""):
        return False
    return not (parts.password or parse_qs(parts.query).get("password"))


def is_unverified_redis(url: str) -> bool:
    """TLS to whoever answers, who gets the password, too. Any repeat counts: clients differ in which one they read."""
    parts = urlsplit(url)
    if parts.scheme != "rediss" or _is_loopback(parts.hostname or ""):
        return False
    return any(value.lower() in ("none", "cert_none") for value in parse_qs(parts.query).get("ssl_cert_reqs", ()))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
