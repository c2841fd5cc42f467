"""Check an AgentCard before anything else is sent to its agent (card_fetch.py gets it, card_pipeline.py does both).

A card is hostile input (A2A spec sections 4.4 and 8): what it may decide is which of the agent's own, configured
origins is spoken to, in which binding. Whatever we could not live up to is refused here, before the first message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from delegation.answers import PATH_SAFE_ID, one_line
from delegation.errors import AgentRefused, UnsupportedExtensionError
from delegation.origins import Origin, read_origin
from delegation.replies import HTTP_JSON, JSONRPC
from delegation.security import CredentialUse, choose_credentials
from delegation.settings import AgentSettings
from delegation.task_extension import TASK_EXTENSION
from delegation.version_0_3 import HINT, is_0_3, is_card_of_0_3, own_offers
from delegation.version_0_3 import VERSION as VERSION_0_3

IMPLEMENTED_EXTENSIONS = frozenset({TASK_EXTENSION})
BINDINGS = (JSONRPC, HTTP_JSON)

#: Of a card's version that is compared with the settings'.
LONGEST_VERSION = 128
VERSION_1_0 = "1.0"
#: An entry of `supportedInterfaces`, or the like from a card of 0.3, by its place on the card.
Offer = tuple[str, Any]

_VERSION_1_0 = re.compile(r"1\.0(\.\d+)?")
_EMPTY: tuple[Any, ...] = (None, "", [])


@dataclass(frozen=True, kw_only=True, slots=True)
class Skill:
    id: str
    name: str
    description: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    uri: str
    required: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """Where and how the agent is spoken to."""

    url: str
    binding: str
    protocol_version: str
    tenant: str = ""

    @property
    def version(self) -> str:
        """Of A2A, as we speak it: "1.0" or "0.3"."""
        return VERSION_0_3 if is_0_3(self.protocol_version) else VERSION_1_0


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedCard:
    """What a card says, after the checks. The texts are the agent's: never an instruction, never a path."""

    name: str
    description: str
    version: str
    interface: Interface
    older_interface: Interface | None = None  #: of 0.3, where the settings allow it and the chosen one is of 1.0
    can_push: bool
    can_stream: bool = False
    skills: tuple[Skill, ...] = ()
    extensions: tuple[Extension, ...] = ()
    credentials: tuple[CredentialUse, ...] = ()  #: of the agent's configured ones, those it is shown
    fetched_at: str = ""  #: RFC 3339, UTC
    raw: dict[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @property
    def interface_key(self) -> str:
        """The interface as a record keeps it; :func:`at_interface` reads it."""
        return json.dumps(_entry_of(self.interface))

    @property
    def older_interface_key(self) -> str:
        """Where to send the same message when 1.0 is refused with -32009; empty: nowhere."""
        return json.dumps(_entry_of(self.older_interface)) if self.older_interface else ""

    @property
    def active_extensions(self) -> tuple[str, ...]:
        """Those that both sides have: what `A2A-Extensions` names, and nothing else (a peer refuses strange ones)."""
        return tuple(sorted({e.uri for e in self.extensions} & IMPLEMENTED_EXTENSIONS))


def for_calls(card: CheckedCard) -> CheckedCard:
    """Without what no call needs, which may be megabytes."""
    return replace(card, description="", skills=(), raw={})


def standard_headers(
    agent: AgentSettings, participant_id: str, *, extensions: tuple[str, ...] = (), version: str = VERSION_1_0
) -> dict[str, str]:
    """The headers of every call to `agent`, the card's included (spec section 3.6.1: A2A-Version on each request).

    0.3 knows no such header; servers that speak both take its absence for 0.3, and its word as well.
    """
    headers = {"Accept": "application/json", "User-Agent": "delegation"} | agent.headers
    headers |= {"A2A-Version": version, "X-Participant-Id": participant_id}
    if extensions:
        headers["X-A2A-Extensions" if version == VERSION_0_3 else "A2A-Extensions"] = ",".join(extensions)
    return headers


def check_card(agent: AgentSettings, raw: Any, *, fetched_at: str = "") -> CheckedCard:
    """The facts of a card that `agent`'s settings accept. Raises AgentRefused or UnsupportedExtensionError. Pure.

    Lists and false values may be absent: proto3 JSON leaves them out.
    """
    if not isinstance(raw, dict):
        raise _invalid("not a JSON object")
    _check_protocol(agent, raw)
    _check_complete(agent, raw)
    name, description, version = (_required_text(raw, key) for key in ("name", "description", "version"))
    interfaces = offers_of(raw)
    capabilities = _optional(raw, "capabilities", dict)
    skills = tuple(_objects(raw, "skills"))
    extensions = tuple(_read_extensions(capabilities))
    credentials = choose_credentials(raw, agent.auth)
    _check_extensions(extensions)
    _check_version(agent, version)
    return CheckedCard(
        name=name,
        description=description,
        version=version,
        interface=choose_interface(agent, interfaces),
        older_interface=_choose_older(agent, interfaces),
        can_push=_flag(capabilities, "pushNotifications"),
        can_stream=_flag(capabilities, "streaming"),
        skills=tuple(_read_skill(skill) for skill in skills),
        extensions=extensions,
        credentials=credentials,
        fetched_at=fetched_at,
        raw=raw,
    )


def at_interface(agent: AgentSettings, card: CheckedCard, key: str) -> CheckedCard:
    """The card with the interface of `key`, if the settings still allow it: a delegation keeps the one it went to.

    A key of a version alone (`version_0_3.without_address`) is the card's first interface of that version.
    """
    try:
        entry = json.loads(key) if key else None
        if entry is None:
            return card
        is_whole = not isinstance(entry, dict) or "url" in entry
        offers = [("interface", entry)] if is_whole else _of_0_3(offers_of(card.raw))
        return replace(card, interface=choose_interface(agent, offers), older_interface=None)
    except (ValueError, AgentRefused):
        return card


def _entry_of(interface: Interface) -> dict[str, str]:
    named = {"url": interface.url, "protocolBinding": interface.binding}
    named |= {"protocolVersion": interface.protocol_version}
    return named | ({"tenant": interface.tenant} if interface.tenant else {})


def offers_of(raw: dict[str, Any]) -> list[Offer]:
    """The interfaces on a card, in the agent's order of preference; those of 0.3's own members last."""
    interfaces = _optional(raw, "supportedInterfaces", list)
    return [*((f"supportedInterfaces[{n}]", entry) for n, entry in enumerate(interfaces)), *own_offers(raw)]


def choose_interface(agent: AgentSettings, offers: Sequence[Offer]) -> Interface:
    """The first interface, in the agent's order of preference, that we speak and that lies within its origins.

    One of 0.3 only where the settings allow it, and after all of 1.0 (spec section 3.6.3: no silent fallback).
    """
    for where, entry in offers:
        if not isinstance(entry, dict):
            raise _invalid(f"{where} is not an object")
    newer, older = _of_1_0(offers), _of_0_3(offers)
    refusal: AgentRefused | None = None
    for where, entry in [*newer, *(older if agent.protocol == VERSION_0_3 else [])]:
        try:
            return _check_interface(agent, entry, where)
        except AgentRefused as error:
            refusal = refusal or error
    if older and refusal is None:
        raise AgentRefused(f"version_unsupported: {older[0][1]['protocolVersion']}; {HINT}")
    versions = (VERSION_1_0, VERSION_0_3) if agent.protocol == VERSION_0_3 else (VERSION_1_0,)
    spoken = ", ".join(f"{binding} {version}" for version in versions for binding in BINDINGS)
    named = [f"{entry.get('protocolBinding')} {entry.get('protocolVersion')}" for _, entry in offers]
    offered = one_line(", ".join(named), 100) or "none"
    raise refusal or AgentRefused(f"no_supported_interface: the card offers {offered}; we speak {spoken}")


def _choose_older(agent: AgentSettings, offers: Sequence[Offer]) -> Interface | None:
    older = _of_0_3(offers) if _of_1_0(offers) else []
    try:
        return choose_interface(agent, older) if older else None
    except AgentRefused:
        return None


def _of_1_0(offers: Sequence[Offer]) -> list[Offer]:
    return [(where, entry) for where, entry in offers if _VERSION_1_0.fullmatch(_version_we_may_speak(entry))]


def _of_0_3(offers: Sequence[Offer]) -> list[Offer]:
    return [(where, entry) for where, entry in offers if is_0_3(_version_we_may_speak(entry))]


def _version_we_may_speak(entry: dict[str, Any]) -> str:
    """As the entry spells it; empty in a binding that we do not speak."""
    version = entry.get("protocolVersion")
    return version if entry.get("protocolBinding") in BINDINGS and isinstance(version, str) else ""


def _check_interface(agent: AgentSettings, entry: dict[str, Any], where: str) -> Interface:
    url, tenant, binding = entry.get("url"), entry.get("tenant", ""), entry["protocolBinding"]
    if not isinstance(url, str):
        raise _invalid(f"{where}.url is missing")
    try:
        origin = read_origin(url)
    except ValueError as error:
        raise _invalid(f"{where}.url {error}") from None
    if origin not in allowed_origins(agent):
        advice = f"if you trust it, add it to `origins` of {agent.id}"
        what = f"card_origin_refused: {where}.url is at {origin}, not among the agent's origins"
        raise AgentRefused(f"{one_line(what, 300)}; {advice}")
    if "#" in url or ("?" in url and binding == HTTP_JSON):
        raise _invalid(f"{where}.url must not have a query or fragment")
    if tenant and not (isinstance(tenant, str) and PATH_SAFE_ID.fullmatch(tenant)):
        raise _invalid(f"{where}.tenant is not usable in a path")  # the SDK puts it there unescaped
    return Interface(url=url, binding=binding, protocol_version=entry["protocolVersion"], tenant=tenant or "")


def allowed_origins(agent: AgentSettings) -> frozenset[Origin]:
    """The origins that `agent` may be spoken to at: its URL's own and those the operator added."""
    return frozenset(read_origin(url) for url in (agent.url, *agent.origins))


def _check_extensions(extensions: tuple[Extension, ...]) -> None:
    required = [e.uri for e in extensions if e.required and e.uri not in IMPLEMENTED_EXTENSIONS]
    if required:
        raise UnsupportedExtensionError(f"extension_required: {one_line(', '.join(required))}")


def _check_version(agent: AgentSettings, version: str) -> None:
    if agent.version is None:
        return
    shown = one_line(version, 40)
    try:
        satisfied = SpecifierSet(agent.version).contains(Version(_bounded(version)), prereleases=True)
    except ValueError:  # InvalidVersion is one; so is a number that int() takes for too long
        raise AgentRefused(f"card version {shown!r} cannot be compared with {agent.version}") from None
    if not satisfied:
        raise AgentRefused(f"card version {shown!r} does not satisfy {agent.version}")


def _bounded(version: str) -> str:
    if len(version) > LONGEST_VERSION:
        raise ValueError("too long")
    return version


def _read_extensions(capabilities: dict[str, Any]) -> Iterator[Extension]:
    for entry in _objects(capabilities, "extensions"):
        uri = entry.get("uri")
        if not isinstance(uri, str) or not uri:
            raise _invalid("an extension without uri")
        yield Extension(uri=uri, required=bool(entry.get("required")))


def _read_skill(skill: dict[str, Any]) -> Skill:
    texts = {key: skill[key] if isinstance(skill.get(key), str) else "" for key in ("id", "name", "description")}
    return Skill(**texts)


def _flag(owner: dict[str, Any], key: str) -> bool:
    value = owner.get(key)
    if value is not None and not isinstance(value, bool):
        raise _invalid(f"capabilities.{key} is not true or false")
    return bool(value)


def _objects(owner: dict[str, Any], key: str) -> list[dict[str, Any]]:
    entries = _optional(owner, key, list)
    if not all(isinstance(entry, dict) for entry in entries):
        raise _invalid(f"{key} holds something other than objects")
    return list(entries)


def _check_protocol(agent: AgentSettings, raw: dict[str, Any]) -> None:
    """A card of version 0.3 is told as that: it has a url of its own and no interfaces. Mixed cards are of ours too."""
    version = raw.get("protocolVersion")
    if raw.get("supportedInterfaces") or not isinstance(version, str) or not version.startswith("0."):
        return
    if not is_0_3(version):
        raise AgentRefused(f"version_unsupported: {one_line(version, 20)}")
    if agent.protocol != VERSION_0_3:
        raise AgentRefused(f"version_unsupported: {version}; {HINT}")


def _check_complete(agent: AgentSettings, raw: dict[str, Any]) -> None:
    """Name everything that is missing at once. Absent skills alone are none; beside other gaps they are one more."""
    where = "url" if agent.protocol == VERSION_0_3 and is_card_of_0_3(raw) else "supportedInterfaces"
    missing = [key for key in ("name", "description", "version", where) if raw.get(key) in _EMPTY]
    if not missing:
        return
    missing += [] if "skills" in raw else ["skills"]
    snakes = [snake for key in missing if (snake := re.sub(r"([A-Z])", r"_\1", key).lower()) != key and snake in raw]
    raise _invalid(f"{', '.join(missing)} missing" + (f" (found {', '.join(snakes)})" if snakes else ""))


def _required_text(raw: dict[str, Any], key: str) -> str:
    text: str = _optional(raw, key, str)
    return text.encode("utf-8", "replace").decode("utf-8")


def _optional(owner: dict[str, Any], key: str, kind: type) -> Any:
    value = owner.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise _invalid(f"{key} is not {'an object' if kind is dict else f'a {kind.__name__}'}")
    return value


def _invalid(reason: str) -> AgentRefused:
    return AgentRefused(f"card_invalid: {reason}")
