"""Two workers want the same delegation, one sleeps past its lease, a step kills whoever takes it, an agent hangs."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delegation.agent_task import TaskState
from delegation.errors import AgentTaskFailed
from delegation.state import Delegation, Outcome, Phase
from tests.support.child import wait_until
from tests.support.invariants import Allowed, all_completed, check_at_rest
from tests.support.processes import CeleryWorker, ScriptedAgent
from tests.support.survival import SHORT_LEASE, Scene, ends_after

TIMING = {**SHORT_LEASE, "cleanup_for": 3}
#: For a test that has to wait for many of them, one after the other.
SHORTEST_LEASE = {"DELEGATION_TIMING__CALL_DEADLINE": "0.3", "DELEGATION_TIMING__LEASE_MARGIN": "0.3"}
WORKING = {"states": [["WORKING", 0]]}
DEADLINE_S = 3.0
#: The promise is 20 s after the deadline with the default timing; half of it here, on a busy machine.
OVERRUN_S = 10.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("races")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "b", "resending")}
    settings = {"resending": {"on_ambiguous_send": "resend"}}
    with Scene(directory, agents=agents, agent_settings=settings, timing=TIMING) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.reset()
    return running


def start_two(scene: Scene, **env: str) -> list[CeleryWorker]:
    workers = [scene.start_worker(wait=False, env=env) for _ in range(2)]
    for worker in workers:
        worker.wait_until_ready()
    return workers


def outcome_of(scene: Scene, delegation_id: str) -> Outcome:
    outcome = scene.wait_until_settled(delegation_id).outcome
    assert outcome is not None
    return outcome


def complete(scene: Scene, delegation: Delegation) -> None:
    assert delegation.progress.agent_task_id is not None
    scene.scripted[delegation.agent].move(delegation.progress.agent_task_id, "COMPLETED")


def wait_until_stopped(worker: CeleryWorker) -> None:
    """Until the worker has sent SIGSTOP to itself."""

    def is_stopped() -> bool:
        return "State:\tT" in Path(f"/proc/{worker.pid}/status").read_text(encoding="ascii")

    wait_until(is_stopped, 20, what="worker that stopped itself")


# ---------------------------------------------------------------- races


def test_two_workers_given_the_same_start_send_once(scene: Scene) -> None:
    """Ten copies of each of ten start messages over two workers: ten agent tasks, ten sends."""
    start_two(scene)
    scene.scripted["a"].script([{"on": "SendMessage", "delay_s": 0.2}])
    workflow = scene.open_workflow([ends_after(0.3) for _ in range(10)])
    assert scene.app is not None
    for _ in range(9):
        for child in workflow.children():
            scene.app.tasks["delegation.start_agent_task"].apply_async((child.id,), task_id=f"{child.id}.start")
    assert all_completed(check_at_rest(scene))
    assert len(scene.ledger(kind="task")) == len(scene.calls("SendMessage")) == 10


def test_a_worker_that_sleeps_through_its_send_finds_its_place_taken(scene: Scene) -> None:
    """Stopped while the agent answers: the other worker adopts the agent task, the sleeper's late write is refused."""
    sleeper = scene.start_worker()
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, "delay_s": 0.5, "work": True}])
    delegation_id = scene.open_one(WORKING)
    scene.wait_for_calls("SendMessage")
    sleeper.pause()
    scene.start_worker()
    adopted = scene.wait_for(delegation_id, lambda it: it.phase is Phase.WATCHING, what="adopted agent task")
    sleeper.resume()
    sleeper.wait_for_output("delegation.write_refused")
    complete(scene, adopted)
    assert all_completed(check_at_rest(scene))
    assert scene.load(delegation_id).progress.agent_task_id == adopted.progress.agent_task_id
    assert len(scene.ledger(kind="task")) == len(scene.calls("SendMessage")) == 1
    assert not scene.calls("CancelTask")


def test_a_zombies_own_agent_task_is_cancelled(scene: Scene) -> None:
    """Where the other worker had to send again, the one that wakes up late cancels the agent task it made."""
    agent = scene.scripted["resending"]
    agent.configure(list_tasks=False)
    agent.script([{"on": "SendMessage", "times": 1, "delay_s": 0.5}])
    sleeper = scene.start_worker()
    call = scene.delegate("resending", WORKING).apply_async()
    scene.wait_for_calls("SendMessage", agent="resending")
    sleeper.pause()
    scene.start_worker()
    adopted = scene.wait_for(scene.id_of(call.id), lambda it: it.phase is Phase.WATCHING, what="second agent task")
    sleeper.resume()
    (cancelled,) = scene.wait_for_calls("CancelTask", agent="resending")
    complete(scene, adopted)
    assert all_completed(check_at_rest(scene, Allowed(agent_tasks=2)))
    first, second = scene.ledger("resending", "task")
    assert (first["task_id"], second["task_id"]) == (cancelled["task_id"], adopted.progress.agent_task_id)


def test_a_worker_that_sleeps_between_intent_and_send_does_not_send(scene: Scene) -> None:
    """Its lease is over when it wakes up, the other worker has sent: a second agent task is never made."""
    delegation_id = scene.open_one(WORKING)
    sleeper = scene.start_worker(env={"DELEGATION_FAILPOINT": "send.after_intent:stop:1"})
    wait_until_stopped(sleeper)
    scene.start_worker()
    watched = scene.wait_for(delegation_id, lambda it: it.phase is Phase.WATCHING, what="agent task")
    sleeper.resume()
    sleeper.wait_for_output("delegation.write_refused")
    complete(scene, watched)
    assert all_completed(check_at_rest(scene))
    assert len(scene.ledger(kind="task")) == len(scene.calls("SendMessage")) == 1


def test_a_worker_that_sleeps_through_its_fetch_changes_nothing(scene: Scene) -> None:
    """It wakes up with an old answer after the other one settled: its write is refused, and the end stays the end."""
    delegation_id = scene.open_one({"states": [["WORKING", 0], ["WORKING", 0.2, "half"], ["COMPLETED", 1]]})
    sleeper = scene.start_worker(env={"DELEGATION_FAILPOINT": "apply.before:stop:1"})
    wait_until_stopped(sleeper)
    scene.start_worker()
    scene.wait_for(delegation_id, lambda it: it.phase is Phase.RELEASED, what="end")
    sleeper.resume()
    sleeper.wait_for_output("delegation.write_refused")
    assert all_completed(check_at_rest(scene))


# ---------------------------------------------------------------- poison


@pytest.mark.parametrize("point", ["fetch.before_call", "send.after_intent"])
def test_a_step_that_kills_every_worker_is_poisoned(scene: Scene, point: str) -> None:
    """Five attempts in a row that ended in a crash: FAILED/poisoned, and the sixth worker lives."""
    delegation_id = scene.open_one(ends_after(0.1))
    for _ in range(5):
        assert scene.start_dying_worker(point, **SHORTEST_LEASE).wait() == -signal.SIGKILL
    survivor = scene.start_dying_worker(point, **SHORTEST_LEASE)
    outcome = outcome_of(scene, delegation_id)
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "poisoned")
    check_at_rest(scene, Allowed(unacked=True))
    assert survivor.is_alive


# ---------------------------------------------------------------- hanging


@pytest.mark.parametrize("rules", [[{"on": "SendMessage", "end": "hang"}], None], ids=["at the send", "at everything"])
def test_a_hanging_agent_slows_nobody_else(scene: Scene, rules: list[dict[str, str]] | None) -> None:
    """Forty delegations at an agent that hangs, twenty at another: those end about as fast as alone."""
    # A call slot goes with its lease: the margin must outlast a busy machine, or two calls hold one slot.
    start_two(scene, DELEGATION_TIMING__LEASE_MARGIN="5")
    alone_s = time_of_twenty(scene)
    hanging = scene.scripted["b"]
    if rules is None:
        hanging.configure(hang=True)
    else:
        hanging.script(rules)
    for _ in range(40):
        scene.open_one(WORKING, agent="b", deadline="PT5S")
    if rules is not None:
        scene.wait_for_calls("SendMessage", 8, agent="b")
    assert time_of_twenty(scene) < 3 * alone_s + 2
    check_at_rest(scene, timeout_s=40)
    assert hanging.stats()["max_in_flight"] <= 8


def time_of_twenty(scene: Scene) -> float:
    began = time.monotonic()
    workflow = scene.open_workflow([ends_after(0.1) for _ in range(20)])
    workflow.wait(timeout=60)
    return time.monotonic() - began


# ---------------------------------------------------------------- deadlines


def check_deadline(scene: Scene, delegation_id: str) -> None:
    """FAILED/deadline.exceeded, not before the deadline and not long after it, by Redis' clock."""
    delegation = scene.wait_until_settled(delegation_id, DEADLINE_S + OVERRUN_S)
    outcome = delegation.outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "deadline.exceeded")
    overrun = scene.records.history(delegation_id)[-1]["at"] - (delegation.created_at + DEADLINE_S)
    assert 0 <= overrun < OVERRUN_S


def test_the_deadline_cancels_the_agent_task(scene: Scene) -> None:
    """A living agent gets CancelTask, once, and the caller AgentTaskFailed."""
    scene.start_worker()
    call = scene.delegate(goal=WORKING, deadline="PT3S").apply_async()
    with pytest.raises(AgentTaskFailed, match=r"deadline\.exceeded"):
        call.get(timeout=DEADLINE_S + OVERRUN_S)
    check_deadline(scene, scene.id_of(call.id))
    check_at_rest(scene)
    assert len(scene.calls("CancelTask")) == 1
    assert scene.scripted["a"].tasks()[-1]["status"]["state"] == "TASK_STATE_CANCELED"


def test_the_deadline_needs_no_agent(scene: Scene) -> None:
    """The agent has been gone since the fetch."""
    scene.start_worker()
    delegation_id = scene.open_one(WORKING, deadline="PT3S")
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id, what="agent task")
    scene.scripted["a"].kill(keep_memory=False)
    check_deadline(scene, delegation_id)


@pytest.mark.parametrize("method", ["SendMessage", "GetTask"])
def test_the_deadline_does_not_wait_for_an_agent_that_hangs(scene: Scene, method: str) -> None:
    """Every call hangs until its own deadline, and is made again; the delegation's deadline ends that."""
    scene.start_worker()
    scene.scripted["a"].script([{"on": method, "end": "hang"}])
    delegation_id = scene.open_one(ends_after(0.1), deadline="PT3S")
    check_deadline(scene, delegation_id)
    check_at_rest(scene)
    assert scene.calls(method)


@pytest.mark.parametrize("point", ["send.after_intent", "fetch.before_call"])
def test_the_deadline_overrides_a_lease(scene: Scene, point: str) -> None:
    """A step hangs and holds the lease: the expiry ends the delegation over its head."""
    scene.start_worker(env={"DELEGATION_FAILPOINT": f"{point}:hang:1", "DELEGATION_TIMING__LEASE_MARGIN": "60"})
    delegation_id = scene.open_one(ends_after(0.1), deadline="PT3S")
    scene.wait_for(delegation_id, lambda it: it.timers.lease_until, what="lease")
    check_deadline(scene, delegation_id)
