"""Public bug reports about cancels: unconfirmed, refused, twice, and of a whole family while workers die."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import current_app

from delegation.errors import WorkflowConflict
from tests.support.agent_handle import ScriptedAgent
from tests.support.cases import (
    Bench,
    Rule,
    answer,
    bench,
    ended,
    on_get,
    on_send,
    script_of,
    wait_for_record,
)
from workers import DelegationHandle, Workflow
from workers.talk import want_cancel

POLLED = {"push": False}
UNSUPPORTED: dict[str, Rule] = {
    "c059-32004": {},
    "c059-32601": {"error": {"code": -32601, "message": "no such method"}},
    "c059-501": {"http": {"status": 501, "headers": {}, "body": ""}},
}
AGENTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("c020-CANCELED", "c020-COMPLETED", "c020-WORKING", "c096", *UNSUPPORTED), POLLED),
    "c037": {},
}
#: A cancel deadline of 5 s for 60; a lease of 1.5 s, so that a killed worker does not make a test long.
TIMING = {"cancel_deadline": 5, "call_deadline": 1, "lease_margin": 0.5, "recheck_first": 30, "recheck_max": 30}
CHILDREN = ("C1", "C2", "G1")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("cancel"), AGENTS, timing=TIMING) as started:
        yield started


def begin(it: Bench, agent: str) -> DelegationHandle:
    """A delegation that the agent works on."""
    delegation = it.run(agent, [on_send(answer("WORKING")), on_get(answer("WORKING"))])
    wait_for_record(delegation, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
    return delegation


def wait_for_looks(agent: ScriptedAgent, count: int) -> None:
    agent.wait_for_calls("GetTask", len(agent.calls("GetTask")) + count)


def states_of(delegation: DelegationHandle) -> list[str]:
    return [line["state"] for line in delegation.history()]


@pytest.mark.parametrize("end", ["CANCELED", "COMPLETED"])
def test_c020_a_cancel_is_pending_until_the_agent_says_otherwise(it: Bench, end: str) -> None:
    """200 with a task still WORKING is no end: three more looks, and then whichever end the agent tells."""
    agent = it.agents[f"c020-{end}"]
    delegation = begin(it, agent.name)
    cancel, _working, last = script_of("C020")
    (reply,) = [variant for variant in last.pop("variants") if variant["status"]["state"].endswith(end)]
    agent.script([cancel, on_get(answer("WORKING"))])

    delegation.cancel()
    agent.wait_for_calls("CancelTask")
    wait_for_looks(agent, 3)
    waiting = delegation.describe()
    agent.script([on_get(reply)])

    outcome = ended(delegation)
    assert (waiting["state"], waiting["cancel"], waiting["outcome"]) == ("WORKING", "pending", None)
    assert (outcome["state"], outcome["reason"]) == (end, None)
    assert outcome["text"] == ("ok" if end == "COMPLETED" else "")
    assert delegation.describe()["cancel"] == ("already ended" if end == "COMPLETED" else "cancelled")
    assert len(agent.calls("CancelTask")) == 1


def test_c020_a_cancel_that_is_never_confirmed_is_said_to_be_so(it: Bench) -> None:
    """WORKING past the cancel deadline (5 s for 60): CANCELED here, as cancel.unconfirmed, not a second before."""
    agent = it.agents["c020-WORKING"]
    delegation = begin(it, agent.name)
    agent.script([script_of("C020")[0], on_get(answer("WORKING"))])

    delegation.cancel()
    (asked,) = agent.wait_for_calls("CancelTask")
    outcome = ended(delegation)

    assert (outcome["state"], outcome["reason"]) == ("CANCELED", "cancel.unconfirmed")
    assert delegation.describe()["cancel"] == "unreachable"
    assert agent.calls("GetTask")[-1]["at"] - asked["at"] >= 3
    assert states_of(delegation).count("CANCELED") == 1


@pytest.mark.parametrize("way", UNSUPPORTED)
def test_c059_an_agent_that_cannot_cancel_is_followed_on(it: Bench, way: str) -> None:
    """-32004, -32601, 501: the receipt says refused, nothing has ended, looks go on, and COMPLETED is applied."""
    agent = it.agents[way]
    delegation = begin(it, way)
    cancel, _working, completed = script_of("C059")
    agent.script([{"on": "CancelTask", **UNSUPPORTED[way]} if UNSUPPORTED[way] else cancel, on_get(answer("WORKING"))])

    delegation.cancel()
    agent.wait_for_calls("CancelTask")
    wait_for_looks(agent, 3)
    waiting = delegation.describe()
    agent.script([completed])

    outcome = ended(delegation)
    assert (waiting["state"], waiting["cancel"], waiting["outcome"]) == ("WORKING", "refused", None)
    assert any(line["cause"] == "cancel" and "refused" in line["text"] for line in delegation.history())
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(agent.calls("CancelTask")) == 1


def test_c096_a_second_cancel_is_no_error(it: Bench) -> None:
    """Twice at once, then again after the end: each is answered, CANCELED stays, two CancelTask at most."""
    agent = it.agents["c096"]
    delegation = begin(it, "c096")
    agent.script([*script_of("C096"), on_get(answer("WORKING"))])
    app = current_app._get_current_object()

    def click(_: int) -> str:
        app.set_current()  # Celery's current app is each thread's own
        return want_cancel(app, delegation.id).name

    with ThreadPoolExecutor(2) as pool:
        at_once = list(pool.map(click, range(2)))
    outcome = ended(delegation)
    later = [delegation.cancel(), delegation.cancel("once more")]

    assert "WANTED" in at_once
    assert set(at_once) <= {"WANTED", "WANTED_ALREADY", "ENDED"}
    assert (outcome["state"], outcome["reason"]) == ("CANCELED", None)
    assert later == ["cancelled", "cancelled"]
    assert 1 <= len(agent.calls("CancelTask")) <= 2
    assert states_of(delegation).count("CANCELED") == 1
    assert delegation.describe()["outcome"] == outcome


def test_c037_a_cancelled_parent_takes_all_its_children_along(it: Bench) -> None:
    """A worker dies after the first CancelTask: all three are asked, each ends as its agent says, then the parent."""
    agent = it.agents["c037"]
    workflow = Workflow.open("c037")
    works = [json.dumps({"id": name, "states": [["WORKING", 0]], "push": False}) for name in CHILDREN]
    children = [workflow.delegate("c037", goal) for goal in works]
    for each in children:
        wait_for_record(each, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
    (worker,) = it.deployment.workers
    worker.kill()
    first, finished, slow = script_of("C037")
    done = {"on": "GetTask for C2", "reply": answer("COMPLETED", "done", task_id="C2")}
    agent.script([first, finished, {**slow, "delay_s": 0.5}, done])

    dying = it.deployment.start_worker(wait=False, env={"DELEGATION_FAILPOINT": "cancel.after_call:kill:1"})
    workflow.cancel("not needed")
    assert dying.wait(30) == -signal.SIGKILL
    between = workflow.describe()
    with pytest.raises(WorkflowConflict):
        workflow.delegate("c037", "what must not be begun")
    worker.start()
    after = workflow.wait(30)

    assert between["state"] == "CANCELING"
    assert (after["state"], after["reason"]) == ("CANCELED", "not needed")
    assert [child["state"] for child in after["children"]] == ["CANCELED", "COMPLETED", "CANCELED"]
    assert list(workflow.receipts().values()) == ["cancelled", "already ended", "cancelled"]
    assert {call["task_id"] for call in agent.calls("CancelTask")} == set(CHILDREN)
    assert len(agent.sends()) == len(CHILDREN)
