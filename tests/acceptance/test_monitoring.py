"""What an operator sees: Flower with a parked chain in it, and nothing of what was said."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.caller import caller_in
from tests.support.processes import ChildProcess, Deployment, ScriptedAgent, free_port, wait_until
from workers import delegate

GOAL = json.dumps({"states": [["WORKING", 0]], "artifact": "canary-of-the-agent", "push": True})


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    with Deployment(tmp_path, agents={"flights": ScriptedAgent(tmp_path, name="flights")}, workers=0) as made:
        yield made


@pytest.fixture
def flower(deployment: Deployment, tmp_path: Path) -> Iterator[httpx.Client]:
    """Flower as we run it, with its API open to the test alone."""
    port = free_port()
    command = [sys.executable, "-m", "celery", "-A", "workers.app", "flower", "--address=127.0.0.1", f"--port={port}"]
    env = {**deployment.env, "FLOWER_UNAUTHENTICATED_API": "true"}
    process = ChildProcess(command, log=tmp_path / "flower.log", env=env).start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            process.wait_until(lambda: _answers(client), what="answer from Flower")
            yield client
    finally:
        process.kill()


def test_flower_shows_a_parked_chain_and_none_of_the_texts(deployment: Deployment, flower: httpx.Client) -> None:
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


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthcheck").status_code == 200
    except httpx.HTTPError:
        return False


def _state(flower: httpx.Client, celery_task_id: str) -> Any:
    answer = flower.get(f"/api/task/info/{celery_task_id}")
    return answer.json()["state"] if answer.status_code == 200 else None
