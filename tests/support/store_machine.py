"""The steps, users and accidents of random histories over the store, against a model of what it keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from delegation import decide, endings, turns
from delegation.agent_task import TaskState
from delegation.endings import cleaned_up, left_for_later
from delegation.errors import (
    AgentRefused,
    AgentUnreachable,
    CallAmbiguous,
    DelegationEnded,
    UnresolvedChildren,
    WorkflowConflict,
)
from delegation.join_policy import JoinPolicy
from delegation.opening import new_workflow_id
from delegation.state import Cause, Change, Delegation, Moment, Phase
from delegation.store import Begun, PushAnswer
from delegation.store_talk import CancelVerdict
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, TOKEN_DIGEST, a_task
from tests.support.store_model import AGENTS, SLOTS, Known, Leg, StoreModel

ALIVE = (TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
ASKING = (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED)
POLICIES = ("all", "any", "first_success", "fail_fast", "quorum 2")
Fate = Callable[[Delegation, Any, Moment], Change]
FATES: tuple[Fate, ...] = (turns.reply_not_sent, turns.reply_refused, turns.reply_unclear)


class StoreMachine(StoreModel):
    """Steps as workers take them, with what they loaded now or long ago."""

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

    @precondition(lambda self: len(self.legs) < 3)
    @rule()
    def open_leg(self) -> None:
        leg = new_workflow_id()
        if self.state not in (WorkflowState.OPEN, WorkflowState.RELEASED):
            with pytest.raises(WorkflowConflict):
                self.store.open_workflow(leg, name="leg", deadline_s=None, parent=self.workflow)
            return
        self.store.open_workflow(leg, name="leg", deadline_s=None, parent=self.workflow)
        self.legs[leg] = Leg(round=self.round + 1, workflow=self.workflow)
        self.state = WorkflowState.OPEN

    @precondition(lambda self: any(not leg.ended for leg in self.legs.values()))
    @rule(state=st.sampled_from([state for state in WorkflowState if state.is_ended]))
    def end_leg(self, state: WorkflowState) -> None:
        self.ends_leg(next(one for one, leg in self.legs.items() if not leg.ended), state)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        known = self.pick(data)
        known.loaded.append(self.records.load(known.loaded[0].id))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        """Send, fetch, reply, cancel or clean up, with a version that may be stale."""
        known, before = self.pick_loaded(data)
        current, taken = self.records.load(before.id), self.slots_taken(known.agent) - {before.id}
        verdict, begun = self.take_step(before, data)
        self.reached[verdict] += 1
        if before.version != current.version:
            assert verdict is Begun.STALE
        elif known.holder:
            assert verdict is Begun.HELD
        elif known.is_outlived and verdict is Begun.HELD:
            return  # the call that expiry did not wait for has not come to write yet
        elif verdict is Begun.BUSY:
            assert len(taken) >= SLOTS
            known.loaded.append(self.records.load(before.id))
        else:  # a slot that was kept for somebody may have come free just now
            assert verdict is Begun.BEGUN
            assert all(other.holder is None for other in self.known.values() if other.agent == known.agent)
            known.holder = begun
            known.loaded.append(begun)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), state=st.sampled_from([*TaskState, *ASKING]), said=st.sampled_from("abc"), ask=st.booleans())
    def hear(self, data: st.DataObject, state: TaskState, said: str, ask: bool) -> None:
        """An answer, written by whoever asked for it, or by one who no longer may."""
        known, before = self.pick_loaded(data)
        if before.phase.is_settled:
            return
        if state.is_terminal:
            self.settles(known, before, lambda: self.records.end(before, state), state, fenced=True)
            return
        task = a_task(state, status_text=f"{said}?", status_at=said)
        cause = Cause.REPLY if ask else Cause.POLL
        change = decide.transition(before, task, cause=cause, moment=self.moment())
        if change.outcome is None:  # else a conversation that repeats itself
            self.saves(known, before, change, fenced=True)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), states=st.lists(st.sampled_from(ALIVE), min_size=1, max_size=3), said=st.sampled_from("abc"))
    def work(self, data: st.DataObject, states: list[TaskState], said: str) -> None:
        """Whole steps of one that nobody else is at: begun, answered, written; users say something meanwhile."""
        known = self.pick(data)
        for state in states:
            before = self.records.load(known.loaded[0].id)
            if before.phase.is_settled:
                return
            verdict, begun = self.take_step(before, data)
            self.reached[verdict] += 1
            if verdict is not Begun.BEGUN:
                return
            known.holder = begun
            known.loaded.append(begun)
            if data.draw(st.booleans()):
                self.say(known, data.draw(st.sampled_from("xyz")))
            cause = Cause.REPLY if begun.progress.turn_intent_at else Cause.POLL
            task = a_task(state, status_text=f"{said}?", status_at=f"{len(known.loaded)}")
            self.saves(known, begun, decide.transition(begun, task, cause=cause, moment=self.moment()), fenced=True)

    @rule(most=st.integers(1, 4))
    def end_children(self, most: int) -> None:
        """By whoever is at them, or looks now."""
        for one in [one for one in sorted(self.unresolved()) if one in self.known][:most]:
            known, current = self.known[one], self.records.load(one)
            self.settles(known, current, partial(self.records.end, current), TaskState.COMPLETED, fenced=True)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def fail_to_ask(self, data: st.DataObject) -> None:
        """A call that led to nothing, or was not made; without a lease."""
        known, before = self.pick_loaded(data)
        if not before.phase.is_settled:
            change = decide.postpone(before, CallAmbiguous("HTTP 500"), cause=Cause.POLL, moment=self.moment())
            self.saves(known, before, change, fenced=False)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), what=st.sampled_from(FATES))
    def lose_a_reply(self, data: st.DataObject, what: Fate) -> None:
        """It did not leave, was refused, or nobody knows."""
        known, before = self.pick_loaded(data)
        if before.phase is Phase.WATCHING and before.progress.turn_intent_at is not None:
            self.saves(known, before, what(before, AgentRefused("no"), self.moment()), fenced=True)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), what=st.sampled_from((endings.cancel_refused, endings.cancel_failed)))
    def answer_a_cancel(self, data: st.DataObject, what: Fate) -> None:
        """The agent will not, or does not answer."""
        known, before = self.pick_loaded(data)
        if before.phase is Phase.WATCHING and before.timers.cancel_at is not None:
            self.saves(known, before, what(before, AgentUnreachable("no"), self.moment()), fenced=True)

    # ------------------------------------------------------------ users

    @precondition(lambda self: self.known)
    @rule(data=st.data(), key=st.sampled_from("xyz"))
    def reply(self, data: st.DataObject, key: str) -> None:
        self.say(self.pick(data), key)

    def say(self, known: Known, key: str) -> None:
        before = self.records.load(known.loaded[0].id)
        is_known, is_over = key in known.replies, known.ended is not None or before.timers.cancel_at is not None
        if is_over and not is_known:
            with pytest.raises(DelegationEnded):
                self.store.give_reply(before, {"text": key}, key=key)
            return
        number, is_new = self.store.give_reply(before, {"text": key}, key=key)
        assert is_new is not is_known
        assert number == known.replies.setdefault(key, len(known.replies) + 1)
        assert self.store.load_reply(before.id, number) == {"text": key}
        self.reached["replies"] += 1

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        known = self.pick(data)
        before = self.records.load(known.loaded[0].id)
        verdict = self.store.want_cancel(before, "enough")
        if known.ended:
            assert verdict is CancelVerdict.ENDED
        else:
            wanted = before.timers.cancel_at is None
            assert verdict is (CancelVerdict.WANTED if wanted else CancelVerdict.WANTED_ALREADY)
        self.reached["cancels"] += verdict is CancelVerdict.WANTED

    @rule()
    def read_notes(self) -> None:
        dropped, notes = self.store.drain_notes(self.workflow)
        assert (dropped, [note["number"] for note in notes]) == (self.dropped, self.unread)
        self.dropped, self.unread = 0, []
        self.reached["notes"] += len(notes)

    # ------------------------------------------------------------ accidents and time

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
            self.saves(known, before, change, fenced=True)

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
        policy = POLICIES[(self.first_policy + self.round) % len(POLICIES)]
        joinable = self.state in (WorkflowState.OPEN, WorkflowState.RELEASED) and not self.publishing
        if not joinable:
            with pytest.raises(WorkflowConflict):
                self.store.join_workflow(self.workflow, continuation)
            return
        release = self.store.join_workflow(self.workflow, continuation, JoinPolicy.of(policy))
        self.state, self.then, self.policy = WorkflowState.JOINING, continuation is not None, policy
        self.releases(release, expected=self.join_is_over())

    @rule(seen=st.booleans())
    def continuation(self, seen: bool) -> None:
        release = f"{self.workflow}.release.{self.round}"
        if seen:
            self.store.continuation_seen(self.workflow, release)
            self.publishing = False
        else:
            count = self.store.continuation_published(self.workflow, release)
            assert (count == -1) == (not self.publishing)
            if count >= CALM.attempts:
                self.store.continuation_poisoned(self.workflow, release)
                self.publishing = False

    @precondition(lambda self: self.round > 0 or len(self.known) > 4)
    @rule(state=st.sampled_from([state for state in WorkflowState if state.is_ended]))
    def end_workflow(self, state: WorkflowState) -> None:
        self.end_as(state)

    def end_as(self, state: WorkflowState) -> None:
        is_over = self.state.is_ended or self.state is WorkflowState.CANCELING
        if is_over or (state is WorkflowState.COMPLETED and self.unresolved()):
            with pytest.raises((WorkflowConflict, UnresolvedChildren)):
                self.store.end_workflow(self.workflow, state)
            return
        self.store.end_workflow(self.workflow, state)
        self.ends(state)

    @precondition(lambda self: len(self.known) > 3 and len(self.unresolved()) > 1)
    @rule()
    def cancel_workflow(self) -> None:
        self.end_as(WorkflowState.CANCELED)

    @precondition(lambda self: self.round > 1 or len(self.known) > 6)
    @rule()
    def pass_the_deadline(self) -> None:
        """An open workflow fails, a joining one goes on, a released one is kept no longer than an ended one."""
        if self.expires():
            self.client.hset(self.records.key("w", self.workflow), "expire_at", self.store.now() - 1)
        ended = self.store.expire_workflow(self.workflow)
        assert not ended or self.state is WorkflowState.OPEN
        if self.state is WorkflowState.OPEN and self.expires():
            self.ends(WorkflowState.FAILED)
        self.past_deadline |= self.state is WorkflowState.RELEASED

    @precondition(lambda self: self.canceling_children)
    @rule()
    def cancel_the_children(self) -> None:
        """As the step does."""
        workflow = self.store.load_workflow(self.workflow)
        for child in list(self.store.unresolved_children(self.workflow)):
            if child in self.legs:
                if workflow.cancel_round is None or self.legs[child].round <= workflow.cancel_round:
                    self.ends_leg(child, WorkflowState.CANCELED)
                continue
            record = self.records.load(child)
            assert record.round == self.known[child].round
            if workflow.cancel_round is None or record.round <= workflow.cancel_round:
                self.store.want_cancel(record, "enough")
        self.store.drop_timer(self.workflow, "cancel_at", cancels=workflow.cancels)
        self.canceling_children = False

    @precondition(lambda self: self.state.is_ended)
    @rule()
    def retire_workflow(self) -> None:
        self.store.retire_workflow(self.store.load_workflow(self.workflow))
        self.retired = True
        for leg in self.legs.values():
            leg.retires |= leg.ended is not None
