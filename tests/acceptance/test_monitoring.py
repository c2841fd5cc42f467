"""What an operator sees: Flower with a parked chain in it, nothing of what was said, and nothing we depend on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.caller import caller_in
from tests.support.processes import ChildProcess, Deployment, ScriptedAgent, free_port, wait_until
from workers import DelegationHandle, delegate

OPEN_API = {"FLOWER_UNAUTHENTICATED_API": "true"}
GOAL = json.dumps({"states": [["WORKING", 0]], "artifact": "canary-of-the-agent", "push": True})
ENDS_AT_ONCE = json.dumps({"states": [["COMPLETED", 0]], "artifact": "done"})


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path, agents={"flights": ScriptedAgent(tmp_path, name="flights")}, workers=0) as made:
        yield made


@contextmanager
def flower_of(deployment: Deployment, *options: str, env: Mapping[str, str] | None = None) -> Iterator[httpx.Client]:
    """Flower as we run it."""
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "flower", "--address=127.0.0.1", f"--port={port}"]
    log = deployment.directory / f"flower-{port}.log"
    process = ChildProcess([*command, *options], log=log, env={**deployment.env, **(env or {})}).start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            process.wait_until(lambda: _answers(client), what="answer from Flower")
            yield client
    finally:
        process.kill()


@pytest.fixture
def flower(deployment: Deployment) -> Iterator[httpx.Client]:
    """With its API open to the test alone."""
    with flower_of(deployment, env=OPEN_API) as client:
        yield client


def test_c015_flower_shows_a_parked_chain_and_none_of_the_texts(deployment: Deployment, flower: httpx.Client) -> None:
    """watch is PARKED while the agent works and SUCCESS afterwards; texts of either side are in no page of Flower's."""
    deployment.start_worker(options=["-E"])
    agent = deployment.agents["flights"]
    assert isinstance(agent, ScriptedAgent)
    with caller_in(deployment):
        result = delegate.delay(agent="flights", goal=GOAL, name="canary-of-the-brief")
        delegation_id = result.id.partition(".")[0]
        assert wait_until(lambda: _state(flower, f"{delegation_id}.watch") == "PARKED", 20, what="PARKED in Flower")
        (task,) = agent.tasks()
        agent.move(task["id"], "COMPLETED", artifact="canary-of-the-agent")
        assert result.get(timeout=20)["text"] == "canary-of-the-agent"
        for celery_task_id in (f"{delegation_id}.watch", result.id):
            assert wait_until(
                lambda i=celery_task_id: _state(flower, i) == "SUCCESS", 20, what=f"{celery_task_id} ended"
            )
    shown = flower.get("/api/tasks").text + flower.get("/tasks").text + flower.get("/metrics").text
    assert delegation_id in shown
    assert "canary" not in shown


def test_c043_flowers_api_is_closed_and_a_forged_step_sends_nothing(deployment: Deployment) -> None:
    """Without a password nobody reads or starts anything; a step for an id we do not know never reaches an agent."""
    with flower_of(deployment) as flower:
        assert flower.get("/api/tasks").status_code == 401
        forged = flower.post("/api/task/async-apply/delegation.start_agent_task", json={"args": ["f" * 32]})
        assert forged.status_code == 401
    deployment.start_worker()
    agent = deployment.agents["flights"]
    assert isinstance(agent, ScriptedAgent)
    with caller_in(deployment) as app:
        app.tasks["delegation.start_agent_task"].apply_async(("f" * 32,))
        assert delegate.delay(agent="flights", goal=ENDS_AT_ONCE).get(timeout=20)["state"] == "COMPLETED"
    assert len(agent.sends()) == 1
    assert "Traceback" not in deployment.logs()


def test_c075_a_step_whose_worker_was_killed_ends_in_flower_as_well(
    deployment: Deployment, flower: httpx.Client
) -> None:
    """The same Celery id ends it, so it is not STARTED for ever; our own view never said that it ran."""
    killed = deployment.start_worker(env={"DELEGATION_FAILPOINT": "send.after_call:kill:1"})
    with caller_in(deployment):
        result = delegate.delay(agent="flights", goal=ENDS_AT_ONCE)
        delegation_id = result.id.partition(".")[0]
        killed.wait()
        assert wait_until(lambda: _state(flower, f"{delegation_id}.start") == "STARTED", 20, what="STARTED in Flower")
        assert DelegationHandle.get(delegation_id).describe()["phase"] == "STARTING"
        deployment.start_worker()
        assert result.get(timeout=40)["state"] == "COMPLETED"
    assert wait_until(lambda: _state(flower, f"{delegation_id}.start") == "SUCCESS", 20, what="its end in Flower")


def test_c076_what_flower_forgets_is_still_listed(deployment: Deployment) -> None:
    """Flower keeps ten tasks and is restarted in the middle; our list of thirty has no hole."""
    deployment.start_worker()
    with caller_in(deployment):
        with flower_of(deployment, "--max-tasks=10", env=OPEN_API) as flower:
            results = [delegate.delay(agent="flights", goal=ENDS_AT_ONCE) for _ in range(15)]
            assert wait_until(lambda: len(flower.get("/api/tasks").json()) == 10, 20, what="full memory")
        results += [delegate.delay(agent="flights", goal=ENDS_AT_ONCE) for _ in range(15)]
        for result in results:
            result.get(timeout=40)
    listed = json.loads(deployment.command("list", "--json", "--limit", "100").stdout)
    assert {row["id"]: row["state"] for row in listed} == {r.id.partition(".")[0]: "COMPLETED" for r in results}


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthcheck").status_code == 200
    except httpx.HTTPError:
        return False


def _state(flower: httpx.Client, celery_task_id: str) -> Any:
    answer = flower.get(f"/api/task/info/{celery_task_id}")
    return answer.json()["state"] if answer.status_code == 200 else None
