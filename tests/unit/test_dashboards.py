"""What operators look at: bounded, on loopback, and of versions without known holes (rows D-02, D-05)."""

from __future__ import annotations

import random
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry, generate_latest

from delegation.agent_task import TaskState
from delegation.settings import Settings
from delegation.state import Cause
from delegation.store_follows import FollowerSeen
from web.health import DelegationCollector
from workers.celery_settings import END_QUEUE, QUEUE
from workers.processes import flower_command

ROOT = Path(__file__).parents[2]


class Counted:
    """A store that only counts."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()

    def ping(self) -> None: ...

    def epoch(self) -> object: ...

    def sweeper_seen_at(self) -> float | None: ...

    def metrics(self) -> Mapping[str, Any]:
        return {"due": 1, "oldest_due_age_s": 0.5, "parked": 3, "counters": self.counters}

    def followers(self) -> Sequence[FollowerSeen]:
        return []


def series(store: Counted) -> list[str]:
    registry = CollectorRegistry()
    registry.register(DelegationCollector(store=store, queue_lengths=lambda: {QUEUE: 1, END_QUEUE: 0}))
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_d05_ten_thousand_delegations_make_few_series() -> None:
    """Whatever agents there are and however they end: labels are ours, so their number is bounded."""
    store, chance = Counted(), random.Random(5)
    for _ in range(10_000):
        store.counters["opened"] += 1
        store.counters[f"settled:{chance.choice(list(TaskState)).value}:{chance.choice(list(Cause)).value}"] += 1
    assert len(series(store)) <= 200


def test_d05_what_is_no_label_of_ours_is_counted_as_other() -> None:
    """A damaged or forged counter opens no series of its own, however it is spelt."""
    store = Counted()
    for number in range(10_000):
        store.counters[f"settled:S{number}:cause_{'abcdefghij'[number % 10] * (number % 20 + 1)}"] += 1
        store.counters[f'settled:COMPLETED:x"}}\n{number}'] += 1
    assert len(series(store)) <= 200
    assert sum(line.startswith("delegation_settled_total{") for line in series(store)) == 2


def test_d02_flower_listens_on_loopback_alone() -> None:
    """In the Procfile, in `delegation up`, and in what the compose file publishes."""
    (line,) = [line for line in (ROOT / "Procfile").read_text().splitlines() if line.startswith("flower:")]
    assert "--address=127.0.0.1" in line.split()
    assert "--address=127.0.0.1" in flower_command(Settings(), 5555)
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert all(port.startswith("127.0.0.1:") for port in compose["services"]["flower"]["ports"])


def test_d02_flower_is_of_a_version_without_known_holes() -> None:
    """CVE-2022-30034 and CVE-2022-51020 are fixed in 2.2.0."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = [requirement for each in extras.values() for requirement in each if requirement.startswith("flower")]
    assert named
    assert all(re.search(r">=(\d+)\.(\d+)", each) and "flower>=2.2" in each for each in named)
