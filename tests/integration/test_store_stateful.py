"""Random histories over the real scripts, each of them run twice: what must hold does after every single step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as Generation
from hypothesis.stateful import run_state_machine_as_test

from delegation.store import Begun
from delegation.workflow import WorkflowState
from tests.support.processes import ValkeyProcess
from tests.support.redis_users import TESTER
from tests.support.store_machine import POLICIES, StoreMachine

#: A machine that gets nowhere would prove nothing.
VERDICTS = (Begun.BEGUN, Begun.HELD, Begun.BUSY, Begun.STALE)
REACHED = (*VERDICTS, "ended", "finished", "releases", "replies", "cancels", "notes", "legs")
WITHDRAWN = (WorkflowState.CANCELING, WorkflowState.CANCELED, WorkflowState.FAILED)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    valkey = ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start()
    with valkey, valkey.client(user=TESTER) as client:
        yield client


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("policy", "histories"), [("all", 100), *((policy, 20) for policy in POLICIES[1:])])
def test_what_must_hold_does_after_every_step(client: Any, policy: str, histories: int) -> None:
    """Random histories of forty steps, with duplicates, stale versions, dead workers, and users; the first join has
    this policy, those of later rounds the others in turn."""
    reached: Counter[str] = Counter()

    class Machine(StoreMachine):
        pass

    Machine.client, Machine.reached, Machine.first_policy = client, reached, POLICIES.index(policy)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=histories,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            # Not Phase.shrink: forty scripts twice per try would outlast the timeout, and the history with it.
            phases=[Generation.explicit, Generation.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert reached[policy] >= 1, reached
    if policy == "all":
        assert all(reached[what] >= 5 for what in REACHED), reached
        assert sum(reached[state] for state in WITHDRAWN) >= 1, reached
