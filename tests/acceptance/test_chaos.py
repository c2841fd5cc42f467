"""Everything at once, seeded: workers and Redis killed at random moments, pushes lost and tripled, answers lost.

Passes only if the faults really happened while there was work left; then the invariants decide, from the agent's ledger
and Redis, never from our log.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.invariants import Allowed, check_at_rest
from tests.support.processes import ScriptedAgent, wait_until
from tests.support.survival import SHORT_LEASE, Scene

WORKFLOWS = 15
CHILDREN = 6
KILLS = 12
REDIS_KILLS = 2
SEED = 20260


def goal(rand: random.Random) -> dict[str, Any]:
    """A second or four of work; of its pushes some never come, and some come three times."""
    ends = rand.uniform(0.5, 4.0)
    push: dict[str, Any] = {"push": rand.random() > 0.35, "push_times": rand.choice((1, 1, 3))}
    state = rand.choices(("COMPLETED", "FAILED", "REJECTED"), (8, 1, 1))[0]
    return {"states": [["SUBMITTED", 0], ["WORKING", ends / 2], [state, ends]], "artifact": "ok", **push}


@pytest.mark.timeout(180)
def test_everything_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    """90 delegations of 15 workflows, 12 kill -9 of a worker, 2 of Redis, a tenth of the sends answered by a reset."""
    rand = random.Random(SEED)  # not for secrets
    agent = ScriptedAgent(tmp_path, name="a")
    timing = {**SHORT_LEASE, "recheck_first": 2}
    with Scene(tmp_path, agents={"a": agent}, timing=timing) as scene:
        lost = {"on": "SendMessage", "work": True, "end": "reset", "times": 1}
        agent.script([{**lost, "match": f'"id": "lost-{number}"'} for number in range(9)])
        workers = [scene.start_worker() for _ in range(2)]
        for number in range(WORKFLOWS):
            goals = [goal(rand) for _ in range(CHILDREN)]
            if number < 9:
                goals[0]["id"] = f"lost-{number}"
            scene.open_workflow([json.dumps(each) for each in goals])
        unfinished_kills = 0
        for number in range(KILLS):
            time.sleep(rand.uniform(0.1, 0.5))  # a random moment is the point
            unfinished_kills += scene.counters().get("opened", 0) > _settled(scene)
            victim = number % len(workers)
            workers[victim].kill()
            workers[victim] = scene.start_worker(wait=False)
            if number % (KILLS // REDIS_KILLS) == KILLS // REDIS_KILLS - 1:
                scene.valkey.kill()
                scene.valkey.start()
        assert unfinished_kills >= KILLS // 2, "the faults came too late to prove anything"
        wait_until(lambda: _settled(scene) == WORKFLOWS * CHILDREN, 90, what="every delegation settled")
        rest = check_at_rest(scene, Allowed(unacked=True, configs_left=WORKFLOWS * CHILDREN), timeout_s=60)
        assert len(rest.workflows) == WORKFLOWS
        assert len(rest.delegations) == WORKFLOWS * CHILDREN
        assert scene.counters().get("sends_reconciled", 0) > 0


def _settled(scene: Scene) -> int:
    return sum(count for name, count in scene.counters().items() if name.startswith("settled:"))
