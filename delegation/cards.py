"""Check an AgentCard before anything else is sent to its agent (card_fetch.py gets it, card_pipeline.py does both).

A card is hostile input (A2A spec sections 4.4 and 8): what it may decide is which of the agent's own, configured
origins is spoken to, in which binding. Whatever we could not live up to is refused here, before the first message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
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

IMPLEMENTED_EXTENSIONS = frozenset({TASK_EXTENSION})
BINDINGS = (JSONRPC, HTTP_JSON)

#: Of a card's version that is compared with the settings'.
LONGEST_VERSION = 128

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


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedCard:
    """What a card says, after the checks. The texts are the agent's: never an instruction, never a path."""

    name: str
    description: str
    version: str
    interface: Interface
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
    def active_extensions(self) -> tuple[str, ...]:
        """Those that both sides have: what `A2A-Extensions` names, and nothing else (a peer refuses strange ones)."""
        return tuple(sorted({e.uri for e in self.extensions} & IMPLEMENTED_EXTENSIONS))


def for_calls(card: CheckedCard) -> CheckedCard:
    """Without what no call needs, which may be megabytes."""
    return replace(card, description="", skills=(), raw={})


def standard_headers(agent: AgentSettings, participant_id: str, *, extensions: tuple[str, ...] = ()) -> dict[str, str]:
    """The headers of every call to `agent`, the card's included (spec section 3.6.1: A2A-Version on each request)."""
    headers = {"Accept": "application/json", "User-Agent": "delegation"} | agent.headers
    headers |= {"A2A-Version": "1.0", "X-Participant-Id": participant_id}
    if extensions:
        headers["A2A-Extensions"] = ",".join(extensions)
    return headers


def check_card(agent: AgentSettings, raw: Any, *, fetched_at: str = "") -> CheckedCard:
    """The facts of a card that `agent`'s settings accept. Raises AgentRefused or UnsupportedExtensionError. Pure.

    Lists and false values may be absent: proto3 JSON leaves them out.
    """
    if not isinstance(raw, dict):
        raise _invalid("not a JSON object")
    _check_protocol(raw)
    _check_complete(raw)
    name, description, version = (_required_text(raw, key) for key in ("name", "description", "version"))
    interfaces = _optional(raw, "supportedInterfaces", list)
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
        can_push=_flag(capabilities, "pushNotifications"),
        can_stream=_flag(capabilities, "streaming"),
        skills=tuple(_read_skill(skill) for skill in skills),
        extensions=extensions,
        credentials=credentials,
        fetched_at=fetched_at,
        raw=raw,
    )


def at_interface(agent: AgentSettings, card: CheckedCard, key: str) -> CheckedCard:
    """The card with the interface of `key`, if the settings still allow it: a delegation keeps the one it went to."""
    try:
        return replace(card, interface=choose_interface(agent, [json.loads(key)])) if key else card
    except (ValueError, AgentRefused):
        return card


def _entry_of(interface: Interface) -> dict[str, str]:
    named = {"url": interface.url, "protocolBinding": interface.binding}
    named |= {"protocolVersion": interface.protocol_version}
    return named | ({"tenant": interface.tenant} if interface.tenant else {})


def choose_interface(agent: AgentSettings, interfaces: list[Any]) -> Interface:
    """The first interface, in the agent's order of preference, that we speak and that lies within its origins."""
    offers: list[str] = []
    refusal: AgentRefused | None = None
    for position, entry in enumerate(interfaces):
        if not isinstance(entry, dict):
            raise _invalid(f"supportedInterfaces[{position}] is not an object")
        binding, version = entry.get("protocolBinding"), entry.get("protocolVersion")
        offers.append(f"{binding} {version}")
        if binding not in BINDINGS or not isinstance(version, str) or not _VERSION_1_0.fullmatch(version):
            continue
        try:
            return _check_interface(agent, entry, f"supportedInterfaces[{position}]")
        except AgentRefused as error:
            refusal = refusal or error
    spoken = ", ".join(f"{binding} 1.0" for binding in BINDINGS)
    offered = one_line(", ".join(offers), 100) or "none"
    raise refusal or AgentRefused(f"no_supported_interface: the card offers {offered}; we speak {spoken}")


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


def _check_protocol(raw: dict[str, Any]) -> None:
    """A card of version 0.3 is told as that: it has a url of its own and no interfaces. Mixed cards are of ours too."""
    version = raw.get("protocolVersion")
    if not raw.get("supportedInterfaces") and isinstance(version, str) and version.startswith("0."):
        raise AgentRefused(f"version_unsupported: {one_line(version, 20)}")


def _check_complete(raw: dict[str, Any]) -> None:
    """Name everything that is missing at once. Absent skills alone are none; beside other gaps they are one more."""
    missing = [key for key in ("name", "description", "version", "supportedInterfaces") if raw.get(key) in _EMPTY]
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
