"""What a scripted agent is like, apart from single calls: its card, its manners, its outages."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tests.support.agent_credentials import carries
from tests.support.agent_work import now_stamp

_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="agent", error="invalid_token"'}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """All of it can be changed while the agent runs."""

    name: str = "scripted agent"
    version: str = "1.0.0"
    push: bool = True  #: on the card, and whether push config methods are offered
    streaming: bool = False  #: on the card, and whether SendStreamingMessage and SubscribeToTask are offered
    extensions: Sequence[Any] = ()  #: added to the card's capabilities: URIs, or objects as A2A spells them
    card: Mapping[str, Any] = field(default_factory=dict)  #: replaces the card's fields of these names

    dedup: bool = False  #: whether two sends with one messageId make one task
    list_tasks: bool = True  #: False: -32601
    cancel: str = "accept"
    #: "accept", "refuse" (-32002), "unsupported" (-32004), "ignore" (answers, changes nothing), or "slow:<seconds>":
    #: goes on that long, then cancels and answers (-32002 when the task has ended meanwhile)
    strict_participant: bool = False
    #: whoever is not the participant that began a task gets -32001, and who begins one as nobody -32602; a message's
    #: metadata.participant_id counts before the header X-Participant-Id
    timestamps: str = "real"  #: of statuses from now on: "real", "none", or "skew:<seconds>", by a clock so far ahead
    default_script: Mapping[str, Any] = field(default_factory=dict)  #: for messages without a script

    stream_when_interrupted: str = "stay"  #: a subscription may "stay" open then, or "end", at once if need be
    replay: bool = False  #: a subscription tells every status from the very first again, after the snapshot
    keepalive_s: float = 0.0  #: a comment in every stream that often; 0: never

    #: what a call must carry, alternatives of which one will do (see agent_credentials.py); none: nothing
    credentials: Sequence[Mapping[str, Any]] = ()
    card_credentials: Sequence[Mapping[str, Any]] = ()  #: the same, for the card
    refusal: Mapping[str, Any] = field(default_factory=lambda: {"status": 401, "headers": _CHALLENGE})
    #: the answer to a call without them: ``status``, ``headers``, ``body``

    hang: bool = False  #: take every call, answer none
    status: int | None = None  #: answer every call with this HTTP status
    delay_s: float = 0.0  #: before every answer

    def __post_init__(self) -> None:
        if self.stream_when_interrupted not in ("stay", "end"):
            raise ValueError(f"stream_when_interrupted: {self.stream_when_interrupted!r} is neither stay nor end")
        for wanted in (*self.credentials, *self.card_credentials):
            carries(wanted, {})  # raises when it cannot mean anything
        if self.cancel not in ("accept", "refuse", "unsupported", "ignore") and self.cancel_takes_s is None:
            raise ValueError(f"cancel: cannot read {self.cancel!r}")
        if self.timestamps not in ("real", "none") and _seconds_in(self.timestamps, "skew") is None:
            raise ValueError(f"timestamps: cannot read {self.timestamps!r}")

    @property
    def cancel_takes_s(self) -> float | None:
        """None: it does not take long."""
        return _seconds_in(self.cancel, "slow")

    def stamp(self) -> str:
        """The timestamp of a status that is reached now."""
        return "" if self.timestamps == "none" else now_stamp(_seconds_in(self.timestamps, "skew") or 0.0)

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
        card = {**card, **self.card}
        if self.extensions:
            named = [{"uri": each} if isinstance(each, str) else each for each in self.extensions]
            capabilities = card["capabilities"]
            known = capabilities.get("extensions") or []
            card["capabilities"] = {**capabilities, "extensions": [*known, *named]}
        return card


def _seconds_in(value: str, word: str) -> float | None:
    """The 2.5 of "word:2.5"."""
    found = re.fullmatch(rf"{word}:(-?\d+(?:\.\d+)?)", value)
    return float(found[1]) if found else None
