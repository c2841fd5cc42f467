"""Everything at once, seeded: workers and Redis killed at random moments, pushes lost and tripled, answers lost, and
people who reply and cancel meanwhile.

Passes only if the faults really happened while there was work left; then the invariants decide, from the agent's ledger
and Redis, never from our log.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from pathlib import Path
from typing import Any

import pytest

from delegation.errors import DelegationEnded, StoreUnavailable
from tests.support.invariants import Allowed, check_at_rest
from tests.support.processes import ScriptedAgent, wait_until
from tests.support.survival import SHORT_LEASE, Scene

WORKFLOWS = 15
CHILDREN = 6
KILLS = 12
REDIS_KILLS = 2
LOST_SENDS, LOST_REPLIES = 9, 8
SEED = 20260
#: Of the last workflows; what their joins leave behind is cancelled while everything else happens.
POLICIES = ("any", "first_success", "fail_fast", {"quorum": 2}, {"quorum": 4})


def goal(rand: random.Random, *, asks: bool) -> dict[str, Any]:
    """A second or four of work, or a question; of its pushes some never come, and some come three times."""
    ends = rand.uniform(0.5, 4.0)
    push: dict[str, Any] = {"push": rand.random() > 0.35, "push_times": rand.choice((1, 1, 3))}
    state = rand.choices(("COMPLETED", "FAILED", "REJECTED"), (8, 1, 1))[0]
    last = ["INPUT_REQUIRED", ends, "Which month?"] if asks else [state, ends]
    return {"states": [["SUBMITTED", 0], ["WORKING", ends / 2], last], "artifact": "ok", **push}


class People:
    """They answer whatever is in the inbox, at once, and change their minds now and then."""

    def __init__(self, scene: Scene, rand: random.Random) -> None:
        self.replies = 0
        self._scene = scene
        self._rand = rand

    def cancel(self, delegation_id: str) -> None:
        with contextlib.suppress(StoreUnavailable):
            self._scene.handle(delegation_id).cancel("changed my mind")

    def talk(self) -> None:
        with contextlib.suppress(StoreUnavailable):  # Redis was killed just now: they try again
            for delegation_id in self._scene.records.inbox():
                with contextlib.suppress(DelegationEnded):
                    self._scene.handle(delegation_id).reply(self._answer(), key=f"{self._question_of(delegation_id)}")
                    self.replies += 1

    def _answer(self) -> str:
        """A third of the agents ask once more."""
        answer = goal(self._rand, asks=self._rand.random() < 0.3)
        return json.dumps({**answer, "artifact": f"reply {self.replies}."})

    def _question_of(self, delegation_id: str) -> int:
        question = self._scene.load(delegation_id).progress.question
        return question.number if question else 0


@pytest.mark.timeout(240)
def test_everything_ends_once_whatever_is_killed(tmp_path: Path) -> None:
    """90 delegations, a third of which ask, 12 kill -9 of a worker, 2 of Redis, lost answers, cancels."""
    rand = random.Random(SEED)  # not for secrets
    agent = ScriptedAgent(tmp_path, name="a")
    timing = {**SHORT_LEASE, "recheck_first": 2}
    with Scene(tmp_path, agents={"a": agent}, timing=timing) as scene:
        lost = {"on": "SendMessage", "work": True, "end": "reset", "times": 1}
        sends = [{**lost, "match": f'"id": "lost-{number}"'} for number in range(LOST_SENDS)]
        agent.script([*sends, *({**lost, "match": f'"reply {number}."'} for number in range(LOST_REPLIES))])
        scene.set_user_env(CONTINUATION_VISIBILITY_S="5")  # what a killed worker had begun comes back to another
        workers = [scene.start_worker() for _ in range(2)]
        workflows = []
        for number in range(WORKFLOWS):
            goals = [goal(rand, asks=child % 3 == 1) for child in range(CHILDREN)]
            if number < LOST_SENDS:
                goals[0]["id"] = f"lost-{number}"
            policy = ("all",) * (WORKFLOWS - len(POLICIES)) + POLICIES
            given = [json.dumps(each) for each in goals]
            workflows.append(scene.open_workflow(given, tells=number % 3 == 0, policy=policy[number]))
        people, unfinished_kills = People(scene, rand), 0
        for number in range(KILLS):
            time.sleep(rand.uniform(0.1, 0.5))  # a random moment is the point
            people.talk()
            people.cancel(f"{rand.choice(workflows).id}.{rand.randint(1, CHILDREN)}")
            unfinished_kills += scene.counters().get("opened", 0) > _settled(scene)
            victim = number % len(workers)
            workers[victim].kill()
            workers[victim] = scene.start_worker(wait=False)
            if number % (KILLS // REDIS_KILLS) == KILLS // REDIS_KILLS - 1:
                scene.valkey.kill()
                scene.valkey.start()
        assert unfinished_kills >= KILLS // 2, "the faults came too late to prove anything"
        wait_until(
            lambda: people.talk() or _settled(scene) == WORKFLOWS * CHILDREN, 90, what="every delegation settled"
        )
        rest = check_at_rest(scene, Allowed(unacked=True, configs_left=WORKFLOWS * CHILDREN), timeout_s=60)
        assert len(rest.workflows) == WORKFLOWS
        assert len(rest.delegations) == WORKFLOWS * CHILDREN
        assert scene.counters().get("sends_reconciled", 0) > 0
        assert people.replies >= WORKFLOWS
        assert sum(it.progress.turn for it in rest.delegations) >= WORKFLOWS
        assert sum(it.cancel_until is not None for it in rest.delegations) > 0


def _settled(scene: Scene) -> int:
    return sum(count for name, count in scene.counters().items() if name.startswith("settled:"))
