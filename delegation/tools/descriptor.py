"""What describes a remote agent: where its card is, which headers it is shown, how long it may take. Pure.

The rules are those of the toolnexus seed (SPEC section 7A). Where its ports differ: a timeout or an interval is a
number above 0, anything else is an error; unknown keys of a descriptor given in code are dropped, with a warning;
`${NAME}` is expanded when the card is fetched and again for each call, so that a rotated token counts, and an unset
one is an empty string.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import structlog

from delegation.config_values import RESERVED_HEADERS
from delegation.errors import InvalidArguments
from delegation.redaction import SHORTEST, conceal, is_secret_name

DEFAULT_TIMEOUT_MS = 300_000
DEFAULT_POLL_EVERY_MS = 1000
MOST_MS = 7 * 24 * 3600 * 1000  #: no clock, socket or lock takes any number

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
#: Whatever a descriptor says of these, ours are sent.
_OURS = frozenset({"content-type", "a2a-extensions"})
#: These would make another request of it.
_FORBIDDEN = RESERVED_HEADERS - _OURS - {"a2a-version", "x-participant-id"}
_ALIASES = {"pollEvery": "poll_every", "poll-every": "poll_every"}
_KEYS = ("card", "headers", "timeout", "poll_every", "dialect", "origins", "strict_seed")

log = structlog.get_logger("delegation")


class Dialect(StrEnum):
    """How an agent is spoken to."""

    V1_0 = "1.0"
    V0_3 = "0.3"
    TOOLNEXUS = "toolnexus"  #: names of methods from 1.0, bodies of 0.3, and no version


@dataclass(frozen=True, kw_only=True, slots=True)
class Descriptor:
    """``dialect`` None: found out; ``origins``: further ones that the card may lead to (as of an agent's settings)."""

    card: Any
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = DEFAULT_TIMEOUT_MS
    poll_every: float = DEFAULT_POLL_EVERY_MS
    dialect: Dialect | None = None
    origins: tuple[str, ...] = ()
    strict_seed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Expanded:
    """Headers as they are sent now, and what of them no text of ours may repeat."""

    headers: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)


def read_descriptor(given: Mapping[str, Any]) -> Descriptor:
    """Raises InvalidArguments naming the key. What stands for the card is judged where it is fetched."""
    named = {_ALIASES.get(key, key): value for key, value in given.items() if value is not None}
    unknown = sorted(str(key) for key in named.keys() - set(_KEYS))
    if unknown:
        log.warning("tools.keys_ignored", keys=unknown[:10])
    return Descriptor(
        card=named.get("card"),
        headers=_read_headers(named.get("headers", {})),
        timeout=read_ms("timeout", named.get("timeout", DEFAULT_TIMEOUT_MS)),
        poll_every=read_ms("poll_every", named.get("poll_every", DEFAULT_POLL_EVERY_MS)),
        dialect=_read_dialect(named.get("dialect")),
        origins=_read_origins(named.get("origins", ())),
        strict_seed=named.get("strict_seed") is True,
    )


def read_ms(name: str, value: object) -> float:
    """Raises InvalidArguments unless it is a number of milliseconds above 0, at most :data:`MOST_MS`; a whole one is
    an int, as it is shown.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArguments(f"{name}: a number of milliseconds above 0")
    if value > MOST_MS:
        raise InvalidArguments(f"{name}: at most {MOST_MS} milliseconds (7 days)")
    return int(value) if value == int(value) else value


def parse_agents_config(block: object) -> list[dict[str, Any]]:
    """The descriptors of an `agents` block, sorted by key; each is what `remote_agent(**descriptor)` takes.

    An entry counts if it is an object whose `card` is a string, `disabled` is not true and `enabled` is not false; what
    is no block has none. Its key is nothing but a name for it. Pure: nothing is fetched.
    """
    entries = sorted((str(key), entry) for key, entry in block.items()) if isinstance(block, Mapping) else []
    return [_taken(entry) for _, entry in entries if _counts(entry)]


def expand(headers: Mapping[str, str]) -> Expanded:
    """Raises InvalidArguments for a header that cannot be sent (its name only is told)."""
    sent: dict[str, str] = {}
    secrets: set[str] = set()
    for name, template in headers.items():
        if not _HEADER_NAME.fullmatch(name) or name.lower() in _FORBIDDEN:
            raise InvalidArguments(f"headers: {name[:64]!r} cannot be set")
        found = [os.environ.get(variable, "") for variable in _VARIABLE.findall(template)]
        value = _VARIABLE.sub(lambda match: os.environ.get(match[1], ""), template).strip(" ")
        if not _HEADER_VALUE.fullmatch(value):
            raise InvalidArguments(f"headers: {name}: not one line of printable ASCII")
        if is_secret_name(name):
            found += [value, *value.split()]
        secrets.update(secret for secret in found if len(secret) >= SHORTEST)
        if name.lower() not in _OURS:
            sent[name] = value
    for secret in secrets:
        conceal(secret)
    return Expanded(headers=sent, secrets=tuple(sorted(secrets, key=len, reverse=True)))


def _read_headers(value: object) -> Mapping[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise InvalidArguments("headers: names and values are strings")
    return dict(value)


def _read_dialect(value: object) -> Dialect | None:
    if value is None:
        return None
    found = next((dialect for dialect in Dialect if dialect == value), None)
    if found is None:
        raise InvalidArguments(f"dialect: one of {', '.join(Dialect)}")
    return found


def _read_origins(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(url, str) for url in value):
        raise InvalidArguments("origins: a list of URLs")
    return tuple(value)


def _counts(entry: object) -> bool:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("card"), str):
        return False
    return entry.get("disabled") is not True and entry.get("enabled") is not False


def _taken(entry: Mapping[str, Any]) -> dict[str, Any]:
    named = {_ALIASES.get(key, key): value for key, value in entry.items()}
    return {key: named[key] for key in _KEYS if named.get(key) is not None}
