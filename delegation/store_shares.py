"""What Redis keeps of `delegate` calls beside the one in the record. Part of the store (see store.py for the keys)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from delegation.errors import UnknownDelegation
from delegation.record import decode, dump_json
from delegation.redis_access import RedisAccess
from delegation.state import Delegation


class ShareFacts(RedisAccess):
    """Who lets a call's canvas go on; and the calls that found their delegation by its idempotency key."""

    def load_to_finalize(self, delegation_id: str, call_id: str) -> tuple[Delegation, bool]:
        """The record, and whether nobody else lets this call's canvas go on right now. Raises UnknownDelegation."""
        keys = [self.key("d", delegation_id), self.key("finalizing", call_id)]
        claimed, *pairs = self.run("load_to_finalize", keys, [int(self.rules.lease_s * 1000)])
        if not pairs:
            raise UnknownDelegation(f"unknown delegation {delegation_id[:128]}")
        return decode(delegation_id, dict(zip(pairs[::2], pairs[1::2], strict=True))), claimed == "1"

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
