"""What `delegation agents --json` shows of an agent: one row, always with all of its names."""

from __future__ import annotations

from typing import Any

import structlog

from delegation.card_verdict import Verdict
from delegation.cards import CheckedCard
from delegation.errors import DelegationError
from delegation.security import describe_credentials
from delegation.settings import AgentSettings
from delegation.texts import NAME_CHARS, SKILL_DESCRIPTION_CHARS, clean, clean_and_tell
from delegation.watch import choose

#: A card may name thousands.
MOST_SKILLS = 50
MOST_CUT_NAMED = 10
_NAMES = (
    *("id", "name", "version", "accepted", "paused", "reason", "watch", "skills"),
    *("auth", "signed", "fingerprint", "card_fetched_at"),
)

log = structlog.get_logger("delegation")


def empty_row(agent_id: str) -> dict[str, Any]:
    """Of an agent that nothing is known of."""
    return dict.fromkeys(_NAMES) | {"id": agent_id, "accepted": False, "paused": False, "skills": []}


def facts_of_verdict(verdict: Verdict) -> dict[str, Any]:
    """What a row says of the card as a whole."""
    has_card = verdict.card is not None
    return {
        "paused": verdict.is_paused,
        "signed": verdict.signed.value if has_card else None,
        "fingerprint": verdict.fingerprint or None,
        "card_fetched_at": verdict.fetched_at if has_card else None,
    }


def facts_of_card(agent: AgentSettings, card: CheckedCard, base_url: str | None) -> dict[str, Any]:
    """What a row says by the card's own words, each cleaned; one warning names those that were cut."""
    cut: list[str] = []

    def cleaned(text: str, limit: int, field: str) -> str:
        line, is_cut = clean_and_tell(text, limit)
        cut.extend([field] if is_cut else [])
        return line

    facts = {
        "name": cleaned(card.name, NAME_CHARS, "name"),
        "version": clean(card.version, NAME_CHARS),
        "auth": describe_credentials(card.credentials, agent.auth) or None,
        "watch": choose(agent.updates, card, base_url=base_url).value,
        "skills": [
            {
                "id": clean(skill.id, NAME_CHARS),
                "name": cleaned(skill.name, NAME_CHARS, f"skills.{position}.name"),
                "description": cleaned(skill.description, SKILL_DESCRIPTION_CHARS, f"skills.{position}.description"),
            }
            for position, skill in enumerate(card.skills[:MOST_SKILLS])
        ],
    }
    if cut:
        log.warning("text.cut", agent=agent.id, fields=",".join(cut[:MOST_CUT_NAMED]), count=len(cut))
    return facts


def reason_of(error: DelegationError) -> str:
    return f"{error.code}: {error.detail}"
