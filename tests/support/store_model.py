"""A model of what the store keeps, and what always holds of it, for random histories (store_machine.py)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant

from delegation import turns
from delegation.agent_task import TaskState
from delegation.errors import (
    StaleWrite,
)
from delegation.redis_access import Limits
from delegation.state import Change, Delegation, Moment, Phase, Rules, Watch, WorkflowId
from delegation.store import Begun, Settlement
from delegation.watch import wants_follow
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, Records, RepeatingStore, documented_kinds, kind_of

SLOTS = 1
AGENTS = ("flights",)
#: Scripts whose repeat answers the same, and how much of the answer is not the time, nor who sends a note's message.
REPEATABLE = {"open": 2, "begin": 3, "save": 3, "settle": 3, "park": None, "join": None, "end_workflow": None}
#: Scripts whose repeat writes nothing more, though it may be answered as a second caller is.
HARMLESS = {
    "reply",
    "cancel",
    "finish",
    "drop_timer",
    "open_workflow",
    "expire_workflow",
    "repair",
    "load",
    "retire_child",
}
_numbers = itertools.count()


class TwiceStore(RepeatingStore):
    """Every script that is safe to repeat is run twice, as if its first reply had been lost."""

    def run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        answer = super().run(script, keys, args)
        if script in REPEATABLE:
            again, counted = self.run_again(), REPEATABLE[script]
            if answer[0] != "busy":
                assert again[:counted] == answer[:counted], (script, answer, again)
        elif script in HARMLESS:
            self.run_again()
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
    is_outlived: bool = False  #: it expired while a call was under way, which kept both
    replies: dict[str, int] = field(default_factory=dict)  #: key of each reply -> its number
    round: int = 0  #: of its workflow


@dataclass
class Leg:
    """What the model knows of a child workflow, which has no children."""

    round: int
    workflow: str
    ended: TaskState | None = None
    retires: bool = False  #: its retention begins when a step comes to it


class StoreModel(RuleBasedStateMachine):
    """What is known of one workflow, its children and lone delegations."""

    client: Any = None
    reached: Counter[str]
    first_policy = 0  #: of the first round; those that follow take turns

    @initialize()
    def begin_empty(self) -> None:
        limits = Limits(calls_per_agent=SLOTS, calls_per_second=10**6, notes=5, retention_s=5000)
        self.records = Records(self.client, prefix=f"delegation:s{next(_numbers)}:", rules=CALM, limits=limits)
        self.store = TwiceStore(self.client, prefix=self.records.store.prefix, rules=CALM, limits=limits)
        self.records.store = self.store
        self.known: dict[str, Known] = {}
        self.workflow = self.records.open_workflow()
        self.state, self.round, self.publishing = WorkflowState.OPEN, 0, False
        self.then, self.retired, self.past_deadline, self.canceling_children = False, False, False, False
        self.told, self.dropped, self.unread = 0, 0, list[int]()
        self.policy, self.satisfied = "all", False
        self.legs: dict[str, Leg] = {}
        for workflow in (self.workflow, None):
            self.know(self.records.start(workflow=workflow))

    # ------------------------------------------------------------ the model

    def take_step(self, before: Delegation, data: st.DataObject) -> tuple[Begun, Delegation]:
        if before.phase.is_settled:
            return self.store.begin(before, before)
        if before.phase is not Phase.WATCHING:
            return self.records.intend(before, data.draw(st.sampled_from(Watch)))
        if turns.may_send_reply(before) and data.draw(st.booleans()):
            return self.records.begin_reply(before)
        return self.records.fetch(before)

    def slots_taken(self, agent: str) -> set[str]:
        """By running calls, and by who was just called up."""
        return set(self.client.zrangebyscore(self.records.key("calls", agent), self.store.now(), "+inf"))

    def know(self, opened: Delegation) -> None:
        self.known[opened.id] = Known(opened.agent, opened.workflow_id, [opened], round=self.round + 1)

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
        delegations = {one for one, known in self.known.items() if known.workflow and not known.ended}
        return delegations | {one for one, leg in self.legs.items() if not leg.ended}

    def this_round(self) -> list[Known | Leg]:
        children = [*self.known.values(), *self.legs.values()]
        return [child for child in children if child.workflow and child.round == self.round + 1]

    def join_is_over(self) -> bool:
        """What was joined for has come, or cannot; by the ends of this round's children alone."""
        children = self.this_round()
        ended = [known.ended for known in children if known.ended]
        completed = ended.count(TaskState.COMPLETED)
        is_possible, is_there = {
            "all": (True, False),
            "any": (True, bool(ended)),
            "first_success": (True, completed > 0),
            "fail_fast": (completed == len(ended), False),
            "quorum 2": (len(children) - (len(ended) - completed) >= 2, completed >= 2),
        }[self.policy]
        self.satisfied = {
            "all": len(ended) == len(children),
            "fail_fast": completed == len(children),
        }.get(self.policy, is_there)
        return is_there or not is_possible or len(ended) == len(children)

    def expires(self) -> bool:
        """Its deadline is still to be acted on."""
        return not (self.state.is_ended or self.state is WorkflowState.CANCELING or self.past_deadline)

    def ends(self, state: WorkflowState) -> None:
        is_cancelling = state is WorkflowState.CANCELED and self.unresolved()
        self.state = WorkflowState.CANCELING if is_cancelling else state
        self.canceling_children = state is not WorkflowState.COMPLETED and bool(self.unresolved())
        if state is not WorkflowState.COMPLETED:
            self.publishing = False
        self.reached[self.state] += 1

    def tells(self, known: Known | Leg) -> None:
        """A note more; the oldest is dropped when there are too many."""
        if known.workflow:
            self.told += 1
            self.unread.append(self.told)
            if len(self.unread) > self.store.limits.notes:
                self.unread.pop(0)
                self.dropped += 1

    def saves(self, known: Known, before: Delegation, change: Change, *, fenced: bool) -> None:
        current = self.records.load(before.id)
        if self.is_stale(before, current, fenced):
            with pytest.raises(StaleWrite):
                self.store.save(before, change, fenced=fenced)
            return
        self.store.save(before, change, fenced=fenced)
        known.holder = None
        if change.note:
            self.tells(known)
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
        known.is_outlived = not fenced and known.holder is not None
        known.ended, known.holder = state, None
        self.tells(known)
        self.resolves(known, settlement.release_id)

    def ends_leg(self, one: str, state: WorkflowState) -> None:
        """A child workflow ends: nobody is told of a release that it leads to, but it is due."""
        leg = self.legs[one]
        leg.retires = self.state.is_ended
        self.store.end_workflow(WorkflowId(one), state, reason="enough")
        leg.ended = TaskState(state.value)
        self.tells(leg)
        record = self.store.load_workflow(self.workflow)
        self.resolves(leg, record.release_id if record.round > self.round else None)
        self.reached["legs"] += 1

    def resolves(self, child: Known | Leg, release_id: str | None) -> None:
        """A child has ended: what its parent makes of it."""
        self.releases(release_id, expected=self.is_joined(child) and self.join_is_over())
        if child.workflow and not self.unresolved() and self.state is WorkflowState.CANCELING:
            self.state, self.canceling_children = WorkflowState.CANCELED, False

    def is_joined(self, known: Known | Leg) -> bool:
        """Its end may release its parent."""
        return self.state is WorkflowState.JOINING and bool(known.workflow)

    @staticmethod
    def is_stale(before: Delegation, current: Delegation, fenced: bool) -> bool:
        return before.version != current.version or (fenced and before.fence != current.fence)

    def releases(self, release_id: str | None, *, expected: bool) -> None:
        """Once a round, and never before its policy says so; the rest of the round is to be cancelled."""
        assert (release_id is not None) == expected
        if expected:
            left = [known for known in self.this_round() if not known.ended]
            self.round += 1
            self.canceling_children |= bool(left)
            self.reached[self.policy] += 1
            self.state, self.publishing = WorkflowState.RELEASED, self.then
            assert release_id == f"{self.workflow}.release.{self.round}"
            record = self.store.load_workflow(self.workflow)
            assert (record.policy.kept, record.is_satisfied) == (self.policy, self.satisfied)
            assert not left or record.cancel_round == self.round

    # ------------------------------------------------------------ what always holds

    @invariant()
    def the_parent_counts_its_unsettled_children(self) -> None:
        workflow = self.store.load_workflow(self.workflow)
        assert (workflow.state, workflow.round, workflow.is_publishing) == (self.state, self.round, self.publishing)
        assert self.client.smembers(self.records.key("u", self.workflow)) == self.unresolved()
        assert self.records.counter("released") == self.round

    @invariant()
    def a_child_workflow_is_as_it_was_left(self) -> None:
        for one, leg in self.legs.items():
            record = self.store.load_workflow(one)
            assert (record.in_round, record.line) == (leg.round, (self.workflow,))
            assert record.state == (leg.ended or WorkflowState.OPEN)

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
        timers_of_workflow = {
            "publish_at": self.publishing,
            "cancel_at": self.canceling_children,
            "expire_at": self.expires(),
            "cleanup_at": (self.state.is_ended and not self.retired) or (self.past_deadline and not self.retired),
        }
        found = self.client.hmget(self.records.key("w", self.workflow), list(timers_of_workflow))
        assert {name for name, at in zip(timers_of_workflow, found, strict=True) if at} == {
            name for name, is_set in timers_of_workflow.items() if is_set
        }
        if any(timers_of_workflow.values()):
            needs.add(f"workflow:{self.workflow}")
        needs |= {f"workflow:{one}" for one, leg in self.legs.items() if leg.retires or not leg.ended}
        assert set(self.client.zrange(self.records.key("due"), 0, -1)) == needs

    @invariant()
    def nobody_sleeps_with_something_to_do(self) -> None:
        """What works is looked at, what is asked and has a reply sends it; ``off`` leaves alone who waits for us."""
        for record in self.store.load_many(sorted(self.known)):
            timers = record.timers
            leased = (timers.lease_until or 0) > self.store.now()
            planned = [timers.poll_at, timers.refetch_at, timers.publish_at, timers.reply_at, timers.cancel_at]
            if record.phase.is_settled or leased or timers.lease_until is not None or any(planned):
                continue
            assert record.waits_for_reply, record
            assert record.progress.watch is Watch.OFF, record

    @invariant()
    def the_inbox_has_who_waits_for_somebody(self) -> None:
        waits = set()
        for record in self.store.load_many(sorted(self.known)):
            if record.phase is Phase.WATCHING and record.waits_for_reply and record.progress.question:
                waits.add(record.id)
        assert set(self.store.inbox()) == waits

    @invariant()
    def a_follower_holds_who_wants_it(self) -> None:
        """But while something is said to the agent."""
        records = self.store.load_many(sorted(self.known))
        followed = set(self.client.zrange(self.records.key("follows"), 0, -1))
        spoken_to = {record.id for record in records if record.timers.lease_until is not None}
        assert followed - spoken_to == {record.id for record in records if wants_follow(record)} - spoken_to
        assert all(not self.known[one].ended for one in followed)

    @invariant()
    def replies_are_kept_in_order(self) -> None:
        for record in self.store.load_many(sorted(self.known)):
            replies = self.known[record.id].replies
            assert record.replies == len(replies)
            assert record.progress.turn <= record.replies

    @invariant()
    def only_listed_keys_are_kept(self) -> None:
        assert {kind_of(key) for key in self.records.all_keys()} <= documented_kinds()

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
                at_rest = [] if leased else [timers.poll_at, timers.refetch_at, timers.publish_at, timers.cancel_at]
                if record.phase is Phase.WATCHING and not leased:
                    at_rest.append(timers.reply_at)
                ahead = [timers.deadline_at, timers.lease_until, *at_rest]
            if times := [at - now for at in ahead if at is not None]:
                assert due[f"delegation:{record.id}"] <= max(min(times), patience) + 5, record

    @invariant()
    def call_slots_and_places_in_line_do_not_leak(self) -> None:
        """Beside its holders a slot may be kept for who was called up, or by a call that expiry did not wait for."""
        for agent in AGENTS:
            holders = {one for one, known in self.known.items() if known.agent == agent and known.holder}
            calling = self.slots_taken(agent)
            assert holders <= calling
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
