"""A message is a hint: any message of our steps deleted, or each delivered twice, changes latency and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chord
from celery.result import AsyncResult

from delegation.agent_task import TaskState
from delegation.errors import AgentTaskFailed
from tests.support import continuation_app
from tests.support.child import wait_until
from tests.support.continuation_app import HELD_QUEUE, QUEUES, runs
from tests.support.invariants import Allowed, all_completed, check_at_rest, look
from tests.support.processes import ScriptedAgent
from tests.support.survival import Scene, asks, ends_after, text_of

STEPS = ["start_agent_task", "watch", "wake", "send_reply", "cancel", "finalize", "expire", "clean_up"]
WORKFLOW_STEPS = ["release", "tell", "cancel_children", "expire_workflow", "retire_workflow"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("messages")
    agents = {"a": ScriptedAgent(directory, name="a")}
    with Scene(directory, agents=agents, timing={"hint_patience": 0.5}) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.reset()
    return running


def begin_holding(scene: Scene, *tasks: str) -> None:
    """From now on these tasks' messages stay in the broker; a worker runs everything else."""
    scene.set_user_env(CONTINUATION_HOLD=",".join(tasks))
    scene.start_worker()


def lose_message(scene: Scene, task: str) -> None:
    """Take every message for this task out of the broker; there must be one."""
    scene.wait_for_message()
    assert set(scene.take_messages()) == {task}


def stop_holding(scene: Scene) -> None:
    """A worker for what was held: what our due index sends again now arrives."""
    scene.start_worker(queues=(*QUEUES, HELD_QUEUE))


@pytest.mark.parametrize("step", ["start_agent_task", "watch"])
def test_the_tail_of_a_canvas_survives_a_lost_message(scene: Scene, step: str) -> None:
    """Next link, errback and chord body come from the record, so they run after a lost start or watch message."""
    begin_holding(scene, f"delegation.{step}")
    goal, failing = ends_after(0.1, artifact="good"), {"states": [["FAILED", 0]]}
    link = (scene.delegate(goal=goal) | continuation_app.proceed.s("link")).apply_async()
    failed = scene.delegate(goal=failing).apply_async(link_error=continuation_app.mourn.s())
    body = chord([scene.delegate(goal=goal), scene.delegate(goal=goal)])(continuation_app.gather.s())
    wait_until(lambda: scene.queued(HELD_QUEUE) >= 4, what="messages of four delegations")
    lose_message(scene, f"delegation.{step}")
    stop_holding(scene)
    assert link.get(timeout=20) == "link: good"
    assert body.get(timeout=20) == ["good", "good"]
    with pytest.raises(AgentTaskFailed, match="FAILED"):
        failed.get(timeout=20)
    wait_until(lambda: runs("errback"), what="errback")
    check_at_rest(scene)
    assert sorted({run["task_id"]: run["kind"] for run in runs()}.values()) == ["body", "errback", "link"]


@pytest.mark.parametrize("step", ["start_agent_task", "watch", "wake", "finalize", "clean_up"])
def test_a_lost_step_message_is_sent_again(scene: Scene, step: str) -> None:
    """The step's message is deleted from the broker; the due index sends another, and everything is as without loss."""
    begin_holding(scene, f"delegation.{step}")
    # Without pushes the wake is the sweeper's; one that web sends has a test of its own.
    goal = ends_after(0.1, push=step != "wake")
    call = (scene.delegate(goal=goal) | continuation_app.proceed.s("link")).apply_async()
    lose_message(scene, f"delegation.{step}")
    stop_holding(scene)
    assert call.get(timeout=20) == "link: ok"
    assert all_completed(check_at_rest(scene))
    assert len({run["task_id"] for run in runs()}) == 1


def test_a_lost_expiry_is_sent_again(scene: Scene) -> None:
    """The deadline's message is deleted; the delegation ends FAILED/deadline.exceeded all the same."""
    begin_holding(scene, "delegation.expire")
    delegation_id = scene.open_one({"states": [["WORKING", 0]]}, deadline="PT1S")
    lose_message(scene, "delegation.expire")
    stop_holding(scene)
    check_at_rest(scene)
    outcome = scene.load(delegation_id).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "deadline.exceeded")


def test_a_lost_continuation_is_published_again(scene: Scene) -> None:
    """The continuation's message and the step that would repeat it are both deleted: it runs under its one id."""
    begin_holding(scene, "continuation.resume", "delegation.release")
    workflow = scene.open_workflow([ends_after(0.1), ends_after(0)])
    lose_message(scene, "continuation.resume")
    lose_message(scene, "delegation.release")
    stop_holding(scene)
    assert all_completed(check_at_rest(scene))
    assert {run["task_id"] for run in runs("continuation")} == {f"{workflow.id}.release.1"}


def test_a_lost_end_of_a_workflow_is_sent_again(scene: Scene) -> None:
    """The message that begins an ended workflow's retention is deleted; its records go away all the same."""
    begin_holding(scene, "delegation.retire_workflow")
    workflow = scene.open_workflow([ends_after(0)])
    workflow.wait(timeout=20)
    workflow.complete("done")
    lose_message(scene, "delegation.retire_workflow")
    stop_holding(scene)
    check_at_rest(scene)
    assert scene.records.client.ttl(scene.records.key("w", workflow.id)) > 0


def test_a_lost_reply_message_is_sent_again(scene: Scene) -> None:
    """The message that sends a reply is deleted; the agent gets the reply all the same, once."""
    begin_holding(scene, "delegation.send_reply")
    delegation_id = scene.open_one(asks())
    scene.wait_for_question(delegation_id)
    scene.handle(delegation_id).reply(text_of(ends_after(0.1)))
    lose_message(scene, "delegation.send_reply")
    stop_holding(scene)
    assert all_completed(check_at_rest(scene))
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]


def test_a_lost_cancel_message_is_sent_again(scene: Scene) -> None:
    """The message that cancels is deleted; the agent is told all the same."""
    begin_holding(scene, "delegation.cancel")
    delegation_id = scene.open_one({"states": [["WORKING", 0]]})
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id and not it.timers.lease_until, what="agent task")
    scene.handle(delegation_id).cancel()
    lose_message(scene, "delegation.cancel")
    stop_holding(scene)
    check_at_rest(scene)
    assert scene.load(delegation_id).state is TaskState.CANCELED
    assert scene.handle(delegation_id).describe()["cancel"] == "cancelled"


def test_a_lost_cancel_of_children_is_sent_again(scene: Scene) -> None:
    """The message that cancels a workflow's children is deleted; each is cancelled all the same."""
    begin_holding(scene, "delegation.cancel_children")
    workflow = scene.open_workflow([{"states": [["WORKING", 0]]}, asks()])
    for child in workflow.children():
        scene.wait_for(child.id, lambda it: it.progress.agent_task_id and not it.timers.lease_until, what="agent task")
    workflow.cancel()
    lose_message(scene, "delegation.cancel_children")
    stop_holding(scene)
    check_at_rest(scene)
    assert set(workflow.receipts().values()) == {"cancelled"}
    assert workflow.describe()["state"] == "CANCELED"


def test_a_lost_expiry_of_a_workflow_is_sent_again(scene: Scene) -> None:
    """The workflow's own deadline message is deleted; it ends FAILED/deadline.exceeded all the same."""
    begin_holding(scene, "delegation.expire_workflow")
    workflow = scene.open_workflow([{"states": [["WORKING", 0]]}], joins=False, deadline="PT1S")
    lose_message(scene, "delegation.expire_workflow")
    stop_holding(scene)
    check_at_rest(scene)
    over = workflow.describe()
    assert (over["state"], over["reason"]) == ("FAILED", "deadline.exceeded")


def test_a_lost_message_about_notes_is_sent_again(scene: Scene) -> None:
    """Whoever told of the notes died, and the message to tell again is deleted: each is told under its one id."""
    workflow = scene.open_workflow([ends_after(0), asks()], tells=True)
    scene.start_dying_worker("tell.middle").wait()
    begin_holding(scene, "delegation.tell")
    lose_message(scene, "delegation.tell")
    stop_holding(scene)
    _, asking = workflow.children()
    scene.wait_for_question(asking.id)
    asking.reply(text_of(ends_after(0)))
    assert all_completed(check_at_rest(scene, Allowed(unacked=True)))
    assert {run["task_id"] for run in runs("note")} == {f"{workflow.id}.note.{number}" for number in (1, 2, 3)}


def test_a_lost_note_is_told_again(scene: Scene) -> None:
    """The messages that tell a parent are deleted from its own queue: each is told again, under its one id."""
    begin_holding(scene, "continuation.note")
    workflow = scene.open_workflow([ends_after(0), ends_after(0)], tells=True)
    wait_until(lambda: scene.queued(HELD_QUEUE) >= 2, what="messages of both notes")
    lose_message(scene, "continuation.note")
    stop_holding(scene)
    assert all_completed(check_at_rest(scene))
    assert {run["task_id"] for run in runs("note")} == {f"{workflow.id}.note.{number}" for number in (1, 2)}


def test_a_wake_that_web_sent_may_be_lost(scene: Scene) -> None:
    """The message that follows a push is deleted while no worker runs; the next worker looks by itself."""
    first = scene.start_worker()
    delegation_id = scene.open_one({"states": [["WORKING", 0]]})
    parked = scene.wait_for(delegation_id, lambda it: it.parked, what="parked delegation")
    first.stop()
    agent_task_id = parked.progress.agent_task_id
    assert agent_task_id is not None
    scene.scripted["a"].move(agent_task_id, "COMPLETED")
    scene.wait_for_message("delegations")
    assert "delegation.wake" in scene.take_messages("delegations")
    scene.start_worker()
    assert all_completed(check_at_rest(scene))


def test_every_step_delivered_twice_changes_nothing(scene: Scene) -> None:
    """Each message of our steps is published twice, both are worked on at once: one of everything that follows."""
    scene.set_user_env(CONTINUATION_TWICE="1")
    scene.start_worker()
    scene.start_worker()
    workflow = scene.open_workflow([ends_after(0.1 * n) for n in range(4)])
    link = (scene.delegate(goal=ends_after(0.1)) | continuation_app.proceed.s("link")).apply_async()
    scene.delegate(goal={"states": [["FAILED", 0]]}).apply_async(link_error=continuation_app.mourn.s())
    goals = [ends_after(0.1, artifact=f"part {n}") for n in (1, 2)]
    body = chord([scene.delegate(goal=goal) for goal in goals])(continuation_app.gather.s())
    told = scene.open_workflow([asks(), {"states": [["WORKING", 0]]}], joins=False, tells=True)
    asking, working = told.children()
    scene.wait_for_question(asking.id)
    asking.reply(text_of(ends_after(0.1)))
    scene.wait_for(working.id, lambda it: it.progress.agent_task_id, what="agent task")
    working.cancel()
    assert link.get(timeout=20) == "link: ok"
    assert body.get(timeout=20) == ["part 1", "part 2"]
    wait_until(lambda: runs("errback"), what="errback")
    check_at_rest(scene)
    assert len(scene.ledger(kind="task")) == 10
    assert len(scene.calls("SendMessage")) == 11
    assert {run["task_id"] for run in runs("continuation")} == {f"{workflow.id}.release.1"}
    assert len({run["task_id"] for run in runs() if run["kind"] != "note"}) == 4
    assert len({run["task_id"] for run in runs("note")}) == 3


def test_every_step_delivered_again_after_the_end_changes_nothing(scene: Scene) -> None:
    """All steps of an ended delegation and workflow come once more, under their old ids: nobody notices."""
    scene.start_worker()
    workflow = scene.open_workflow([ends_after(0.1)])
    call = (scene.delegate(goal=ends_after(0.1)) | continuation_app.proceed.s("link")).apply_async()
    call.get(timeout=20)
    workflow.complete("done")
    before = check_at_rest(scene)
    delegation = next(it for it in before.delegations if it.workflow_id is None)
    assert scene.app is not None
    for step in (*STEPS, *WORKFLOW_STEPS):
        record_id = workflow.id if step in WORKFLOW_STEPS else delegation.id
        task_id = delegation.call_id if step == "finalize" else f"{record_id}.{step}"
        scene.app.tasks[f"delegation.{step}"].apply_async((record_id,), task_id=task_id)
    check_at_rest(scene)
    after = look(scene)
    assert (after.calls, after.runs, after.histories) == (before.calls, before.runs, before.histories)
    assert AsyncResult(delegation.call_id, app=scene.app).get(timeout=5)["state"] == "COMPLETED"
