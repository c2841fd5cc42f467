"""A model of the store and the faults around it, on a virtual clock, for simulations of the real story."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from delegation.errors import CircuitOpen, StaleWrite
from delegation.state import Delegation, Phase, Rules, Timers
from delegation.store import Begun, Saved, Settlement
from delegation.watch import is_left_alone
from tests.support.delegations import NOW

RULES = Rules()


class Died(BaseException):
    """kill -9 of the worker that was here."""


class World:
    """The clock, the dice, and what others do while one worker waits."""

    def __init__(self, seed: int) -> None:
        self.rand = Random(seed)
        self.now = NOW
        self.calm = False
        self.depth = 0
        self.stalled = list[tuple[float, float]]()  #: when a worker stopped, and for how long
        self.others: Callable[[], None] = lambda: None
        self.users: Callable[[], None] = lambda: None  #: who act whether anything fails or not

    def happens(self, chance: float) -> bool:
        return not self.calm and self.rand.random() < chance

    def pass_time(self, most_s: float) -> None:
        self.now += self.rand.random() * most_s
        if self.depth < 2 and self.happens(0.3):
            self.depth += 1
            self.others()
            self.depth -= 1
        elif self.calm and self.rand.random() < 0.3:
            self.users()

    def stall(self, most_s: float) -> None:
        """A worker is stopped, perhaps past its lease."""
        since = self.now
        self.pass_time(most_s)
        self.stalled.append((since, self.now - since))

    def maybe_die(self) -> None:
        if self.happens(0.04):
            raise Died


@dataclass
class Seen:
    """A record and when it was read (store.Loaded, by the virtual clock)."""

    delegation: Delegation
    read_at: float
    world: World

    def now(self) -> float:
        return self.world.now


@dataclass
class Told:
    """A note, as the parent reads it."""

    state: str
    text: str
    source: str


class ModelStore:
    """One record, with the store's promises: version, lease, fence, wakes, replies in order, and one end.

    Like the scripts it writes only what a step changed, so that a reply or a cancel in between is not lost.
    """

    def __init__(self, world: World, record: Delegation) -> None:
        self.world, self.record, self.ends = world, record, list[Delegation]()
        self.replies: list[dict[str, Any]] = []
        self.keys: dict[str, int] = {}
        self.notes: list[Told] = []
        self.in_inbox = False
        self.slept: list[Delegation] = []  #: written without anything planned but the deadline

    def load(self, _: str) -> Seen:
        return Seen(self.record, self.world.now, self.world)

    def load_reply(self, _: str, number: int) -> dict[str, Any]:
        return self.replies[number - 1]

    # ------------------------------------------------------------ what users do

    def give_reply(self, text: str) -> int | None:
        """As reply.lua: the number of a reply that is kept; None of one that is known, or comes too late."""
        record, question = self.record, self.record.progress.question
        key = f"{[question.number, question.turn] if question else []} {text}"
        if key in self.keys or record.phase.is_settled or record.timers.cancel_at is not None:
            return None
        self.replies.append({"text": text})
        self.keys[key] = len(self.replies)
        timers = replace(record.timers, reply_at=self.world.now + RULES.hint_patience_s)
        self.record = replace(record, replies=len(self.replies), timers=timers)
        self.in_inbox = False
        return len(self.replies)

    def want_cancel(self, reason: str) -> bool:
        """As cancel.lua."""
        record, now = self.record, self.world.now
        if record.phase.is_settled or record.timers.cancel_at is not None:
            return False
        until = min(now + RULES.cancel_deadline_s, record.timers.deadline_at or now)
        timers = replace(record.timers, cancel_at=now if self.is_leased() else min(now + RULES.hint_patience_s, until))
        self.record = replace(record, cancel_until=until, cancel_reason=reason, timers=timers)
        self.in_inbox = False
        return True

    # ------------------------------------------------------------ what steps do

    def begin(
        self, before: Delegation, after: Delegation, *, counts: Any = (), unfollowed: bool = False
    ) -> tuple[Begun, Delegation]:
        if self.record.version != before.version:
            return Begun.STALE, before
        if self.is_leased():
            return Begun.HELD, before
        if self.world.happens(0.03):
            raise CircuitOpen("nobody was answered lately", self.world.rand.random() * 60)
        if self.world.happens(0.06):
            self._wait_in_line()
            return Begun.BUSY, before
        self.world.maybe_die()
        record = self._written(before, after)
        timers = replace(record.timers, lease_until=self.world.now + RULES.lease_s, refetch_at=None)
        if record.phase in (Phase.OPENED, Phase.STARTING):
            timers = replace(timers, publish_at=None)
        self.record = replace(record, version=before.version + 1, fence=record.fence + 1, timers=timers)
        begun = replace(
            after,
            version=self.record.version,
            fence=self.record.fence,
            timers=replace(after.timers, lease_until=timers.lease_until),
        )
        self.world.maybe_die()
        if self.world.happens(0.05):
            self.world.stall(200)
        return Begun.BEGUN, begun

    def save(self, before: Delegation, change: Any, *, fenced: bool = True) -> Saved:
        self._check(before, fenced)
        woken, after = self.record.wakes > before.wakes, change.after
        record = self._written(before, after)
        timers = replace(record.timers, lease_until=None)
        if woken:
            timers = replace(timers, refetch_at=max(self.world.now, (before.fetched_at or 0) + RULES.min_fetch_gap_s))
        self.record = replace(record, version=before.version + 1, timers=timers)
        self._mark_inbox(after)
        self._tell(change.note)
        self._check_that_somebody_looks()
        self.world.maybe_die()
        return Saved(wake_now=woken)

    def settle(self, before: Delegation, change: Any, *, overriding: bool = False) -> Settlement:
        if self.record.phase.is_settled:
            return Settlement(settled=False)
        self._check(before, not overriding)
        timers = Timers(cleanup_at=change.after.timers.cleanup_at)
        record = replace(self._written(before, change.after), phase=Phase.SETTLED, outcome=change.outcome)
        self.record = replace(record, version=before.version + 1, timers=timers)
        self.ends.append(self.record)
        self.in_inbox = False
        self._tell(change.note)
        self.world.maybe_die()
        return Settlement(settled=True)

    def count(self, name: str) -> None: ...

    def is_leased(self) -> bool:
        return (self.record.timers.lease_until or 0) > self.world.now

    def _written(self, before: Delegation, after: Delegation) -> Delegation:
        """The record with what differs (record.encode_change)."""
        names = ("poll_at", "refetch_at", "publish_at", "cleanup_at", "reply_at", "cancel_at")
        changed = {n: getattr(after.timers, n) for n in names if getattr(after.timers, n) != getattr(before.timers, n)}
        fields = ("phase", "progress", "push_digest", "fetched_at", "claimed", "heard")
        written = {n: getattr(after, n) for n in fields if getattr(after, n) != getattr(before, n)}
        return replace(self.record, **written, timers=replace(self.record.timers, **changed))

    def _wait_in_line(self) -> None:
        """begin.lua's answer of a full agent."""
        timers, at = self.record.timers, self.world.now + RULES.lease_s
        if self.record.phase.is_settled:
            self.record = replace(self.record, timers=replace(timers, cleanup_at=at))
            return
        timers = replace(timers, refetch_at=at, poll_at=None, reply_at=at if timers.reply_at else None)
        if timers.cancel_at is not None:
            timers = replace(timers, cancel_at=min(at, self.record.cancel_until or at))
        if self.record.phase is Phase.OPENED:
            timers = replace(timers, publish_at=None)
        self.record = replace(self.record, timers=timers)

    def _mark_inbox(self, after: Delegation) -> None:
        """marks.lua: whether it waits for somebody; a reply that came while the step was at work is due now."""
        asked = after.phase is Phase.WATCHING and after.waits_for_reply and after.progress.question is not None
        has_reply = self.record.replies > after.progress.turn
        if asked and has_reply:
            self.record = replace(self.record, timers=replace(self.record.timers, reply_at=self.world.now))
        self.in_inbox = asked and not has_reply and self.record.timers.cancel_at is None

    def _tell(self, note: str) -> None:
        if note:
            told = json.loads(note)
            self.notes.append(Told(told["state"], told["text"], told["source"]))

    def _check_that_somebody_looks(self) -> None:
        record, timers = self.record, self.record.timers
        planned = (timers.poll_at, timers.refetch_at, timers.publish_at, timers.reply_at, timers.cancel_at)
        waits_for_users = is_left_alone(record) and not record.has_reply_waiting
        if not record.phase.is_settled and not waits_for_users and all(at is None for at in planned):
            self.slept.append(record)

    def _check(self, before: Delegation, fenced: bool) -> None:
        self.world.maybe_die()
        if self.record.version != before.version or (fenced and self.record.fence != before.fence):
            raise StaleWrite
