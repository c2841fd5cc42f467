"""What every Redis must do for us, run against fakeredis for speed and a real Valkey for truth.

Atomicity, crashes and time are tested on the real server alone (tests/integration/test_store.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import fakeredis
import pytest

from delegation.agent_task import TaskState
from delegation.errors import (
    IdempotencyConflict,
    StaleWrite,
    StateLost,
    UnknownDelegation,
    UnknownWorkflow,
    UnresolvedChildren,
    WorkflowConflict,
)
from delegation.join_policy import JoinPolicy
from delegation.opening import new_workflow_id
from delegation.state import DelegationId, Phase, WorkflowId
from delegation.store import Begun, PushAnswer
from delegation.workflow import WorkflowState
from tests.support.delegations import TOKEN_DIGEST, Records
from tests.support.processes import ValkeyProcess
from tests.support.redis_users import TESTER

_numbers = itertools.count()


@pytest.fixture(scope="session")
def connect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """A client of the named kind of server; the real one is started at first use."""
    started: list[ValkeyProcess] = []
    clients: dict[str, Any] = {}

    def connect_to(kind: str) -> Any:
        if kind not in clients:
            if kind == "fakeredis":
                clients[kind] = fakeredis.FakeRedis(decode_responses=True)
            else:
                started.append(ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start())
                clients[kind] = started[0].client(user=TESTER)
        return clients[kind]

    yield connect_to
    for client in clients.values():
        client.close()
    for server in started:
        server.kill()


@pytest.fixture(params=["fakeredis", pytest.param("valkey", marks=pytest.mark.integration)])
def records(request: pytest.FixtureRequest, connect: Callable[[str], Any]) -> Records:
    return Records(connect(request.param), prefix=f"delegation:t{next(_numbers)}:")


def test_an_opened_delegation_is_durable_and_due(records: Records) -> None:
    """Record, history, listing, counter and due entry are there together."""
    opened = records.open()
    assert (opened.phase, opened.version, opened.state) == (Phase.OPENED, 1, TaskState.SUBMITTED)
    assert records.due_in(opened.id) == pytest.approx(1000, abs=10)
    assert [entry["cause"] for entry in records.store.history(opened.id)] == ["opened"]
    assert records.store.list_roots(10) == [(opened.id, False)]
    assert records.counter("opened") == 1


def test_from_open_to_the_end(records: Records) -> None:
    """The straight way: intent, answer, parked, outcome, finalized; nothing is left to do."""
    watched = records.start()
    assert (watched.phase, watched.version, watched.fence) == (Phase.WATCHING, 3, 1)
    assert records.store.park(watched.id)
    settlement = records.end(records.fetch(watched)[1])
    assert (settlement.settled, settlement.was_parked, settlement.release_id) == (True, True, None)
    ended = records.load(watched.id)
    assert (ended.phase, ended.state) == (Phase.SETTLED, TaskState.COMPLETED)
    records.finish(ended)
    assert records.load(watched.id).phase is Phase.RELEASED
    assert records.due_in(watched.id) is not None  # the push config is still at the agent
    assert records.counter("parked") == 0


def test_one_call_opens_one_delegation(records: Records) -> None:
    """A repeated call finds what the first one opened."""
    first = records.open(call_id="call")
    again = records.store.open_delegation(records.new(call_id="call"))
    assert (again.id, again.existing) == (first.id, True)
    assert records.store.id_of_call("call") == first.id
    assert records.counter("opened") == 1


def test_an_idempotency_key_opens_one_delegation(records: Records) -> None:
    """The same key with the same arguments finds it, with others it is a conflict that names it."""
    first = records.new(idempotency="key")
    records.store.open_delegation(first, arguments_digest="same")
    again = records.store.open_delegation(records.new(idempotency="key"), arguments_digest="same")
    assert (again.id, again.existing) == (first.id, True)
    with pytest.raises(IdempotencyConflict, match=first.id):
        records.store.open_delegation(records.new(idempotency="key"), arguments_digest="other")


def test_the_last_child_releases_its_parent_once(records: Records) -> None:
    """Not the first of two; with the release goes the continuation's due entry."""
    workflow = records.open_workflow()
    one, two = records.start(workflow=workflow), records.start(workflow=workflow)
    assert records.store.join_workflow(workflow, {"task": "next"}) is None
    assert records.end(one).release_id is None
    assert records.end(two).release_id == f"{workflow}.release.1"
    released = records.store.load_workflow(workflow)
    assert (released.state, released.round, released.unresolved) == (WorkflowState.RELEASED, 1, 0)
    assert f"workflow:{workflow}" in records.due()


def test_a_join_that_is_over_early_leaves_the_rest_to_be_cancelled(records: Records) -> None:
    """Released with the first success; the late one counts in its own round alone."""
    workflow = records.open_workflow()
    one, two = records.start(workflow=workflow), records.start(workflow=workflow)
    assert records.store.join_workflow(workflow, None, JoinPolicy("first_success")) is None
    assert records.end(one).release_id == f"{workflow}.release.1"
    released = records.store.load_workflow(workflow)
    assert (released.is_satisfied, released.cancel_round, released.unresolved) == (True, 1, 1)
    assert records.end(two).release_id is None
    assert [records.load(each.id).is_late for each in (one, two)] == [False, True]


def test_a_child_workflows_end_releases_its_parent(records: Records) -> None:
    """In the script of its own end."""
    parent, child = records.open_workflow(), new_workflow_id()
    records.store.open_workflow(child, name="leg", deadline_s=None, parent=parent)
    assert records.store.join_workflow(parent, None) is None
    records.store.end_workflow(child, WorkflowState.COMPLETED)
    assert records.store.load_workflow(parent).state is WorkflowState.RELEASED


def test_a_push_wakes_only_with_its_token(records: Records) -> None:
    """Unknown ids and wrong tokens are refused alike; what is too long or no JSON is unacceptable."""
    watched = records.start()
    push = records.store.receive_push
    assert push("nobody", TOKEN_DIGEST, acceptable=True, claimed=None) is PushAnswer.REFUSED
    assert push(watched.id, "", acceptable=True, claimed=None) is PushAnswer.REFUSED
    assert push(watched.id, "wrong", acceptable=False, claimed=None) is PushAnswer.REFUSED
    assert push(watched.id, TOKEN_DIGEST, acceptable=False, claimed=None) is PushAnswer.UNACCEPTABLE
    assert push(watched.id, TOKEN_DIGEST, acceptable=True, claimed="COMPLETED") is PushAnswer.WOKEN
    woken = records.load(watched.id)
    assert (woken.wakes, woken.heard, woken.claimed) == (1, "push", TaskState.COMPLETED)


def test_a_push_may_be_checked_before_it_is_read(records: Records) -> None:
    """Nothing is woken; a wrong credential is counted once, as refused unread, and a right one when it is received."""
    watched = records.start()
    before = records.store.metrics()["counters"]
    assert not records.store.check_push("nobody", TOKEN_DIGEST)
    assert not records.store.check_push(watched.id, "")
    assert records.store.check_push(watched.id, TOKEN_DIGEST)
    after = records.store.metrics()["counters"]
    assert records.load(watched.id).wakes == 0
    assert {name: count - before.get(name, 0) for name, count in after.items() if count != before.get(name, 0)} == {
        "pushes_rejected": 2,
        "pushes_refused_unread": 2,
    }


def test_the_first_of_two_writers_wins(records: Records) -> None:
    """The other's version is stale, whatever it wants to write."""
    loaded = records.start()
    _, begun = records.fetch(loaded)
    assert records.fetch(loaded)[0] is Begun.STALE
    records.hear(begun)
    for write in (records.hear, records.end, records.expire):
        with pytest.raises(StaleWrite):
            write(begun)


def test_terminal_is_final(records: Records) -> None:
    """A second end changes nothing and says so."""
    watched = records.start()
    assert records.end(watched, TaskState.COMPLETED).settled
    assert not records.end(records.load(watched.id), TaskState.FAILED).settled
    assert records.load(watched.id).state is TaskState.COMPLETED


def test_a_workflow_completes_when_nothing_is_unresolved(records: Records) -> None:
    """Refused with the number and the ids; done once."""
    workflow = records.open_workflow()
    child = records.start(workflow=workflow)
    with pytest.raises(UnresolvedChildren, match=f"1 unresolved child: {child.id}"):
        records.store.end_workflow(workflow, WorkflowState.COMPLETED)
    records.end(child)
    records.store.end_workflow(workflow, WorkflowState.COMPLETED, {"answer": 42})
    assert records.store.load_workflow(workflow).result == {"answer": 42}
    with pytest.raises(WorkflowConflict, match="COMPLETED"):
        records.store.end_workflow(workflow, WorkflowState.FAILED)


def test_a_sweep_takes_what_is_due(records: Records) -> None:
    """With phase and timers; once, until its message had time to be acted on."""
    opened = records.open()
    assert records.store.sweep(10) == []
    records.client.zadd(records.key("due"), {f"delegation:{opened.id}": 0, "delegation:gone": 0})
    (due,) = records.store.sweep(10)
    assert (due.kind, due.id, due.phase) == ("delegation", opened.id, "OPENED")
    assert set(due.timers) == {"publish_at", "deadline_at"}
    assert records.store.sweep(10) == []
    assert "delegation:gone" not in records.due()


def test_what_is_not_there_is_unknown(records: Records) -> None:
    """Every door says so, and none of them makes a record."""
    nobody = replace(records.new(), id=DelegationId("nobody"))
    unknown: list[Callable[[], object]] = [lambda: records.store.load("nobody"), lambda: records.store.park("nobody")]
    for call in unknown:
        with pytest.raises(UnknownDelegation):
            call()
    no_workflow = WorkflowId("nobody")
    unknown = [
        lambda: records.store.load_workflow(no_workflow),
        lambda: records.store.next_child_number(no_workflow),
        lambda: records.store.join_workflow(no_workflow, None),
        lambda: records.store.end_workflow(no_workflow, WorkflowState.FAILED),
        lambda: records.store.open_delegation(replace(nobody, workflow_id=no_workflow)),
    ]
    for call in unknown:
        with pytest.raises(UnknownWorkflow):
            call()
    records.finish(nobody)
    assert records.fetch(nobody)[0] is Begun.STALE
    for write in (records.hear, records.end):
        with pytest.raises(StaleWrite):
            write(nobody)
    with pytest.raises(StateLost):
        records.store.epoch()
    assert records.all_keys() == []
