"""When sending a hint fails, or the due index holds something odd, nothing is lost and nobody else waits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from delegation.agent_task import TaskState
from delegation.endings import settle
from delegation.state import Cause, Moment, Phase, Rules
from tests.support.caller import caller_in
from tests.support.processes import Deployment, ScriptedAgent
from workers import delegate
from workers.runtime import runtime
from workers.tasks import _finalizing, finalize

GOAL = '{"states": [["COMPLETED", 0]], "artifact": "ok"}'


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(
        tmp_path, agents={"flights": ScriptedAgent(tmp_path, name="flights")}, workers=0, web=False
    ) as made:
        yield made


def test_an_unreadable_record_does_not_stop_the_sweeper(deployment: Deployment) -> None:
    """The only way this call can start is the sweeper, and it has met garbage before."""
    with caller_in(deployment):
        store = runtime().store
        store.client.hset(store.key("d", "garbage"), mapping={"phase": "NONSENSE"})
        store.client.hset(store.key("d", "half"), mapping={"phase": "OPENED", "poll_at": "1"})
        store.client.zadd(store.key("due"), {"delegation:garbage": 0, "delegation:half": 1, "nothing:at:all": 2})
        worker = deployment.start_worker()
        result = delegate.apply_async(kwargs={"agent": "flights", "goal": GOAL}, countdown=0.5)
        assert result.get(timeout=30)["text"] == "ok"
        assert "delegation.due_entry_failed" in worker.output()


def test_a_tail_that_could_not_be_published_is_not_forgotten(deployment: Deployment) -> None:
    """Celery stores a failure when publishing the next link fails; the due entry stays, so finalize runs again."""
    with caller_in(deployment):
        store = runtime().store
        result = delegate.delay(agent="flights", goal=GOAL)
        delegation_id = result.id.partition(".")[0]
        opened = store.load(delegation_id).delegation
        moment = Moment(now=store.now(), rules=Rules())
        store.settle(opened, settle(opened, TaskState.COMPLETED, cause=Cause.SENT, moment=moment, text="ok"))
        _finalizing.set(store.load(delegation_id).delegation)
        finalize.after_return("FAILURE", OperationalError("broker away"), result.id, (delegation_id,), {}, None)
        assert store.load(delegation_id).delegation.phase is Phase.SETTLED
        assert store.client.zscore(store.key("due"), f"delegation:{delegation_id}") is not None
        deployment.start_worker()
        assert result.get(timeout=30)["text"] == "ok"
