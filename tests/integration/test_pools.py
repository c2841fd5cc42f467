"""The steps run in each of Celery's pools that we promise: threads, prefork, solo."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.caller import caller_in
from tests.support.processes import Deployment, ScriptedAgent, wait_until
from workers import delegate

WAIT_S = 40


@pytest.fixture(params=["threads", "prefork", "solo"])
def pool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def agent(tmp_path: Path) -> ScriptedAgent:
    return ScriptedAgent(tmp_path, name="a")


@pytest.fixture
def deployment(tmp_path: Path, agent: ScriptedAgent, pool: str) -> Iterator[Deployment]:
    """Polled, not pushed to: the pool is what is tested."""
    with Deployment(tmp_path, agents={"a": agent}, pool=pool, concurrency=2, web=False) as it, caller_in(it):
        yield it


def test_a_chain_of_two_delegates_completes(deployment: Deployment) -> None:
    """Its sweeper drives the polls in every pool, and a client made after the fork speaks to the agent."""
    goals = [json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.3]], "artifact": word}) for word in ("one", "two")]
    result = (delegate.s(agent="a", goal=goals[0]) | delegate.s(agent="a", goal=goals[1])).apply_async()
    assert result.get(timeout=WAIT_S)["text"] == "two"
    assert result.parent.get(timeout=WAIT_S)["text"] == "one"
    assert "WorkerLostError" not in deployment.logs()


@pytest.mark.parametrize("pool", ["prefork"], indirect=True)
def test_a_killed_child_loses_no_delegation(deployment: Deployment, agent: ScriptedAgent) -> None:
    """kill -9 of the processes that carry out steps, while SendMessage is under way: one agent task, its outcome."""
    worker = deployment.workers[0]
    script = {"states": [["WORKING", 0], ["COMPLETED", 0.3]], "artifact": "survived", "reply_delay": 2}
    result = delegate.delay(agent="a", goal=json.dumps(script))
    agent.wait_for_calls("SendMessage")
    before = _children_of(worker.pid)
    for child in before:
        os.kill(child, signal.SIGKILL)
    assert result.get(timeout=WAIT_S)["text"] == "survived"
    assert len(agent.created()) == 1
    assert worker.is_alive
    wait_until(lambda: len(_children_of(worker.pid) - before) == len(before), what="new children")


def _children_of(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
