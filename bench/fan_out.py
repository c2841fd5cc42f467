"""One workflow with ever more children: what each costs to open and to settle must not depend on how many there are."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.progress import say
from bench.stage import Scale
from bench.table import Goal, Row
from delegation.agent_task import TaskState
from delegation.endings import settle
from delegation.opening import make_delegation, new_workflow_id
from delegation.state import Cause, Delegation, Moment, WorkflowId
from delegation.store import Store
from tests.support.processes import ValkeyProcess
from tests.support.redis_users import ADMIN

SIZES = (100, 1_000, 10_000)
QUICK_SIZES = (30, 100, 300)
#: A script that takes longer than this is written down by the server, in microseconds.
SLOW_US = 500
#: Time per child at the largest size, compared with the smallest: flat, but for noise.
FLAT = Goal(at_most=1.5)
#: No script may keep others waiting longer, in milliseconds.
LONGEST = Goal(at_most=50.0, is_absolute=True)


@dataclass
class Times:
    """Microseconds per child, one figure per round, by the number of children."""

    open: dict[int, list[float]] = field(default_factory=dict)
    settle: dict[int, list[float]] = field(default_factory=dict)
    longest_ms: list[float] = field(default_factory=list)


def measure(scale: Scale) -> list[Row]:
    sizes = QUICK_SIZES if scale.quick else SIZES
    times = Times()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        valkey = ValkeyProcess(Path(name)).start()
        with valkey, valkey.client(user=ADMIN) as client:
            client.config_set("slowlog-log-slower-than", SLOW_US)
            client.config_set("slowlog-max-len", 100_000)
            for number in range(scale.rounds):
                say(f"fan_out: round {number + 1} of {scale.rounds}")
                client.slowlog_reset()
                for size in sizes:
                    _round(Store(client), size, times, repeats=max(1, sizes[1] // size))
                times.longest_ms.append(_longest_ms(client))
                client.flushall()
    return _rows(sizes, times)


def _round(store: Store, size: int, times: Times, *, repeats: int) -> None:
    """Smaller fan-outs several times, so that each figure is of as many children."""
    opened, settled = 0.0, 0.0
    for _ in range(repeats):
        workflow = new_workflow_id()
        store.open_workflow(workflow, name="fan-out", deadline_s=None)
        children: list[Delegation] = []
        opened += _seconds(partial(_open, store, workflow, size, children))
        store.join_workflow(workflow, {"task": "next"})
        settled += _seconds(partial(_settle, store, children))
        record = store.load_workflow(workflow)
        if (record.round, record.unresolved) != (1, 0):
            raise ValueError(f"{size} children led to {record.round} releases, {record.unresolved} are unresolved")
    times.open.setdefault(size, []).append(opened / repeats / size * 1e6)
    times.settle.setdefault(size, []).append(settled / repeats / size * 1e6)


def _seconds(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _open(store: Store, workflow: WorkflowId, count: int, children: list[Delegation]) -> None:
    arguments: dict[str, Any] = {"agent": "bench", "goal": "work", "workflow": workflow}
    for _ in range(count):
        number = store.next_child_number(workflow)
        made = make_delegation(arguments, call_id=None, participant_id="bench", canvas={}, number=number)
        store.open_delegation(made, by_call=False)
        children.append(replace(made, version=1))


def _settle(store: Store, children: list[Delegation]) -> None:
    moment = Moment(now=store.now(), rules=store.rules)
    for child in children:
        store.settle(child, settle(child, TaskState.COMPLETED, cause=Cause.POLL, moment=moment, text="done"))


def _longest_ms(client: Any) -> float:
    """Of the scripts that were slow at all; none was: the limit of what is written down."""
    scripts = [each for each in client.slowlog_get(100_000) if str(each["command"]).startswith("EVAL")]
    return float(max((each["duration"] for each in scripts), default=SLOW_US)) / 1000


def _rows(sizes: tuple[int, ...], times: Times) -> list[Row]:
    rows = [
        Row(
            what=f"{what} one of {size:,} children" + (f", beside one of {sizes[0]}" if size != sizes[0] else ""),
            ours=found[size],
            reference=found[sizes[0]] if size != sizes[0] else (),
            unit="µs",
            goal=FLAT if size == sizes[-1] else None,
        )
        for what, found in (("open", times.open), ("settle", times.settle))
        for size in sizes
    ]
    longest = Row(what="longest single script of all that", ours=times.longest_ms, unit="ms", goal=LONGEST)
    return [*rows, longest]
