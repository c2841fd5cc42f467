"""Parents on a real Valkey: notes, deadlines, cancels and ends, and what is kept of all that."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from celery import Celery
from structlog.testing import capture_logs

from delegation.agent_task import TaskState
from delegation.due import WorkflowStep, choose_workflow_steps
from delegation.errors import UnknownWorkflow, WorkflowConflict
from delegation.opening import new_workflow_id
from delegation.state import Delegation, WorkflowId
from delegation.store_workflows import EXPIRE_AGAIN_S
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, FAST, TOKEN_DIGEST, Records, documented_kinds, is_near, kind_of
from workers.sweeper import Sweep

_numbers = itertools.count()
RETENTION_S = 500
ON_NOTE = {"task": "tell_me", "args": []}


@pytest.fixture
def make_records(client: Any) -> Callable[..., Records]:
    prefix = f"delegation:w{next(_numbers)}:"

    def make(*, notes: int = 1000, **rules: Any) -> Records:
        limits = replace(FAST, notes=notes, retention_s=RETENTION_S)
        return Records(client, prefix=prefix, rules=replace(CALM, **rules), limits=limits)

    return make


@pytest.fixture
def records(make_records: Callable[..., Records]) -> Records:
    return make_records()


def open_workflow(records: Records, *, deadline_s: float | None = None, on_note: Any = None) -> WorkflowId:
    workflow = new_workflow_id()
    records.store.open_workflow(workflow, name="trip", deadline_s=deadline_s, on_note=on_note)
    return workflow


def state_of(records: Records, workflow: WorkflowId) -> WorkflowState:
    return records.store.load_workflow(workflow).state


def due_in(records: Records, workflow: WorkflowId) -> float | None:
    """Seconds until anything of the workflow is due, its far deadline included."""
    score = records.client.zscore(records.key("due"), f"workflow:{workflow}")
    return None if score is None else score - records.store.now()


def steps_of(records: Records, workflow: WorkflowId) -> tuple[WorkflowStep, ...]:
    """What the sweeper would do if the workflow were due now."""
    records.client.zadd(records.key("due"), {f"workflow:{workflow}": 0})
    (due,) = (due for due in records.store.sweep(10) if due.id == workflow)
    return choose_workflow_steps(due.timers, due.now)


def pass_deadline(records: Records, workflow: WorkflowId) -> None:
    records.client.hset(records.key("w", workflow), "expire_at", records.store.now() - 1)


def texts(notes: list[dict[str, Any]]) -> list[str]:
    return [note["text"].partition(": ")[2] for note in notes]


# ---------------------------------------------------------------- notes


def test_notes_are_kept_in_order_and_read_once(records: Records) -> None:
    """Questions and ends of all children as they were heard, numbered; whoever reads them next finds none."""
    workflow = open_workflow(records)
    one, two = records.start(workflow=workflow), records.start(workflow=workflow)
    one = records.ask(one, "Which day?")
    records.ask(two, "From where?")
    records.end(one, text="Monday it is")
    dropped, notes = records.store.drain_notes(workflow)
    assert (dropped, texts(notes)) == (0, ["Which day?", "From where?", "Monday it is"])
    assert [note["number"] for note in notes] == [1, 2, 3]
    assert [note["delegation_id"] for note in notes] == [one.id, two.id, one.id]
    assert all(set(note) == {"at", "number", "delegation_id", "agent", "state", "text", "source"} for note in notes)
    assert records.store.drain_notes(workflow) == (0, [])
    records.end(records.load(two.id))
    assert [note["number"] for note in records.store.drain_notes(workflow)[1]] == [4]


def test_progress_and_repeats_are_no_notes(records: Records) -> None:
    """WORKING, and the same question heard again, only change the child's row."""
    workflow = open_workflow(records)
    child = records.ask(records.start(workflow=workflow))
    records.ask(child)
    records.hear(records.fetch(records.load(child.id))[1], TaskState.WORKING, status_text="half way")
    assert len(records.store.drain_notes(workflow)[1]) == 1


def test_a_lone_delegation_has_nobody_to_tell(records: Records) -> None:
    """Neither a list of notes nor a workflow comes into being."""
    records.end(records.ask(records.start()))
    assert {"n", "t", "w"} & {kind_of(key) for key in records.all_keys()} == set()


def test_too_many_notes_drop_the_oldest_and_say_how_many(make_records: Callable[..., Records]) -> None:
    """Bounded; the count begins anew with each reading."""
    records = make_records(notes=3)
    workflow = open_workflow(records)
    for number in range(5):
        records.end(records.start(workflow=workflow), text=str(number))
    dropped, notes = records.store.drain_notes(workflow)
    assert (dropped, texts(notes)) == (2, ["2", "3", "4"])
    records.end(records.start(workflow=workflow), text="5")
    assert records.store.drain_notes(workflow)[0] == 0


def take(records: Records, workflow: WorkflowId, *, again: bool = False) -> list[tuple[int, str]]:
    """Number and delegation id of the notes to tell of now."""
    untold = records.store.take_untold_notes(workflow, again=again)
    return [(note.number, note.delegation_id) for note in untold.notes]


def test_who_wants_to_be_told_is_told_of_each_note(records: Records) -> None:
    """Due with patience, since the step that made it sends the message; told by one at a time, in order."""
    workflow = open_workflow(records, on_note=ON_NOTE)
    asked = records.ask(records.start(workflow=workflow))
    assert due_in(records, workflow) == is_near(1000)
    assert records.end(records.load(asked.id)).has_note
    untold = records.store.take_untold_notes(workflow)
    assert [note.number for note in untold.notes] == [1, 2]
    assert take(records, workflow) == []  # somebody is at it
    assert due_in(records, workflow) == is_near(1000)
    assert records.store.notes_told(workflow, 1, untold.notes[:1]) == 1
    assert take(records, workflow) == [(2, asked.id)]
    assert records.store.notes_told(workflow, 2, untold.notes[1:]) == 0
    assert due_in(records, workflow) == is_near(7 * 86400)
    assert len(records.store.drain_notes(workflow)[1]) == 2


def test_a_message_of_a_note_is_sent_again_until_it_was_seen_to_run(records: Records) -> None:
    """Ever more rarely; a new note does not wait for the old ones, and what was seen is over."""
    workflow = open_workflow(records, on_note=ON_NOTE)
    child = records.ask(records.start(workflow=workflow))
    assert take(records, workflow) == [(1, child.id)]
    assert records.store.notes_told(workflow, 1, []) == 0
    assert take(records, workflow) == []
    waits = []
    for _ in range(3):
        assert take(records, workflow, again=True) == [(1, child.id)]
        records.store.notes_told(workflow, 1, [], again=True)
        waits.append(due_in(records, workflow))
    assert waits == [is_near(2000), is_near(4000), is_near(8000)]
    assert steps_of(records, workflow) == ()
    records.client.hset(records.key("w", workflow), "note_at", 1)
    assert steps_of(records, workflow) == (WorkflowStep.TELL,)
    records.end(records.load(child.id))
    assert take(records, workflow) == [(2, child.id)]
    records.store.notes_told(workflow, 2, [])
    seen = records.store.take_untold_notes(workflow, again=True)
    assert (seen.last_told, len(seen.notes)) == (2, 2)
    records.store.notes_told(workflow, 2, seen.notes, again=True)
    assert due_in(records, workflow) == is_near(7 * 86400)
    assert records.client.exists(records.key("t", workflow)) == 0


def test_without_on_note_nobody_is_told_by_message(records: Records) -> None:
    """The notes wait for a reader, and nothing is due for them."""
    workflow = open_workflow(records)
    assert not records.end(records.start(workflow=workflow)).has_note
    assert take(records, workflow) == []
    assert records.client.exists(records.key("t", workflow)) == 0


def test_reading_notes_takes_nothing_from_who_is_told(records: Records) -> None:
    """They are two ways to hear of the same."""
    workflow = open_workflow(records, on_note=ON_NOTE)
    child = records.start(workflow=workflow)
    records.end(child)
    records.store.drain_notes(workflow)
    assert take(records, workflow) == [(1, child.id)]


def test_a_joining_parent_is_told_too(records: Records) -> None:
    """It waits for its children, and hears of their questions all the same."""
    workflow = open_workflow(records)
    child = records.start(workflow=workflow)
    records.store.join_workflow(workflow, {"task": "next"})
    records.ask(child)
    assert texts(records.store.drain_notes(workflow)[1]) == ["Which day?"]


def test_notes_of_a_workflow_that_is_gone_are_nobodys(records: Records) -> None:
    """Its last child outlives it; nothing is brought back of it, by its note or by a late word on older ones."""
    workflow = open_workflow(records, on_note=ON_NOTE)
    child = records.start(workflow=workflow)
    records.client.delete(records.key("w", workflow))
    assert not records.end(child).has_note
    records.client.rpush(records.key("t", workflow), f"1 {child.id}", f"2 {child.id}")
    assert take(records, workflow) == []
    assert records.store.notes_told(workflow, 1, []) == 0
    assert records.client.exists(records.key("w", workflow)) == 0
    with pytest.raises(UnknownWorkflow):
        records.store.drain_notes(workflow)


# ---------------------------------------------------------------- deadlines


def test_an_open_workflow_is_due_at_its_deadline(records: Records) -> None:
    """At most the longest; not before, however often it is asked for."""
    assert due_in(records, open_workflow(records)) == is_near(7 * 86400)
    assert due_in(records, open_workflow(records, deadline_s=10**9)) == is_near(7 * 86400)
    workflow = open_workflow(records, deadline_s=300)
    assert due_in(records, workflow) == is_near(300)
    assert not records.store.expire_workflow(workflow)
    assert state_of(records, workflow) is WorkflowState.OPEN


def test_an_open_workflow_fails_at_its_deadline(records: Records) -> None:
    """With the reason, its children to cancel, and its retention to begin."""
    workflow = open_workflow(records, deadline_s=300)
    records.start(workflow=workflow)
    pass_deadline(records, workflow)
    assert steps_of(records, workflow) == (WorkflowStep.EXPIRE,)
    assert records.store.expire_workflow(workflow)
    expired = records.store.load_workflow(workflow)
    assert (expired.state, expired.result) == (WorkflowState.FAILED, {"reason": "deadline.exceeded"})
    assert expired.cancel_reason == "deadline.exceeded"
    assert set(steps_of(records, workflow)) == {WorkflowStep.CANCEL_CHILDREN, WorkflowStep.RETIRE}
    assert not records.store.expire_workflow(workflow)


def test_a_joining_workflow_is_released_as_promised_past_its_deadline(records: Records) -> None:
    """Its children have the same deadline; it is looked at again until they ended, and then its retention begins."""
    workflow = open_workflow(records, deadline_s=300)
    child = records.start(workflow=workflow)
    records.store.join_workflow(workflow, {"task": "next"})
    pass_deadline(records, workflow)
    assert not records.store.expire_workflow(workflow)
    assert state_of(records, workflow) is WorkflowState.JOINING
    assert due_in(records, workflow) == is_near(EXPIRE_AGAIN_S)
    assert records.end(child).release_id == f"{workflow}.release.1"
    pass_deadline(records, workflow)
    assert not records.store.expire_workflow(workflow)
    released = records.store.load_workflow(workflow)
    assert (released.state, released.is_publishing) == (WorkflowState.RELEASED, True)
    assert WorkflowStep.RETIRE in steps_of(records, workflow)


def test_a_released_workflow_only_begins_its_retention(records: Records) -> None:
    """It has had its say. Its children are kept as long, also one whose canvas goes on later."""
    workflow = open_workflow(records, deadline_s=300)
    finished, late = records.start(workflow=workflow), records.start(workflow=workflow)
    for child in (finished, late):
        records.end(child)
    records.finish(records.load(finished.id))
    records.store.join_workflow(workflow, None)
    pass_deadline(records, workflow)
    records.store.expire_workflow(workflow)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    assert state_of(records, workflow) is WorkflowState.RELEASED
    assert due_in(records, workflow) is None
    assert records.client.ttl(records.key("w", workflow)) == is_near(RETENTION_S)
    assert records.client.ttl(records.key("d", finished.id)) == is_near(RETENTION_S)
    records.finish(records.load(late.id))
    assert records.client.ttl(records.key("d", late.id)) == is_near(RETENTION_S)


@pytest.mark.parametrize("is_joined", [True, False])
def test_a_workflow_past_its_deadline_takes_nothing_more(records: Records, is_joined: bool) -> None:
    """Neither child, nor child workflow, nor join: a released one's retention has begun, and nothing outlives it."""
    workflow = open_workflow(records, deadline_s=300)
    leg = new_workflow_id()
    records.store.open_workflow(leg, name="leg", deadline_s=None, parent=workflow)
    records.store.end_workflow(leg, WorkflowState.COMPLETED)
    if is_joined:
        records.store.join_workflow(workflow, None)
    past = records.store.now() - 1
    records.client.hset(records.key("w", workflow), mapping={"deadline_at": past, "expire_at": past})

    def refuse_everything() -> None:
        for refused in (
            lambda: records.open(workflow=workflow),
            lambda: records.store.open_workflow(new_workflow_id(), name="", deadline_s=None, parent=workflow),
            lambda: records.store.join_workflow(workflow, None),
        ):
            with pytest.raises(WorkflowConflict, match=r"past its deadline|FAILED"):
                refused()

    refuse_everything()
    records.store.expire_workflow(workflow)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    refuse_everything()
    kept = [key for key in records.all_keys() if workflow in key]
    assert records.key("k", workflow) in kept
    assert [key for key in kept if records.client.ttl(key) < 0] == []
    # The same again is no new child.
    records.store.open_workflow(leg, name="leg", deadline_s=None, parent=workflow)


@pytest.mark.parametrize("state", [WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELED])
def test_an_ended_workflow_is_not_due_at_its_deadline(records: Records, state: WorkflowState) -> None:
    """Nor ever again once its retention has begun."""
    workflow = open_workflow(records, deadline_s=300)
    records.store.end_workflow(workflow, state)
    assert not records.store.expire_workflow(workflow)
    assert steps_of(records, workflow) == (WorkflowStep.RETIRE,)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    assert due_in(records, workflow) is None


def test_nothing_expires_that_is_not_there(records: Records) -> None:
    """A gone workflow does not come back as one that failed."""
    assert not records.store.expire_workflow("gone")
    records.store.drop_timer("gone", "cancel_at")
    assert records.all_keys() == []


# ---------------------------------------------------------------- cancels


def cancel(records: Records, workflow: WorkflowId) -> None:
    records.store.end_workflow(workflow, WorkflowState.CANCELED, {"reason": "enough"}, reason="enough")


def canceling(records: Records, children: int = 2) -> tuple[WorkflowId, list[Delegation]]:
    workflow = open_workflow(records)
    made = [records.start(workflow=workflow) for _ in range(children)]
    cancel(records, workflow)
    return workflow, made


def test_a_cancelled_workflow_ends_with_its_last_child(records: Records) -> None:
    """CANCELING until then, its children due to be cancelled; CANCELED in the same script as the last end."""
    workflow, (one, two) = canceling(records)
    assert state_of(records, workflow) is WorkflowState.CANCELING
    assert records.store.load_workflow(workflow).cancel_reason == "enough"
    assert steps_of(records, workflow) == (WorkflowStep.CANCEL_CHILDREN,)
    assert set(records.store.unresolved_children(workflow)) == {one.id, two.id}
    records.store.drop_timer(workflow, "cancel_at")
    assert due_in(records, workflow) is None
    assert records.end(one, TaskState.CANCELED).release_id is None
    assert state_of(records, workflow) is WorkflowState.CANCELING
    assert records.end(two, TaskState.COMPLETED).release_id is None
    ended = records.store.load_workflow(workflow)
    assert (ended.state, ended.result, ended.round) == (WorkflowState.CANCELED, {"reason": "enough"}, 0)
    assert steps_of(records, workflow) == (WorkflowStep.RETIRE,)


def test_a_cancelled_workflow_without_children_ends_at_once(records: Records) -> None:
    """Nothing is left to wait for."""
    workflow, _ = canceling(records, children=0)
    assert state_of(records, workflow) is WorkflowState.CANCELED


def test_a_workflow_being_cancelled_does_nothing_else(records: Records) -> None:
    """No child, no join, no other end, no expiry; its continuation is withdrawn."""
    workflow = open_workflow(records)
    records.start(workflow=workflow)
    records.store.join_workflow(workflow, {"task": "next"})
    cancel(records, workflow)
    for refused in (
        lambda: records.open(workflow=workflow),
        lambda: records.store.join_workflow(workflow, None),
        lambda: records.store.end_workflow(workflow, WorkflowState.COMPLETED),
        lambda: records.store.end_workflow(workflow, WorkflowState.FAILED),
        lambda: cancel(records, workflow),
    ):
        with pytest.raises(WorkflowConflict, match=r"CANCELING|cancelled"):
            refused()
    pass_deadline(records, workflow)
    assert not records.store.expire_workflow(workflow)
    assert records.store.load_workflow(workflow).continuation is None


def test_a_failed_workflow_ends_at_once_and_cancels_its_children(records: Records) -> None:
    """Whoever failed it does not wait for them; they leave it one by one."""
    workflow = open_workflow(records)
    child = records.start(workflow=workflow)
    records.store.end_workflow(workflow, WorkflowState.FAILED, {"reason": "no"}, reason="no")
    assert state_of(records, workflow) is WorkflowState.FAILED
    assert WorkflowStep.CANCEL_CHILDREN in steps_of(records, workflow)
    records.end(child, TaskState.CANCELED)
    assert records.store.load_workflow(workflow).unresolved == 0


def test_a_repair_reads_no_outcome_of_a_child_that_does_not_differ(records: Records) -> None:
    """What it costs does not grow with what agents wrote; one that cannot be read is in nobody's way."""
    workflow = open_workflow(records)
    child, _ = (records.start(workflow=workflow) for _ in range(2))
    records.end(child)
    records.client.hset(records.key("d", child.id), "outcome", "x" * 65536)
    before = records.everything()
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (0, None)
    assert records.everything() == before


def test_a_child_put_back_goes_with_a_workflow_whose_retention_has_begun(records: Records) -> None:
    """A set that comes into being again must not stay for ever."""
    workflow = open_workflow(records)
    late = records.start(workflow=workflow)
    records.client.hset(records.key("w", workflow), "state", "RELEASED")
    records.store.retire_workflow(records.store.load_workflow(workflow))
    records.client.delete(records.key("u", workflow))
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (1, None)
    assert records.store.load_workflow(workflow).unresolved == 1
    assert 0 < records.client.ttl(records.key("u", workflow)) <= RETENTION_S
    assert late.workflow_id == workflow


def test_a_workflow_that_cannot_be_read_keeps_no_other_waiting(records: Records) -> None:
    """The janitor goes on to the next, and says so once."""
    broken = [open_workflow(records) for _ in range(3)]
    for workflow in broken:
        records.client.set(records.key("k", workflow), "no list")
    sound = open_workflow(records)
    records.client.sadd(records.key("u", sound), f"{sound}.7")
    sweep = Sweep(Celery(set_as_current=False), records.store, slots=1)
    with capture_logs() as logs:
        for _ in range(2):
            sweep._tidy_at = 0.0
            sweep._tidy()
    assert records.store.load_workflow(sound).unresolved == 0
    failed = [entry["workflow_id"] for entry in logs if entry["event"] == "workflow.check_failed"]
    assert sorted(failed) == sorted(broken)


def test_a_repair_ends_a_cancelled_workflow_whose_last_child_was_lost(records: Records) -> None:
    """A removal that never came is made up for, and with it the end it had kept back."""
    workflow, (child,) = canceling(records, children=1)
    records.end(child)
    records.client.hset(records.key("w", workflow), "state", "CANCELING")
    records.client.sadd(records.key("u", workflow), child.id)
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (1, None)
    assert state_of(records, workflow) is WorkflowState.CANCELED


def test_children_of_a_workflow_being_cancelled_are_kept_till_its_end(records: Records) -> None:
    """Their receipts are asked for when it is over."""
    workflow, (one, two) = canceling(records)
    records.end(one)
    records.finish(records.load(one.id))
    assert records.client.ttl(records.key("d", one.id)) == -1
    records.end(two)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    assert records.client.ttl(records.key("d", one.id)) == is_near(RETENTION_S)


# ---------------------------------------------------------------- what is kept


def test_a_retired_workflow_goes_with_all_that_belongs_to_it(records: Records) -> None:
    """Record, children, notes unread and untold; of its ended children record, history, artifacts, replies."""
    workflow = open_workflow(records, on_note=ON_NOTE)
    child = records.ask(records.start(workflow=workflow))
    records.store.give_reply(child, {"text": "Monday"}, key=None)
    records.end(records.load(child.id))
    records.finish(records.load(child.id))
    late = records.start(workflow=workflow)
    records.store.end_workflow(workflow, WorkflowState.FAILED)
    for _ in range(2):
        records.store.retire_workflow(records.store.load_workflow(workflow))
    kept = {f"{kind}:{workflow}" for kind in "wunt"} | {f"{kind}:{child.id}" for kind in "dhr"}
    assert {key for key in records.keys_with_ttl() if not key.startswith("rate:")} == kept | {f"call:{child.call_id}"}
    assert records.client.ttl(records.key("d", late.id)) == -1


def test_a_late_childs_note_goes_with_its_workflow(records: Records) -> None:
    """The workflow's retention has begun, its notes were read: a new list must not stay for ever."""
    workflow = open_workflow(records, on_note=ON_NOTE)
    late = records.start(workflow=workflow)
    records.store.end_workflow(workflow, WorkflowState.FAILED)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    records.end(late)
    for kind in ("n", "t"):
        assert 0 < records.client.ttl(records.key(kind, workflow)) <= RETENTION_S


def live_through_everything(records: Records) -> None:
    """Each thing the store can keep, at least once."""
    store, workflow = records.store, open_workflow(records, on_note=ON_NOTE)
    store.make_epoch()
    child = records.ask(records.start(workflow=workflow, idempotency="key", call_id="call"))
    store.give_reply(child, {"text": "Monday"}, key=None)
    store.share_delegation(child, "other call", {"chain": ["next"]})
    store.receive_push(child.id, TOKEN_DIGEST, acceptable=True, claimed="WORKING")
    store.park(child.id)
    store.join_workflow(workflow, {"task": "next"})
    store.want_cancel(records.load(child.id), "")
    records.end(records.load(child.id))
    store.load_to_finalize(child.id, "call")
    store.continuation_published(workflow, f"{workflow}.release.1")
    records.finish(records.load(child.id))
    store.open_workflow(new_workflow_id(), name="nested", deadline_s=None, parent=open_workflow(records))
    records.ask(records.start())
    records.client.zadd(records.key("follows"), {records.start().id: 0})
    store.claim_follows("a-follower", at_most=1, lease_s=60, held=0, streams=0)
    store.sweep(10)
    tight = Records(records.client, prefix=store.prefix, rules=CALM, limits=replace(FAST, calls_per_agent=0))
    tight.intend(tight.open())  # finds no slot
    records.client.hset(records.key("breaker", "flights"), "missed", 1)
    store.open_delegation(records.new(idempotency="another"), arguments_digest="a")
    records.intend(records.open(workflow=open_workflow(records)))


def test_every_key_is_listed(records: Records) -> None:
    """What the store's docstring does not name is not kept; but for the cards, all it names was made here."""
    live_through_everything(records)
    kinds = {kind_of(key) for key in records.all_keys()}
    assert kinds <= documented_kinds()
    assert documented_kinds() - kinds <= {"card", "c"}


# ---------------------------------------------------------------- a repeat, as after a lost reply


def open_it(records: Records) -> None:
    open_workflow(records, on_note=ON_NOTE)


def cancel_it(records: Records) -> None:
    canceling(records)


def complete_it(records: Records) -> None:
    records.store.end_workflow(open_workflow(records), WorkflowState.COMPLETED, {"answer": 42})


def expire_it(records: Records) -> None:
    workflow = open_workflow(records)
    records.start(workflow=workflow)
    pass_deadline(records, workflow)
    records.store.expire_workflow(workflow)


def drop_its_timer(records: Records) -> None:
    workflow, _ = canceling(records)
    records.store.drop_timer(workflow, "cancel_at")


def tell_of_it(records: Records) -> None:
    workflow = open_workflow(records, on_note=ON_NOTE)
    for _ in range(2):
        records.end(records.start(workflow=workflow))
    untold = records.store.take_untold_notes(workflow)
    records.store.notes_told(workflow, 1, untold.notes[:1])


def see_its_continuation(records: Records) -> None:
    workflow = open_workflow(records)
    release = records.store.join_workflow(workflow, {"task": "next"}) or ""
    records.store.continuation_seen(workflow, release)


def repair_it(records: Records) -> None:
    workflow, (child,) = canceling(records, children=1)
    records.client.srem(records.key("u", workflow), child.id)
    records.store.repair_workflow(records.store.load_workflow(workflow))


def without_near_times(found: dict[str, Any]) -> dict[str, Any]:
    """What a repeat in the same moment writes again with a later time is the same."""
    shown: dict[str, Any] = json.loads(json.dumps(found, default=sorted))
    for key, value in shown.items():
        if kind_of(key) == "w":
            shown[key] = {name: text for name, text in value.items() if name != "note_at"}
        if kind_of(key) == "due":
            shown[key] = [member for member, _ in value]
    return shown


@pytest.mark.parametrize(
    "act",
    [open_it, cancel_it, complete_it, expire_it, drop_its_timer, tell_of_it, see_its_continuation, repair_it],
)
def test_a_repeat_writes_nothing_more(records: Records, act: Callable[[Records], None]) -> None:
    """Scripts with an operation id, and those whose effect is the same twice."""
    act(records)
    before = without_near_times(records.everything())
    records.store.run_again()
    assert without_near_times(records.everything()) == before


@pytest.mark.parametrize("act", [open_it, cancel_it, complete_it, drop_its_timer, tell_of_it])
def test_a_repeat_is_answered_identically(records: Records, act: Callable[[Records], None]) -> None:
    """Whoever asks again because the reply was lost hears what the first one would have heard."""
    act(records)
    answer = records.store.answer
    assert records.store.run_again() == answer


def test_the_repeats_that_differ_only_cost_time(records: Records) -> None:
    """A number more leaves a gap, a publication more waits longer; and notes that were handed out once are gone."""
    workflow = open_workflow(records)
    assert records.store.next_child_number(workflow) == 1
    assert records.store.run_again() == 2
    release = records.store.join_workflow(workflow, {"task": "next"}) or ""
    assert records.store.continuation_published(workflow, release) == 1
    assert records.store.run_again() == 2
    records.end(records.start(workflow=workflow))
    assert len(records.store.drain_notes(workflow)[1]) == 1
    assert records.store.run_again() == ["0"]
