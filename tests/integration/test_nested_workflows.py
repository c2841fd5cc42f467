"""Workflows inside workflows on a real Valkey: a child's end and its parent's release are one script, however deep."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.due import WorkflowStep, choose_workflow_steps
from delegation.errors import UnknownWorkflow, UnresolvedChildren, WorkflowConflict, WorkflowTooDeep
from delegation.join_policy import JoinPolicy
from delegation.opening import child_workflow_id, new_workflow_id
from delegation.state import WorkflowId
from delegation.workflow import Workflow, WorkflowState
from tests.support.delegations import CALM, FAST, Records, is_near

_numbers = itertools.count()
RETENTION_S = 500
DEPTH = 4


@pytest.fixture
def records(client: Any) -> Records:
    limits = replace(FAST, retention_s=RETENTION_S, depth=DEPTH)
    return Records(client, prefix=f"delegation:x{next(_numbers)}:", rules=CALM, limits=limits)


def nest(records: Records, parent: WorkflowId, *, deadline_s: float | None = None, name: str = "leg") -> WorkflowId:
    child = new_workflow_id()
    records.store.open_workflow(child, name=name, deadline_s=deadline_s, parent=parent)
    return child


def load(records: Records, workflow: WorkflowId) -> Workflow:
    return records.store.load_workflow(workflow)


def state_of(records: Records, workflow: WorkflowId) -> WorkflowState:
    return load(records, workflow).state


def steps_of(records: Records, workflow: WorkflowId) -> tuple[WorkflowStep, ...]:
    records.client.zadd(records.key("due"), {f"workflow:{workflow}": 0})
    found = [due for due in records.store.sweep(50) if due.id == workflow]
    return choose_workflow_steps(found[0].timers, found[0].now) if found else ()


@pytest.mark.parametrize("state", [WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELED])
def test_a_parent_is_released_by_the_end_of_its_child_workflow(records: Records, state: WorkflowState) -> None:
    """Whatever the end: out of the parent's unresolved set, a note for it, and its release, in one script."""
    parent = records.open_workflow()
    child = nest(records, parent, name="the <b>second</b> leg")
    assert load(records, parent).unresolved == 1
    assert records.store.join_workflow(parent, {"task": "next"}) is None
    with pytest.raises(WorkflowConflict):
        nest(records, parent)
    records.store.end_workflow(child, state, {"reason": "so"})
    record = load(records, parent)
    assert (record.state, record.round, record.unresolved) == (WorkflowState.RELEASED, 1, 0)
    assert WorkflowStep.RELEASE in steps_of(records, parent)  # nobody was told to publish it: it is due
    (note,) = records.store.drain_notes(parent)[1]
    assert note["text"].startswith(f"Sub-task {child} is {state.value}: the ")
    assert "<b>" not in note["text"]
    assert (note["delegation_id"], note["state"], note["source"]) == (child, state.value, "delegation")


def test_a_child_workflow_that_is_released_still_blocks_its_parent(records: Records) -> None:
    """It may delegate more: only its end resolves it."""
    parent = records.open_workflow()
    child = nest(records, parent)
    records.store.join_workflow(parent, None)
    assert records.store.join_workflow(child, None) is not None
    assert state_of(records, parent) is WorkflowState.JOINING
    records.store.end_workflow(child, WorkflowState.COMPLETED)
    assert state_of(records, parent) is WorkflowState.RELEASED


def test_a_parent_cannot_be_completed_over_an_open_child_workflow(records: Records) -> None:
    """It is unresolved like any child, and named by its id."""
    parent = records.open_workflow()
    child = nest(records, parent)
    with pytest.raises(UnresolvedChildren) as refused:
        records.store.end_workflow(parent, WorkflowState.COMPLETED)
    assert child in str(refused.value)


def test_the_last_delegation_of_a_cancelled_tree_ends_every_level_in_one_script(records: Records) -> None:
    """CANCELING at three levels: the settle of the one delegation at the bottom makes all of them CANCELED."""
    top = records.open_workflow()
    middle = nest(records, top)
    bottom = nest(records, middle)
    child = records.open(workflow=bottom)
    assert child.line == (middle, top)
    for workflow in (top, middle, bottom):
        records.store.end_workflow(workflow, WorkflowState.CANCELED, {"reason": "enough"}, reason="enough")
        assert state_of(records, workflow) is WorkflowState.CANCELING
    records.end(child, TaskState.CANCELED)
    assert [state_of(records, each) for each in (bottom, middle, top)] == [WorkflowState.CANCELED] * 3
    assert records.store.run_again()[0] == "settled"
    assert [load(records, each).notes for each in (bottom, middle, top)] == [1, 1, 1]


def test_a_child_workflows_end_counts_for_its_parents_policy(records: Records) -> None:
    """COMPLETED is a success, any other end is not; the stragglers of a round are its child workflows as well."""
    parent = records.open_workflow()
    bad, good, slow = (nest(records, parent) for _ in range(3))
    records.store.join_workflow(parent, None, JoinPolicy.of("first_success"))
    records.store.end_workflow(bad, WorkflowState.FAILED)
    assert state_of(records, parent) is WorkflowState.JOINING
    records.store.end_workflow(good, WorkflowState.COMPLETED, {"answer": 1})
    assert state_of(records, parent) is WorkflowState.RELEASED
    assert WorkflowStep.CANCEL_CHILDREN in steps_of(records, parent)
    assert load(records, slow).in_round == load(records, parent).cancel_round == 1
    records.store.end_workflow(slow, WorkflowState.CANCELED)
    assert load(records, slow).is_late
    assert load(records, parent).round == 1


def test_a_child_workflow_outlives_no_deadline_of_its_ancestors(records: Records) -> None:
    """Its own where that is sooner; and so its delegations'."""
    parent = records.open_workflow()
    top = new_workflow_id()
    records.store.open_workflow(top, name="", deadline_s=100)
    later, sooner = nest(records, top, deadline_s=1000), nest(records, top, deadline_s=10)
    now = records.store.now()
    assert load(records, later).deadline_at == load(records, top).deadline_at
    assert (load(records, sooner).deadline_at or 0) - now == is_near(10)
    assert records.open(workflow=later).timers.deadline_at == load(records, top).deadline_at
    assert load(records, parent).parent_id is None


@pytest.mark.parametrize("joined", [False, True])
def test_a_child_workflow_ends_at_its_deadline_released_or_not(records: Records, joined: bool) -> None:
    """A parent waits for it: one whose continuation never came to an end must not block it for ever."""
    parent = records.open_workflow()
    child = nest(records, parent)
    records.store.join_workflow(parent, None)
    if joined:
        records.store.join_workflow(child, {"task": "next"})
    records.client.hset(records.key("w", child), "expire_at", records.store.now() - 1)
    assert records.store.expire_workflow(child)
    assert records.store.run_again() == "left"
    assert state_of(records, child) is WorkflowState.FAILED
    assert state_of(records, parent) is WorkflowState.RELEASED
    assert not load(records, child).is_publishing


def test_who_nests_without_end_is_stopped(records: Records) -> None:
    """limits.depth, with an error that says so; nothing was opened, and what is above goes on."""
    workflow = records.open_workflow()
    for _ in range(DEPTH - 1):
        workflow = nest(records, workflow)
    before = records.everything()
    with pytest.raises(WorkflowTooDeep, match=r"limits\.depth"):
        nest(records, workflow)
    assert records.everything() == before
    records.store.end_workflow(workflow, WorkflowState.COMPLETED)


def test_a_child_of_nobody_is_refused(records: Records) -> None:
    """An unknown parent, one that has ended, one that is joining."""
    with pytest.raises(UnknownWorkflow):
        nest(records, new_workflow_id())
    ended = records.open_workflow()
    records.store.end_workflow(ended, WorkflowState.COMPLETED)
    with pytest.raises(WorkflowConflict, match="COMPLETED"):
        nest(records, ended)


def test_the_same_key_opens_the_same_child_workflow(records: Records) -> None:
    """A continuation that runs twice opens one, though it asks twice."""
    parent = records.open_workflow()
    ids = {child_workflow_id(parent, "leg 1") for _ in range(2)}
    (child,) = ids
    for _ in range(2):
        records.store.open_workflow(child, name="leg", deadline_s=None, parent=parent)
    assert [each.id for each in records.store.child_workflows(parent)] == [child]
    assert load(records, parent).unresolved == 1
    assert child_workflow_id(parent, "leg 2") != child


def test_a_child_workflow_is_kept_until_its_parents_retention(records: Records) -> None:
    """Its outcome is its parent's to read: nothing of it expires before the parent has ended, nothing is kept after."""
    top = records.open_workflow()
    child = nest(records, top)
    lost = nest(records, top)
    for each in (child, lost):
        records.store.end_workflow(each, WorkflowState.COMPLETED, {"answer": 42})
    assert WorkflowStep.RETIRE not in steps_of(records, child)
    records.store.end_workflow(top, WorkflowState.COMPLETED)
    records.store.retire_workflow(load(records, top))
    for each in (child, lost):
        assert WorkflowStep.RETIRE in steps_of(records, each)
        records.store.retire_workflow(load(records, each))
    kept = [key for key in records.all_keys() if any(one in key for one in (top, child, lost))]
    assert kept
    assert all(records.client.ttl(key) == is_near(RETENTION_S) for key in kept)


def test_a_child_workflow_that_outlives_its_parent_retires_by_itself(records: Records) -> None:
    """The parent failed and is gone from view; its child ends later."""
    top = records.open_workflow()
    child = nest(records, top)
    records.store.end_workflow(top, WorkflowState.FAILED)
    records.store.retire_workflow(load(records, top))
    records.store.end_workflow(child, WorkflowState.CANCELED)
    assert WorkflowStep.RETIRE in steps_of(records, child)


def test_a_janitor_knows_child_workflows(records: Records) -> None:
    """A lost removal, and a lost member, of either kind of child."""
    parent = records.open_workflow()
    ended, running = nest(records, parent), nest(records, parent)
    records.store.end_workflow(ended, WorkflowState.COMPLETED)
    records.client.sadd(records.key("u", parent), ended)
    records.client.srem(records.key("u", parent), running)
    assert records.store.repair_workflow(load(records, parent)) == (2, None)
    assert records.client.smembers(records.key("u", parent)) == {running}
