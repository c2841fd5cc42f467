"""A model of the store and of an unreliable agent, on a virtual clock, for simulations of the real story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from delegation.agent_task import AgentTask, AgentTaskId, ContextId, TaskState
from delegation.errors import AgentBusy, AgentTaskNotFound, AgentUnreachable, CallAmbiguous, StaleWrite
from delegation.state import Delegation, Phase, Rules, Timers
from delegation.store import Begun, Saved, Settlement
from tests.support.delegations import NOW

RULES = Rules()


class Died(BaseException):
    """kill -9 of the worker that was here."""


class World:
    """The clock, the dice, and what other workers do while one of them waits."""

    def __init__(self, seed: int) -> None:
        self.rand = Random(seed)
        self.now = NOW
        self.calm = False
        self.depth = 0
        self.others: Callable[[], None] = lambda: None

    def happens(self, chance: float) -> bool:
        return not self.calm and self.rand.random() < chance

    def pass_time(self, most_s: float) -> None:
        self.now += self.rand.random() * most_s
        if self.depth < 2 and self.happens(0.3):
            self.depth += 1
            self.others()
            self.depth -= 1

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


class ModelStore:
    """One record, with the store's promises: version, lease, fence, wakes, and one end."""

    def __init__(self, world: World, record: Delegation) -> None:
        self.world, self.record, self.ends = world, record, list[Delegation]()

    def load(self, _: str) -> Seen:
        return Seen(self.record, self.world.now, self.world)

    def begin(
        self, before: Delegation, after: Delegation, *, counts: Any = (), unfollowed: bool = False
    ) -> tuple[Begun, Delegation]:
        if self.record.version != before.version:
            return Begun.STALE, before
        if (self.record.timers.lease_until or 0) > self.world.now:
            return Begun.HELD, before
        self.world.maybe_die()
        timers = replace(after.timers, lease_until=self.world.now + RULES.lease_s, refetch_at=None)
        begun = replace(after, version=before.version + 1, fence=self.record.fence + 1, timers=timers)
        self.record = replace(begun, wakes=self.record.wakes)
        self.world.maybe_die()
        if self.world.happens(0.05):
            self.world.pass_time(200)  # stopped here, perhaps past its lease
        return Begun.BEGUN, begun

    def save(self, before: Delegation, change: Any, *, fenced: bool = True) -> Saved:
        self._check(before, fenced)
        timers, woken = replace(change.after.timers, lease_until=None), self.record.wakes > before.wakes
        if woken:
            timers = replace(timers, refetch_at=max(self.world.now, (before.fetched_at or 0) + RULES.min_fetch_gap_s))
        self.record = replace(change.after, version=before.version + 1, wakes=self.record.wakes, timers=timers)
        self.world.maybe_die()
        return Saved(wake_now=woken)

    def settle(self, before: Delegation, change: Any, *, overriding: bool = False) -> Settlement:
        if self.record.phase.is_settled:
            return Settlement(settled=False)
        self._check(before, not overriding)
        timers = Timers(cleanup_at=change.after.timers.cleanup_at)
        self.record = replace(change.after, phase=Phase.SETTLED, version=before.version + 1, timers=timers)
        self.ends.append(self.record)
        self.world.maybe_die()
        return Settlement(settled=True)

    def count(self, name: str) -> None: ...

    def _check(self, before: Delegation, fenced: bool) -> None:
        self.world.maybe_die()
        if self.record.version != before.version or (fenced and self.record.fence != before.fence):
            raise StaleWrite


@dataclass
class ModelAgent:
    """Makes an agent task of each message that arrives, works for a while, and answers when it likes."""

    world: World
    works_for_s: float
    away_until: float
    arrivals: list[float] = field(default_factory=list)  #: when each message arrives; each makes an agent task
    can_push: bool = False
    can_stream: bool = False
    active_extensions: tuple[str, ...] = ()
    updates: str = "poll"
    on_ambiguous_send: str = "reconcile"

    def config(self, _: str, participant_id: str | None = None) -> ModelAgent:
        return self

    card = client = config

    def start_task(self, message: Any, *, push: Any, deadline_s: float) -> AgentTask:
        self._may_fail(deadline_s)
        is_late = self.world.happens(0.15)
        self.arrivals.append(self.world.now + (self.world.rand.random() * deadline_s if is_late else 0))
        if is_late:
            self.world.maybe_die()
            raise CallAmbiguous("done later, and nobody knows")
        return self._answer(len(self.arrivals) - 1, deadline_s)

    def find_task(self, context_id: str, message_id: str, *, deadline_s: float) -> AgentTask | None:
        self._may_fail(deadline_s)
        found = [number for number, at in enumerate(self.arrivals) if at <= self.world.now]
        return self._answer(found[0], deadline_s) if found else None

    def get_task(self, agent_task_id: str, *, deadline_s: float, history: int = 0) -> AgentTask:
        self._may_fail(deadline_s)
        if self.world.happens(0.03):
            raise AgentTaskNotFound("another replica")
        return self._answer(int(agent_task_id), deadline_s)

    def cancel_task(self, agent_task_id: str, *, deadline_s: float) -> None: ...

    def _may_fail(self, deadline_s: float) -> None:
        if self.world.now < self.away_until or self.world.happens(0.1):
            raise AgentUnreachable("no route")
        if self.world.happens(0.05):
            raise AgentBusy("429", self.world.rand.choice([None, 5.0, 999_999.0]))
        if self.world.happens(0.1):
            self.world.pass_time(deadline_s)
            raise CallAmbiguous("not done, and nobody knows")

    def _answer(self, number: int, deadline_s: float) -> AgentTask:
        is_done = self.world.now - self.arrivals[number] > self.works_for_s
        state = TaskState.COMPLETED if is_done else self.world.rand.choice([TaskState.WORKING, None])
        self.world.maybe_die()
        self.world.pass_time(deadline_s)
        if self.world.happens(0.15):
            raise CallAmbiguous("done, and nobody knows")
        return AgentTask(id=AgentTaskId(str(number)), context_id=ContextId("x"), state=state)
