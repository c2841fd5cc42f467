"""A workflow is blocked by its unresolved children and resumed exactly once a round, with a real worker and agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import NotRegistered

from delegation.errors import InvalidArguments, UnknownWorkflow, UnresolvedChildren, WorkflowConflict
from delegation.store import Store
from tests.support import foreign_tasks as shop
from tests.support.caller import Witness, caller_in
from tests.support.processes import Deployment, ScriptedAgent, wait_until
from workers import Workflow, delegate

WAIT_S = 20
RETENTION_S = 4321


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("workflows")
    deployment = Deployment(
        directory,
        agents={"a": ScriptedAgent(directory, name="a")},
        config={"defaults": {"retention": RETENTION_S}, "limits": {"attempts": 3}},
        workers=0,
    )
    deployment.env |= Witness(deployment.valkey).environment
    with deployment:
        queues = ("delegations", "delegations.end", "theirs")
        deployment.start_worker(options=("-I", "tests.support.foreign_tasks"), queues=queues)
        yield deployment


@pytest.fixture(scope="module", autouse=True)
def app(deployment: Deployment) -> Iterator[Celery]:
    with caller_in(deployment) as app:
        yield app


@pytest.fixture
def witness(deployment: Deployment) -> Witness:
    return Witness(deployment.valkey)


@pytest.fixture(scope="module")
def store(deployment: Deployment) -> Store:
    return deployment.store()


def goal(artifact: str = "ok", state: str = "COMPLETED", after: float = 0.1) -> str:
    return json.dumps({"states": [["WORKING", 0], [state, after]], "artifact": artifact})


def wait_until_nothing_is_due(store: Store, workflow: Workflow) -> None:
    """No message about this workflow will be sent any more."""
    wait_until(lambda: not store.load_workflow(workflow.id).is_publishing, WAIT_S, what="peace")


# ---------------------------------------------------------------- joining


def test_a_joined_workflow_is_resumed_once_after_its_last_child(store: Store, witness: Witness) -> None:
    """`then` gets its own arguments, workflow_id, release_id and round, under the release's fixed Celery id."""
    workflow = Workflow.open(name="trip")
    children = [workflow.delegate("a", goal(f"part {n}", after=0.1 + 0.3 * n)) for n in range(3)]
    assert workflow.join(then=shop.keep_call.s("mine", key="resumed")) is None
    [call] = witness.wait_for("resumed")
    release = f"{workflow.id}.release.1"
    assert call["args"] == ["mine"]
    assert call["kwargs"] == {"workflow_id": workflow.id, "release_id": release, "round": 1}
    assert call["id"] == release
    assert [child.describe()["state"] for child in children] == ["COMPLETED"] * 3
    wait_until_nothing_is_due(store, workflow)
    assert len(witness.saw("resumed")) == 1
    seen = workflow.describe()["continuation"]
    assert (seen["task"], seen["state"]) == ("shop.keep_call", "seen")


def test_a_join_without_children_fires_at_once(witness: Witness) -> None:
    """Nothing to wait for: the release's id is known when `join` returns."""
    workflow = Workflow.open()
    release = workflow.join(then=shop.keep_call.s(key="childless"))
    assert release == f"{workflow.id}.release.1"
    assert [call["id"] for call in witness.wait_for("childless")] == [release]


def test_a_join_after_the_last_child_fires_at_once(witness: Witness) -> None:
    """The barrier is the set of unresolved children, not the order of calls."""
    workflow = Workflow.open()
    workflow.delegate("a", goal()).wait(WAIT_S)
    assert workflow.join(then=shop.keep_call.s(key="late join")) is not None
    witness.wait_for("late join")


def test_failed_children_are_resolved_children(witness: Witness) -> None:
    """Whatever a child's state, its end counts; the continuation reads the outcomes."""
    workflow = Workflow.open()
    workflow.delegate("a", goal("good"))
    workflow.delegate("a", goal(state="FAILED"))
    workflow.delegate("a", goal(state="REJECTED"), on_failure="return")
    workflow.join(then=shop.go_on.s([], "mixed"))
    [call] = witness.wait_for("mixed")
    assert call["texts"] == ["good", "", ""]
    assert [outcome["state"] for outcome in workflow.outcomes().values()] == ["COMPLETED", "FAILED", "REJECTED"]


def test_a_workflow_goes_through_several_rounds(store: Store, witness: Witness) -> None:
    """The continuation delegates more and joins again; each round has its own release, and the last one completes."""
    workflow = Workflow.open(name="rounds")
    workflow.delegate("a", goal("1a"))
    workflow.delegate("a", goal("1b"))
    workflow.join(then=shop.go_on.s([[goal("2a")], [goal("3a"), goal("3b")]], "rounds"))
    calls = witness.wait_for("rounds", 3)
    assert [(call["round"], call["release_id"]) for call in calls] == [
        (n, f"{workflow.id}.release.{n}") for n in (1, 2, 3)
    ]
    assert calls[-1]["texts"] == ["1a", "1b", "2a", "3a", "3b"]
    wait_until(lambda: workflow.describe()["state"] == "COMPLETED", WAIT_S, what="end of the workflow")
    assert store.load_workflow(workflow.id).result == {"rounds": 3}
    wait_until_nothing_is_due(store, workflow)
    assert len(witness.saw("rounds")) == 3


def test_a_waiting_caller_sees_the_release() -> None:
    """Without `then`, `wait` is the barrier of a program that stays."""
    workflow = Workflow.open()
    workflow.delegate("a", goal(after=0.4))
    workflow.join()
    with pytest.raises(TimeoutError):
        workflow.wait(0.05)
    seen = workflow.wait(WAIT_S)
    assert (seen["state"], seen["unresolved"], seen["round"]) == ("RELEASED", 0, 1)


# ---------------------------------------------------------------- the continuation


def test_an_immutable_continuation_is_told_as_well(witness: Witness) -> None:
    """`.si` keeps results out; the three facts of the release are no result."""
    workflow = Workflow.open()
    workflow.join(then=shop.keep_call.si("fixed", key="immutable"))
    [call] = witness.wait_for("immutable")
    assert (call["args"], call["kwargs"]["workflow_id"]) == (["fixed"], workflow.id)


def test_a_continuation_runs_in_the_queue_it_names(witness: Witness) -> None:
    """`.set(queue=…)` is kept in the record like the rest of the signature."""
    workflow = Workflow.open()
    workflow.delegate("a", goal())
    workflow.join(then=shop.keep_call.s(key="own queue").set(queue="theirs"))
    [call] = witness.wait_for("own queue")
    assert call["queue"] == "theirs"


def test_a_continuation_without_a_result_is_published_once(store: Store, witness: Witness) -> None:
    """Nobody could see whether it ran, so publishing it is the last thing done."""
    workflow = Workflow.open()
    workflow.delegate("a", goal())
    workflow.join(then=shop.keep_call_silently.s(key="silent"))
    witness.wait_for("silent")
    wait_until_nothing_is_due(store, workflow)
    assert len(witness.saw("silent")) == 1
    assert not store.load_workflow(workflow.id).is_poisoned


def test_a_continuation_that_fails_is_not_run_again(app: Celery, store: Store) -> None:
    """It ran: its failure is its own, stored under the release's id."""
    workflow = Workflow.open()
    release = workflow.join(then=shop.fail_to_go_on.s())
    assert release is not None
    wait_until(lambda: app.AsyncResult(release).state == "FAILURE", WAIT_S, what="failure")
    wait_until_nothing_is_due(store, workflow)
    assert not store.load_workflow(workflow.id).is_poisoned


def test_a_continuation_that_its_worker_does_not_know_is_a_failed_call(app: Celery, store: Store) -> None:
    """As for any task in Celery: NotRegistered under the release's id, and nothing that goes on for ever."""
    workflow = Workflow.open()
    release = workflow.join(then=app.signature("nobody.knows.this"))
    assert release is not None
    with pytest.raises(NotRegistered):
        app.AsyncResult(release).get(timeout=WAIT_S)
    wait_until_nothing_is_due(store, workflow)


def test_a_continuation_that_nobody_consumes_is_given_up_visibly(store: Store) -> None:
    """It is published a bounded number of times, then marked; the workflow stays released and can be used."""
    workflow = Workflow.open()
    workflow.join(then=shop.keep_call.s(key="never").set(queue="nobody"))
    wait_until(lambda: store.load_workflow(workflow.id).is_poisoned, WAIT_S, what="poisoned release")
    assert not store.load_workflow(workflow.id).is_publishing
    assert workflow.delegate("a", goal("still works")).wait(WAIT_S)["text"] == "still works"


def test_a_canvas_is_refused_as_a_continuation() -> None:
    """What is seen to run once is one task; a canvas has no single id to look at."""
    workflow = Workflow.open()
    with pytest.raises(InvalidArguments, match="then"):
        workflow.join(then=shop.keep_call.s(key="x") | shop.keep.s(key="y"))
    assert workflow.describe()["state"] == "OPEN"


def test_a_continuation_that_cannot_take_the_release_is_refused() -> None:
    """A task without the three parameters is found out at the join, not days later."""
    workflow = Workflow.open()
    with pytest.raises(InvalidArguments, match="workflow_id"):
        workflow.join(then=shop.say.s("x"))
    assert workflow.describe()["state"] == "OPEN"


# ---------------------------------------------------------------- what is refused


def test_a_second_join_is_refused() -> None:
    """One join at a time; the refusal changes nothing."""
    workflow = Workflow.open()
    workflow.delegate("a", goal(after=0.6))
    workflow.join()
    with pytest.raises(WorkflowConflict, match="a join is waiting already"):
        workflow.join()
    assert workflow.wait(WAIT_S)["round"] == 1


def test_delegating_between_join_and_release_is_refused() -> None:
    """A child added behind the barrier could be forgotten by whoever waits at it."""
    workflow = Workflow.open()
    child = workflow.delegate("a", goal(after=0.6))
    workflow.join()
    with pytest.raises(WorkflowConflict, match="JOINING"):
        workflow.delegate("a", goal())
    workflow.wait(WAIT_S)
    assert [each.id for each in workflow.children()] == [child.id]
    assert workflow.delegate("a", goal()).wait(WAIT_S)["state"] == "COMPLETED"


def test_completing_with_unresolved_children_is_refused() -> None:
    """The refusal counts them and names the first; afterwards the workflow goes on as if nothing had been said."""
    workflow = Workflow.open()
    children = [workflow.delegate("a", goal(after=0.6)) for _ in range(2)]
    with pytest.raises(UnresolvedChildren) as refusal:
        workflow.complete({"early": True})
    assert refusal.value.count == 2
    assert refusal.value.first == [child.id for child in children]
    assert str(refusal.value) == f"2 unresolved children: {children[0].id}, {children[1].id}"
    assert workflow.describe()["state"] == "OPEN"


def test_an_ended_workflow_takes_nothing_more() -> None:
    """No delegation, no join, no other end."""
    workflow = Workflow.open()
    workflow.complete({"answer": 42})
    for refused in (workflow.join, workflow.complete, lambda: workflow.delegate("a", goal())):
        with pytest.raises(WorkflowConflict):
            refused()


def test_a_workflow_nobody_opened_is_unknown() -> None:
    """One line, and no record is made by asking."""
    for refused in (
        lambda: Workflow.get("0" * 32),
        lambda: Workflow("0" * 32).join(),
        lambda: Workflow("0" * 32).complete(),
        lambda: Workflow("0" * 32).delegate("a", goal()),
        lambda: delegate.delay(agent="a", goal=goal(), workflow="0" * 32),
    ):
        with pytest.raises(UnknownWorkflow):
            refused()


# ---------------------------------------------------------------- its record


def test_a_description_shows_the_workflow_and_its_children() -> None:
    """The documented names, children in the order they were delegated."""
    workflow = Workflow.open(name="trip to Rome")
    children = [workflow.delegate("a", goal(str(n))) for n in range(2)]
    for child in children:
        child.wait(WAIT_S)
    seen = workflow.describe()
    names = "id parent_id name state round policy satisfied unresolved children workflows created_at deadline_at reason"
    assert list(seen) == [*names.split(), "result", "continuation"]
    assert (seen["name"], seen["state"], seen["round"], seen["unresolved"]) == ("trip to Rome", "OPEN", 0, 0)
    assert [child["id"] for child in seen["children"]] == [f"{workflow.id}.1", f"{workflow.id}.2"]
    assert {id: outcome["text"] for id, outcome in workflow.outcomes().items()} == {
        f"{workflow.id}.1": "0",
        f"{workflow.id}.2": "1",
    }


def test_a_child_inherits_its_workflows_deadline() -> None:
    """Absolute, and never later than the parent's, whatever the child asks for."""
    workflow = Workflow.open(deadline=timedelta(minutes=5))
    longer = workflow.delegate("a", goal(), deadline="PT1H").describe()
    shorter = workflow.delegate("a", goal(), deadline="PT1M").describe()
    assert longer["deadline_at"] == workflow.describe()["deadline_at"]
    assert _at(workflow.describe()["deadline_at"]) - _at(shorter["deadline_at"]) > timedelta(minutes=3)


def test_a_delegate_in_a_canvas_may_be_a_workflows_child(witness: Witness) -> None:
    """`delegate.s(workflow=…)`: its own canvas goes on, and the workflow waits for it."""
    workflow = Workflow.open()
    canvas = delegate.s(agent="a", goal=goal("child in a chain"), workflow=workflow.id) | shop.text_of.s("!")
    result = canvas.apply_async()
    workflow.join(then=shop.keep_call.s(key="canvas child"))
    assert result.get(timeout=WAIT_S) == "child in a chain!"
    witness.wait_for("canvas child")
    assert [child.id for child in workflow.children()] == [f"{workflow.id}.1"]


def test_retention_starts_when_the_workflow_ends(store: Store) -> None:
    """While a workflow is open none of its records expires; afterwards all of them do, nothing is due for it."""
    workflow = Workflow.open()
    child = workflow.delegate("a", goal())
    child.wait(WAIT_S)
    wait_until(lambda: child.describe()["phase"] == "RELEASED", WAIT_S, what="released child")
    keys = [store.key("w", workflow.id), *(store.key(kind, child.id) for kind in ("d", "h", "c"))]
    assert [store.client.ttl(key) for key in keys] == [-1] * 4
    workflow.complete()
    wait_until(lambda: all(store.client.ttl(key) > 0 for key in keys), WAIT_S, what="retention of all records")
    assert all(0 < store.client.ttl(key) <= RETENTION_S for key in keys)
    wait_until_nothing_is_due(store, workflow)


def _at(text: Any) -> datetime:
    return datetime.fromisoformat(text)
