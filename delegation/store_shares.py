"""What Redis keeps of further `delegate` calls for one delegation. Part of the store (see store.py for the keys)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from delegation.errors import UnknownDelegation
from delegation.record import dump_json
from delegation.redis_access import RedisAccess
from delegation.state import Delegation


class ShareFacts(RedisAccess):
    """Calls that found their delegation by its idempotency key, each with a canvas of its own."""

    def share_delegation(self, delegation: Delegation, call_id: str, tail: Mapping[str, Any]) -> bool:
        """Keep what follows one more call. True when the outcome is known, so that it may be published now.

        Raises UnknownDelegation when its retention has just passed.
        """
        verdict = self.run(
            "share",
            [
                self.key("d", delegation.id),
                self.key("due"),
                self.key("shares", delegation.idempotency or "-"),
                self.key("call", call_id),
            ],
            [delegation.id, call_id, dump_json(tail), self.rules.hint_patience_s, self.limits.retention_s],
        )
        if verdict == "unknown":
            raise UnknownDelegation(f"unknown delegation {delegation.id}")
        return bool(verdict == "settled")

    def waiting_shares(self, delegation: Delegation) -> dict[str, dict[str, Any]]:
        """The further calls whose canvas has not gone on yet: Celery id → what follows."""
        if not delegation.idempotency:
            return {}
        with self.seam():
            found: Any = self.client.hgetall(self.key("shares", delegation.idempotency))
        return {call_id: json.loads(tail) for call_id, tail in found.items() if tail}
