"""What a scripted agent is like, apart from single calls: its card, its manners, its outages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """All of it can be changed while the agent runs."""

    name: str = "scripted agent"
    version: str = "1.0.0"
    push: bool = True  #: on the card, and whether push config methods are offered
    streaming: bool = False  #: on the card only
    card: Mapping[str, Any] = field(default_factory=dict)  #: replaces the card's fields of these names

    dedup: bool = False  #: whether two sends with one messageId make one task
    list_tasks: bool = True  #: False: -32601
    cancel: str = "accept"  #: "accept", "refuse" (-32002) or "ignore" (answers, changes nothing)
    default_script: Mapping[str, Any] = field(default_factory=dict)  #: for messages without a script

    hang: bool = False  #: take every call, answer none
    status: int | None = None  #: answer every call with this HTTP status
    delay_s: float = 0.0  #: before every answer

    def changed(self, values: Mapping[str, Any]) -> AgentConfig:
        """Raises ValueError for names that do not exist."""
        unknown = set(values) - {each.name for each in fields(self)}
        if unknown:
            raise ValueError(f"unknown configuration: {', '.join(sorted(unknown))}")
        return replace(self, **values)

    def card_at(self, base_url: str) -> dict[str, Any]:
        card: dict[str, Any] = {
            "name": self.name,
            "description": "Does as it is told",
            "version": self.version,
            "supportedInterfaces": [
                {"url": f"{base_url}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            ],
            "capabilities": {"streaming": self.streaming, "pushNotifications": self.push},
            "defaultInputModes": ["text/plain"],
            "defaultOutputModes": ["text/plain"],
            "skills": [{"id": "script", "name": "script", "description": "runs scripts", "tags": ["test"]}],
        }
        return {**card, **self.card}
