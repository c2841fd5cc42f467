"""Agents go down, come back, break off, answer nonsense or forget: each delegation ends in the state it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.state import Delegation, Outcome
from tests.support.invariants import Allowed, check_at_rest
from tests.support.processes import ScriptedAgent
from tests.support.survival import SHORT_LEASE, Scene, ends_after

#: Patience as short as tests want it; the looks at a lost agent task come half of ``lost_after`` apart.
TIMING = {**SHORT_LEASE, "unavailable_after": 5, "lost_after": 1, "cleanup_for": 2}
WORKING = {"states": [["WORKING", 0]]}

Rule = dict[str, Any]
BUSY_429: Rule = {"http": {"status": 429, "headers": {"Retry-After": "1"}}}
BUSY_503: Rule = {"http": {"status": 503, "headers": {"Retry-After": "1"}}}
GARBAGE: Rule = {"http": {"status": 200, "body": '{"jsonrpc": "2.0", "id": "<same>", "resu'}}
FAULTS: dict[str, Rule] = {
    "500": {"http": {"status": 500, "body": "<html>oops</html>"}},
    "garbage": GARBAGE,
    "reset": {"end": "reset"},
    "hang": {"end": "hang"},
    "other id": {"reply": {}, "id": "other"},
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("agents")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "other", "gone")}
    with Scene(directory, agents=agents, timing=TIMING) as scene:
        scene.start_worker()
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.soothe_agents()
    return running


def ended(scene: Scene, delegation_id: str, allowed: Allowed | None = None) -> Delegation:
    """The delegation after everything came to rest, all invariants checked."""
    scene.wait_until_settled(delegation_id)
    check_at_rest(scene, allowed or Allowed())
    return scene.load(delegation_id)


def outcome_of(scene: Scene, delegation_id: str, allowed: Allowed | None = None) -> Outcome:
    outcome = ended(scene, delegation_id, allowed).outcome
    assert outcome is not None
    return outcome


def gap_s(entries: list[dict[str, Any]]) -> float:
    first, second = entries
    return float(second["at"] - first["at"])


# ---------------------------------------------------------------- at the send


@pytest.mark.parametrize("fault", FAULTS)
def test_a_send_that_was_done_but_not_answered_is_adopted(scene: Scene, fault: str) -> None:
    """The agent did the work and the answer was lost: it is asked, never sent to again."""
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, "work": True, **FAULTS[fault]}])
    outcome = outcome_of(scene, scene.open_one(ends_after(0.1)))
    assert (outcome.state, outcome.text) == (TaskState.COMPLETED, "ok")
    assert len(scene.calls("SendMessage")) == len(scene.ledger(kind="task")) == 1


@pytest.mark.parametrize("fault", ["500", "hang"])
def test_a_send_that_was_not_done_is_sent_again(scene: Scene, fault: str) -> None:
    """The agent did nothing, which only its empty ListTasks can tell, twice: the same message goes out once more."""
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, **FAULTS[fault]}])
    assert outcome_of(scene, scene.open_one(ends_after(0.1))).state is TaskState.COMPLETED
    sends = scene.calls("SendMessage")
    assert len(sends) == 2
    assert gap_s(sends) >= 2.5  # a lease and a call deadline: by then nobody can still be delivering the first


@pytest.mark.parametrize("busy", [BUSY_429, BUSY_503], ids=["429", "503"])
def test_a_busy_agent_is_left_alone_as_long_as_it_asks(scene: Scene, busy: Rule) -> None:
    """429, or 503 with Retry-After: nothing was started, and the same message comes after the wait."""
    scene.scripted["a"].script([{"on": "SendMessage", "times": 1, **busy}])
    assert outcome_of(scene, scene.open_one(ends_after(0.1))).state is TaskState.COMPLETED
    assert gap_s(scene.calls("SendMessage")) >= 0.99


def test_an_agent_that_stays_busy_is_unavailable(scene: Scene) -> None:
    """Nothing was started within unavailable_after: FAILED/agent.unavailable, no agent task."""
    scene.scripted["a"].script([{"on": "SendMessage", **BUSY_429}])
    outcome = outcome_of(scene, scene.open_one(ends_after(0.1)))
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "agent.unavailable")
    assert not scene.ledger(kind="task")


def test_a_message_instead_of_a_task_is_the_answer(scene: Scene) -> None:
    """COMPLETED with the message's text; there is nothing to watch, to fetch or to remove."""
    outcome = outcome_of(scene, scene.open_one({"message": "forty-two"}))
    assert (outcome.state, outcome.text, outcome.agent_task_id) == (TaskState.COMPLETED, "forty-two", None)
    assert [call["method"] for call in scene.ledger(kind="call")] == ["SendMessage"]


def test_a_terminal_first_answer_is_the_end(scene: Scene) -> None:
    """Settled from the answer to SendMessage: no fetch, and the push config sent with it is removed."""
    outcome = outcome_of(scene, scene.open_one({"states": [["COMPLETED", 0]], "artifact": "at once"}))
    assert (outcome.state, outcome.text) == (TaskState.COMPLETED, "at once")
    assert not scene.calls("GetTask")
    assert [entry["was_there"] for entry in scene.ledger(kind="config_deleted")] == [True]


@pytest.mark.parametrize("at", [0, 0.1])
def test_a_rejection_is_the_agents_own_end(scene: Scene, at: float) -> None:
    """REJECTED, at once or later, is the outcome's state, without a reason of ours."""
    states = [["SUBMITTED", 0], ["REJECTED", at, "not my trade"]]
    outcome = outcome_of(scene, scene.open_one({"states": states}))
    assert (outcome.state, outcome.text, outcome.reason) == (TaskState.REJECTED, "not my trade", None)


# ---------------------------------------------------------------- at the fetch


@pytest.mark.parametrize("fault", [*FAULTS, "429", "503"])
def test_a_fetch_that_fails_is_made_again(scene: Scene, fault: str) -> None:
    """Twice no usable answer to GetTask: asked again later, and the third answer counts."""
    rule = {"429": BUSY_429, "503": BUSY_503, **FAULTS}[fault]
    scene.scripted["a"].script([{"on": "GetTask", "times": 2, **rule}])
    assert outcome_of(scene, scene.open_one(ends_after(0.1))).state is TaskState.COMPLETED
    fetches = scene.calls("GetTask")
    assert len(fetches) == 3
    if fault in ("429", "503"):
        assert gap_s(fetches[:2]) >= 0.99


def test_an_answer_about_another_task_is_not_taken(scene: Scene) -> None:
    """GetTask answers with a foreign task that is COMPLETED: it is not ours, and ours goes on."""
    foreign = {"id": "somebody-elses", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}
    scene.scripted["a"].script([{"on": "GetTask", "times": 1, "reply": foreign}])
    outcome = outcome_of(scene, scene.open_one({"states": [["WORKING", 0], ["FAILED", 0.1]]}))
    assert outcome.state is TaskState.FAILED


def test_an_unknown_state_is_not_an_end(scene: Scene) -> None:
    """A state that A2A does not know keeps the last known one; the history tells it."""
    states = [["WORKING", 0], ["TASK_STATE_PONDERING", 0.1], ["COMPLETED", 0.8]]
    delegation_id = scene.open_one({"states": states})
    assert outcome_of(scene, delegation_id).state is TaskState.COMPLETED
    texts = [entry["text"] for entry in scene.records.history(delegation_id)]
    assert any("unknown_state" in text and "PONDERING" in text for text in texts)


def test_an_agent_task_not_found_once_is_looked_for_again(scene: Scene) -> None:
    """One -32001 may be another replica."""
    error = {"code": -32001, "message": "no such task"}
    scene.scripted["a"].script([{"on": "GetTask", "times": 1, "error": error}])
    assert outcome_of(scene, scene.open_one(ends_after(0.1))).state is TaskState.COMPLETED


def test_an_agent_that_lost_the_task_ends_it(scene: Scene) -> None:
    """-32001 three times over lost_after: FAILED/agent_task.lost."""
    scene.scripted["a"].script([{"on": "GetTask", "error": {"code": -32001, "message": "no such task"}}])
    outcome = outcome_of(scene, scene.open_one(ends_after(0.1)))
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "agent_task.lost")
    assert len(scene.calls("GetTask")) == 3


# ---------------------------------------------------------------- down


def test_an_agent_that_is_down_at_the_start_is_waited_for(scene: Scene) -> None:
    """Its card is known and nothing answers; when it is back it gets the message, once."""
    ended(scene, scene.open_one())
    wait_for_return(scene, sends=2)


def test_an_agent_whose_card_nobody_has_seen_is_waited_for(tmp_path: Path) -> None:
    """Not even its card can be had at the start, and that is remembered for seconds only."""
    agent = ScriptedAgent(tmp_path, name="a")
    with Scene(tmp_path, agents={"a": agent}, timing={"unavailable_after": 30}, web=False) as scene:
        scene.start_worker()
        wait_for_return(scene)


def wait_for_return(scene: Scene, sends: int = 1) -> None:
    scene.scripted["a"].kill()
    delegation_id = scene.open_one(ends_after(0.1))
    scene.wait_for(delegation_id, lambda it: it.progress.failures, what="failed attempt")
    scene.scripted["a"].start()
    assert outcome_of(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.calls("SendMessage")) == sends


@pytest.mark.parametrize("agent", ["gone", "a"], ids=["card never seen", "card known"])
def test_an_agent_that_stays_down_is_unavailable(scene: Scene, agent: str) -> None:
    """Nothing answers within unavailable_after: FAILED/agent.unavailable, and only for that agent."""
    scene.scripted[agent].kill()
    call = scene.delegate(agent, ends_after(0.1)).apply_async()
    other = scene.open_one(ends_after(0.1), agent="other") if agent == "a" else scene.open_one(ends_after(0.1))
    assert scene.wait_until_settled(other, timeout_s=5).state is TaskState.COMPLETED
    outcome = outcome_of(scene, scene.id_of(call.id))
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "agent.unavailable")


def test_an_agent_that_is_down_at_the_fetch_is_waited_for(scene: Scene) -> None:
    """Its task exists, so the delegation stays parked; back with its memory, the agent tells the end."""
    delegation_id = scene.open_one(WORKING)
    task_id = scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id, what="agent task")
    scene.scripted["a"].kill()
    scene.wait_for(delegation_id, lambda it: it.progress.failures >= 2, what="failed fetches")
    scene.scripted["a"].start()
    scene.scripted["a"].move(str(task_id.progress.agent_task_id), "COMPLETED")
    assert outcome_of(scene, delegation_id).state is TaskState.COMPLETED


def test_an_agent_that_goes_for_good_costs_the_deadline_and_no_more(scene: Scene) -> None:
    """Down at the fetch for ever: FAILED/deadline.exceeded, with the last state it told in the history."""
    delegation_id = scene.open_one(WORKING, deadline="PT3S")
    scene.wait_for(delegation_id, lambda it: it.progress.agent_task_id, what="agent task")
    scene.scripted["a"].kill(keep_memory=False)
    outcome = outcome_of(scene, delegation_id)
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "deadline.exceeded")
    assert scene.records.history(delegation_id)[-2]["state"] == "WORKING"
