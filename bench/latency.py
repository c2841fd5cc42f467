"""How long a push takes to become the message of a continuation, on an idle system, against a hop over two tasks."""

from __future__ import annotations

import json
import time

from bench.app import DONE, NOTE
from bench.progress import say
from bench.reference_app import HOP
from bench.stage import PATIENCE_S, Scale, Stage, agent_of, stage, take_first
from bench.table import Goal, Row, quantile
from workers import Workflow

#: No worker consumes it, so what is published stays for us to see.
NOBODY = "bench.nobody"
#: Late enough that the delegation is parked when the push comes.
GOAL = json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.1]]})


def measure(scale: Scale) -> list[Row]:
    """p50 and p95 of each round, milliseconds. Raises TimeoutError when a continuation does not come."""
    times = scale.of(100, 20)
    ours, theirs = [], []
    with stage({"agent": {}}) as made:
        _resumptions(made, 3)
        _hops(made, 3)
        for number in range(scale.rounds):
            say(f"latency: round {number + 1} of {scale.rounds}")
            ours.append(_resumptions(made, times))
            theirs.append(_hops(made, times))
    return [
        Row(
            what=f"push received → continuation published, {name} (publish → task → task → effect)",
            ours=[quantile(each, share) for each in ours],
            reference=[quantile(each, share) for each in theirs],
            unit="ms",
            goal=goal,
        )
        for name, share, goal in (("p50", 0.5, Goal(at_most=1.5)), ("p95", 0.95, None))
    ]


def _resumptions(made: Stage, times: int) -> list[float]:
    """One workflow with one child after the other; from the agent opening its connection to the message seen."""
    seen_at = dict(_resume(made) for _ in range(times))
    began_at = {}
    # The agent writes a push down when it has its answer, which may be after the continuation was published.
    pushes = agent_of(made, "agent").wait_for_pushes(len(agent_of(made, "agent").created()), PATIENCE_S)
    for push in pushes:
        delegation_id = push["url"].rpartition("/")[2]
        began_at[delegation_id.partition(".")[0]] = push["at"] - push["ms"] / 1000
    return [(at - began_at[workflow_id]) * 1000 for workflow_id, at in seen_at.items()]


def _resume(made: Stage) -> tuple[str, float]:
    """The workflow's id, and when its continuation was seen in the queue."""
    workflow = Workflow.open()
    workflow.delegate("agent", GOAL)
    # Without a result nobody asks whether it ran, so it is published once.
    workflow.join(made.app.signature(NOTE, queue=NOBODY, ignore_result=True))
    take_first(made.redis, made.key(NOBODY))
    return workflow.id, time.time()


def _hops(made: Stage, times: int) -> list[float]:
    """The raw reference: publish a task that publishes a task that leaves a sign."""
    return [_hop(made) for _ in range(times)]


def _hop(made: Stage) -> float:
    began = time.monotonic()
    made.reference.tasks[HOP].delay()
    take_first(made.reference_redis, DONE)
    return (time.monotonic() - began) * 1000
