"""What calls to a scripted agent must carry, and what they did carry.

Wanted things are written ``{"headers": {name: value}, "query": {…}, "cookies": {…}, "certificate": name}``, any of
them left out, a value null for "any value"; ``certificate`` is the common name in the client's certificate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

_PLACES = {"headers", "query", "cookies", "certificate"}
_ORDINARY = {
    *("host", "accept", "accept-encoding", "connection", "user-agent", "content-length", "content-type"),
    *("a2a-version", "a2a-extensions", "x-participant-id"),
}
Wanted = Mapping[str, Any]


def carries(wanted: Wanted, headers: Mapping[str, str], query: str = "", certificate: str = "") -> bool:
    """Whether a call has everything that is wanted; header names may be in any case. ValueError: an unknown place."""
    if unknown := set(wanted) - _PLACES:
        raise ValueError(f"credentials in unknown places: {', '.join(sorted(unknown))}")
    named = {name.lower(): value for name, value in wanted.get("headers", {}).items()}
    return (
        _has(named, headers)
        and _has(wanted.get("query", {}), dict(parse_qsl(query, keep_blank_values=True)))
        and _has(wanted.get("cookies", {}), cookies_in(headers.get("cookie", "")))
        and wanted.get("certificate", certificate) == certificate
    )


def satisfies_one(alternatives: Sequence[Wanted], headers: Mapping[str, str], query: str, certificate: str) -> bool:
    """Whether a call has all that one alternative wants; where there is none, nothing is wanted."""
    return not alternatives or any(carries(each, headers, query, certificate) for each in alternatives)


def credentials_in(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers that may be credentials: all but those every call has."""
    return {name: value for name, value in headers.items() if name not in _ORDINARY}


def cookies_in(header: str) -> dict[str, str]:
    pairs = [pair.strip().partition("=") for pair in header.split(";") if pair.strip()]
    return {name: value for name, _, value in pairs}


def _has(wanted: Mapping[str, str | None], given: Mapping[str, str]) -> bool:
    return all(name in given and value in (None, given[name]) for name, value in wanted.items())
