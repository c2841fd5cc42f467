"""Messages that nobody of ours sent, by somebody who may write to Redis (B-02)."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import wait_until
from tests.support.processes import Deployment, ScriptedAgent
from workers.celery_settings import END_QUEUE, QUEUE, TASK_ROUTES, celery_prefix

GOAL = json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.2]], "artifact": "done"})
#: Each of our steps; `delegate` and `reply` are for users, and say what they take.
STEPS = sorted(set(TASK_ROUTES) - {"delegation.delegate", "delegation.reply"})
UNKNOWN = "f" * 32
HOSTILE: list[Any] = [
    "../x",
    "delegation:d:1",
    "*",
    "",
    " ",
    "x\ny",
    "\u202e\x00",
    "\ud800",
    "i" * 10_240,
    None,
    True,
    7,
    1e308,
    {"id": UNKNOWN},
    [UNKNOWN],
]
#: kombu's JSON decodes it into a UUID, which this is not.
UNDECODABLE = {"__type__": "uuid", "__value__": "x"}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory: Path = tmp_path_factory.mktemp("forged")
    agents = {"a": ScriptedAgent(directory, name="a")}
    with Deployment(directory, agents=agents, web=False) as running:
        yield running


def forged(task: str, *args: Any) -> str:
    """As kombu's Redis transport would write a message of Celery's protocol 2."""
    message_id = f"forged-{next(_numbers)}"
    body = json.dumps([args, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}])
    return json.dumps(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"lang": "py", "task": task, "id": message_id, "root_id": message_id},
            "properties": {
                "correlation_id": message_id,
                "delivery_mode": 2,
                "delivery_tag": message_id,
                "delivery_info": {"exchange": "", "routing_key": TASK_ROUTES[task]["queue"]},
                "priority": 0,
                "body_encoding": "base64",
            },
        }
    )


def push_and_wait(deployment: Deployment, messages: list[tuple[str, str]]) -> None:
    """``messages``: queue and message; returns when all were taken and none is held."""
    prefix = celery_prefix(deployment.settings())
    with deployment.valkey.client() as client:
        for queue, message in messages:
            client.lpush(f"{prefix}{queue}", message)
        keys = [f"{prefix}{name}" for name in (QUEUE, END_QUEUE, "unacked")]
        wait_until(lambda: not client.exists(*keys), 60, what="empty queues")


def records_of(deployment: Deployment) -> dict[str, Any]:
    """What is kept, but for Celery's own, the sweeper's, and the calls of the last second."""
    with deployment.valkey.client() as client:
        names = sorted(client.scan_iter("*"))
        return {name: client.dump(name) for name in names if name.split(":")[1] not in ("celery", "sweeper", "rate")}


def test_forged_steps_do_nothing_and_the_worker_lives(deployment: Deployment) -> None:
    """Hostile ids and unknown ones, to every step: no record is made or changed, no agent called, no traceback."""
    (worker,), agent = deployment.workers, deployment.agents["a"]
    assert isinstance(agent, ScriptedAgent)
    assert deployment.command("delegate", "a", GOAL, "--wait").returncode == 0
    pid, calls = worker.pid, len(agent.calls())
    wait_until(lambda: not deployment.store().metrics()["due"], 30, what="rest")
    before = records_of(deployment)

    values = [*HOSTILE, UNKNOWN]
    push_and_wait(deployment, [(TASK_ROUTES[step]["queue"], forged(step, each)) for step in STEPS for each in values])

    assert records_of(deployment) == before
    assert len(agent.calls()) == calls
    assert (worker.is_alive, worker.pid) == (True, pid)
    log = worker.output()
    assert log.count("delegation.step_refused") == len(STEPS) * len(HOSTILE)
    assert "Traceback" not in log
    assert "i" * 200 not in log
    assert deployment.command("delegate", "a", GOAL, "--wait").returncode == 0


def test_forged_calls_with_other_arguments_fail_and_the_worker_lives(deployment: Deployment) -> None:
    """Too few, too many, or nothing that can be decoded: Celery's own error, and the next delegation works."""
    (worker,) = deployment.workers
    pid = worker.pid
    messages = [forged(step, *args) for step in STEPS for args in ((), (UNKNOWN, UNKNOWN), (UNDECODABLE,))]
    push_and_wait(deployment, [(QUEUE, message) for message in messages])
    assert deployment.command("delegate", "a", GOAL, "--wait").returncode == 0
    assert worker.pid == pid
