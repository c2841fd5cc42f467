"""kill -9 of the only worker at every crash point, then a fresh one: nothing is lost, sent twice or released twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import chord
from celery.result import AsyncResult

from delegation.agent_task import TaskState
from tests.support import continuation_app
from tests.support.child import ROOT, child_environment
from tests.support.continuation_app import runs
from tests.support.invariants import Allowed, all_completed, check_at_rest
from tests.support.processes import ScriptedAgent
from tests.support.survival import SHORT_LEASE, Scene, ends_after, text_of
from workers import Workflow

CRASH_POINTS = [
    "send.after_intent",
    "send.after_call",
    "send.after_record",
    "fetch.before_call",
    "fetch.after_call",
    "apply.before",
    "apply.after",
    "release.after_commit",
    "resume.after_enqueue",
    "finalize.before_return",
    "finalize.before_finish",
    "cfg.before_delete",
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("kills")
    agents = {"a": ScriptedAgent(directory, name="a"), "resending": ScriptedAgent(directory, name="resending")}
    settings = {"resending": {"on_ambiguous_send": "resend"}}
    with Scene(directory, agents=agents, agent_settings=settings, timing=SHORT_LEASE) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    # What a killed worker held comes back to the next one within the test, and must change nothing.
    running.reset(CONTINUATION_VISIBILITY_S="2")
    return running


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_a_killed_worker_changes_nothing(scene: Scene, point: str) -> None:
    """Two children with a link each, joined: outcomes, one agent task each, one release, each follower under one id."""
    workflow = Workflow.open("survival")
    goals = [ends_after(0.3, artifact=f"answer {n}") for n in (1, 2)]
    calls: list[AsyncResult[str]] = [
        (scene.delegate(goal=goal, workflow=workflow.id) | continuation_app.proceed.s(f"link {n}")).apply_async()
        for n, goal in enumerate(goals, start=1)
    ]
    workflow.join(then=continuation_app.resume.s())
    assert scene.start_dying_worker(point).wait() == -signal.SIGKILL
    scene.start_worker()
    rest = check_at_rest(scene)
    assert all_completed(rest)
    assert [call.get(timeout=10) for call in calls] == ["link 1: answer 1", "link 2: answer 2"]
    assert {run["task_id"] for run in runs("continuation")} == {f"{workflow.id}.release.1"}
    assert len(scene.calls("SendMessage")) == len(scene.ledger(kind="task")) == 2


@pytest.mark.parametrize("point", ["finalize.before_return", "finalize.before_finish"])
def test_a_chord_survives_a_kill_in_its_header(scene: Scene, point: str) -> None:
    """A part that was finished, or nearly, runs again and counts once: the body gets both answers, under one id."""
    header = [scene.delegate(goal=ends_after(0.3, artifact=f"part {n}")) for n in (1, 2)]
    body = chord(header)(continuation_app.gather.s())
    scene.start_dying_worker(point).wait()
    scene.start_worker()
    assert body.get(timeout=20) == ["part 1", "part 2"]
    check_at_rest(scene)
    assert {run["task_id"] for run in runs("body")} == {body.id}


def test_a_send_that_got_through_is_found_again(scene: Scene) -> None:
    """Killed between the agent's answer and our note of it: ListTasks finds the agent task, and it is adopted."""
    delegation_id = scene.open_one(ends_after(0.3))
    scene.start_dying_worker("send.after_call").wait()
    scene.start_worker()
    rest = check_at_rest(scene)
    assert all_completed(rest)
    assert scene.counters()["sends_reconciled"] == 1
    assert len(scene.calls("SendMessage")) == 1
    assert scene.load(delegation_id).progress.agent_task_id == scene.ledger(kind="task")[0]["task_id"]


@pytest.mark.parametrize("point", ["send.after_intent", "send.after_call"])
def test_a_send_nobody_can_ask_about_fails_with_the_truth(scene: Scene, point: str) -> None:
    """Without ListTasks an ambiguous send is never repeated: FAILED/send.outcome_unknown, at most one agent task."""
    scene.scripted["a"].configure(list_tasks=False)
    delegation_id = scene.open_one(ends_after(0.3))
    scene.start_dying_worker(point).wait()
    scene.start_worker()
    check_at_rest(scene, Allowed(unwanted=1, configs_left=1))
    outcome = scene.load(delegation_id).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "send.outcome_unknown")
    assert len(scene.calls("SendMessage")) == len(scene.ledger(kind="task")) == (point == "send.after_call")


def test_an_agent_set_to_resend_gets_the_same_message_twice(scene: Scene) -> None:
    """With on_ambiguous_send = "resend" the second send carries the first one's messageId."""
    scene.scripted["resending"].configure(list_tasks=False)
    call = scene.delegate("resending", ends_after(0.3)).apply_async()
    scene.start_dying_worker("send.after_call").wait()
    scene.start_worker()
    rest = check_at_rest(scene, Allowed(agent_tasks=2, unwanted=1, configs_left=1))
    assert all_completed(rest)
    message_ids = [entry["message_id"] for entry in scene.calls("SendMessage", "resending")]
    assert message_ids == [f"{scene.id_of(call.id)}:goal"] * 2


@pytest.mark.parametrize("point", ["cancel.after_call", "cfg.before_delete"])
def test_cleaning_up_after_a_deadline_survives_a_kill(scene: Scene, point: str) -> None:
    """Killed while it removes what is left at the agent: the agent task is cancelled and the push config is gone."""
    dying = scene.start_dying_worker(point)
    dying.wait_until_ready()
    scene.open_one({"states": [["WORKING", 0]]}, deadline="PT1S")
    dying.wait()
    scene.start_worker()
    check_at_rest(scene)
    assert [task["status"]["state"] for task in scene.scripted["a"].tasks()][-1] == "TASK_STATE_CANCELED"


def test_the_end_of_a_workflow_survives_a_kill(scene: Scene) -> None:
    """Killed before an ended workflow's retention begins: it begins later, for it and its children."""
    workflow = scene.open_workflow([ends_after(0), ends_after(0)])
    scene.start_dying_worker("purge.middle")
    workflow.wait(timeout=20)
    workflow.complete("done")
    scene.workers[0].wait()
    scene.start_worker()
    check_at_rest(scene)
    keys = [scene.records.key("w", workflow.id), *(scene.records.key("d", child.id) for child in workflow.children())]
    assert all(scene.records.client.ttl(key) > 0 for key in keys)


@pytest.mark.parametrize(("point", "opened"), [("accept.before_commit", 0), ("accept.after_commit", 1)])
def test_a_caller_that_dies_has_delegated_or_not(scene: Scene, point: str, opened: int) -> None:
    """Killed before the record is written, nothing is there; after it, the delegation ends without its caller."""
    code = f"from workers import delegate; delegate.delay(agent='a', goal={text_of(ends_after(0.1))!r})"
    env = child_environment({**scene.env, "DELEGATION_FAILPOINT": f"{point}:kill"})
    died = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=False, timeout=30)
    assert died.returncode == -signal.SIGKILL
    scene.start_worker()
    rest = check_at_rest(scene)
    assert len(rest.delegations) == len(rest.agent_tasks) == opened
    assert all_completed(rest)


@pytest.mark.parametrize("point", ["accept.before_commit", "accept.after_commit"])
def test_a_worker_killed_between_two_links_opens_one_delegation(scene: Scene, point: str) -> None:
    """The broker gives the first link to another worker, which delegates under the same call id: one delegation."""
    chain = continuation_app.begin.s("x") | scene.delegate(goal=ends_after(0.1)) | continuation_app.proceed.s("end")
    call = chain.apply_async()
    scene.start_dying_worker(point).wait()
    scene.start_worker()
    assert call.get(timeout=20) == "end: ok"
    rest = check_at_rest(scene)
    assert len(rest.delegations) == 1


def test_a_web_process_killed_after_a_wake_loses_nothing(scene: Scene) -> None:
    """The wake is in the due index before its message is sent; the pusher gets no answer, the delegation its end."""
    assert scene.web is not None
    scene.start_worker()
    scene.web.kill()
    scene.web.env["DELEGATION_FAILPOINT"] = "push.after_wake:kill"
    scene.web.start()
    try:
        delegation_id = scene.open_one({"states": [["WORKING", 0], ["COMPLETED", 0.5]]})
        check_at_rest(scene)
        assert [push["status"] for push in scene.ledger(kind="push")] == [None]
        assert [entry["cause"] for entry in scene.records.history(delegation_id)][-1] == "push"
    finally:
        del scene.web.env["DELEGATION_FAILPOINT"]
        scene.web.kill()
        scene.web.start()


def test_a_prefork_child_that_is_killed_costs_no_more_than_a_lease(scene: Scene) -> None:
    """In a prefork pool the step's process dies alone; its worker goes on, and so does the delegation."""
    scene.scripted["a"].script([{"on": "GetTask", "times": 1, "delay_s": 0.8}])
    worker = scene.start_worker(pool="prefork", concurrency=1)
    scene.open_one(ends_after(0.3))
    scene.wait_for_calls("GetTask")
    (child,) = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text(encoding="ascii").split()
    os.kill(int(child), signal.SIGKILL)
    rest = check_at_rest(scene)
    assert all_completed(rest)
    assert len(scene.calls("GetTask")) == 2
    assert worker.is_alive
