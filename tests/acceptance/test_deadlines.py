"""Deadlines are absolute and inherited, are told to the agent, and hold whatever agent and conversation do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from delegation.agent_task import TaskState
from delegation.errors import DelegationEnded, WorkflowConflict
from tests.support.continuation_app import runs
from tests.support.invariants import Allowed, check_at_rest
from tests.support.processes import ScriptedAgent, wait_until
from tests.support.survival import SHORT_LEASE, Scene, asks, ends_after, text_of
from workers import Workflow

DEADLINE_S = 1.5
DEADLINE = "PT1.5S"
#: The promise is 20 s after the deadline with the default timing; half of it here, on a busy machine.
OVERRUN_S = 10.0
WORKING: dict[str, Any] = {"states": [["WORKING", 0]]}
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("deadlines")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "off")}
    settings = {"off": {"updates": "off"}}
    timing = {**SHORT_LEASE, "cleanup_for": 1, "cancel_deadline": 30}
    with Scene(directory, agents=agents, agent_settings=settings, timing=timing) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.renew()
    return running


def check_expired(scene: Scene, delegation_id: str, allowed: Allowed | None = None) -> None:
    """FAILED/deadline.exceeded, not before the deadline and not long after it by Redis' clock, then at rest."""
    delegation = scene.wait_until_settled(delegation_id, DEADLINE_S + OVERRUN_S)
    outcome, deadline_at = delegation.outcome, delegation.timers.deadline_at
    assert outcome is not None
    assert deadline_at is not None
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "deadline.exceeded")
    assert 0 <= scene.records.history(delegation_id)[-1]["at"] - deadline_at < OVERRUN_S
    check_at_rest(scene, allowed or Allowed())


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


# ---------------------------------------------------------------- inherited, told


def test_a_child_never_outlives_its_workflow(scene: Scene) -> None:
    """Later or none: the workflow's own deadline to the millisecond; earlier: its own."""
    workflow = Workflow.open("survival", deadline="PT1H")
    later = workflow.delegate("a", text_of(ends_after(0)), deadline="PT2H")
    unsaid = workflow.delegate("a", text_of(ends_after(0)))
    sooner = workflow.delegate("a", text_of(ends_after(0)), deadline=timedelta(minutes=5))
    at = workflow.describe()["deadline_at"]
    assert later.describe()["deadline_at"] == unsaid.describe()["deadline_at"] == at
    assert moment(sooner.describe()["deadline_at"]) < moment(at)
    for child in (later, unsaid, sooner):
        scene.wait_until_settled(child.id)
    workflow.complete()
    check_at_rest(scene)


@pytest.mark.parametrize("given", [timedelta(hours=1), "PT1H", "absolute"])
def test_the_agent_is_told_the_deadline_in_every_message(scene: Scene, given: Any) -> None:
    """metadata.deadline_at of the brief and of each reply is the delegation's deadline, RFC 3339 in UTC."""
    deadline = datetime.now(UTC) + timedelta(hours=1) if given == "absolute" else given
    delegation_id = scene.open_one({**asks(), "turns": [asks("Which year?"), ends_after(0)]}, deadline=deadline)
    handle = scene.handle(delegation_id)
    for number in (1, 2):
        scene.wait_for_question(delegation_id, number)
        handle.reply(f"answer {number}")
    check_at_rest(scene)
    told = [said["metadata"]["deadline_at"] for said in scene.task_of(delegation_id)["history"] if "metadata" in said]
    assert len(told) == 3
    assert set(told) == {handle.describe()["deadline_at"]}
    assert RFC3339.fullmatch(told[0])
    assert abs((moment(told[0]) - datetime.now(UTC)).total_seconds() - 3600) < 60


# ---------------------------------------------------------------- a delegation's own


def test_a_question_nobody_answered_expires(scene: Scene) -> None:
    """It leaves the inbox, takes no reply any more, and the agent task is cancelled."""
    delegation_id = scene.open_one(asks(), agent="off", deadline=DEADLINE)
    scene.wait_for_question(delegation_id)
    assert delegation_id in scene.records.inbox()
    check_expired(scene, delegation_id)
    assert delegation_id not in scene.records.inbox()
    with pytest.raises(DelegationEnded):
        scene.handle(delegation_id).reply("May")
    assert len(scene.calls("CancelTask", "off")) == 1


@pytest.mark.parametrize("agent", ["a", "off"])
def test_an_agent_that_never_takes_up_the_reply_expires(scene: Scene, agent: str) -> None:
    """The old question is shown for ever after the reply: the deadline ends it, and the agent task is cancelled."""
    task_id = f"t-{uuid4().hex}"
    delegation_id = scene.open_one(asks(id=task_id), agent=agent, deadline=DEADLINE)
    scene.wait_for_question(delegation_id)
    task = scene.task_of(delegation_id)
    old = {"task": {name: task[name] for name in ("id", "contextId", "status")}}
    scene.scripted[agent].script([{"on": f"SendMessage with taskId='{task_id}'", "reply": old}])
    scene.handle(delegation_id).reply("May")
    check_expired(scene, delegation_id)
    assert len(scene.replies_sent(delegation_id)) == 1
    assert len(scene.calls("CancelTask", agent)) == 1


@pytest.mark.parametrize("fault", ["hang", "reset"])
def test_a_reply_that_gets_no_answer_expires(scene: Scene, fault: str) -> None:
    """The reply hangs or breaks off each time: the deadline does not wait for it."""
    task_id = f"t-{uuid4().hex}"
    delegation_id = scene.open_one(asks(id=task_id), deadline=DEADLINE)
    scene.wait_for_question(delegation_id)
    scene.scripted["a"].script([{"on": f"SendMessage with taskId='{task_id}'", "end": fault}])
    scene.handle(delegation_id).reply("May")
    check_expired(scene, delegation_id)


@pytest.mark.parametrize("when", ["working", "asking", "replied"])
def test_the_deadline_needs_no_agent(scene: Scene, when: str) -> None:
    """Gone while it worked, while it asked, or before the reply came: over in time all the same."""
    delegation_id = scene.open_one(WORKING if when == "working" else asks(), deadline=DEADLINE)
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id, what="agent task")
    scene.scripted["a"].kill(keep_memory=False)
    if when == "replied":
        scene.handle(delegation_id).reply("May")
    check_expired(scene, delegation_id, Allowed(configs_left=1))


def test_a_cancel_does_not_put_off_the_deadline(scene: Scene) -> None:
    """An agent that goes on working after CancelTask: over at the deadline, long before the cancel's own."""
    scene.scripted["a"].configure(cancel="ignore")
    delegation_id = scene.open_one(WORKING, deadline=DEADLINE)
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id, what="agent task")
    scene.handle(delegation_id).cancel()
    delegation = scene.wait_until_settled(delegation_id, DEADLINE_S + OVERRUN_S)
    assert delegation.outcome is not None
    assert delegation.outcome.reason in ("deadline.exceeded", "cancel.unconfirmed")
    check_at_rest(scene)


# ---------------------------------------------------------------- a workflow's own


def test_an_open_workflow_expires_with_its_children(scene: Scene) -> None:
    """FAILED/deadline.exceeded, its children too, their agent tasks cancelled; it takes no further work."""
    workflow = scene.open_workflow([WORKING, asks()], joins=False, tells=True, deadline=DEADLINE)
    for child in workflow.children():
        check_expired(scene, child.id)
    over = workflow.describe()
    assert (over["state"], over["reason"], over["unresolved"]) == ("FAILED", "deadline.exceeded", 0)
    assert len(scene.calls("CancelTask")) == 2
    with pytest.raises(WorkflowConflict):
        workflow.delegate("a", text_of(WORKING))


def test_a_workflow_without_children_expires(scene: Scene) -> None:
    """Nobody ever asked anything of it: FAILED, and on its way out of Redis."""
    workflow = scene.open_workflow([], joins=False, deadline="PT1S")
    wait_until(lambda: workflow.describe()["state"] == "FAILED", 1 + OVERRUN_S, what="expired workflow")
    check_at_rest(scene)
    assert scene.records.client.ttl(scene.records.key("w", workflow.id)) > 0


def test_a_joining_workflow_is_released_when_its_children_expire(scene: Scene) -> None:
    """Its continuation was promised: it runs once, after the last child has failed by the same deadline."""
    workflow = scene.open_workflow([WORKING, ends_after(0)], deadline=DEADLINE)
    working, ended = workflow.children()
    scene.wait_until_settled(working.id, DEADLINE_S + OVERRUN_S)
    wait_until(
        lambda: [run for run in runs("continuation") if run["kwargs"]["workflow_id"] == workflow.id],
        OVERRUN_S,
        what="continuation",
    )
    outcomes = workflow.outcomes()
    assert [(it or {}).get("reason") for it in (outcomes[working.id], outcomes[ended.id])] == [
        "deadline.exceeded",
        None,
    ]
    assert workflow.describe()["state"] == "RELEASED"
    workflow.complete("what there was")
    check_at_rest(scene)


def test_a_released_workflow_only_begins_to_be_forgotten(scene: Scene) -> None:
    """It had its say: past its deadline it stays RELEASED, and its retention begins."""
    workflow = scene.open_workflow([ends_after(0)], deadline=DEADLINE)
    workflow.wait(20)
    client, key = scene.records.client, scene.records.key("w", workflow.id)
    wait_until(lambda: int(client.ttl(key)) > 0, DEADLINE_S + OVERRUN_S, what="retention")  # type: ignore[arg-type]
    assert workflow.describe()["state"] == "RELEASED"
    check_at_rest(scene)


def test_a_workflow_may_be_completed_before_its_deadline(scene: Scene) -> None:
    """COMPLETED stays COMPLETED when the deadline comes."""
    workflow = scene.open_workflow([ends_after(0)], joins=False, deadline=DEADLINE)
    scene.wait_until_settled(workflow.children()[0].id)
    workflow.complete("done")
    check_at_rest(scene)
    wait_until(lambda: scene.records.now() > _deadline_of(workflow) + 0.5, 10, what="time after the deadline")
    assert workflow.describe()["state"] == "COMPLETED"
    check_at_rest(scene)


def _deadline_of(workflow: Workflow) -> float:
    return moment(workflow.describe()["deadline_at"]).timestamp()
