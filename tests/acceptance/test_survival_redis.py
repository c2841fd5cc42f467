"""Redis goes away under load and comes back: everything ends, and nobody restarts a worker."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from delegation.errors import StoreUnavailable
from tests.support.child import wait_until
from tests.support.continuation_app import runs
from tests.support.invariants import all_completed, check_at_rest
from tests.support.processes import ScriptedAgent
from tests.support.survival import SHORT_LEASE, Scene, ends_after
from workers import Workflow

OUTAGE_S = 10.0
#: Longer than any socket timeout of ours, so that every connection is given up meanwhile.
FREEZE_S = 30.0
CHILDREN = 20
#: What the workers held when Redis went away comes back soon enough to be seen in the test.
VISIBILITY_S = "3"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("redis")
    agents = {"a": ScriptedAgent(directory, name="a")}
    with Scene(directory, agents=agents, timing=SHORT_LEASE) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.reset(CONTINUATION_VISIBILITY_S=VISIBILITY_S)
    for worker in [running.start_worker(wait=False) for _ in range(2)]:
        worker.wait_until_ready()
    return running


def open_load(scene: Scene, seconds: float) -> list[Workflow]:
    """Three joined workflows whose children end one after the other over so many seconds; returns amid the work."""
    goals = [ends_after(seconds * n / CHILDREN) for n in range(CHILDREN)]
    workflows = [scene.open_workflow(list(goals)) for _ in range(3)]
    settled = wait_until(lambda: n if (n := scene.counters().get("settled:COMPLETED:push", 0)) >= 6 else 0, what="ends")
    assert settled < 3 * CHILDREN
    return workflows


def check_all_ended(scene: Scene, workflows: list[Workflow]) -> None:
    pids = [worker.pid for worker in scene.workers]
    rest = check_at_rest(scene, timeout_s=60)
    assert all_completed(rest)
    assert len(rest.delegations) == len(rest.agent_tasks) == 3 * CHILDREN
    assert {run["task_id"] for run in runs("continuation")} == {f"{it.id}.release.1" for it in workflows}
    assert all(worker.is_alive for worker in scene.workers)
    assert pids == [worker.pid for worker in scene.workers]


def push_status(scene: Scene) -> int:
    """What web answers to a push now; the token matters to nobody who cannot ask Redis."""
    assert scene.web is not None
    url, headers = f"{scene.web.url}/a2a/push/{'0' * 32}", {"X-A2A-Notification-Token": "t" * 43}
    return httpx.post(url, json={}, headers=headers, trust_env=False, timeout=8).status_code


def test_redis_killed_and_restarted_amid_work_loses_nothing(scene: Scene) -> None:
    """kill -9 and a start on the same AOF: every delegation ends, every parent goes on once."""
    workflows = open_load(scene, 2)
    scene.valkey.kill()
    scene.valkey.start()
    check_all_ended(scene, workflows)


def test_redis_down_for_ten_seconds_under_load_loses_nothing(scene: Scene) -> None:
    """Meanwhile web answers 503 with Retry-After and a caller hears at once that Redis is away."""
    workflows = open_load(scene, 8)
    scene.valkey.kill()
    until = time.monotonic() + OUTAGE_S
    with pytest.raises(StoreUnavailable):
        scene.open_one()
    sit_out(scene, until)
    scene.valkey.start()
    check_all_ended(scene, workflows)


def test_redis_frozen_for_ten_seconds_under_load_loses_nothing(scene: Scene) -> None:
    """SIGSTOP, as in a long fork or swap: connections stay and nothing answers; web says 503 within seconds."""
    workflows = open_load(scene, 8)
    scene.valkey.pause()
    try:
        sit_out(scene, time.monotonic() + OUTAGE_S)
    finally:
        scene.valkey.resume()
    check_all_ended(scene, workflows)


def test_redis_frozen_beyond_every_timeout_is_found_again(scene: Scene) -> None:
    """B-11: half a minute of silence on open connections; everything has ended within a minute after it."""
    workflows = open_load(scene, 8)
    scene.valkey.pause()
    try:
        sit_out(scene, time.monotonic() + FREEZE_S)
    finally:
        scene.valkey.resume()
    check_all_ended(scene, workflows)


def sit_out(scene: Scene, until: float) -> None:
    """Ask web until the outage is over: it answers 503 to us and to the agent."""
    statuses = []
    while time.monotonic() < until - 2:  # an answer may take 1.5 s, and must not come from a Redis that is back
        statuses.append(push_status(scene))
        time.sleep(0.25)
    time.sleep(max(0.0, until - time.monotonic()))
    assert set(statuses) == {503}
    assert [push for push in scene.ledger(kind="push") if push["status"] == 503]
