"""A push is a wake and no news: lost, repeated, late, forged or lying, it changes latency and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from delegation.agent_task import TaskState
from delegation.state import Delegation
from tests.support.child import wait_until
from tests.support.continuation_app import runs
from tests.support.invariants import all_completed, check_at_rest
from tests.support.processes import ScriptedAgent
from tests.support.survival import Scene, ends_after

CANARY = "canary-of-a-forged-push"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("pushes")
    agents = {"a": ScriptedAgent(directory, name="a")}
    with Scene(directory, agents=agents, timing={"recheck_first": 3}) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.reset()
    running.start_worker()
    return running


def open_parked(scene: Scene) -> Delegation:
    """A delegation whose agent task works until a test says otherwise."""
    delegation_id = scene.open_one({"states": [["WORKING", 0]]})
    return scene.wait_for(delegation_id, lambda it: it.parked and it.progress.agent_task_id, what="parked delegation")


def agent_task_of(delegation: Delegation) -> str:
    assert delegation.progress.agent_task_id is not None
    return delegation.progress.agent_task_id


def test_everything_ends_without_a_single_push(scene: Scene) -> None:
    """All pushes are dropped: the re-check hears the end within its interval, and the parent goes on once."""
    goals = [ends_after(0.1 * n, push_drop=["COMPLETED"]) for n in range(1, 11)]
    workflow = scene.open_workflow(list(goals))
    rest = check_at_rest(scene)
    assert all_completed(rest)
    assert [run["task_id"] for run in runs("continuation")] == [f"{workflow.id}.release.1"]
    assert {entry.get("dropped") for entry in scene.ledger(kind="push")} == {True}
    assert scene.counters().get("pushes_accepted", 0) == 0


def test_pushes_three_times_and_out_of_order_end_once(scene: Scene) -> None:
    """Every push three times, last state first: one end, one release, and fewer fetches than pushes."""
    states = [["SUBMITTED", 0], ["WORKING", 0.1], ["WORKING", 0.2, "still"], ["COMPLETED", 0.3]]
    workflow = scene.open_workflow([{"states": states, "push_times": 3, "push_order": "reverse"} for _ in range(5)])
    scene.scripted["a"].wait_for_pushes(5 * 9, timeout_s=20)
    rest = check_at_rest(scene)
    assert all_completed(rest)
    assert [run["task_id"] for run in runs("continuation")] == [f"{workflow.id}.release.1"]
    assert len(scene.calls("GetTask")) < 45
    assert set(scene.scripted["a"].stats()["pushes"]) <= {"202", "404"}  # 404 after the end: its digest is deleted


def test_a_forged_push_wakes_nobody_and_leaves_no_trace(scene: Scene) -> None:
    """A wrong token is a 404: no fetch follows, and nothing of the push is kept anywhere in Redis."""
    parked = open_parked(scene)
    agent = scene.scripted["a"]
    body = {"statusUpdate": {"taskId": CANARY, "contextId": CANARY, "status": {"state": "TASK_STATE_COMPLETED"}}}
    assert agent.push(agent_task_of(parked), body=body, token=CANARY * 2, times=3) == [404, 404, 404]
    assert agent.push(agent_task_of(parked), body=body, **{"with": "none"}) == [404]
    assert scene.load(parked.id).wakes == 0
    assert not scene.calls("GetTask")
    with scene.valkey.client() as client:
        dump = "".join(str(client.dump(key)) for key in client.scan_iter("*"))
    assert CANARY not in dump
    agent.move(agent_task_of(parked), "COMPLETED")
    assert all_completed(check_at_rest(scene))


def test_a_lying_push_is_looked_into_and_not_believed(scene: Scene) -> None:
    """A push claims COMPLETED while GetTask says WORKING: one fetch, three more after it, and the state is WORKING."""
    parked = open_parked(scene)
    agent = scene.scripted["a"]
    assert agent.push(agent_task_of(parked), state="COMPLETED") == [202]
    last = scene.wait_for_calls("GetTask", 4)[-1]
    scene.wait_for(parked.id, lambda it: it.claimed is None and not it.timers.lease_until, what="end of the refetches")
    assert scene.load(parked.id).state is TaskState.WORKING
    wait_until(lambda: scene.records.now() > last["at"] + 1.5, what="a while")
    assert len(scene.calls("GetTask")) == 4
    agent.move(agent_task_of(parked), "COMPLETED")
    assert all_completed(check_at_rest(scene))


def test_a_push_before_the_answer_to_the_send_is_not_lost(scene: Scene) -> None:
    """The agent pushes COMPLETED before it answers SendMessage with WORKING: the wake is kept for afterwards."""
    delegation_id = scene.open_one(
        {"states": [["WORKING", 0], ["COMPLETED", 0.05]], "push_before_reply": "COMPLETED", "push_states": []}
    )
    settled = scene.wait_until_settled(delegation_id, timeout_s=2)
    assert settled.state is TaskState.COMPLETED
    assert all_completed(check_at_rest(scene))


def test_a_late_push_changes_nothing(scene: Scene) -> None:
    """A push that comes after the end finds its credential dead: 404, and the record stays as it was."""
    states = [["WORKING", 0], ["WORKING", 0.05, "late news"], ["COMPLETED", 0.1]]
    scene.open_one({"states": states, "push_delay": {"WORKING": 1.5}})
    before = check_at_rest(scene)
    assert not [push for push in scene.ledger(kind="push") if push["state"] == "WORKING"]
    scene.scripted["a"].wait_for_pushes(len(scene.scripted["a"].pushes()) + 1)
    after = check_at_rest(scene)
    assert scene.ledger(kind="push")[-1]["status"] == 404
    assert (after.delegations, after.histories) == (before.delegations, before.histories)
