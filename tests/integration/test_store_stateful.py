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
from tests.support.store_machine import StoreMachine

#: A machine that gets nowhere would prove nothing.
VERDICTS = (Begun.BEGUN, Begun.HELD, Begun.BUSY, Begun.STALE)
REACHED = (*VERDICTS, "ended", "finished", "releases", "replies", "cancels", "notes")
POLICIES = ("all", "any", "first_success", "fail_fast", "quorum 2")
WITHDRAWN = (WorkflowState.CANCELING, WorkflowState.CANCELED, WorkflowState.FAILED)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    valkey = ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start()
    with valkey, valkey.client(user=TESTER) as client:
        yield client


def test_what_must_hold_does_after_every_step(client: Any) -> None:
    """A hundred random histories of forty steps, with duplicates, stale versions, dead workers, and users."""

    class Machine(StoreMachine):
        pass

    Machine.client, Machine.reached = client, Counter()
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=100,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            # Not Phase.shrink: forty scripts twice per try would outlast the timeout, and the history with it.
            phases=[Generation.explicit, Generation.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert all(Machine.reached[what] >= 5 for what in REACHED), Machine.reached
    assert all(Machine.reached[policy] >= 1 for policy in POLICIES), Machine.reached
    assert sum(Machine.reached[state] for state in WITHDRAWN) >= 1, Machine.reached
