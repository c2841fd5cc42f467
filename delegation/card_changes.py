"""What changed between two cards of an agent, and whether an operator has to accept it first. Pure.

A card that was taken over serves its own endpoints. So new work pauses when an endpoint moves to another origin,
when less authentication is asked for than before, or when the card is no longer signed. Other changes are noted.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any

from delegation.answers import one_line
from delegation.auth_settings import OAuth2Credential, OpenIdCredential
from delegation.cards import BINDINGS, Offer, allowed_origins, choose_interface, offers_of
from delegation.errors import AgentError, AgentRefused
from delegation.origins import Origin, read_origin
from delegation.security import choose_credentials
from delegation.security_schemes import Demand, SecurityScheme, read_lists, read_schemes, skill_id
from delegation.settings import AgentSettings

#: The members of an AgentCard (spec section 4.4.1). Only these are named in a log: other names are the agent's text.
MEMBERS = (
    *("name", "description", "version", "supportedInterfaces", "capabilities", "skills", "provider", "iconUrl"),
    *("documentationUrl", "defaultInputModes", "defaultOutputModes", "securitySchemes", "securityRequirements"),
    *("security", "signatures"),
)
SHORT = 12
_MOST_REASONS = 5
_SECURITY_MEMBERS = ("securitySchemes", "securityRequirements", "security", "skills")
#: Comparisons of two lists, each of a thousand steps at most: a hostile pair of cards must not cost a minute. One
#: owner has two lists at most, unless a card gives several skills one id.
_MOST_OF_ONE = 4
_MOST_OF_ALL = 1000

#: Schemes with scopes, all of them demanded together.
_Demands = frozenset[tuple[str, str]]
#: Alternatives, one of which has to be met.
_List = frozenset[_Demands]


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
    reasons = [*_moved(agent, old, new), *_weakened(old, new), *_widened(agent, old, new)]
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
    """Compared is what we read of them (security_schemes.py): nothing else decides what an agent is shown."""
    if all(old.get(name) == new.get(name) for name in _SECURITY_MEMBERS):
        return
    try:
        before, now = _Security.read(old), _Security.read(new)
    except AgentRefused:
        yield "auth_weakened: what is demanded cannot be compared"
        return
    for name, scheme in before.schemes.items():
        if name not in now.schemes:
            yield f"auth_weakened: scheme {one_line(name, 40)} is gone"
        elif _essence(scheme) != _essence(now.schemes[name]):
            yield f"auth_weakened: scheme {one_line(name, 40)} is another"
    if _is_less(now.lists[None], before.lists[None]):
        yield "auth_weakened: the card can be used with less than before"
    yield from _weakened_skills(before, now)


def _widened(agent: AgentSettings, old: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """A token for more than before would be asked for, where the card alone says for what."""
    if all(old.get(name) == new.get(name) for name in _SECURITY_MEMBERS):
        return
    before = _asked_scopes(agent, old)
    for position, scopes in _asked_scopes(agent, new).items():
        grown = [scope for scope in scopes if scope not in before.get(position, ())]
        if grown:
            kind = agent.auth[position].type
            yield f"scopes_grown: {kind} is asked for with {one_line(' '.join(grown), 80)} as well"


def _asked_scopes(agent: AgentSettings, card: dict[str, Any]) -> dict[int, tuple[str, ...]]:
    """The scopes that the card chooses, by the position of the credential that has none of the operator's."""
    try:
        uses = choose_credentials(card, agent.auth)
    except AgentError:  # under the settings of today it asks for nothing that we have
        return {}
    chosen = ((use, agent.auth[use.position]) for use in uses)
    return {
        use.position: use.scopes
        for use, credential in chosen
        if isinstance(credential, OAuth2Credential | OpenIdCredential) and not credential.scopes
    }


def _weakened_skills(before: _Security, now: _Security) -> Iterator[str]:
    """A skill that is there has to demand as much as before. Of one that is gone, perhaps to another name, what it
    demanded has to be demanded somewhere: a delegation names no skill, and is shown what all of them demand."""
    gone = set[_List]()
    for skill, lists in before.lists.items():
        if skill is None:
            continue
        if skill not in now.skills:
            gone |= lists
        elif _is_less(now.lists[skill], lists):
            yield f"auth_weakened: skill {one_line(skill, 40)} can be used with less than before"
    if _is_less(set[_List]().union(*now.lists.values()), gone, _MOST_OF_ALL):
        yield "auth_weakened: a skill is gone, and what it demanded is demanded nowhere now"


def _is_less(now: AbstractSet[_List], before: AbstractSet[_List], most: int = _MOST_OF_ONE) -> bool:
    """Whether one of the lists before has no like of it now; so is what would take too long to compare."""
    lacking = before - now
    return len(lacking) * len(now) > most or not all(any(_covers(each, old) for each in now) for old in lacking)


def _covers(now: _List, before: _List) -> bool:
    """Whether each alternative now demands at least what one of those before did (spec section 4.4.1: OR of ANDs)."""
    return all(any(each <= alternative for each in before) for alternative in now)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Security:
    """What a card demands: lists of alternatives by the skill's id, the card's own under None.

    One of which an alternative demands nothing is none.
    """

    schemes: Mapping[str, SecurityScheme]
    skills: frozenset[str]
    lists: Mapping[str | None, AbstractSet[_List]]

    @classmethod
    def read(cls, card: dict[str, Any]) -> _Security:
        """Raises AgentRefused."""
        schemes = read_schemes(card)
        lists = defaultdict[str | None, set[_List]](set)
        for each in read_lists(card, schemes):
            found = frozenset(map(_demands, each.alternatives))
            if frozenset() not in found:
                lists[each.skill].add(found)
        skills = frozenset(skill_id(skill) for skill in _objects(card.get("skills")))
        return cls(schemes=schemes, skills=skills, lists=lists)


def _demands(demands: Iterable[Demand]) -> _Demands:
    pairs = ((demand.scheme.name, scope) for demand in demands for scope in ("", *demand.scopes))
    return frozenset(pairs)


def _essence(scheme: SecurityScheme) -> SecurityScheme:
    """The name of a header is the same in any spelling."""
    return replace(scheme, key_name=scheme.key_name.lower()) if scheme.location == "header" else scheme


def _objects(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
