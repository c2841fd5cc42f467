"""What ten thousand parked delegations cost: bytes, worker slots, the latency of a new one, commands while idle."""

from __future__ import annotations

import json
import time

from bench.progress import say
from bench.stage import PATIENCE_S, Scale, Stage, agent_of, stage
from bench.table import Goal, Row, quantile
from tests.support.processes import wait_until
from workers import Workflow, delegate

CHILDREN = 1000  #: of the workflow whose bytes are counted, and of each further one
PROBES = 30
IDLE_S = 10.0
#: A parked delegation is looked at once a minute while it is young; that load is the agent's pace, not the cost of
#: being parked, so nothing is due during the measurement.
LATER = {"recheck_first": 3600.0}
#: Begins to work and never ends, whatever it is told.
SLEEPY = {"default_script": {"states": [["WORKING", 0]]}}
QUICK_GOAL = json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.001]]})


def measure(scale: Scale) -> list[Row]:
    """All figures of this subject. Raises TimeoutError when the delegations do not get parked."""
    parked = scale.of(10_000, 1_000)
    with stage({"sleepy": SLEEPY, "quick": {}}, reference=False, timing=LATER) as made:
        _probe(made, PROBES)
        say("parked: an empty system")
        empty, empty_rate = _rounds(made, scale), _idle_commands_per_second(made)
        say(f"parked: the first {CHILDREN}")
        bytes_before = _bytes(made)
        _park(made, CHILDREN)
        bytes_each = (_bytes(made) - bytes_before) / CHILDREN
        for so_far in range(2 * CHILDREN, parked + 1, CHILDREN):
            say(f"parked: {so_far} of {parked}")
            _park(made, CHILDREN)
        busy = _settled_busy_slots(made)
        say("parked: a full system")
        full_rate, full = _idle_commands_per_second(made), _rounds(made, scale)
    return [
        Row(
            what=f"Redis bytes per parked child of a workflow ({CHILDREN:,} children)",
            ours=[bytes_each],
            unit="bytes",
            goal=Goal(at_most=2048, is_absolute=True),
        ),
        Row(what=f"busy slots, {parked:,} parked", ours=[busy], goal=Goal(at_most=0, is_absolute=True)),
        Row(
            what=f"submit → outcome of a new one, p50, {parked:,} parked (none parked)",
            ours=full,
            reference=empty,
            unit="ms",
            goal=Goal(at_most=1.5),
        ),
        Row(
            what=f"Redis commands per second while idle, {parked:,} parked (none parked)",
            ours=[full_rate],
            reference=[empty_rate],
            unit="/s",
        ),
    ]


def _park(made: Stage, children: int) -> None:
    """One more workflow whose children all wait for their agent."""
    agent, before = agent_of(made, "sleepy"), made.store.metrics()["parked"]
    tasks = agent.stats()["tasks"]
    workflow = Workflow.open()
    for number in range(children):
        workflow.delegate("sleepy", f"go on {number:4d}")
    workflow.join()
    wait_until(
        lambda: agent.stats()["tasks"] == tasks + children and made.store.metrics()["parked"] == before + children,
        PATIENCE_S,
        what=f"{children} parked delegations",
        every_s=0.2,
    )
    _settled_busy_slots(made)


def _settled_busy_slots(made: Stage) -> int:
    """What is still busy once the last step had time to end; 0 as soon as there is nothing."""
    give_up_at = time.monotonic() + 30.0
    while (busy := made.busy_slots()) and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return busy


def _bytes(made: Stage) -> int:
    """Of every key under our prefix, Celery's included."""
    keys = list(made.redis.scan_iter(made.store.key("*"), count=1000))
    pipe = made.redis.pipeline(transaction=False)
    for key in keys:
        pipe.memory_usage(key, samples=0)
    return sum(size or 0 for size in pipe.execute())


def _rounds(made: Stage, scale: Scale) -> list[float]:
    return [quantile(_probe(made, PROBES), 0.5) for _ in range(scale.rounds)]


def _probe(made: Stage, times: int) -> list[float]:
    """Milliseconds from submitting one delegation to holding its outcome, one after the other."""
    found = []
    for _ in range(times):
        began = time.monotonic()
        delegate.delay(agent="quick", goal=QUICK_GOAL).get(timeout=PATIENCE_S)
        found.append((time.monotonic() - began) * 1000)
    made.await_rest()
    return found


def _idle_commands_per_second(made: Stage) -> float:
    before = sum(made.commands().values())
    time.sleep(IDLE_S)
    return (sum(made.commands().values()) - before) / IDLE_S
