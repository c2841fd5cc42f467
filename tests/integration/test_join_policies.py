"""Join policies on a real Valkey: every order of endings, rounds with stragglers, repeats, and who is cancelled."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.due import WorkflowStep, choose_workflow_steps
from delegation.errors import InvalidArguments, UnresolvedChildren
from delegation.join_policy import JoinPolicy, quorum
from delegation.state import Delegation, WorkflowId
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, FAST, Records

_numbers = itertools.count()
C, F, R, X = TaskState.COMPLETED, TaskState.FAILED, TaskState.REJECTED, TaskState.CANCELED
POLICIES = ("all", "any", "first_success", "fail_fast", "quorum 1", "quorum 2", "quorum 3", "quorum 4")


@pytest.fixture
def records(client: Any) -> Records:
    return Records(client, prefix=f"delegation:j{next(_numbers)}:", rules=CALM, limits=FAST)


def children_of(records: Records, workflow: WorkflowId, count: int) -> list[Delegation]:
    return [records.open(workflow=workflow) for _ in range(count)]


def join(records: Records, workflow: WorkflowId, policy: str) -> str | None:
    return records.store.join_workflow(workflow, {"task": "next"}, JoinPolicy.of(policy))


def fires_after(policy: str, endings: Sequence[TaskState]) -> int:
    """How many of the endings it takes, by the words of docs/workflows.md."""
    for count in range(len(endings) + 1):
        ended = endings[:count]
        completed, failed, left = ended.count(C), count - ended.count(C), len(endings) - count
        wanted = int(policy.removeprefix("quorum ")) if policy.startswith("quorum") else 0
        is_over = {"any": count > 0, "first_success": completed > 0, "fail_fast": failed > 0}.get(policy, False)
        if wanted and (completed >= wanted or completed + left < wanted):
            is_over = True
        if is_over or left == 0:
            return count
    raise AssertionError("every join has an end")


def is_satisfied(policy: str, ended: Sequence[TaskState], children: int) -> bool:
    if policy.startswith("quorum"):
        return ended.count(C) >= int(policy.removeprefix("quorum "))
    everybody = len(ended) == children
    return {
        "all": everybody,
        "any": len(ended) > 0,
        "first_success": C in ended,
        "fail_fast": everybody and ended.count(C) == children,
    }[policy]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_order_of_endings_releases_once_and_at_the_right_moment(records: Records, policy: str) -> None:
    """Three children, COMPLETED, FAILED or REJECTED in every order: one release, when the policy says so, and the late
    ones change their rows alone."""
    for endings in itertools.product((C, F, R), repeat=3):
        workflow = records.open_workflow()
        children = children_of(records, workflow, 3)
        releases = [join(records, workflow, policy)]
        releases += [records.end(child, state).release_id for child, state in zip(children, endings, strict=True)]
        fired = fires_after(policy, endings)
        expected: list[str | None] = [None] * 4
        expected[fired] = f"{workflow}.release.1"
        assert releases == expected, (policy, endings)
        record = records.store.load_workflow(workflow)
        assert (record.state, record.round, record.unresolved) == (WorkflowState.RELEASED, 1, 0)
        assert record.is_satisfied is is_satisfied(policy, endings[:fired], 3), (policy, endings)
        late = [records.load(child.id).is_late for child in children]
        assert late == [number >= fired for number in range(3)]
        assert record.cancels == (1 if fired < 3 else 0)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("before", range(4))
def test_a_join_counts_what_had_ended_before_it(records: Records, policy: str, before: int) -> None:
    """The moment of the join makes no difference: it fires at once where the endings so far are enough."""
    endings = (F, C, C)
    workflow = records.open_workflow()
    children = children_of(records, workflow, 3)
    for child, state in zip(children[:before], endings, strict=False):
        records.end(child, state)
    assert (join(records, workflow, policy) is not None) == (fires_after(policy, endings) <= before)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_join_without_children_is_released_at_once(records: Records, policy: str) -> None:
    """Nothing to wait for, whatever was hoped for; whether that is enough is told."""
    workflow = records.open_workflow()
    assert join(records, workflow, policy) == f"{workflow}.release.1"
    assert records.store.load_workflow(workflow).is_satisfied is (policy in ("all", "fail_fast"))


def test_a_quorum_of_more_children_than_there_are_is_released_as_impossible(records: Records) -> None:
    """At once: nobody could ever satisfy it. The children are cancelled, with that reason."""
    workflow = records.open_workflow()
    children_of(records, workflow, 2)
    assert join(records, workflow, "quorum 3") is not None
    record = records.store.load_workflow(workflow)
    assert (record.is_satisfied, record.cancel_reason, record.cancel_round) == (False, "join: quorum 3 impossible", 1)


def steps_of(records: Records, workflow: WorkflowId) -> tuple[WorkflowStep, ...]:
    records.client.zadd(records.key("due"), {f"workflow:{workflow}": 0})
    (due,) = (due for due in records.store.sweep(10) if due.id == workflow)
    return choose_workflow_steps(due.timers, due.now)


def test_the_rest_is_cancelled_as_soon_as_the_policy_is_satisfied(records: Records) -> None:
    """Due at once in the script of the release: whoever dies after it loses nothing."""
    workflow = records.open_workflow()
    children = children_of(records, workflow, 3)
    join(records, workflow, "first_success")
    records.end(children[1])
    record = records.store.load_workflow(workflow)
    assert (record.cancel_reason, record.cancel_round) == ("join: first_success satisfied", 1)
    assert WorkflowStep.CANCEL_CHILDREN in steps_of(records, workflow)
    records.store.drop_timer(workflow, "cancel_at", cancels=record.cancels)
    assert WorkflowStep.CANCEL_CHILDREN not in steps_of(records, workflow)


def test_a_later_wish_to_cancel_survives_the_end_of_an_earlier_one(records: Records) -> None:
    """The step of round 1 ends while round 2 is released: what it did not hear of is still to be done."""
    workflow = records.open_workflow()
    first = children_of(records, workflow, 2)
    join(records, workflow, "any")
    records.end(first[0])
    heard = records.store.load_workflow(workflow).cancels
    records.store.continuation_seen(workflow, f"{workflow}.release.1")
    second = children_of(records, workflow, 2)
    join(records, workflow, "any")
    records.end(second[0])
    records.store.drop_timer(workflow, "cancel_at", cancels=heard)
    assert WorkflowStep.CANCEL_CHILDREN in steps_of(records, workflow)
    assert records.store.load_workflow(workflow).cancel_round == 2


def test_stragglers_neither_hold_up_nor_release_the_next_round(records: Records) -> None:
    """Each child counts in the round it was opened in, whenever it ends; complete() still waits for all of them."""
    store, workflow = records.store, records.open_workflow()
    quick, straggler = children_of(records, workflow, 2)
    join(records, workflow, "any")
    assert records.end(quick).release_id == f"{workflow}.release.1"
    store.continuation_seen(workflow, f"{workflow}.release.1")
    (next_one,) = children_of(records, workflow, 1)
    assert join(records, workflow, "any") is None
    assert records.end(straggler, F).release_id is None
    assert records.end(next_one).release_id == f"{workflow}.release.2"
    assert store.load_workflow(workflow).unresolved == 0

    store.continuation_seen(workflow, f"{workflow}.release.2")
    left, right = children_of(records, workflow, 2)
    join(records, workflow, "any")
    records.end(left)
    store.continuation_seen(workflow, f"{workflow}.release.3")
    (last,) = children_of(records, workflow, 1)
    assert join(records, workflow, "all") is None
    assert records.end(last).release_id == f"{workflow}.release.4"  # with one of round 3 unresolved
    with pytest.raises(UnresolvedChildren):
        store.end_workflow(workflow, WorkflowState.COMPLETED)
    records.end(records.load(right.id), X)
    store.end_workflow(workflow, WorkflowState.COMPLETED)


def test_rounds_alternate_between_policies(records: Records) -> None:
    """Six rounds, each with three children and another policy, a straggler left by most: one release each."""
    store, workflow = records.store, records.open_workflow()
    policies = ("any", "all", "first_success", "fail_fast", "quorum 2", "all")
    for number, policy in enumerate(policies, start=1):
        children = children_of(records, workflow, 3)
        assert join(records, workflow, policy) is None
        releases = [records.end(child, state).release_id for child, state in zip(children, (C, F, C), strict=True)]
        fired = fires_after(policy, (C, F, C))
        assert [bool(release) for release in releases] == [at == fired for at in (1, 2, 3)]
        assert releases[fired - 1] == f"{workflow}.release.{number}"
        assert store.load_workflow(workflow).policy.kept == policy
        store.continuation_seen(workflow, f"{workflow}.release.{number}")
    assert records.counter("released") == len(policies)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_repeat_after_a_lost_reply_is_answered_the_same_and_counts_once(records: Records, policy: str) -> None:
    """Join and settle run twice each; a repeat of an end is no second end."""
    workflow = records.open_workflow()
    children = children_of(records, workflow, 3)
    join(records, workflow, policy)
    assert records.store.run_again() == records.store.answer
    fired = fires_after(policy, (F, C, C))
    for number, (child, state) in enumerate(zip(children, (F, C, C), strict=True), start=1):
        release = records.end(child, state).release_id
        assert (release is not None) == (number == fired)
        again = records.store.run_again()
        assert again[2] == (release or "")
    assert records.store.load_workflow(workflow).round == 1


def test_a_repair_counts_as_settle_would_have(records: Records) -> None:
    """An end that never reached its parent (it cannot happen) is made up for, in the round it belongs to."""
    workflow = records.open_workflow()
    lost, _ = children_of(records, workflow, 2)
    records.end(lost)
    records.client.sadd(records.key("u", workflow), lost.id)
    records.client.hset(records.key("w", workflow), "completed", 0)
    join(records, workflow, "first_success")
    record = records.store.load_workflow(workflow)
    assert record.state is WorkflowState.JOINING
    assert records.store.repair_workflow(record) == (1, f"{workflow}.release.1")
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (0, None)


@pytest.mark.parametrize("text", ["half a pair \ud800", '"state":"FAILED"'])
def test_a_repair_reads_the_state_of_an_outcome_whatever_its_text(records: Records, text: str) -> None:
    """Half a surrogate pair, which Redis's JSON refuses, and words that look like the state."""
    workflow = records.open_workflow()
    lost, _ = children_of(records, workflow, 2)
    records.end(lost, text=text)
    records.client.sadd(records.key("u", workflow), lost.id)
    records.client.hset(records.key("w", workflow), "completed", 0)
    join(records, workflow, "first_success")
    repaired = records.store.repair_workflow(records.store.load_workflow(workflow))
    assert repaired == (1, f"{workflow}.release.1")


@pytest.mark.parametrize("given", ["most", "", None, 2, {"quorum": 0}, {"quorum": True}, {"quorum": "2"}, {"any": 1}])
def test_what_is_no_policy_is_refused(given: Any) -> None:
    """Before anything is asked of Redis, naming the argument and what it may be."""
    with pytest.raises(InvalidArguments, match=r"^policy: "):
        JoinPolicy.read(given)


@pytest.mark.parametrize("given", ["all", "any", "first_success", "fail_fast", quorum(2)])
def test_a_policy_is_kept_and_shown_as_it_was_said(given: Any) -> None:
    """What a caller says comes back from the record as it was."""
    assert JoinPolicy.of(JoinPolicy.read(given).kept).as_json == given
