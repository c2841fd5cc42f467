"""Two thousand children of one workflow: released once, whatever the order, and no script that grows with them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.due import WorkflowStep, choose_workflow_steps
from delegation.join_policy import ALL, JoinPolicy
from delegation.state import Delegation, WorkflowId
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, FAST, Records
from tests.support.processes import ValkeyProcess
from tests.support.redis_users import ADMIN

CHILDREN = 2000
#: Far above what any script takes, and far below what one would that looks at every child.
MOST_COMMANDS = 80
_numbers = itertools.count()


@pytest.fixture(scope="module")
def admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    server = ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start()
    with server, server.client(user=ADMIN) as client:
        yield client


@pytest.fixture
def records(admin: Any) -> Records:
    return Records(admin, prefix=f"delegation:f{next(_numbers)}:", rules=CALM, limits=FAST)


def children_of(records: Records, workflow: WorkflowId, count: int) -> list[Delegation]:
    made = [records.new(workflow=workflow) for _ in range(count)]
    for each in made:
        records.store.open_delegation(each, by_call=False)
    return records.store.load_many([each.id for each in made])


def commands(records: Records) -> int:
    """Run by the server so far, those inside scripts included."""
    stats: Any = records.client.info("commandstats")
    return sum(int(each["calls"]) for name, each in stats.items() if name not in ("cmdstat_info", "cmdstat_time"))


def cost(records: Records, act: Callable[[], object]) -> int:
    before = commands(records)
    act()
    return commands(records) - before


@pytest.mark.parametrize("policy", [ALL, JoinPolicy("quorum", 1500)], ids=["all", "quorum"])
def test_two_thousand_children_release_their_parent_once(records: Records, policy: JoinPolicy) -> None:
    """In any order, a tenth of them failed: the release comes with the child that decides, and with no other."""
    workflow = records.open_workflow()
    children = children_of(records, workflow, CHILDREN)
    assert records.store.join_workflow(workflow, {"task": "next"}, policy) is None
    order = Random(7).sample(children, CHILDREN)
    states = [TaskState.FAILED if number % 10 == 9 else TaskState.COMPLETED for number in range(CHILDREN)]
    releases = [records.end(child, state).release_id for child, state in zip(order, states, strict=True)]
    completed = itertools.accumulate(state is TaskState.COMPLETED for state in states)
    decides = CHILDREN - 1 if policy is ALL else list(completed).index(1500)
    assert [number for number, release in enumerate(releases) if release] == [decides]
    record = records.store.load_workflow(workflow)
    assert (record.state, record.round, record.unresolved) == (WorkflowState.RELEASED, 1, 0)
    assert record.is_satisfied
    assert records.store.count_children(record) == CHILDREN


def test_the_cost_of_a_child_does_not_depend_on_its_siblings(records: Records) -> None:
    """Counted in commands, which no busy machine changes: open, settle, join, cancel, end; beside 10 and 2,000."""
    store, costs = records.store, list[list[int]]()
    for count in (10, CHILDREN):
        workflow = records.open_workflow()
        first, second, third = children_of(records, workflow, count)[:3]
        costs.append(
            [
                cost(records, partial(store.open_delegation, records.new(workflow=workflow), by_call=False)),
                cost(records, partial(records.end, first)),
                cost(records, partial(store.join_workflow, workflow, None, JoinPolicy("first_success"))),
                cost(records, partial(store.want_cancel, third, "enough")),
                cost(records, partial(records.end, second)),
                cost(records, partial(store.end_workflow, workflow, WorkflowState.FAILED)),
            ]
        )
    # The first use of a script loads it.
    assert all(many <= few <= MOST_COMMANDS for few, many in zip(*costs, strict=True)), costs


def test_thousands_of_untold_notes_are_handed_out_in_order(records: Records) -> None:
    """A hundred at a time, each once, though none of those before was seen to run."""
    workflow = records.open_workflow()
    records.client.hset(records.key("w", workflow), "on_note", '{"task": "tell_me"}')
    for child in children_of(records, workflow, 350):
        records.end(child)
    told = []
    while notes := records.store.take_untold_notes(workflow).notes:
        told += [note.number for note in notes]
        records.store.notes_told(workflow, notes[-1].number, [])
    assert told == list(range(1, 351))
    again = records.store.take_untold_notes(workflow, again=True)
    assert [note.number for note in again.notes] == list(range(1, 101))


def test_a_big_workflow_is_repaired_and_retired_page_by_page(records: Records) -> None:
    """Each call to Redis looks at no more than a page of children."""
    workflow = records.open_workflow()
    children = children_of(records, workflow, 1200)
    for child in children:
        records.end(child)
    records.client.sadd(records.key("u", workflow), *(child.id for child in children[:700]))
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (700, None)
    records.store.end_workflow(workflow, WorkflowState.COMPLETED)
    for child in children:
        records.finish(child)
    records.client.zadd(records.key("due"), {f"workflow:{workflow}": 0})
    (due,) = (due for due in records.store.sweep(10) if due.id == workflow)
    assert WorkflowStep.RETIRE in choose_workflow_steps(due.timers, due.now)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    assert all(records.client.ttl(records.key("d", child.id)) > 0 for child in children)
