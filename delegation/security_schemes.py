"""Read what a card says of security (A2A spec sections 4.4 and 4.5): its schemes, and who demands which. Pure.

`securityRequirements` is a list of alternatives, each a combination of schemes that must all be met; a skill may have
its own list. In 0.3 it was called `security`, and schemes were spelled as OpenAPI does. What is not readable is
`AgentRefused`: a part of it would be shown for nothing.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegation.answers import one_line
from delegation.errors import AgentRefused

MOST_SCHEMES = 64
MOST_ALTERNATIVES = 32
MOST_SCOPES = 64
#: The place of the card's own list.
CARD = "card"

#: The member that holds a scheme in A2A 1.0, and `type` of the same in OpenAPI's spelling.
_KINDS: Mapping[str, str] = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}
#: RFC 6749 section 3.3.
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,256}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityScheme:
    """One way in that a card declares. ``kind`` is OpenAPI's type; of `http`, with its scheme: `http bearer`."""

    name: str
    kind: str
    location: str = ""  #: of an API key
    key_name: str = ""
    token_url: str = ""  #: of client credentials; empty where the card offers no such flow

    def __str__(self) -> str:
        details = f" in {self.location} {self.key_name}" if self.kind == "apiKey" else ""
        return one_line(f"{self.name} ({self.kind}{details})", 120)


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """One scheme in one alternative of a requirement."""

    scheme: SecurityScheme
    scopes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A list of alternatives as a card has it, and whose it is: the skill's of that id, or the card's own (None)."""

    skill: str | None
    listed: Sequence[Mapping[str, Any]]

    @property
    def name(self) -> str:
        """For people."""
        return _name_of(self.skill)


def read_schemes(card: Mapping[str, Any]) -> dict[str, SecurityScheme]:
    """The card's schemes by name."""
    raw = card.get("securitySchemes")
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise AgentRefused("card_invalid: securitySchemes is not an object")
    if len(raw) > MOST_SCHEMES:
        raise AgentRefused(f"card_invalid: more than {MOST_SCHEMES} securitySchemes")
    return {name: _read_scheme(name, entry) for name, entry in raw.items()}


def places(card: Mapping[str, Any]) -> Iterator[Place]:
    """Each list of alternatives that the card has."""
    skills = card.get("skills")
    listed_skills = [skill for skill in skills if isinstance(skill, dict)] if isinstance(skills, list) else []
    for skill, owner in ((None, card), *((skill_id(each), each) for each in listed_skills)):
        for key in ("securityRequirements", "security"):
            listed = owner.get(key)
            if listed is None or listed == []:
                continue
            if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
                raise AgentRefused(f"card_invalid: {_name_of(skill)}: {key} is not a list of objects")
            if len(listed) > MOST_ALTERNATIVES:
                raise AgentRefused(f"card_invalid: {_name_of(skill)}: more than {MOST_ALTERNATIVES} {key}")
            yield Place(skill=skill, listed=listed)


def skill_id(skill: Mapping[str, Any]) -> str:
    """Empty where it has none."""
    found = skill.get("id")
    return found if isinstance(found, str) else ""


def _name_of(skill: str | None) -> str:
    return CARD if skill is None else f"skill {one_line(skill, 40) or 'without id'}"


def read_alternatives(place: Place, schemes: Mapping[str, SecurityScheme]) -> list[tuple[Demand, ...]]:
    """What each alternative demands; a scheme that the card does not declare is of kind `undeclared`."""
    alternatives = []
    for entry in place.listed:
        wanted = entry.get("schemes", entry)  # 0.3: the names directly
        if wanted is None:  # proto3 JSON: its default, no schemes
            wanted = {}
        if not isinstance(wanted, dict):
            raise AgentRefused(f"card_invalid: {place.name}: a security requirement is not an object")
        if len(wanted) > MOST_SCHEMES:
            what = f"a security requirement of more than {MOST_SCHEMES} schemes"
            raise AgentRefused(f"card_invalid: {place.name}: {what}")
        demands = tuple(
            Demand(scheme=schemes.get(name) or SecurityScheme(name=name, kind="undeclared"), scopes=_scopes(scopes))
            for name, scopes in wanted.items()
        )
        alternatives.append(demands)
    return alternatives


def _scopes(raw: object) -> tuple[str, ...]:
    listed = raw.get("list") if isinstance(raw, dict) else raw
    named = itertools.islice(listed, MOST_SCOPES) if isinstance(listed, list) else ()
    return tuple(scope for scope in named if isinstance(scope, str) and _SCOPE.fullmatch(scope))


def _read_scheme(name: str, raw: object) -> SecurityScheme:
    members = raw if isinstance(raw, dict) else {}
    named = ((kind, members[key]) for key, kind in _KINDS.items() if key in members)
    kind, entry = next(named, (_text(members, "type"), members))
    if not isinstance(entry, dict) or kind not in _KINDS.values():
        return SecurityScheme(name=name, kind="unknown")
    if kind == "http":
        kind = f"http {_text(entry, 'scheme').lower()}"
    return SecurityScheme(
        name=name,
        kind=kind,
        location=_text(entry, "location") or _text(entry, "in"),
        key_name=_text(entry, "name"),
        token_url=_token_url(entry) if kind == "oauth2" else "",
    )


def _token_url(entry: Mapping[str, Any]) -> str:
    flows = entry.get("flows")
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    return (_text(flow, "tokenUrl") or "https://…") if isinstance(flow, dict) else ""


def _text(owner: Mapping[str, Any], key: str) -> str:
    value = owner.get(key)
    return value[:512] if isinstance(value, str) else ""
