"""What Redis keeps of what is said to a delegation: replies, cancels, the inbox. Part of the store (keys: store.py)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from delegation.errors import DelegationEnded, InvalidArguments, UnknownDelegation
from delegation.record import dump_json
from delegation.redis_access import RedisAccess
from delegation.state import Cause, Delegation

#: More than a conversation ever needs; a caller that goes round in circles must not fill Redis.
MOST_REPLIES_WAITING = 100


class CancelVerdict(StrEnum):
    """What became of a wish to cancel."""

    WANTED = "wanted"
    WANTED_ALREADY = "wanted already"
    ENDED = "ended"


class TalkFacts(RedisAccess):
    """Reply, cancel, who waits for somebody."""

    def give_reply(self, delegation: Delegation, reply: Mapping[str, Any], *, key: str | None) -> tuple[int, bool]:
        """Keep a reply until its turn: its number, and whether it is new.

        One with a ``key`` that was used before is the one that is kept already; without a key, the same reply to the
        same question is. Raises DelegationEnded, InvalidArguments when too many wait.
        """
        question = delegation.progress.question
        said = dump_json(dict(reply))
        key = key or f"{[question.number, question.turn] if question else []} {said}"
        verdict, count = self.run(
            "reply",
            [
                self.key("d", delegation.id),
                self.key("due"),
                self.key("h", delegation.id),
                self.key("r", delegation.id),
                self.key("inbox"),
                self.key("roots"),
            ],
            [
                delegation.id,
                delegation.workflow_id or delegation.id,
                said,
                hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:16],
                self.rules.hint_patience_s,
                MOST_REPLIES_WAITING,
                delegation.progress.turn,
                self.limits.history,
                _entry(delegation, Cause.REPLY, "a reply was given"),
            ],
        )
        if verdict == "full":
            raise InvalidArguments(f"reply: {MOST_REPLIES_WAITING} replies wait for their turn already")
        if verdict == "canceling":
            raise DelegationEnded(f"delegation {delegation.id} is being cancelled")
        _refuse_the_ended(delegation.id, verdict)
        return int(count), verdict == "kept"

    def load_reply(self, delegation_id: str, number: int) -> dict[str, Any]:
        """The reply with that number, counted from 1: ``text``, ``data``. Raises UnknownDelegation."""
        with self.seam():
            found: Any = self.client.lindex(self.key("r", delegation_id), number - 1)
        if found is None:
            raise UnknownDelegation(f"no reply {number} to delegation {delegation_id[:128]}")
        reply: dict[str, Any] = json.loads(found)
        return reply

    def want_cancel(self, delegation: Delegation, reason: str) -> CancelVerdict:
        """Record that somebody wants it cancelled; the intent is durable before anything is asked of the agent."""
        text = f"wanted: {reason}" if reason else "wanted"
        verdict = self.run(
            "cancel",
            [
                self.key("d", delegation.id),
                self.key("due"),
                self.key("h", delegation.id),
                self.key("inbox"),
                self.key("roots"),
            ],
            [
                delegation.id,
                delegation.workflow_id or delegation.id,
                reason,
                self.rules.cancel_deadline_s,
                self.rules.hint_patience_s,
                self.limits.history,
                _entry(delegation, Cause.CANCEL, text[:200]),
            ],
        )
        if verdict == "unknown":
            raise UnknownDelegation(f"unknown delegation {delegation.id}")
        return CancelVerdict(verdict)

    def inbox(self, limit: int = 1000) -> list[str]:
        """Ids of the delegations that wait for somebody's reply or authorization, the oldest question first."""
        with self.seam():
            ids: Any = self.client.zrange(self.key("inbox"), 0, limit - 1)
        return list(ids)


def _refuse_the_ended(delegation_id: str, verdict: str) -> None:
    if verdict == "unknown":
        raise UnknownDelegation(f"unknown delegation {delegation_id}")
    if verdict == "ended":
        raise DelegationEnded(f"delegation {delegation_id} has ended")


def _entry(delegation: Delegation, cause: Cause, text: str) -> str:
    return dump_json([cause.value, delegation.phase.value, delegation.state.value, text])
