"""Joins that are over early, with workers that die around the release: one continuation, a receipt for the rest."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.workflow import WorkflowState
from tests.support import continuation_app
from tests.support.continuation_app import runs
from tests.support.invariants import check_at_rest
from tests.support.processes import ScriptedAgent
from tests.support.survival import SHORT_LEASE, Scene, ends_after, text_of
from workers import Workflow, quorum

WORKING: dict[str, Any] = {"states": [["WORKING", 0]]}
FAILS: dict[str, Any] = {"states": [["WORKING", 0], ["FAILED", 0.3]]}
POINTS = ["release.after_commit", "resume.after_enqueue", "cancel_children.middle"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("policies")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "b")}
    with Scene(directory, agents=agents, timing=SHORT_LEASE) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.reset(CONTINUATION_VISIBILITY_S="2")
    return running


def join(workflow: Workflow, policy: Any) -> None:
    workflow.join(then=continuation_app.resume.s(), policy=policy)


def states(workflow: Workflow) -> list[str]:
    return [child.describe()["state"] for child in workflow.children()]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    ("policy", "decisive", "satisfied"),
    [("first_success", ends_after(0.3), True), ("fail_fast", FAILS, False)],
    ids=["first_success", "fail_fast"],
)
def test_a_worker_killed_around_an_early_release_changes_nothing(
    scene: Scene, point: str, policy: str, decisive: dict[str, Any], satisfied: bool
) -> None:
    """kill -9 where the release is recorded, where its continuation is published, and while the rest is cancelled."""
    workflow = scene.open_workflow([decisive, WORKING, WORKING], joins=False, tells=True)
    join(workflow, policy)
    assert scene.start_dying_worker(point).wait() == -signal.SIGKILL
    scene.start_worker()
    check_at_rest(scene, timeout_s=40)
    assert {run["task_id"] for run in runs("continuation")} == {f"{workflow.id}.release.1"}
    description = workflow.describe()
    assert (description["state"], description["round"], description["unresolved"]) == ("RELEASED", 1, 0)
    assert (description["policy"], description["satisfied"]) == (policy, satisfied)
    assert states(workflow)[1:] == ["CANCELED", "CANCELED"]
    assert list(workflow.receipts().values()) == [None, "cancelled", "cancelled"]
    reasons = {child["cancel_reason"] for child in description["children"][1:]}
    assert reasons == {f"join: {policy} satisfied"}
    assert len(scene.calls("CancelTask")) == 2
    workflow.complete()
    assert workflow.describe()["state"] == "COMPLETED"


def test_the_others_race_for_nothing(scene: Scene) -> None:
    """any, and a quorum: the rest is cancelled at its agents; the late answers change rows alone."""
    scene.start_worker()
    for policy, goals, left in (
        ("any", [FAILS, WORKING], 1),
        (quorum(2), [ends_after(0.1), ends_after(0.2), WORKING, WORKING], 2),
        (quorum(2), [FAILS, FAILS, WORKING], 1),
    ):
        workflow = scene.open_workflow(goals, joins=False)
        join(workflow, policy)
        workflow.wait(30)
        check_at_rest(scene, timeout_s=40)
        assert states(workflow).count("CANCELED") == left
        assert workflow.describe()["policy"] == policy
        assert workflow.describe()["round"] == 1
    assert len(runs("continuation")) == 3


def test_a_child_that_refuses_to_be_cancelled_is_watched_on(scene: Scene) -> None:
    """Its receipt says so; it blocks complete() and nothing else, and its end changes its row alone."""
    scene.scripted["b"].configure(cancel="refuse")
    scene.start_worker()
    workflow = scene.open_workflow([ends_after(0.1)], joins=False)
    stubborn = workflow.delegate("b", text_of(WORKING))
    join(workflow, "first_success")
    workflow.wait(30)
    scene.wait_for(stubborn.id, lambda _: workflow.receipts()[stubborn.id] == "refused", what="refused cancel")
    workflow.delegate("a", text_of(ends_after(0.1)))
    workflow.join()
    assert workflow.wait(30)["round"] == 2
    task_id = scene.load(stubborn.id).progress.agent_task_id
    assert task_id is not None
    scene.scripted["b"].move(task_id, "COMPLETED")
    check_at_rest(scene, timeout_s=40)
    assert scene.load(stubborn.id).state is TaskState.COMPLETED
    assert workflow.receipts()[stubborn.id] == "already ended"
    record = scene.records.load_workflow(workflow.id)
    assert (record.state, record.round, record.unresolved) == (WorkflowState.RELEASED, 2, 0)


def test_a_straggling_child_workflow_is_cancelled_with_everything_in_it(scene: Scene) -> None:
    """Down two levels, by the due index alone; the parent has its receipt."""
    scene.start_worker()
    workflow = scene.open_workflow([ends_after(0.1)], joins=False)
    leg = workflow.open_child("leg")
    step = leg.open_child("step")
    child = step.delegate("a", text_of(WORKING))
    scene.wait_for_state(child.id, "WORKING")
    join(workflow, "first_success")
    workflow.wait(30)
    check_at_rest(scene, timeout_s=40)
    assert [each.describe()["state"] for each in (step, leg)] == ["CANCELED", "CANCELED"]
    assert child.describe()["state"] == "CANCELED"
    assert workflow.receipts()[leg.id] == "cancelled"
    outcome = workflow.outcomes()[leg.id]
    assert outcome is not None
    assert (outcome["state"], outcome["reason"]) == ("CANCELED", "join: first_success satisfied")


def test_a_tree_is_cancelled_from_its_top_and_a_worker_may_die_of_it(scene: Scene) -> None:
    """Killed in the middle of telling the children: the next worker tells the rest; every level ends CANCELED, once."""
    workflow = scene.open_workflow([WORKING], joins=False, tells=True)
    leg = workflow.open_child("leg")
    leg.delegate("a", text_of(WORKING))
    leg.open_child("step").delegate("a", text_of(WORKING))
    workflow.cancel("enough")
    assert scene.start_dying_worker("cancel_children.middle").wait() == -signal.SIGKILL
    scene.start_worker()
    check_at_rest(scene, timeout_s=40)
    assert workflow.describe()["state"] == "CANCELED"
    assert [each["state"] for each in workflow.describe()["workflows"]] == ["CANCELED"]
    assert not runs("continuation")
