"""An agent that does not answer is left alone but for one try at a time; nobody else notices, and nothing is lost."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.state import Delegation, Phase
from tests.support.invariants import all_completed, check_at_rest
from tests.support.processes import ScriptedAgent, wait_until
from tests.support.survival import Scene, asks, ends_after, text_of

FAILURES = 4
#: How long the circuit stays open at first, and at most.
FIRST_S, LONGEST_S = 0.4, 0.6
SHORT_CALLS: dict[str, Any] = {"call_deadline": 0.6, "lease_margin": 1}
WORKING: dict[str, Any] = {"states": [["WORKING", 0]]}
MANY = 8


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("breaker")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "ill")}
    timing = {
        **SHORT_CALLS,
        "retry_first": FIRST_S,
        "retry_max": LONGEST_S,
        "unavailable_after": 60,
        "cancel_deadline": 3,
    }
    settings = {"ill": {"updates": "poll"}}
    config = {"limits": {"breaker_failures": FAILURES}}
    with Scene(directory, agents=agents, agent_settings=settings, timing=timing, config=config) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.renew()
    running.records.client.delete(running.records.key("breaker", "ill"))
    return running


def be_ill(scene: Scene, fault: str) -> None:
    agent = scene.scripted["ill"]
    if fault == "dead":
        agent.kill()
    else:
        agent.configure(**{"hang": {"hang": True}, "500": {"status": 500}, "429": {"status": 429}}[fault])


def get_well(scene: Scene) -> None:
    agent = scene.scripted["ill"]
    if not agent.is_alive:
        agent.start()
    agent.configure(hang=False, status=None)


def circuit(scene: Scene) -> dict[str, str]:
    """What Redis knows of the ill agent's circuit; ``opened`` counts since its last answer."""
    found: Any = scene.records.client.hgetall(scene.records.key("breaker", "ill"))
    return dict(found)


def wait_until_open(scene: Scene, times: int = 1) -> None:
    wait_until(lambda: int(circuit(scene).get("opened", 0)) >= times, 20, what=f"circuit opened {times} times")


def open_many(scene: Scene, agent: str, goal: dict[str, Any] = WORKING) -> list[str]:
    """Delegations whose agent tasks are known."""
    ids: list[str] = [scene.open_one(goal, agent=agent) for _ in range(MANY)]
    for delegation_id in ids:
        scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id, what="agent task")
    return ids


def complete_all(scene: Scene, ids: list[str]) -> None:
    for delegation_id in ids:
        scene.scripted["ill"].move(str(scene.load(delegation_id).progress.agent_task_id), "COMPLETED")


def has_failed(delegation: Delegation) -> bool:
    return bool(delegation.progress.failures)


@pytest.mark.parametrize("fault", ["hang", "500"])
def test_an_ill_agent_is_tried_once_at_a_time(scene: Scene, fault: str) -> None:
    """Eight delegations want to look: calls stop but for one, with a pause between, until it answers again."""
    ids = open_many(scene, "ill")
    be_ill(scene, fault)
    wait_until_open(scene, 2)  # by then what was under way when it opened has ended
    seen = len(scene.calls("GetTask", "ill"))
    tries = scene.wait_for_calls("GetTask", seen + 4, agent="ill")[seen:]
    gaps = [later["at"] - sooner["at"] for sooner, later in pairwise(tries)]
    assert min(gaps) >= FIRST_S * 0.9, gaps
    assert scene.scripted["ill"].stats()["in_flight"] <= 1
    assert all(scene.load(each).outcome is None for each in ids)
    get_well(scene)
    complete_all(scene, ids)
    assert all_completed(check_at_rest(scene))
    assert circuit(scene) == {}


@pytest.mark.parametrize("fault", ["hang", "dead"])
def test_other_agents_do_not_notice(scene: Scene, fault: str) -> None:
    """While one agent is ill, delegations to another end about as fast as ever."""
    ids = open_many(scene, "ill")
    alone_s = time_of_ten(scene)
    be_ill(scene, fault)
    wait_until_open(scene)
    assert time_of_ten(scene) < 3 * alone_s + 2
    get_well(scene)
    complete_all(scene, ids)
    assert all_completed(check_at_rest(scene))


def time_of_ten(scene: Scene) -> float:
    began = time.monotonic()
    scene.open_workflow([ends_after(0.1)] * 10).wait(timeout=30)
    return time.monotonic() - began


@pytest.mark.parametrize("fault", ["500", "dead"])
def test_what_is_opened_behind_an_open_circuit_waits(scene: Scene, fault: str) -> None:
    """Neither failed nor holding anything: parked until the agent answers again, then sent once."""
    ids = open_many(scene, "ill")
    be_ill(scene, fault)
    wait_until_open(scene)
    late: list[str] = [scene.open_one(ends_after(0.1), agent="ill") for _ in range(3)]
    for delegation_id in late:
        waiting = scene.wait_for(delegation_id, lambda it: it.parked and has_failed(it), what="parked delegation")
        assert waiting.outcome is None
        assert waiting.phase in (Phase.OPENED, Phase.STARTING)
    get_well(scene)
    complete_all(scene, ids)
    for delegation_id in late:
        scene.wait_until_settled(delegation_id)
    assert all_completed(check_at_rest(scene))
    assert len(scene.ledger("ill", "task")) == MANY + len(late)


def test_a_reply_behind_an_open_circuit_waits(scene: Scene) -> None:
    """Kept, and taken once when the agent answers again."""
    asking = scene.open_one(asks(), agent="ill")
    scene.wait_for_question(asking)
    ids = open_many(scene, "ill")
    be_ill(scene, "dead")
    wait_until_open(scene)
    scene.handle(asking).reply(text_of(ends_after(0)))
    scene.wait_for(asking, has_failed, what="attempt that was put off")
    get_well(scene)
    complete_all(scene, ids)
    scene.wait_until_settled(asking)
    assert all_completed(check_at_rest(scene))
    assert scene.accepted(asking)[1:] == [f"{asking}:reply:1"]


def test_a_cancel_behind_an_open_circuit_ends_in_time(scene: Scene) -> None:
    """Nobody can be asked: CANCELED/cancel.unconfirmed at the cancel deadline, and cancelled there afterwards."""
    ids = open_many(scene, "ill")
    be_ill(scene, "dead")
    wait_until_open(scene)
    scene.handle(ids[0]).cancel()
    outcome = scene.wait_until_settled(ids[0], 15).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (TaskState.CANCELED, "cancel.unconfirmed")
    get_well(scene)
    complete_all(scene, ids[1:])
    check_at_rest(scene)
    assert scene.task_of(ids[0])["status"]["state"] == "TASK_STATE_CANCELED"


def test_an_agent_that_is_only_busy_is_not_ill(scene: Scene) -> None:
    """429 is an answer: the circuit stays closed however often it comes."""
    be_ill(scene, "429")
    delegation_id = scene.open_one(ends_after(0), agent="ill")
    scene.wait_for(delegation_id, lambda it: it.progress.failures > FAILURES, what="many refusals")
    assert "opened" not in circuit(scene)
    get_well(scene)
    assert scene.wait_until_settled(delegation_id).state is TaskState.COMPLETED
    check_at_rest(scene)


def test_an_agent_that_says_no_is_not_ill(scene: Scene) -> None:
    """Errors of the agent's own are answers too."""
    ids = open_many(scene, "ill")
    error = {"code": -32001, "message": "not found"}
    scene.scripted["ill"].script([{"on": "GetTask", "times": FAILURES + 2, "error": error}])
    scene.wait_for_calls("GetTask", FAILURES + 3, agent="ill")
    assert "opened" not in circuit(scene)
    complete_all(scene, ids)
    check_at_rest(scene)
    assert {scene.load(each).state for each in ids} == {TaskState.COMPLETED}


def test_an_agent_that_stays_ill_fails_only_what_was_never_sent(running: Scene) -> None:
    """Before an agent task exists: FAILED/agent.unavailable after unavailable_after. Afterwards: parked on."""
    running.reset()
    running.start_worker(env={"DELEGATION_TIMING__UNAVAILABLE_AFTER": "3"})
    watched = open_many(running, "ill")
    be_ill(running, "dead")
    wait_until_open(running)
    unsent = running.open_one(ends_after(0), agent="ill")
    outcome = running.wait_until_settled(unsent).outcome
    assert outcome is not None
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "agent.unavailable")
    assert all(running.load(each).outcome is None for each in watched)
    get_well(running)
    complete_all(running, watched)
    check_at_rest(running)


def test_whoever_dies_while_trying_is_followed_by_another(running: Scene) -> None:
    """The worker that makes the one try is killed in it: after its lease another tries, and finds the agent well."""
    running.reset(CONTINUATION_VISIBILITY_S="2")
    delegation_id = running.open_one(WORKING, agent="ill")
    running.scripted["ill"].script([{"on": "GetTask", "http": {"status": 500}}])
    dying = running.start_worker(env={"DELEGATION_FAILPOINT": f"fetch.before_call:kill:{FAILURES + 1}"})
    assert dying.wait(30) == -signal.SIGKILL
    assert circuit(running)["probe"] == delegation_id
    running.scripted["ill"].script([])
    running.start_worker()
    complete_all(running, [delegation_id])
    assert all_completed(check_at_rest(running))
    assert circuit(running) == {}
