"""What is due: one script hands each entry out once. Part of the store (its keys: store.py)."""

from __future__ import annotations

from dataclasses import dataclass

from delegation.redis_access import RedisAccess, flag


@dataclass(frozen=True, kw_only=True, slots=True)
class Due:
    """One due entry, as the sweeper sees it."""

    kind: str  #: "delegation" or "workflow"
    id: str
    phase: str
    timers: dict[str, float]
    now: float


class DueFacts(RedisAccess):
    """The due index, as the sweeper sees it."""

    def sweep(self, calls: int, *, ends: int | None = None, leisure: bool = True) -> list[Due]:
        """Take due entries, pushing each ahead: at most ``calls`` whose step calls an agent, and ``ends`` (default: as
        many) whose step ends something. Clean-ups wait for ``leisure``, a minute at most."""
        now, *rows = self.run(
            "sweep",
            [self.key("due"), self.key("sweeper")],
            [
                calls,
                calls if ends is None else ends,
                flag(leisure),
                self.rules.hint_patience_s,
                self.key("d", ""),
                self.key("w", ""),
            ],
        )
        return [
            Due(
                kind=member.partition(":")[0],
                id=member.partition(":")[2],
                phase=phase,
                timers={k: float(v) for k, _, v in (pair.partition("=") for pair in timers.split())},
                now=float(now),
            )
            for member, phase, timers in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        ]
