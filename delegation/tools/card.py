"""Fetch the card of a remote agent, and read from it where the agent is, in which dialect, and which tools it is.

A card is hostile input: its texts are made fit to be read, and its endpoint must lie on the card's own origin, or on
one that the descriptor names. Where the seed's ports differ: no redirect is followed, http and https alone are spoken,
a card that is no object is a bad card, a skill that is none is skipped, and empty strings count as missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import structlog

from delegation.answers import PATH_SAFE_ID, load_json, one_line
from delegation.errors import AgentError, AgentRefused, CallAmbiguous
from delegation.origins import Origin, read_origin
from delegation.outbound import GuardedTransport
from delegation.replies import JSONRPC
from delegation.texts import DESCRIPTION_CHARS, NAME_CHARS, clean
from delegation.tools.descriptor import Descriptor, Dialect, Expanded
from delegation.tools.failures import TRANSPORT, raise_time_limit, transport_text
from delegation.tools.results import http_error_text

CARD_BYTES = 1024 * 1024
TOOL_NAME_CHARS = 1000
MOST_SKILLS = 500
DEFAULT_NAME = "agent"
_VERSION_1 = re.compile(r"1(\.\d+)*")
_VERSION_0_3 = re.compile(r"0\.3(\.\d+)?")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")

log = structlog.get_logger("delegation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """The card as it came, or why there is none."""

    card: dict[str, Any] | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where the card leads to; ``dialect`` None: it does not say enough."""

    endpoint: str
    origins: frozenset[Origin]
    dialect: Dialect | None
    tenant: str = ""


def fetch_card(descriptor: Descriptor, headers: Expanded) -> Fetched:
    """One GET, within the descriptor's timeout."""
    url = descriptor.card
    try:
        origin = read_origin(url) if isinstance(url, str) else None
    except ValueError:
        origin = None
    if origin is None:
        return Fetched(error=f"HTTP transport {TRANSPORT}")
    transport = GuardedTransport([origin])
    sent = {"User-Agent": "delegation", **headers.headers}
    try:
        answer = transport.get(url, headers=sent, deadline_s=descriptor.timeout / 1000, max_bytes=CARD_BYTES)
    except AgentError as error:
        raise_time_limit(error)
        return Fetched(error=transport_text(error))
    finally:
        transport.close()
    if not 200 <= answer.status < 300:
        return Fetched(error=http_error_text(answer.status, answer.body, headers.secrets))
    return _read_card(answer.body)


def _read_card(body: bytes) -> Fetched:
    try:
        card = load_json(body)
    except CallAmbiguous as error:
        return Fetched(error=f"bad card: {error.detail}")
    return Fetched(card=card) if isinstance(card, dict) else Fetched(error="bad card: not an object")


def find_place(card: dict[str, Any], descriptor: Descriptor) -> Place:
    """Where and how the agent is spoken to. Raises AgentRefused when it would be at an origin that nobody allowed, or
    when the card requires an extension (A2A spec section 4.4.4): tools speak none.

    An interface of 1.x makes it 1.0; without one the card's `url` counts, or the origin of the card itself. The
    descriptor's dialect goes before what the card says.
    """
    _check_extensions(card)
    interfaces = [entry for entry in _list(card, "supportedInterfaces") if _is_jsonrpc(entry)]
    newest = next((entry for entry in interfaces if _speaks(entry, _VERSION_1)), None)
    older = next((entry for entry in interfaces if _speaks(entry, _VERSION_0_3)), None)
    dialect = descriptor.dialect or (Dialect.V1_0 if newest else None)
    chosen = newest if dialect is Dialect.V1_0 else older
    url = _text(chosen, "url") if chosen else _older_url(card)
    if (
        not url
        and descriptor.dialect is None
        and (_list(card, "supportedInterfaces") or card.get("preferredTransport"))
    ):
        raise AgentRefused("no interface that we speak: JSONRPC in version 1.0 or 0.3")
    tenant = _text(chosen, "tenant") if chosen else ""
    if tenant and not PATH_SAFE_ID.fullmatch(tenant):
        raise AgentRefused("the interface's tenant is not usable")
    origins = _allowed(descriptor)
    endpoint = url or "/".join(descriptor.card.split("/", 3)[:3])
    _check_endpoint(endpoint, origins)
    return Place(endpoint=endpoint, origins=origins, dialect=dialect, tenant=tenant)


def sanitize(text: str) -> str:
    """Every character that a tool's name may not have becomes `_`, one by one."""
    return _NOT_IN_NAMES.sub("_", text)


def agent_name(card: dict[str, Any], secrets: Iterable[str] = ()) -> str:
    return clean(card.get("name"), NAME_CHARS, secrets=secrets) or DEFAULT_NAME


@dataclass(frozen=True, kw_only=True, slots=True)
class NamedSkill:
    """A skill as a tool."""

    name: str
    description: str


def name_skills(card: dict[str, Any], secrets: Iterable[str] = ()) -> list[NamedSkill]:
    """In the card's order, doubles and all; the skill's own id goes nowhere but into the name. None of ``secrets`` is
    repeated.

    A name has no limit that an honest card would meet (the seed has none). Raises AgentRefused for one beyond
    :data:`TOOL_NAME_CHARS`; what is no skill, and what comes after :data:`MOST_SKILLS`, is left out with a warning.
    """
    given = _list(card, "skills")
    skills = [skill for skill in given if isinstance(skill, dict)]
    if len(given) > len(skills[:MOST_SKILLS]):
        beyond = max(0, len(skills) - MOST_SKILLS)
        log.warning("tools.skills_skipped", not_objects=len(given) - len(skills), beyond_limit=beyond)
    secrets = tuple(secrets)
    return [_name_skill(_text(card, "name") or DEFAULT_NAME, skill, secrets) for skill in skills[:MOST_SKILLS]]


def _name_skill(agent: str, skill: dict[str, Any], secrets: tuple[str, ...]) -> NamedSkill:
    skill_id = _text(skill, "id") or _text(skill, "name")
    if len(agent) + len(skill_id) > TOOL_NAME_CHARS:
        raise AgentRefused(f"the name of the agent and the id of a skill are longer than {TOOL_NAME_CHARS} characters")
    name = f"{sanitize(agent)}_{sanitize(skill_id)}"
    for secret in secrets:  # the longest first; a peer may have spelled it as names are
        name = name.replace(sanitize(secret), "___")
    described = _text(skill, "description") or _text(skill, "name") or skill_id
    return NamedSkill(name=name, description=clean(described, DESCRIPTION_CHARS, secrets=secrets))


def _check_extensions(card: dict[str, Any]) -> None:
    capabilities = card.get("capabilities")
    offered = _list(capabilities, "extensions") if isinstance(capabilities, dict) else []
    required = [_text(entry, "uri") for entry in offered if isinstance(entry, dict) and entry.get("required") is True]
    if required:
        raise AgentRefused(f"extension_required: {one_line(', '.join(required))}")


def _allowed(descriptor: Descriptor) -> frozenset[Origin]:
    try:
        return frozenset(read_origin(url) for url in (descriptor.card, *descriptor.origins))
    except ValueError as error:
        raise AgentRefused(f"origins: one {error}") from None


def _check_endpoint(url: str, origins: frozenset[Origin]) -> None:
    try:
        origin = read_origin(url)
    except ValueError as error:
        raise AgentRefused(f"the agent's url {error}") from None
    if origin not in origins:
        raise AgentRefused(f"card_origin_refused: the agent's url is at {origin}; name it in origins to allow that")


def _older_url(card: dict[str, Any]) -> str:
    """Of a card before 1.0: its `url` speaks `preferredTransport`, JSONRPC unless it says so (A2A 0.3 section 5.6)."""
    preferred = _text(card, "preferredTransport") or JSONRPC
    others = [entry for entry in _list(card, "additionalInterfaces") if isinstance(entry, dict)]
    spoken = (_text(entry, "url") for entry in others if entry.get("transport") == JSONRPC)
    return _text(card, "url") if preferred == JSONRPC else next(filter(None, spoken), "")


def _is_jsonrpc(entry: object) -> bool:
    return isinstance(entry, dict) and entry.get("protocolBinding") == JSONRPC and bool(_text(entry, "url"))


def _speaks(entry: dict[str, Any], version: re.Pattern[str]) -> bool:
    return version.fullmatch(_text(entry, "protocolVersion")) is not None


def _list(owner: dict[str, Any], key: str) -> list[Any]:
    value = owner.get(key)
    return value if isinstance(value, list) else []


def _text(owner: dict[str, Any], key: str) -> str:
    value = owner.get(key)
    return value if isinstance(value, str) else ""
