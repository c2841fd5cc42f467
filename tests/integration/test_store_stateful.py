"""Random histories over the real scripts, each of them run twice: what must hold does after every single step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Generation
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delegation.agent_task import TaskState
from delegation.decide import postpone
from delegation.endings import cleaned_up, left_for_later
from delegation.errors import CallAmbiguous, StaleWrite, UnresolvedChildren, WorkflowConflict
from delegation.redis_access import Limits
from delegation.state import Cause, Delegation, Moment, Phase, Rules
from delegation.store import Begun, PushAnswer, Settlement
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, TOKEN_DIGEST, Records, RepeatingStore
from tests.support.processes import ValkeyProcess

SLOTS = 1
AGENTS = ("flights",)
#: Scripts whose repeat answers the same, and how much of the answer is not the time.
REPEATABLE = {"open": 2, "begin": 3, "save": 3, "settle": 3, "park": None, "join": None, "end_workflow": None}
_numbers = itertools.count()


class TwiceStore(RepeatingStore):
    """Every script that is safe to repeat is run twice, as if its first reply had been lost."""

    def run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        answer = super().run(script, keys, args)
        if script in REPEATABLE:
            again, counted = self.run_again(), REPEATABLE[script]
            if answer[0] != "busy":
                assert again[:counted] == answer[:counted], (script, answer, again)
        return answer


@dataclass
class Known:
    """What the model knows of a delegation."""

    agent: str
    workflow: str | None
    loaded: list[Delegation]  #: all that steps may still hold in their hands, oldest first
    parked: bool = False
    ended: TaskState | None = None
    released: bool = False
    holder: Delegation | None = None  #: who has the lease and a call slot


class StoreMachine(RuleBasedStateMachine):
    """Steps as workers take them, with what they loaded now or long ago."""

    client: Any = None
    reached: Counter[str]

    @initialize()
    def begin_empty(self) -> None:
        limits = Limits(calls_per_agent=SLOTS, retention_s=5000)
        self.records = Records(self.client, prefix=f"s{next(_numbers)}:", rules=CALM, limits=limits)
        self.store = TwiceStore(self.client, prefix=self.records.store.prefix, rules=CALM, limits=limits)
        self.records.store = self.store
        self.known: dict[str, Known] = {}
        self.workflow = self.records.open_workflow()
        self.state, self.round, self.publishing = WorkflowState.OPEN, 0, False
        for workflow in (self.workflow, None):
            self.know(self.records.start(workflow=workflow))

    # ------------------------------------------------------------ steps

    @rule(child=st.booleans(), agent=st.sampled_from(AGENTS))
    def open(self, child: bool, agent: str) -> None:
        made = self.records.new(agent=agent, workflow=self.workflow if child else None)
        if child and self.state not in (WorkflowState.OPEN, WorkflowState.RELEASED):
            with pytest.raises(WorkflowConflict):
                self.store.open_delegation(made)
            return
        self.store.open_delegation(made)
        if child:
            self.state = WorkflowState.OPEN
        self.know(self.records.load(made.id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        known = self.pick(data)
        known.loaded.append(self.records.load(known.loaded[0].id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Send, fetch or clean up, with a version that may be stale."""
        known, before = self.pick_loaded(data)
        current = self.records.load(before.id)
        if before.phase.is_settled:
            verdict, begun = self.store.begin(before, before)
        elif before.phase is Phase.WATCHING:
            verdict, begun = self.records.fetch(before)
        else:
            verdict, begun = self.records.intend(before)
        self.reached[verdict] += 1
        busy = sum(other.holder is not None for other in self.known.values() if other.agent == known.agent)
        if before.version != current.version:
            assert verdict is Begun.STALE
        elif known.holder:
            assert verdict is Begun.HELD
        elif busy >= SLOTS:
            assert verdict is Begun.BUSY
            known.loaded.append(self.records.load(before.id))
        else:
            assert verdict is Begun.BEGUN
            known.holder = begun
            known.loaded.append(begun)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), state=st.sampled_from(TaskState), fenced=st.booleans())
    def hear(self, data: st.DataObject, state: TaskState, fenced: bool) -> None:
        """An answer, written by whoever asked for it, or by one who no longer may."""
        known, before = self.pick_loaded(data)
        if before.phase.is_settled:
            return
        if state.is_terminal:
            self.settles(known, before, lambda: self.records.end(before, state), state, fenced=True)
        elif fenced:
            self.saves(known, before, lambda: self.records.hear(before, state), fenced=True)
        else:
            change = postpone(before, CallAmbiguous("HTTP 500"), cause=Cause.POLL, moment=self.moment())
            self.saves(known, before, lambda: self.store.save(before, change, fenced=False), fenced=False)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        known, before = self.pick_loaded(data)
        if not before.phase.is_settled:
            self.settles(known, before, lambda: self.records.expire(before), TaskState.FAILED, fenced=False)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), done=st.booleans())
    def clean_up(self, data: st.DataObject, done: bool) -> None:
        known, before = self.pick_loaded(data)
        if before.phase.is_settled:
            change = cleaned_up(before) if done else left_for_later(before, self.moment())
            self.saves(known, before, lambda: self.store.save(before, change), fenced=True)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def park(self, data: st.DataObject) -> None:
        known = self.pick(data)
        assert self.store.park(known.loaded[0].id) == (known.ended is None)
        known.parked |= known.ended is None

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        known = self.pick(data)
        self.records.finish(self.records.load(known.loaded[0].id))
        known.released |= known.ended is not None

    @precondition(lambda self: self.known)
    @rule(data=st.data(), digest=st.sampled_from([TOKEN_DIGEST, "forged", ""]), claimed=st.sampled_from(TaskState))
    def push(self, data: st.DataObject, digest: str, claimed: TaskState) -> None:
        known = self.pick(data)
        before = self.records.load(known.loaded[0].id)
        answer = self.store.receive_push(before.id, digest, acceptable=True, claimed=claimed)
        after = self.records.load(before.id)
        if digest == "" or digest != before.push_digest or known.ended:
            assert answer is PushAnswer.REFUSED
            assert after == before
        else:
            assert answer in (PushAnswer.WOKEN, PushAnswer.COALESCED)
            assert answer is PushAnswer.COALESCED or (before.phase is Phase.WATCHING and not known.holder)
            assert (after.wakes, after.claimed, after.heard) == (before.wakes + 1, claimed, "push")

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def lease_runs_out(self, data: st.DataObject) -> None:
        """A worker died, or sleeps: its lease ends, and it may still write if nobody came after it."""
        known = self.pick(data)
        if known.holder:
            past, one = self.store.now() - 1, known.loaded[0].id
            self.client.hset(self.records.key("d", one), "lease_until", past)
            self.client.zadd(self.records.key("calls", known.agent), {one: past}, xx=True)
            self.client.zadd(self.records.key("due"), {f"delegation:{one}": past})
            known.holder = None

    @rule(calls=st.integers(0, 3), ends=st.integers(0, 3), hours=st.sampled_from([0, 1, 1000]), leisure=st.booleans())
    def sweep(self, calls: int, ends: int, hours: int, leisure: bool) -> None:
        """Time passes for the due index; what is taken stays in it."""
        for member, score in self.client.zrange(self.records.key("due"), 0, -1, withscores=True):
            self.client.zadd(self.records.key("due"), {member: score - 3600 * hours})
        taken = self.store.sweep(calls, ends=ends, leisure=leisure)
        assert len({due.id for due in taken}) == len(taken) <= calls + ends

    @rule(continuation=st.sampled_from([None, {"task": "next"}]))
    def join(self, continuation: dict[str, Any] | None) -> None:
        joinable = self.state in (WorkflowState.OPEN, WorkflowState.RELEASED) and not self.publishing
        if not joinable:
            with pytest.raises(WorkflowConflict):
                self.store.join_workflow(self.workflow, continuation)
            return
        release = self.store.join_workflow(self.workflow, continuation)
        self.state, self.then = WorkflowState.JOINING, continuation is not None
        self.releases(release, expected=not self.unresolved())

    @rule(seen=st.booleans())
    def continuation(self, seen: bool) -> None:
        release = f"{self.workflow}.release.{self.round}"
        if seen:
            self.store.continuation_seen(self.workflow, release)
            self.publishing = False
        else:
            count = self.store.continuation_published(self.workflow, release)
            assert (count == -1) == (not self.publishing)
            self.publishing = 0 < count < 5

    @precondition(lambda self: self.round > 0 or len(self.known) > 4)
    @rule(state=st.sampled_from([state for state in WorkflowState if state.is_ended]))
    def end_workflow(self, state: WorkflowState) -> None:
        if self.state.is_ended or (state is WorkflowState.COMPLETED and self.unresolved()):
            with pytest.raises((WorkflowConflict, UnresolvedChildren)):
                self.store.end_workflow(self.workflow, state)
            return
        self.store.end_workflow(self.workflow, state)
        self.state, self.publishing = state, False

    @precondition(lambda self: self.state.is_ended)
    @rule()
    def expire_workflow(self) -> None:
        self.store.retire_workflow(self.store.load_workflow(self.workflow))
        self.state_expired = True

    # ------------------------------------------------------------ the model

    then = False
    state_expired = False

    def know(self, opened: Delegation) -> None:
        self.known[opened.id] = Known(opened.agent, opened.workflow_id, [opened])

    def pick(self, data: st.DataObject) -> Known:
        return data.draw(st.sampled_from(list(self.known.values())))

    def pick_loaded(self, data: st.DataObject) -> tuple[Known, Delegation]:
        """The newest of what was loaded, mostly."""
        known = self.pick(data)
        held = [known.holder] if known.holder else []
        latest = self.records.load(known.loaded[0].id)
        return known, data.draw(st.sampled_from([*held, latest, *known.loaded[-2:]]))

    def moment(self) -> Moment:
        return Moment(now=self.store.now(), rules=Rules())

    def unresolved(self) -> set[str]:
        return {one for one, known in self.known.items() if known.workflow and not known.ended}

    def saves(self, known: Known, before: Delegation, save: Callable[[], object], *, fenced: bool) -> None:
        current = self.records.load(before.id)
        if self.is_stale(before, current, fenced):
            with pytest.raises(StaleWrite):
                save()
            return
        save()
        known.holder = None
        assert self.records.load(before.id).version == before.version + 1

    def settles(
        self, known: Known, before: Delegation, settle: Callable[[], Settlement], state: TaskState, *, fenced: bool
    ) -> None:
        current = self.records.load(before.id)
        if known.ended:
            assert not settle().settled
            return
        if self.is_stale(before, current, fenced):
            with pytest.raises(StaleWrite):
                settle()
            return
        settlement = settle()
        assert settlement.settled
        assert settlement.was_parked == known.parked
        known.ended, known.holder = state, None
        is_last = bool(known.workflow) and self.state is WorkflowState.JOINING and not self.unresolved()
        self.releases(settlement.release_id, expected=is_last)

    @staticmethod
    def is_stale(before: Delegation, current: Delegation, fenced: bool) -> bool:
        return before.version != current.version or (fenced and before.fence != current.fence)

    def releases(self, release_id: str | None, *, expected: bool) -> None:
        """Once a round, and never before the last child."""
        assert (release_id is not None) == expected
        if expected:
            self.round += 1
            self.state, self.publishing = WorkflowState.RELEASED, self.then
            assert release_id == f"{self.workflow}.release.{self.round}"

    # ------------------------------------------------------------ what always holds

    @invariant()
    def the_parent_counts_its_unsettled_children(self) -> None:
        workflow = self.store.load_workflow(self.workflow)
        assert (workflow.state, workflow.round, workflow.is_publishing) == (self.state, self.round, self.publishing)
        assert self.client.smembers(self.records.key("u", self.workflow)) == self.unresolved()
        assert self.records.counter("released") == self.round

    @invariant()
    def an_end_is_final(self) -> None:
        for record in self.store.load_many(sorted(self.known)):
            known = self.known[record.id]
            assert record.phase.is_settled == (known.ended is not None)
            assert (record.phase is Phase.RELEASED) == known.released
            if known.ended:
                assert record.state is known.ended
                assert (record.push_digest, record.claimed) == ("", None)

    @invariant()
    def whatever_needs_something_is_due_and_nothing_else(self) -> None:
        needs = set()
        for record in self.store.load_many(sorted(self.known)):
            timers = record.timers
            if not record.phase.is_settled or timers.publish_at is not None or timers.cleanup_at is not None:
                needs.add(f"delegation:{record.id}")
            if record.phase.is_settled:
                assert (timers.publish_at is not None) == (record.phase is Phase.SETTLED)
        if self.publishing or (self.state.is_ended and not self.state_expired):
            needs.add(f"workflow:{self.workflow}")
        assert set(self.records.due()) == needs

    @invariant()
    def no_timer_is_overslept(self) -> None:
        """An entry is never later than what is next, but for what a sweep has just handed out."""
        due, patience = self.records.due(), CALM.hint_patience_s
        now = self.store.now()
        for record in self.store.load_many(sorted(self.known)):
            timers, leased = record.timers, (record.timers.lease_until or 0) > now
            if record.phase.is_settled:
                ahead = [timers.publish_at, timers.lease_until if leased and timers.cleanup_at else timers.cleanup_at]
            else:
                at_rest = [] if leased else [timers.poll_at, timers.refetch_at, timers.publish_at]
                ahead = [timers.deadline_at, timers.lease_until, *at_rest]
            if times := [at - now for at in ahead if at is not None]:
                assert due[f"delegation:{record.id}"] <= max(min(times), patience) + 5, record

    @invariant()
    def call_slots_and_places_in_line_do_not_leak(self) -> None:
        """Beside its holders a slot may be kept for who was called up, or by a call that expiry did not wait for."""
        for agent in AGENTS:
            holders = {one for one, known in self.known.items() if known.agent == agent and known.holder}
            now = self.store.now()
            calling: Any = self.client.zrangebyscore(self.records.key("calls", agent), now, "+inf")
            assert holders <= set(calling)
            assert len(calling) <= SLOTS
            waiting: Any = self.client.zrange(self.records.key("waiting", agent), 0, -1)
            assert all(not self.known[one].ended and not self.known[one].holder for one in waiting)

    @invariant()
    def the_gauge_counts_the_parked(self) -> None:
        parked = sum(known.parked and not known.ended for known in self.known.values())
        assert self.store.metrics()["parked"] == parked

    @invariant()
    def nothing_that_is_not_ended_expires(self) -> None:
        for one, known in self.known.items():
            if not known.released:
                assert self.client.ttl(self.records.key("d", one)) == -1

    def teardown(self) -> None:
        for known in self.known.values():
            self.reached["ended"] += known.ended is not None
            self.reached["finished"] += known.released
        self.reached["releases"] += self.round
        if keys := self.records.all_keys():
            self.client.delete(*keys)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    valkey = ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start()
    with valkey, valkey.client() as client:
        yield client


def test_what_must_hold_does_after_every_step(client: Any) -> None:
    """A hundred random histories of thirty steps, with duplicates, stale versions and dead workers."""

    class Machine(StoreMachine):
        pass

    Machine.client, Machine.reached = client, Counter()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            # Not Phase.shrink: thirty scripts twice per try would outlast the timeout, and the history with it.
            phases=[Generation.explicit, Generation.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    # A machine that gets nowhere would prove nothing.
    assert all(Machine.reached[what] >= 10 for what in (*Begun, "ended", "finished", "releases")), Machine.reached
