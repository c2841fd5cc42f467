"""What changed between two cards of an agent, and whether an operator has to accept it first. Pure.

A card that was taken over serves its own endpoints. So new work pauses when an endpoint moves to another origin,
when less authentication is asked for than before, or when the card is no longer signed. Other changes are noted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from delegation.answers import one_line
from delegation.cards import BINDINGS, Offer, allowed_origins, choose_interface, offers_of
from delegation.errors import AgentRefused
from delegation.origins import Origin, read_origin
from delegation.settings import AgentSettings

#: The members of an AgentCard (spec section 4.4.1). Only these are named in a log: other names are the agent's text.
MEMBERS = (
    *("name", "description", "version", "supportedInterfaces", "capabilities", "skills", "provider", "iconUrl"),
    *("documentationUrl", "defaultInputModes", "defaultOutputModes", "securitySchemes", "securityRequirements"),
    *("security", "signatures"),
)
SHORT = 12
_MOST_REASONS = 5
#: Of the accepted card; a hostile pair of cards must not cost a minute.
_MOST_ALTERNATIVES = 64

#: Schemes with scopes, all of them demanded together.
_Demands = frozenset[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """From one card to another: changed members by name, and the reasons, `code: words`, for new work to pause."""

    members: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The reasons without the agent's words in them."""
        return tuple(dict.fromkeys(reason.partition(":")[0] for reason in self.reasons))


def fingerprint(card: dict[str, Any]) -> str:
    """SHA-256 of the card without its signatures, as JSON with sorted keys, no blanks and ASCII alone."""
    unsigned = {name: value for name, value in card.items() if name != "signatures"}
    return hashlib.sha256(json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def short(digest: str) -> str:
    """Enough of a fingerprint to tell two cards apart in a log."""
    return digest[:SHORT]


def compare(agent: AgentSettings, old: dict[str, Any], new: dict[str, Any]) -> Changes:
    """What `new`, which was checked, has changed since `old` was accepted."""
    reasons = [*_moved(agent, old, new), *_weakened(old, new)]
    if old.get("signatures") and not new.get("signatures"):
        reasons.append("signature_dropped: the card was signed, and is not now")
    if len(reasons) > _MOST_REASONS:
        reasons = [*reasons[:_MOST_REASONS], f"more: {len(reasons) - _MOST_REASONS} further reasons"]
    return Changes(members=tuple(_changed_members(old, new)), reasons=tuple(reasons))


def _changed_members(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    yield from (name for name in MEMBERS if name in names)
    if not set(names) <= set(MEMBERS):
        yield "others"


def _moved(agent: AgentSettings, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """An interface that we could choose, at an origin where there was none; or the chosen one at another than before.

    Where an interface lies that the settings do not allow does not matter: it is never spoken to.
    """
    known, before, now = set(_origins(old)), _choosable(agent, old), _choosable(agent, new)
    for origin in dict.fromkeys(now):
        if origin not in known:
            yield f"endpoint_moved: an interface is at {origin} now; before: {', '.join(map(str, before)) or 'none'}"
    if before and now and before[0] != now[0] and now[0] in known:
        yield f"endpoint_moved: the interface we use was at {before[0]} and is at {now[0]} now"


def _choosable(agent: AgentSettings, card: dict[str, Any]) -> list[Origin]:
    """Origins of the interfaces that we might speak to, in the agent's order."""
    found = []
    for offer in _offers(card):
        try:
            found.append(read_origin(choose_interface(agent, [offer]).url))
        except AgentRefused:
            continue
    return [origin for origin in found if origin in allowed_origins(agent)]


def _origins(card: dict[str, Any]) -> Iterator[Origin]:
    for _, entry in _offers(card):
        url = entry.get("url")
        if entry.get("protocolBinding") in BINDINGS and isinstance(url, str):
            try:
                yield read_origin(url)
            except ValueError:
                continue


def _offers(card: dict[str, Any]) -> list[Offer]:
    try:
        return [(where, entry) for where, entry in offers_of(card) if isinstance(entry, dict)]
    except AgentRefused:
        return []


def _weakened(old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    before, now = _object(old.get("securitySchemes")), _object(new.get("securitySchemes"))
    for name, scheme in before.items():
        if name not in now:
            yield f"auth_weakened: scheme {one_line(name, 40)} is gone"
        elif _without_descriptions(scheme) != _without_descriptions(now[name]):
            yield f"auth_weakened: scheme {one_line(name, 40)} is another"
    if _asks_less(old, new):
        yield "auth_weakened: the card can be used with less than before"
    skills = {str(skill.get("id")): skill for skill in _objects(old.get("skills"))}
    for skill in _objects(new.get("skills")):
        if _asks_less(skills.get(str(skill.get("id")), {}), skill):
            yield f"auth_weakened: skill {one_line(skill.get('id'), 40)} can be used with less than before"


def _asks_less(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether one of the alternatives now demands less than each of those before (spec section 4.4.1: OR of ANDs)."""
    for key in ("securityRequirements", "security"):
        before = _alternatives(old.get(key))[:_MOST_ALTERNATIVES]
        if any(not any(each <= now for each in before) for now in _alternatives(new.get(key))):
            return True
    return False


def _alternatives(raw: object) -> list[_Demands]:
    """No requirements are one that demands nothing."""
    return [frozenset(_demands(entry)) for entry in _objects(raw)] or [frozenset()]


def _demands(entry: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """`{"schemes": {"name": {"list": ["scope"]}}}`, in version 0.3 `{"name": ["scope"]}`."""
    for name, scopes in _object(entry.get("schemes", entry)).items():
        yield name, ""
        listed = scopes.get("list") if isinstance(scopes, dict) else scopes
        yield from ((name, str(scope)) for scope in (listed if isinstance(listed, list) else []))


def _without_descriptions(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_descriptions(each) for name, each in value.items() if name != "description"}
    return [_without_descriptions(each) for each in value] if isinstance(value, list) else value


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
