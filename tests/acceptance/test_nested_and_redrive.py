"""Workflows inside workflows, redriven delegations, and outcomes older than Celery's results, with a real worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from delegation.errors import IdempotencyConflict, InvalidArguments, WorkflowConflict
from tests.support import foreign_tasks as shop
from tests.support.caller import Witness, caller_in
from tests.support.processes import Deployment, ScriptedAgent, wait_until
from workers import DelegationHandle, Workflow, delegate
from workers.celery_settings import celery_prefix

WAIT_S = 30
DEPTH = 5


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("nested")
    agents = {name: ScriptedAgent(directory, name=name) for name in ("a", "b")}
    deployment = Deployment(directory, agents=agents, config={"limits": {"depth": DEPTH}}, workers=0)
    deployment.env |= Witness(deployment.valkey).environment
    with deployment:
        deployment.start_worker(options=("-I", "tests.support.foreign_tasks"))
        yield deployment


@pytest.fixture(scope="module", autouse=True)
def app(deployment: Deployment) -> Iterator[Celery]:
    with caller_in(deployment) as app:
        yield app


@pytest.fixture
def witness(deployment: Deployment) -> Witness:
    return Witness(deployment.valkey)


def goal(artifact: str = "ok", state: str = "COMPLETED", after: float = 0.1) -> str:
    return json.dumps({"states": [["WORKING", 0], [state, after]], "artifact": artifact})


def failed(workflow: Workflow | None = None, **arguments: Any) -> DelegationHandle:
    """A delegation that has ended FAILED."""
    given = {"agent": "a", "goal": goal(state="FAILED"), "on_failure": "return", **arguments}
    handle = workflow.delegate(**given) if workflow else DelegationHandle.get(delegate.delay(**given).id)
    assert handle.wait(WAIT_S)["state"] == "FAILED"
    return handle


# ---------------------------------------------------------------- nested


def test_a_parent_goes_on_when_its_child_workflow_is_completed(witness: Witness) -> None:
    """Two rounds inside, then complete(): the parent goes on once and reads delegation and workflow alike."""
    parent = Workflow.open("trip")
    alone = parent.delegate("a", goal("flight"))
    leg = parent.open_child("hotel")
    leg.delegate("a", goal("room"))
    leg.join(then=shop.go_on.s([[goal("breakfast")]], "leg"))
    assert parent.join(then=shop.keep_call.s(key="nested")) is None
    [call] = witness.wait_for("nested", timeout_s=WAIT_S)
    assert call["kwargs"]["workflow_id"] == parent.id
    assert [each["texts"] for each in witness.saw("leg")] == [["room"], ["room", "breakfast"]]
    outcomes = parent.outcomes()
    assert list(outcomes) == [alone.id, leg.id]
    assert outcomes[leg.id] == {
        "workflow_id": leg.id,
        "name": "hotel",
        "state": "COMPLETED",
        "result": {"rounds": 2},
        "reason": None,
    }
    assert [note["delegation_id"] for note in parent.notes()] == [alone.id, leg.id]
    assert [each.id for each in parent.child_workflows()] == [leg.id]
    assert leg.describe()["parent_id"] == parent.id
    parent.complete()


def test_a_parent_hears_of_its_child_workflows_end_by_on_note(witness: Witness) -> None:
    """A message with ids only, as for a delegation's end."""
    parent = Workflow.open(on_note=shop.keep_call.s(key="told of a leg"))
    leg = parent.open_child("leg")
    leg.fail("no rooms")
    [call] = witness.wait_for("told of a leg", timeout_s=WAIT_S)
    assert call["kwargs"] == {"workflow_id": parent.id, "delegation_id": leg.id, "note": 1}
    assert parent.outcomes()[leg.id] == {
        "workflow_id": leg.id,
        "name": "leg",
        "state": "FAILED",
        "result": None,
        "reason": "no rooms",
    }


def test_c073_agents_that_delegate_in_a_circle_come_to_an_end(deployment: Deployment, witness: Witness) -> None:
    """Each gives its work to the other, in a workflow inside its own: the sixth is refused before anything is sent,
    every parent hears of it, and every workflow ends."""
    agents = [deployment.agents[name] for name in ("a", "b")]
    sent = sum(len(agent.calls("SendMessage")) for agent in agents)
    top = Workflow.open("circle")
    top.delegate("a", goal())
    top.join(then=shop.pass_on.s(["b", "a"], goal(), "circle"))
    [refused] = witness.wait_for("circle", timeout_s=WAIT_S)
    assert refused["code"] == "workflow.too_deep"
    wait_until(lambda: top.describe()["state"] == "COMPLETED", WAIT_S, what="end of the circle")
    assert sum(len(agent.calls("SendMessage")) for agent in agents) - sent == DEPTH
    states, workflow = list[str](), top
    while nested := workflow.child_workflows():
        (workflow,) = nested
        states.append(workflow.describe()["state"])
    assert states == ["COMPLETED"] * (DEPTH - 2) + ["FAILED"]
    assert [note["state"] for note in top.notes()] == ["COMPLETED", "COMPLETED"]
    assert len(witness.saw("circle")) == 1


# ---------------------------------------------------------------- redrive


def test_a_redriven_delegation_remembers_its_ancestor(deployment: Deployment) -> None:
    """Same brief, agent and options, a new deadline, a new agent task; its history says what it does again."""
    old = failed(
        name="Find", step="plan 7", description="soon", acceptance_criteria=["cheap"], deadline=timedelta(minutes=1)
    )
    new = old.redrive()
    before, after = old.describe(), new.describe()
    assert after["ancestor"] == old.id
    assert all(after[name] == before[name] for name in ("agent", "name", "goal", "step"))
    assert after["deadline_at"] > before["deadline_at"]
    assert new.wait(WAIT_S)["state"] == "FAILED"
    assert new.history()[0]["text"] == f"does {old.id} again"
    assert new.describe()["agent_task_id"] != before["agent_task_id"]
    briefs = [deployment.store().load(each.id).delegation.brief for each in (old, new)]
    assert briefs[0] == briefs[1]
    assert new.redrive().describe()["ancestor"] == new.id


def test_redriving_twice_at_once_gives_one(deployment: Deployment) -> None:
    """Eight callers at the same moment get the same delegation, alone and in a workflow; ``force`` gives another."""
    del deployment
    for workflow in (None, Workflow.open()):
        old, found = failed(workflow), list[str]()
        threads = [threading.Thread(target=lambda: found.append(old.redrive().id)) for _ in range(8)]  # noqa: B023
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1
        assert old.redrive(force=True).id not in {*found, old.id}


def test_a_redriven_child_is_a_child_of_the_same_workflow() -> None:
    """It blocks the workflow as any child; one that takes no more refuses, and ``alone`` leaves it."""
    workflow = Workflow.open()
    old = failed(workflow)
    new = old.redrive()
    assert new.id.startswith(f"{workflow.id}.")
    new.wait(WAIT_S)
    workflow.complete()
    with pytest.raises(WorkflowConflict):
        new.redrive()
    alone = new.redrive(alone=True).describe()
    assert (alone["workflow_id"], alone["ancestor"]) == (None, new.id)


def test_a_callers_key_is_never_taken_for_a_redrive() -> None:
    """Whatever it says, `redrive` makes a new delegation that remembers its ancestor."""
    workflow = Workflow.open()
    old = failed(workflow)
    theirs = failed(workflow, idempotency_key=f"redrive:{old.id}")
    new = old.redrive()
    assert new.id != theirs.id
    assert new.describe()["ancestor"] == old.id
    assert old.redrive(alone=True).id not in (new.id, theirs.id)


def test_only_what_failed_can_be_redriven() -> None:
    """Neither one that is COMPLETED, nor one at work."""
    done = DelegationHandle.get(delegate.delay(agent="a", goal=goal()).id)
    done.wait(WAIT_S)
    working = DelegationHandle.get(delegate.delay(agent="a", goal=goal(after=60)).id)
    for each in (done, working):
        with pytest.raises(InvalidArguments, match="did not fail"):
            each.redrive()
    working.cancel()
    with pytest.raises(Exception, match="CANCELED"):
        working.wait(WAIT_S)
    assert working.redrive().describe()["ancestor"] == working.id


def test_an_idempotency_key_holds_inside_a_workflow() -> None:
    """The same key gives the same child, in any round; another workflow has its own; other arguments are an error."""
    workflow, other = Workflow.open(), Workflow.open()
    first = workflow.delegate("a", goal(), idempotency_key="one")
    first.wait(WAIT_S)
    workflow.join()
    again = workflow.delegate("a", goal(), idempotency_key="one")
    assert again.id == first.id
    assert other.delegate("a", goal(), idempotency_key="one").id != first.id
    with pytest.raises(IdempotencyConflict):
        workflow.delegate("a", goal("else"), idempotency_key="one")
    assert len(workflow.children()) == 1


# ---------------------------------------------------------------- results of any age


def test_outcomes_outlast_celerys_results(app: Celery, deployment: Deployment) -> None:
    """Results that expired, as after ``result_expires``: a chord would hang, the workflow has every outcome."""
    workflow = Workflow.open()
    for part in ("one", "two"):
        workflow.delegate("a", goal(part))
    workflow.join()
    workflow.wait(WAIT_S)
    names = f"{celery_prefix(deployment.settings())}celery-task-meta-{workflow.id}*"
    with deployment.valkey.client() as client:
        results = wait_until(lambda: sorted(client.scan_iter(match=names)), WAIT_S, what="Celery's results")
        for result in results:
            client.expire(result, 1)
        wait_until(lambda: not client.exists(*results), WAIT_S, what="results that expire")
    assert app.AsyncResult(f"{workflow.id}.1.delegate").state == "PENDING"
    outcomes = Workflow.get(workflow.id).outcomes()
    assert [outcome and outcome["text"] for outcome in outcomes.values()] == ["one", "two"]
    workflow.complete()


# ---------------------------------------------------------------- command line


def test_the_command_line_joins_with_a_policy_and_shows_it(deployment: Deployment) -> None:
    """Each spelling; what is none is refused with the list, and no join with another policy is taken for this one."""
    workflow = Workflow.open("race")
    workflow.delegate("a", goal())
    workflow.delegate("a", goal(after=60))
    refused = deployment.command("workflow", "join", workflow.id, "--policy", "most")
    assert refused.returncode == 2
    assert "quorum=N" in refused.stderr
    joined = deployment.command("workflow", "join", workflow.id, "--policy", "first_success")
    assert joined.returncode == 0, joined.stderr
    shown = deployment.command("workflow", "show", workflow.id)
    assert "join first_success: satisfied" in shown.stdout
    described = json.loads(deployment.command("workflow", "show", workflow.id, "--json").stdout)
    assert (described["policy"], described["satisfied"]) == ("first_success", True)

    other = Workflow.open()
    other.delegate("a", goal(after=60))
    other.join(policy={"quorum": 1})
    conflict = deployment.command("workflow", "join", other.id, "--policy", "quorum=2")
    assert conflict.returncode == 2
    assert "quorum 1" in conflict.stderr
    other.cancel()


def test_the_command_line_shows_child_workflows(deployment: Deployment) -> None:
    """As a row of the tree, and in its JSON."""
    parent = Workflow.open("tour")
    leg = parent.open_child("the hotel")
    shown = deployment.command("workflow", "show", parent.id)
    assert "the hotel" in shown.stdout
    assert leg.id in shown.stdout
    (nested,) = json.loads(deployment.command("workflow", "show", parent.id, "--json").stdout)["workflows"]
    assert (nested["workflow_id"], nested["state"], nested["unresolved"]) == (leg.id, "OPEN", 0)
    parent.cancel()


def test_the_command_line_redrives(deployment: Deployment) -> None:
    """It prints the new id alone, the same again for a second try, another with --force."""
    old = failed()
    first, second = (deployment.command("redrive", old.id) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout
    assert DelegationHandle.get(first.stdout.strip()).describe()["ancestor"] == old.id
    forced = json.loads(deployment.command("redrive", old.id, "--force", "--json").stdout)
    assert forced["id"] not in (old.id, first.stdout.strip())
    assert old.id in deployment.command("show", forced["id"]).stdout
    refused = deployment.command("redrive", Workflow.open().id)
    assert refused.returncode == 2
