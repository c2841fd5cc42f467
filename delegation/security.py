"""Which of our credentials a card asks for (A2A spec sections 4.5 and 7). Pure.

`securityRequirements` is a list of alternatives, each a combination of schemes that must all be met; a skill may have
its own list. One alternative of each list is chosen, the first that the configured credentials meet in full, and
nothing but the chosen ones is ever sent. The card decides which; where each goes the operator has decided.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delegation.answers import one_line
from delegation.auth_settings import (
    ApiKeyCredential,
    BasicCredential,
    BearerCredential,
    Credential,
    MutualTlsCredential,
    OAuth2Credential,
    OpenIdCredential,
)
from delegation.config_values import is_key_name
from delegation.errors import AgentRefused, UnsupportedExtensionError

MOST_SCHEMES = 64
MOST_ALTERNATIVES = 32
MOST_SCOPES = 64
#: Schemes of one alternative that advice is given for.
MOST_ADVICE = 4

#: The member that holds a scheme in A2A 1.0, and `type` of the same in OpenAPI's spelling.
_KINDS: Mapping[str, str] = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}
_BEARER_LIKE = ("http bearer", "oauth2", "openIdConnect")
_LOCATIONS = ("header", "query", "cookie")
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
class CredentialUse:
    """A configured credential, by its position in `agents[].auth`, and what the card asks a token for."""

    position: int
    scheme: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Demand:
    """One scheme in one alternative of a requirement."""

    scheme: SecurityScheme
    scopes: tuple[str, ...]


def choose_credentials(card: Mapping[str, Any], credentials: Sequence[Credential]) -> tuple[CredentialUse, ...]:
    """The credentials to show an agent with this card.

    A card that asks for nothing gets all that are configured: the operator bound them to this agent. Raises
    UnsupportedExtensionError, which says what to configure, and AgentRefused for a card that is not readable.
    """
    schemes = _read_schemes(card)
    places = list(_places(card))
    if not schemes and not places:
        return _all_of(credentials)
    if not credentials:
        raise _missing(schemes, places)
    lists = [_read_alternatives(where, raw, schemes) for where, raw in places]
    if not lists:  # schemes are declared, and nothing says which: any of them
        lists = [("card", [(_Demand(scheme=scheme, scopes=()),) for scheme in schemes.values()])]
    chosen: tuple[CredentialUse, ...] = ()
    for where, alternatives in lists:
        chosen = _choose(where, alternatives, credentials, chosen)
    return chosen


def describe_credentials(uses: Sequence[CredentialUse], credentials: Sequence[Credential]) -> str:
    """For people: what is shown to the agent, without a secret."""
    said = []
    for use in uses:
        credential = credentials[use.position]
        said.append(f"{credential.type} ({one_line(use.scheme, 40)})" if use.scheme else credential.type)
    return ", ".join(said)


def _all_of(credentials: Sequence[Credential]) -> tuple[CredentialUse, ...]:
    slots: set[tuple[str, str]] = set()
    uses = []
    for position, credential in enumerate(credentials):
        if slot_of(credential) not in slots:
            slots.add(slot_of(credential))
            uses.append(CredentialUse(position=position))
    return tuple(uses)


def _choose(
    where: str,
    alternatives: Sequence[tuple[_Demand, ...]],
    credentials: Sequence[Credential],
    chosen: tuple[CredentialUse, ...],
) -> tuple[CredentialUse, ...]:
    """``chosen`` and what the first alternative needs beside it. One that asks for nothing is the last resort."""
    problems: list[str] = []
    for demands in sorted(alternatives, key=lambda alternative: not alternative):
        uses = [_first_fit(demand, credentials, chosen) for demand in demands]
        found = tuple(use for use in uses if use is not None)
        if len(found) == len(demands) and (united := _united(chosen, found, credentials)) is not None:
            return united
        lacking = [demand.scheme for demand, use in zip(demands, uses, strict=True) if use is None]
        problems.append(_advice_on(lacking) or "two of its schemes want the same place in a request")
    if not problems:
        return chosen
    place = "" if where == "card" else f" (for {where})"
    raise UnsupportedExtensionError(f"auth_missing{place}: {min(problems, key=len)}")


def _first_fit(
    demand: _Demand, credentials: Sequence[Credential], chosen: Sequence[CredentialUse]
) -> CredentialUse | None:
    """One that is in use already comes first, so that a skill's list asks for no second key."""
    in_use = {use.position for use in chosen}
    order = sorted(range(len(credentials)), key=lambda position: position not in in_use)
    for position in order:
        if _fits(credentials[position], demand.scheme):
            return CredentialUse(position=position, scheme=demand.scheme.name, scopes=demand.scopes)
    return None


def _united(
    chosen: Sequence[CredentialUse], found: Sequence[CredentialUse], credentials: Sequence[Credential]
) -> tuple[CredentialUse, ...] | None:
    """Both together; None where two different ones would go to the same place."""
    by_slot: dict[tuple[str, str], CredentialUse] = {}
    for use in (*chosen, *found):
        slot = slot_of(credentials[use.position])
        other = by_slot.setdefault(slot, use)
        if other.position != use.position:
            return None
        scopes = tuple(dict.fromkeys((*other.scopes, *use.scopes)))
        by_slot[slot] = CredentialUse(position=use.position, scheme=other.scheme, scopes=scopes)
    return tuple(by_slot.values())


def slot_of(credential: Credential) -> tuple[str, str]:
    """Where in a request a credential goes."""
    match credential:
        case ApiKeyCredential(location="header"):
            return "header", credential.name.lower()
        case ApiKeyCredential():
            return credential.location, credential.name
        case MutualTlsCredential():
            return "tls", ""
        case _:
            return "header", "authorization"


def _fits(credential: Credential, scheme: SecurityScheme) -> bool:
    if credential.scheme is not None and credential.scheme != scheme.name:
        return False
    is_named = credential.scheme is not None
    match credential:
        case ApiKeyCredential():
            is_header = credential.location == "header"
            asked, ours = (scheme.key_name, credential.name)
            same = asked.lower() == ours.lower() if is_header else asked == ours
            return scheme.kind == "apiKey" and scheme.location == credential.location and same
        case BasicCredential():
            return scheme.kind == "http basic"
        case MutualTlsCredential():
            return scheme.kind == "mutualTLS"
        case BearerCredential():
            # A token is a token: one that somebody else renews may serve, if the operator says so by name.
            return scheme.kind == "http bearer" or (is_named and scheme.kind in _BEARER_LIKE)
        case OAuth2Credential():
            return (scheme.kind == "oauth2" and bool(scheme.token_url)) or (is_named and scheme.kind in _BEARER_LIKE)
        case OpenIdCredential():
            return scheme.kind == "openIdConnect" or (is_named and scheme.kind in _BEARER_LIKE)


def _advice_on(schemes: Sequence[SecurityScheme]) -> str:
    more = f"; and {len(schemes) - MOST_ADVICE} more" if len(schemes) > MOST_ADVICE else ""
    return "; ".join(map(_advice, schemes[:MOST_ADVICE])) + more


def _advice(scheme: SecurityScheme) -> str:
    """What an operator would write for it. The card's token URL is shown, and never used."""
    match scheme.kind:
        case "apiKey" if scheme.location not in _LOCATIONS or not is_key_name(scheme.key_name):
            return one_line(f"{scheme}: no place that a key of ours is ever put in", 200)
        case "apiKey":
            what = f'type = "api_key", in = "{scheme.location}", name = "{scheme.key_name}"'
        case "http bearer" | "http basic":
            what = f'type = "{scheme.kind.removeprefix("http ")}"'
        case "oauth2" if scheme.token_url:
            what = f'type = "oauth2", token_url = "{scheme.token_url}" if you trust it'
        case "openIdConnect":
            what = 'type = "oidc"'
        case "mutualTLS":
            what = 'type = "mtls"'
        case "oauth2":
            what = f'type = "bearer", scheme = "{scheme.name}": no client credentials there'
        case "undeclared":
            return one_line(f"{scheme.name}: not among the card's securitySchemes", 200)
        case _:
            return one_line(f"{scheme}: of no kind that we speak", 200)
    return one_line(f"{scheme.name}: add [[agents.auth]] {what}", 300)


def _missing(
    schemes: Mapping[str, SecurityScheme], places: Sequence[tuple[str, list[Any]]]
) -> UnsupportedExtensionError:
    """Nothing is configured: whatever the card asks for, we lack."""
    for where, raw in places:
        for demands in _read_alternatives(where, raw, schemes)[1]:
            if demands:
                place = "" if where == "card" else f" (for {where})"
                advice = _advice_on([demand.scheme for demand in demands])
                return UnsupportedExtensionError(f"auth_missing{place}: {advice}")
    if schemes:
        return UnsupportedExtensionError(f"auth_missing: {_advice(next(iter(schemes.values())))}")
    return UnsupportedExtensionError(f"auth_missing: {places[0][0]} declares securityRequirements without a scheme")


# --- Reading the card -------------------------------------------------------------------------------------------------


def _places(card: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each list of alternatives, and whose it is. `security` is what 0.3 called it."""
    skills = card.get("skills")
    listed_skills = [skill for skill in skills if isinstance(skill, dict)] if isinstance(skills, list) else []
    named = ((f"skill {one_line(skill.get('id'), 40) or 'without id'}", skill) for skill in listed_skills)
    for where, owner in (("card", card), *named):
        for key in ("securityRequirements", "security"):
            listed = owner.get(key)
            if listed is None or listed == []:
                continue
            if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
                raise AgentRefused(f"card_invalid: {where}: {key} is not a list of objects")
            if len(listed) > MOST_ALTERNATIVES:
                raise AgentRefused(f"card_invalid: {where}: more than {MOST_ALTERNATIVES} {key}")
            yield where, listed


def _read_alternatives(
    where: str, listed: Sequence[Mapping[str, Any]], schemes: Mapping[str, SecurityScheme]
) -> tuple[str, list[tuple[_Demand, ...]]]:
    alternatives = []
    for entry in listed:
        wanted = entry.get("schemes", entry)  # 0.3: the names directly
        if wanted is None:  # proto3 JSON: its default, no schemes
            wanted = {}
        if not isinstance(wanted, dict):
            raise AgentRefused(f"card_invalid: {where}: a security requirement is not an object")
        if len(wanted) > MOST_SCHEMES:  # all or nothing: a part of them would be shown for nothing
            raise AgentRefused(f"card_invalid: {where}: a security requirement of more than {MOST_SCHEMES} schemes")
        demands = tuple(
            _Demand(scheme=schemes.get(name) or SecurityScheme(name=name, kind="undeclared"), scopes=_scopes(scopes))
            for name, scopes in wanted.items()
        )
        alternatives.append(demands)
    return where, alternatives


def _scopes(raw: object) -> tuple[str, ...]:
    listed = raw.get("list") if isinstance(raw, dict) else raw
    named = itertools.islice(listed, MOST_SCOPES) if isinstance(listed, list) else ()
    return tuple(scope for scope in named if isinstance(scope, str) and _SCOPE.fullmatch(scope))


def _read_schemes(card: Mapping[str, Any]) -> dict[str, SecurityScheme]:
    raw = card.get("securitySchemes")
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise AgentRefused("card_invalid: securitySchemes is not an object")
    if len(raw) > MOST_SCHEMES:
        raise AgentRefused(f"card_invalid: more than {MOST_SCHEMES} securitySchemes")
    return {name: _read_scheme(name, entry) for name, entry in raw.items()}


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
