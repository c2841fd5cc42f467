"""A cancel is durable first, reaches the agent as soon as it can, ends within its deadline, and leaves a receipt."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from delegation.agent_task import TaskState
from delegation.errors import AgentTaskFailed, DelegationEnded, WorkflowConflict
from delegation.state import Outcome
from tests.support import continuation_app
from tests.support.continuation_app import runs
from tests.support.invariants import Allowed, check_at_rest
from tests.support.processes import ScriptedAgent, wait_until
from tests.support.survival import SHORT_LEASE, Scene, asks, ends_after, text_of
from workers import Workflow

#: What the agent has to confirm in; a cancel is never over later than this and one more call.
CANCEL_S = 1.5
SLACK_S = 10.0
WORKING: dict[str, Any] = {"states": [["WORKING", 0]]}
AGENTS: dict[str, dict[str, Any]] = {"a": {}, "polled": {"updates": "poll"}, "stubborn": {}, "gone": {}}

Rule = dict[str, Any]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("cancel")
    agents = {name: ScriptedAgent(directory, name=name) for name in AGENTS}
    timing = {**SHORT_LEASE, "hint_patience": 0.5, "cancel_deadline": CANCEL_S, "cleanup_for": 1}
    with Scene(directory, agents=agents, agent_settings=AGENTS, timing=timing) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.renew()
    return running


@pytest.fixture
def idle(running: Scene) -> Scene:
    """No worker until the test starts one."""
    running.reset()
    return running


def open_working(scene: Scene, agent: str = "a", **goal: Any) -> tuple[str, str]:
    """A delegation whose agent task is known, and that task's id, which rules can name."""
    task_id = f"t-{uuid4().hex}"
    delegation_id = scene.open_one({**WORKING, "id": task_id, **goal}, agent=agent)
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id and not it.timers.lease_until, what="agent task")
    return delegation_id, task_id


def end_of(scene: Scene, delegation_id: str, allowed: Allowed | None = None) -> tuple[Outcome, str | None]:
    """The outcome and the receipt, everything at rest."""
    scene.wait_until_settled(delegation_id)
    check_at_rest(scene, allowed or Allowed())
    outcome = scene.load(delegation_id).outcome
    assert outcome is not None
    return outcome, scene.handle(delegation_id).describe()["cancel"]


def check_cancelled(scene: Scene, delegation_id: str) -> None:
    """CANCELED by the agent, once asked, with no reason of ours and nothing left there."""
    outcome, receipt = end_of(scene, delegation_id)
    assert (outcome.state, outcome.reason, receipt) == (TaskState.CANCELED, None, "cancelled")
    assert len(scene.calls("CancelTask", scene.load(delegation_id).agent)) == 1


def check_unconfirmed(scene: Scene, delegation_id: str, allowed: Allowed | None = None) -> None:
    """CANCELED here within the cancel deadline and some slack, with a reason that says the agent did not confirm."""
    outcome, receipt = end_of(scene, delegation_id, allowed)
    assert (outcome.state, outcome.reason, receipt) == (TaskState.CANCELED, "cancel.unconfirmed", "unreachable")
    history = scene.records.history(delegation_id)
    wanted = next(line["at"] for line in history if line["text"].startswith("wanted"))
    assert CANCEL_S - 0.5 <= history[-1]["at"] - wanted < CANCEL_S + SLACK_S


# ---------------------------------------------------------------- before and during the send


def test_a_cancel_before_the_start_sends_nothing(idle: Scene) -> None:
    """CANCELED at once, whatever start message comes afterwards; the agent never hears of it."""
    delegation_id = idle.open_one(WORKING)
    assert idle.handle(delegation_id).cancel("changed my mind") == "pending"
    idle.start_worker()
    outcome, receipt = end_of(idle, delegation_id)
    assert (outcome.state, outcome.text, receipt) == (TaskState.CANCELED, "changed my mind", "cancelled")
    assert not idle.ledger(kind="call")


def test_a_cancel_during_the_send_waits_for_the_id(scene: Scene) -> None:
    """The agent takes its time with the answer; as soon as the id is known the agent task is cancelled."""
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, "work": True, "delay_s": 0.6}])
    delegation_id = scene.open_one(WORKING)
    scene.wait_for_calls("SendMessage")
    assert scene.handle(delegation_id).cancel() == "pending"
    check_cancelled(scene, delegation_id)
    assert len(scene.calls("SendMessage")) == 1


def test_a_cancel_after_an_ambiguous_send_finds_the_task_first(scene: Scene) -> None:
    """The answer to the send was lost: the agent task is found in the list, then cancelled."""
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, "work": True, "delay_s": 0.3, "end": "reset"}])
    delegation_id = scene.open_one(WORKING)
    scene.wait_for_calls("SendMessage")
    scene.handle(delegation_id).cancel()
    check_cancelled(scene, delegation_id)
    assert len(scene.calls("SendMessage")) == 1


def test_a_cancel_after_a_send_that_did_not_arrive_sends_nothing_again(scene: Scene) -> None:
    """The agent has no such task: CANCELED, and the brief does not go out a second time."""
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, "delay_s": 0.3, "end": "reset"}])
    delegation_id = scene.open_one(WORKING)
    scene.wait_for_calls("SendMessage")
    scene.handle(delegation_id).cancel()
    outcome, _ = end_of(scene, delegation_id)
    assert outcome.state is TaskState.CANCELED
    assert len(scene.calls("SendMessage")) == 1
    assert not scene.ledger(kind="task")


# ---------------------------------------------------------------- once the agent task is known


@pytest.mark.parametrize("agent", ["a", "polled"])
def test_a_cancel_reaches_an_agent_at_work(scene: Scene, agent: str) -> None:
    """CancelTask once, CANCELED by the agent, the push config removed."""
    delegation_id, _ = open_working(scene, agent)
    scene.handle(delegation_id).cancel("enough")
    check_cancelled(scene, delegation_id)
    assert scene.load(delegation_id).outcome is not None
    if agent == "a":
        assert [entry["was_there"] for entry in scene.ledger(kind="config_deleted")] == [True]


def test_a_cancel_ends_a_question(scene: Scene) -> None:
    """It leaves the inbox with the wish, takes no reply from then on, and those that wait are never sent."""
    scene.scripted["a"].configure(cancel="slow:0.5")
    delegation_id, _ = open_working(scene, **asks("Which month?"))
    scene.wait_for_question(delegation_id)
    handle = scene.handle(delegation_id)
    handle.cancel()
    assert delegation_id not in scene.records.inbox()
    with pytest.raises(DelegationEnded):
        handle.reply("May")
    check_cancelled(scene, delegation_id)
    assert not scene.replies_sent(delegation_id)


def test_a_double_cancel_is_one(scene: Scene) -> None:
    """Asked for three times, also after its end: the agent hears CancelTask at most twice."""
    delegation_id, _ = open_working(scene)
    handle = scene.handle(delegation_id)
    handle.cancel("first")
    handle.cancel("second")
    outcome, _ = end_of(scene, delegation_id)
    assert outcome.state is TaskState.CANCELED
    assert handle.cancel("third") == "cancelled"
    check_at_rest(scene)
    assert 1 <= len(scene.calls("CancelTask")) <= 2


def test_a_cancel_after_the_end_changes_nothing(scene: Scene) -> None:
    """Nobody wished in time: no receipt, no call, the result stays."""
    delegation_id = scene.open_one(ends_after(0))
    scene.wait_until_settled(delegation_id)
    assert scene.handle(delegation_id).cancel() is None
    outcome, receipt = end_of(scene, delegation_id)
    assert (outcome.state, receipt) == (TaskState.COMPLETED, None)
    assert not scene.calls("CancelTask")


# ---------------------------------------------------------------- agents that will not


@pytest.mark.parametrize(("agent", "end"), [("a", "COMPLETED"), ("a", "FAILED"), ("polled", "CANCELED")])
def test_an_agent_that_answers_and_works_on_is_watched_on(scene: Scene, agent: str, end: str) -> None:
    """200 with WORKING is no end: its own end, soon after, counts, whatever it is."""
    scene.scripted[agent].configure(cancel="ignore")
    delegation_id, task_id = open_working(scene, agent)
    scene.handle(delegation_id).cancel()
    scene.wait_for_calls("CancelTask", agent=agent)
    scene.scripted[agent].move(task_id, end)
    outcome, receipt = end_of(scene, delegation_id)
    assert (outcome.state, outcome.reason) == (TaskState(end), None)
    assert receipt == ("cancelled" if end == "CANCELED" else "already ended")


def test_an_agent_that_never_stops_is_given_up(scene: Scene) -> None:
    """200 and WORKING for ever: CANCELED/cancel.unconfirmed at the cancel deadline, and it is told once more."""
    scene.scripted["a"].configure(cancel="ignore")
    delegation_id, _ = open_working(scene)
    scene.handle(delegation_id).cancel()
    check_unconfirmed(scene, delegation_id)
    assert len(scene.calls("CancelTask")) == 2


def test_completion_that_won_the_race_keeps_its_result(scene: Scene) -> None:
    """-32002, as it had just ended and its push was lost: asked how it is, COMPLETED with what it produced."""
    delegation_id, task_id = open_working(scene, push=False)
    scene.scripted["a"].move(task_id, "COMPLETED", artifact="just in time")
    scene.handle(delegation_id).cancel()
    outcome, receipt = end_of(scene, delegation_id)
    assert (outcome.state, outcome.text, receipt) == (TaskState.COMPLETED, "just in time", "already ended")


@pytest.mark.parametrize("manner", ["unsupported", "refuse"])
def test_an_agent_that_cannot_cancel_is_watched_to_its_end(scene: Scene, manner: str) -> None:
    """-32004, or -32002 while it works: the receipt says refused, and its own end, long after, counts."""
    scene.scripted["a"].configure(cancel=manner)
    delegation_id, task_id = open_working(scene)
    handle = scene.handle(delegation_id)
    handle.cancel()
    wait_until(lambda: handle.describe()["cancel"] == "refused", 10, what="receipt")
    looks = len(scene.calls("GetTask"))
    scene.wait_for_calls("GetTask", looks + 1)
    wait_until(lambda: scene.records.now() > (scene.load(delegation_id).cancel_until or 0), 10, what="cancel deadline")
    assert scene.load(delegation_id).outcome is None
    scene.scripted["a"].move(task_id, "COMPLETED", artifact="all the same")
    outcome, receipt = end_of(scene, delegation_id)
    assert (outcome.state, outcome.text, receipt) == (TaskState.COMPLETED, "all the same", "already ended")
    assert len(scene.calls("CancelTask")) == 1


def test_an_agent_that_is_dead_is_given_up(scene: Scene) -> None:
    """Nobody answers: CANCELED/cancel.unconfirmed at the cancel deadline."""
    delegation_id, _ = open_working(scene)
    scene.scripted["a"].kill(keep_memory=False)
    scene.handle(delegation_id).cancel()
    check_unconfirmed(scene, delegation_id, Allowed(configs_left=1))


@pytest.mark.parametrize("fault", ["hang", "reset"])
def test_an_agent_that_answers_no_cancel_is_given_up(scene: Scene, fault: str) -> None:
    """CancelTask hangs or breaks off every time: CANCELED/cancel.unconfirmed at the cancel deadline."""
    delegation_id, _ = open_working(scene)
    scene.scripted["a"].script([{"on": "CancelTask", "end": fault}])
    scene.handle(delegation_id).cancel()
    check_unconfirmed(scene, delegation_id)


def test_an_agent_that_comes_back_in_time_is_told(scene: Scene) -> None:
    """CancelTask fails twice: it is made again before the cancel deadline, and confirmed."""
    delegation_id, _ = open_working(scene)
    busy = {"http": {"status": 503, "headers": {"Retry-After": "0"}}}
    scene.scripted["a"].script(
        [{"on": "CancelTask", "times": 1, "end": "reset"}, {"on": "CancelTask", "times": 1, **busy}]
    )
    scene.handle(delegation_id).cancel()
    outcome, receipt = end_of(scene, delegation_id)
    assert (outcome.state, outcome.reason, receipt) == (TaskState.CANCELED, None, "cancelled")
    assert len(scene.calls("CancelTask")) == 3


def test_an_agent_task_that_is_gone_is_given_up(scene: Scene) -> None:
    """-32001 to every call: over at the cancel deadline at the latest, without a stuck delegation."""
    delegation_id, task_id = open_working(scene)
    scene.scripted["a"].script([{"on": "any", "match": task_id, "error": {"code": -32001, "message": "none"}}])
    scene.handle(delegation_id).cancel()
    outcome, _ = end_of(scene, delegation_id, Allowed(configs_left=1))
    assert outcome.state in (TaskState.CANCELED, TaskState.FAILED)


# ---------------------------------------------------------------- canvas


def test_a_cancelled_link_fails_its_canvas(scene: Scene) -> None:
    """The caller gets AgentTaskFailed CANCELED, errbacks run, the next link does not."""
    signature = scene.delegate(goal=WORKING) | continuation_app.proceed.s("never")
    signature.link_error(continuation_app.mourn.s())
    call = signature.apply_async()
    assert call.parent is not None
    delegation_id = scene.id_of(call.parent.id)
    scene.wait_for(delegation_id, lambda it: it.parked and it.progress.agent_task_id, what="parked delegation")
    before = len(runs("errback"))
    scene.handle(delegation_id).cancel()
    with pytest.raises(AgentTaskFailed, match="CANCELED"):
        call.parent.get(timeout=20)
    wait_until(lambda: len(runs("errback")) > before, 20, what="errback")
    check_cancelled(scene, delegation_id)
    assert not [run for run in runs("link") if run["kwargs"].get("tag") == "never" or "never" in run["args"]]


# ---------------------------------------------------------------- workflows


def wait_until_over(workflow: Workflow, state: str) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found = workflow.describe()
        return found if found["state"] == state else None

    return wait_until(look, CANCEL_S + SLACK_S, what=f"workflow {state}")


def test_a_workflow_cancels_its_children_and_says_what_became_of_each(idle: Scene) -> None:
    """Working, ended, refusing, unreachable, unsent: a receipt each, CANCELING until the last child has ended."""
    scene = idle
    worker = scene.start_worker()
    scene.scripted["stubborn"].configure(cancel="unsupported")
    workflow = scene.open_workflow([ends_after(0), WORKING, asks("Which month?")], joins=False, tells=True)
    refusing = workflow.delegate("stubborn", text_of(WORKING))
    unreachable = workflow.delegate("gone", text_of(WORKING))
    ended, working, asking, *_ = workflow.children()
    scene.wait_until_settled(ended.id)
    for child in (working, asking, refusing, unreachable):
        scene.wait_for(child.id, lambda it: it.progress.agent_task_id and not it.timers.lease_until, what="agent task")
    check_rest_of_start(scene)
    scene.scripted["gone"].kill(keep_memory=False)
    worker.kill()
    unsent = workflow.delegate("a", text_of(WORKING))

    workflow.cancel("the trip is off")
    assert workflow.describe()["state"] == "CANCELING"
    with pytest.raises(WorkflowConflict):
        workflow.delegate("a", text_of(WORKING))
    scene.start_worker()
    told = {ended.id: "already ended", refusing.id: "refused", unreachable.id: "unreachable"}
    told |= dict.fromkeys((working.id, asking.id, unsent.id), "cancelled")
    wait_until(lambda: workflow.receipts() == told, CANCEL_S + SLACK_S, what="receipts")
    assert workflow.describe()["state"] == "CANCELING"
    task_id = str(scene.load(refusing.id).progress.agent_task_id)
    scene.scripted["stubborn"].move(task_id, "COMPLETED", artifact="all the same")
    over = wait_until_over(workflow, "CANCELED")
    assert (over["unresolved"], over["reason"]) == (0, "the trip is off")
    rest = check_at_rest(scene, Allowed(configs_left=1, unacked=True))
    assert workflow.receipts() == {**told, refusing.id: "already ended"}
    assert [run for run in rest.runs if run["kind"] == "continuation"] == []
    reasons = {it.id: it.outcome.reason for it in rest.delegations if it.outcome and it.outcome.reason}
    assert reasons == {unreachable.id: "cancel.unconfirmed"}


def check_rest_of_start(scene: Scene) -> None:
    """No message of ours is in flight, so that a worker may be killed without taking one along."""
    wait_until(lambda: not any(scene.queued(queue) for queue in continuation_app.QUEUES), what="empty queues")


def test_a_workflow_that_fails_cancels_its_children(scene: Scene) -> None:
    """FAILED at once, with its reason; its children are cancelled at their agents, and it is never released."""
    workflow = scene.open_workflow([WORKING, asks("Which month?"), ends_after(0)])
    working, asking, ended = workflow.children()
    scene.wait_for_state(working.id, "WORKING")
    scene.wait_for_question(asking.id)
    scene.wait_until_settled(ended.id)
    workflow.fail("no budget")
    assert workflow.describe()["state"] == "FAILED"
    check_at_rest(scene)
    assert workflow.receipts() == {working.id: "cancelled", asking.id: "cancelled", ended.id: "already ended"}
    assert workflow.describe()["reason"] == "no budget"
    assert len(scene.calls("CancelTask")) == 2
    assert not [run for run in runs("continuation") if run["kwargs"]["workflow_id"] == workflow.id]


def test_a_workflow_without_open_children_is_cancelled_at_once(scene: Scene) -> None:
    """CANCELED, and a second cancel says that it has ended."""
    workflow = scene.open_workflow([ends_after(0)], joins=False)
    (child,) = workflow.children()
    scene.wait_until_settled(child.id)
    assert workflow.cancel() == {child.id: "already ended"}
    assert workflow.describe()["state"] == "CANCELED"
    with pytest.raises(WorkflowConflict):
        workflow.cancel()
    check_at_rest(scene)


def test_many_children_are_cancelled_together(scene: Scene) -> None:
    """Twenty at work at one agent: each is cancelled once, none after another's deadline."""
    workflow = scene.open_workflow([WORKING] * 20, joins=False)
    for child in workflow.children():
        scene.wait_for_state(child.id, "WORKING")
    began = time.monotonic()
    workflow.cancel()
    wait_until_over(workflow, "CANCELED")
    assert time.monotonic() - began < CANCEL_S + SLACK_S
    check_at_rest(scene)
    assert set(workflow.receipts().values()) == {"cancelled"}
    cancelled = [call["task_id"] for call in scene.calls("CancelTask")]
    assert len(cancelled) == len(set(cancelled)) == 20
