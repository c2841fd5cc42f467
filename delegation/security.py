"""Which of our credentials a card asks for (A2A spec sections 4.5 and 7). Pure.

Of each list of alternatives on the card (see security_schemes.py) one is chosen, the first that the configured
credentials meet in full, and no other secret is ever sent. The card decides which; where each goes the operator has
decided. A client certificate is no secret: connections to the agent's origins show it to a server that asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from delegation.errors import UnsupportedExtensionError
from delegation.security_schemes import CARD, Demand, Place, SecurityScheme, places, read_alternatives, read_schemes

#: Schemes of one alternative that advice is given for.
MOST_ADVICE = 4

_BEARER_LIKE = ("http bearer", "oauth2", "openIdConnect")
_LOCATIONS = ("header", "query", "cookie")


@dataclass(frozen=True, kw_only=True, slots=True)
class CredentialUse:
    """A configured credential, by its position in `agents[].auth`, and what the card asks a token for."""

    position: int
    scheme: str = ""
    scopes: tuple[str, ...] = ()


def choose_credentials(card: Mapping[str, Any], credentials: Sequence[Credential]) -> tuple[CredentialUse, ...]:
    """The credentials to show an agent with this card.

    A card that asks for nothing gets all that are configured: the operator bound them to this agent. Raises
    UnsupportedExtensionError, which says what to configure, and AgentRefused for a card that is not readable.
    """
    schemes = read_schemes(card)
    found = list(places(card))
    if not schemes and not found:
        return _all_of(credentials)
    if not credentials:
        raise _missing(schemes, found)
    lists = [(place.name, read_alternatives(place, schemes)) for place in found]
    if not lists:  # schemes are declared, and nothing says which: any of them
        lists = [(CARD, [(Demand(scheme=scheme, scopes=()),) for scheme in schemes.values()])]
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
    alternatives: Sequence[tuple[Demand, ...]],
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
    place = "" if where == CARD else f" (for {where})"
    raise UnsupportedExtensionError(f"auth_missing{place}: {min(problems, key=len)}")


def _first_fit(
    demand: Demand, credentials: Sequence[Credential], chosen: Sequence[CredentialUse]
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


def _missing(schemes: Mapping[str, SecurityScheme], found: Sequence[Place]) -> UnsupportedExtensionError:
    """Nothing is configured: whatever the card asks for, we lack."""
    for place in found:
        for demands in read_alternatives(place, schemes):
            if demands:
                said = "" if place.skill is None else f" (for {place.name})"
                advice = _advice_on([demand.scheme for demand in demands])
                return UnsupportedExtensionError(f"auth_missing{said}: {advice}")
    if schemes:
        return UnsupportedExtensionError(f"auth_missing: {_advice(next(iter(schemes.values())))}")
    return UnsupportedExtensionError(f"auth_missing: {found[0].name} declares securityRequirements without a scheme")
