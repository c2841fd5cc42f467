"""kill -9 in the middle of a reply, a cancel or a note, then a fresh worker: each said once, each ended, each told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from delegation.agent_task import TaskState
from delegation.state import Phase
from tests.support.child import wait_until
from tests.support.continuation_app import runs
from tests.support.invariants import all_completed, check_at_rest
from tests.support.processes import CeleryWorker, ScriptedAgent
from tests.support.survival import SHORT_LEASE, Scene, asks, ends_after, text_of

REPLY_POINTS = ["reply.after_intent", "reply.after_call", "reply.after_record"]
DONE = text_of({"states": [["WORKING", 0], ["COMPLETED", 0.2]]})
#: For a test that has to wait for many of them, one after the other.
SHORTEST_LEASE = {"DELEGATION_TIMING__CALL_DEADLINE": "0.3", "DELEGATION_TIMING__LEASE_MARGIN": "0.3"}
WORKING: dict[str, Any] = {"states": [["WORKING", 0]]}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("talk")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "off")}
    settings = {"off": {"updates": "off"}}
    timing = {**SHORT_LEASE, "hint_patience": 0.5, "cancel_deadline": 5, "cleanup_for": 2}
    with Scene(directory, agents=agents, agent_settings=settings, timing=timing) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    # What a killed worker held comes back to the next one within the test, and must change nothing.
    running.reset(CONTINUATION_VISIBILITY_S="2")
    return running


def start_dying(scene: Scene, point: str) -> CeleryWorker:
    dying = scene.start_dying_worker(point)
    dying.wait_until_ready()
    return dying


def wait_for_death(worker: CeleryWorker) -> None:
    assert worker.wait(30) == -signal.SIGKILL


# ---------------------------------------------------------------- replies


@pytest.mark.parametrize("point", REPLY_POINTS)
def test_a_reply_is_taken_once_whoever_dies(scene: Scene, point: str) -> None:
    """An agent that takes whatever it is sent has the reply whose worker died, and the next one, once each."""
    dying = start_dying(scene, point)
    delegation_id = scene.open_one({**asks(), "turns": [asks("Which year?", 0.1), ends_after(0.2)]})
    scene.wait_for_question(delegation_id)
    handle = scene.handle(delegation_id)
    handle.reply("May")
    handle.reply("2027")
    wait_for_death(dying)
    scene.start_worker()
    assert all_completed(check_at_rest(scene))
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1", f"{delegation_id}:reply:2"]
    sent = [entry["message_id"] for entry in scene.replies_sent(delegation_id)]
    assert sent == scene.accepted(delegation_id)[1:]


def test_a_reply_to_an_agent_that_works_long_is_taken_once(scene: Scene) -> None:
    """The agent is still at work, or still shows the old question, when the next worker comes: never sent again."""
    task_id = f"t-{uuid4().hex}"
    dying = start_dying(scene, "reply.after_call")
    delegation_id = scene.open_one(asks(id=task_id), agent="off")
    scene.wait_for_question(delegation_id)
    scene.handle(delegation_id).reply(text_of({"states": [["COMPLETED", 6]]}))
    wait_for_death(dying)
    scene.start_worker()
    scene.wait_for(
        delegation_id,
        lambda it: it.waits_for_agent and it.progress.turn_intent_at is None,
        what="reply that is certain",
    )
    assert scene.records.inbox() == []
    scene.scripted["off"].move(task_id, "COMPLETED")
    assert all_completed(check_at_rest(scene))
    assert len(scene.replies_sent(delegation_id)) == 1


def test_a_reply_given_while_nobody_works_is_sent_by_the_next_worker(scene: Scene) -> None:
    """Its message is in the broker, or lost with it: the record has it."""
    first = scene.start_worker()
    delegation_id = scene.open_one(asks())
    scene.wait_for_question(delegation_id)
    first.kill()
    scene.handle(delegation_id).reply(DONE)
    scene.take_messages("delegations")
    scene.start_worker()
    assert all_completed(check_at_rest(scene))
    assert len(scene.replies_sent(delegation_id)) == 1


def test_a_reply_that_kills_every_worker_is_given_up(scene: Scene) -> None:
    """Each send takes its worker along, and the agent heard nothing: refused for good after limits.attempts repeats."""
    env = {**SHORTEST_LEASE, "DELEGATION_LIMITS__ATTEMPTS": "2"}
    dying = scene.start_dying_worker("reply.after_intent", **env)
    delegation_id = scene.open_one(asks())
    scene.wait_for_question(delegation_id)
    handle = scene.handle(delegation_id)
    handle.reply("May")
    wait_for_death(dying)
    for _ in range(2):
        wait_for_death(scene.start_dying_worker("reply.after_intent", **env))
    survivor = scene.start_dying_worker("reply.after_intent", **env)
    scene.wait_for(delegation_id, lambda it: it.waits_for_reply and it.progress.turn == 1, what="open question")
    assert not scene.replies_sent(delegation_id)
    assert survivor.is_alive
    handle.cancel()
    check_at_rest(scene)


# ---------------------------------------------------------------- cancels


@pytest.mark.parametrize("point", ["cancel.after_call", "cancel.before_record"])
def test_a_cancel_that_its_worker_did_not_survive_is_confirmed(scene: Scene, point: str) -> None:
    """Killed between the agent's answer and our note of it: CANCELED, confirmed, the push config removed."""
    dying = start_dying(scene, point)
    delegation_id = scene.open_one(WORKING)
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id and not it.timers.lease_until, what="agent task")
    scene.handle(delegation_id).cancel("enough")
    wait_for_death(dying)
    scene.start_worker()
    check_at_rest(scene)
    outcome = scene.load(delegation_id).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (TaskState.CANCELED, None)
    assert 1 <= len(scene.calls("CancelTask")) <= 2


@pytest.mark.parametrize("point", ["send.after_intent", "send.after_call"])
def test_a_cancel_during_a_send_that_its_worker_did_not_survive(scene: Scene, point: str) -> None:
    """Nobody knows whether the agent has the task: it is looked for, and nothing runs on there."""
    delegation_id = scene.open_one(WORKING)
    wait_for_death(scene.start_dying_worker(point))
    scene.handle(delegation_id).cancel()
    scene.start_worker()
    check_at_rest(scene)
    assert scene.load(delegation_id).state is TaskState.CANCELED
    states = [task["status"]["state"] for task in scene.scripted["a"].tasks() if task["contextId"] == delegation_id]
    assert states == (["TASK_STATE_CANCELED"] if point == "send.after_call" else [])


def test_a_workflows_cancel_survives_a_kill_in_the_middle(scene: Scene) -> None:
    """Killed after the first of five children: the others are cancelled by the next worker, each once."""
    dying = start_dying(scene, "cancel_children.middle")
    workflow = scene.open_workflow([WORKING, asks(), WORKING, asks(), WORKING], tells=True)
    children = [child.id for child in workflow.children()]
    for child in children:
        scene.wait_for(child, lambda it: it.progress.agent_task_id and not it.timers.lease_until, what="agent task")
    wait_until(lambda: len(runs("note")) == 2, 20, what="notes of both questions")
    workflow.cancel("the trip is off")
    wait_for_death(dying)
    assert workflow.describe()["state"] == "CANCELING"
    scene.start_worker()
    check_at_rest(scene)
    assert workflow.describe()["state"] == "CANCELED"
    assert workflow.receipts() == dict.fromkeys(children, "cancelled")
    cancelled = [call["task_id"] for call in scene.calls("CancelTask")]
    assert len(set(cancelled)) == 5
    assert max(map(cancelled.count, cancelled)) <= 2
    assert not runs("continuation")


# ---------------------------------------------------------------- notes


def test_notes_are_told_under_their_ids_whoever_dies(scene: Scene) -> None:
    """Killed between telling and writing that down: told again under the same ids, in order, none twice by another."""
    workflow = scene.open_workflow([ends_after(n / 10) for n in range(4)], tells=True)
    wait_for_death(scene.start_dying_worker("tell.middle"))
    scene.start_worker()
    check_at_rest(scene)
    told = {run["task_id"]: run["kwargs"]["note"] for run in runs("note")}
    assert told == {f"{workflow.id}.note.{number}": number for number in range(1, 5)}
    notes = workflow.notes()
    assert [note["number"] for note in notes] == [1, 2, 3, 4]
    by_number = {run["kwargs"]["note"]: run["kwargs"]["delegation_id"] for run in runs("note")}
    assert by_number == {note["number"]: note["delegation_id"] for note in notes}


def test_a_question_heard_by_a_worker_that_dies_is_told_once(scene: Scene) -> None:
    """Killed when the record has the question and nobody was told: one note of it, one place in the inbox."""
    dying = start_dying(scene, "apply.after")
    workflow = scene.open_workflow([{"states": [["WORKING", 0], ["INPUT_REQUIRED", 0.3, "Which month?"]]}], tells=True)
    wait_for_death(dying)
    scene.start_worker()
    (child,) = workflow.children()
    scene.wait_for_question(child.id)
    assert scene.records.inbox() == [child.id]
    child.reply(DONE)
    check_at_rest(scene)
    assert [note["state"] for note in workflow.notes()] == ["INPUT_REQUIRED", "COMPLETED"]


def test_a_whole_conversation_survives_redis_dying(scene: Scene) -> None:
    """Redis is killed with a question open, and again with a reply under way: nothing that was said is lost."""
    scene.start_worker()
    workflow = scene.open_workflow([{**asks(), "turns": [asks("Which year?", 0.3), ends_after(0.3)]}], tells=True)
    (child,) = workflow.children()
    scene.wait_for_question(child.id)
    restart_redis(scene)
    child.reply("May")
    scene.wait_for(child.id, lambda it: it.progress.turn == 1, what="sent reply")
    restart_redis(scene)
    scene.wait_for_question(child.id, 2)
    child.reply("2027")
    scene.wait_for(child.id, lambda it: it.phase is Phase.RELEASED, 40, what="end")
    assert all_completed(check_at_rest(scene))
    assert scene.accepted(child.id)[1:] == [f"{child.id}:reply:{n}" for n in (1, 2)]
    assert [note["state"] for note in workflow.notes()] == ["INPUT_REQUIRED", "INPUT_REQUIRED", "COMPLETED"]


def restart_redis(scene: Scene) -> None:
    """kill -9, once what was written last is on disk (it is flushed every second)."""
    with scene.valkey.client() as client:
        client.waitaof(1, 0, 5000)
    scene.valkey.kill()
    scene.valkey.start()
