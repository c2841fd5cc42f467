"""The processes a benchmark runs against: a deployment with production timing, quiet logs, and the raw reference."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import redis
from celery import Celery

from bench.app import DONE, NOTE, make_bench_app
from bench.reference_app import NOTE as REFERENCE_NOTE
from bench.reference_app import make_reference_app
from delegation.settings import RedisSettings, TimingSettings
from delegation.store import Store
from tests.support.processes import (
    CeleryWorker,
    ChildProcess,
    Deployment,
    ScriptedAgent,
    ValkeyProcess,
    Web,
    wait_until,
)
from tests.support.redis_users import ADMIN
from workers.celery_settings import END_QUEUE, QUEUE, celery_prefix
from workers.runtime import reset_runtime, runtime

#: The command line of docs/design.md §10, for our worker and for the reference's.
SLOTS = 32
QUIET = ("-l", "WARNING")
#: Without a sign of life for so long, a benchmark gives up.
PATIENCE_S = 300.0
#: Beyond every delay of a step at work, and short of the next look at a parked delegation.
SOON_S = 45.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much is measured: ``rounds`` of each figure, and everything smaller in a quick look."""

    rounds: int
    quick: bool = False

    def of(self, usual: int, quick: int) -> int:
        return quick if self.quick else usual


class Stage:
    """A running deployment as a benchmark sees it. ``app`` and ``reference`` publish from this process."""

    def __init__(self, deployment: Deployment, app: Celery, reference: Celery | None) -> None:
        self.deployment = deployment
        self.app = app
        self._reference = reference
        self.redis: redis.Redis = runtime().store.client
        self.reference_redis = deployment.valkey.client(1)

    @property
    def reference(self) -> Celery:
        assert self._reference is not None, "this stage has no reference"
        return self._reference

    @property
    def store(self) -> Store:
        return runtime().store

    def key(self, celery_name: str) -> str:
        """The Redis key behind one of Celery's names: a queue, `unacked`."""
        return f"{celery_prefix(runtime().settings)}{celery_name}"

    def await_done(self, count: int, *, reference: bool = False) -> None:
        """Until ``count`` tasks have said that they ran. Raises TimeoutError."""
        client = self.reference_redis if reference else self.redis
        for _ in range(count):
            take_first(client, DONE)

    def await_rest(self) -> None:
        """Until no delegation has anything to do soon: continuations published, agents cleaned up."""
        wait_until(lambda: not self._due_soon(), PATIENCE_S, what="rest after all delegations", every_s=0.05)

    def _due_soon(self) -> list[Any]:
        found: list[Any] = self.redis.zrangebyscore(self.store.key("due"), "-inf", self.store.now() + SOON_S)
        return [member for member in found if member.startswith("delegation:")]

    def busy_slots(self) -> int:
        """What waits for a worker or is held by one: agents' call slots, messages, unacknowledged messages."""
        queued = sum(self.redis.llen(self.key(name)) for name in (QUEUE, END_QUEUE))
        calls = sum(self.redis.zcard(self.store.key("calls", agent)) for agent in self.deployment.agents)
        return int(queued + calls + self.redis.hlen(self.key("unacked")))

    def commands(self) -> dict[str, int]:
        """How often each Redis command ran so far, those inside scripts included."""
        found = self.redis.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(stats["calls"]) for name, stats in found.items()}

    def close(self) -> None:
        self.reference_redis.close()


@contextmanager
def stage(
    agents: Mapping[str, Mapping[str, Any]],
    *,
    worker: bool = True,
    reference: bool = True,
    timing: Mapping[str, Any] | None = None,
) -> Iterator[Stage]:
    """Everything running and warm; gone at the end. ``agents``: id → AgentConfig fields."""
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        directory = Path(name)
        handles = {agent_id: ScriptedAgent(directory, name=agent_id, **dict(c)) for agent_id, c in agents.items()}
        valkey = ValkeyProcess(directory / "valkey")
        deployment = Deployment(
            directory,
            agents=handles,
            timing={**production_timing(), **(timing or {})},
            config={"celery": {"app": "bench.app:app"}, "redis": {"url": valkey.url(user=ADMIN)}},
            env={"DELEGATION_LOG_LEVEL": "WARNING"},
            workers=0,
            valkey=valkey,
        )
        deployment.web = web(deployment, "web.wsgi:app")
        with deployment, _settings_of(deployment):
            made = Stage(deployment, make_bench_app(), _reference_of(deployment) if reference else None)
            try:
                _start_workers(made, worker=worker, reference=reference)
                yield made
            finally:
                made.close()


def web(deployment: Deployment, app: str) -> Web:
    """A web app under the gunicorn settings that we ship."""
    return Web(log=deployment.directory / f"{app}.log", env=deployment.env, app=app, workers=2, threads=16)


def take_first(client: redis.Redis, key: str) -> None:
    """Wait for a list's first element and take it. Raises TimeoutError."""
    # In slices, because no client waits longer for an answer than its socket's timeout.
    if not any(client.blpop([key], timeout=1) for _ in range(int(PATIENCE_S))):
        raise TimeoutError(f"nothing in {key} within {PATIENCE_S:.0f} s")


def agent_of(made: Stage, agent_id: str) -> ScriptedAgent:
    agent = made.deployment.agents[agent_id]
    assert isinstance(agent, ScriptedAgent)
    return agent


def production_timing() -> dict[str, Any]:
    """The defaults of the product, written out: tests run with shorter times."""
    values = {name: getattr(TimingSettings(), name) for name in TimingSettings.model_fields}
    return {k: v.total_seconds() if isinstance(v, timedelta) else list(v) for k, v in values.items()}


@contextmanager
def _settings_of(deployment: Deployment) -> Iterator[None]:
    """This process submits as one of the deployment's users would."""
    before = os.environ.get("DELEGATION_CONFIG")
    os.environ["DELEGATION_CONFIG"] = deployment.env["DELEGATION_CONFIG"]
    reset_runtime()
    try:
        yield
    finally:
        runtime().store.close()
        reset_runtime()
        if before is None:
            del os.environ["DELEGATION_CONFIG"]
        else:
            os.environ["DELEGATION_CONFIG"] = before


def _reference_of(deployment: Deployment) -> Celery:
    elsewhere = RedisSettings.model_validate({"url": deployment.valkey.url(1, user=ADMIN)})
    return make_reference_app(deployment.settings().model_copy(update={"redis": elsewhere}))


def _start_workers(made: Stage, *, worker: bool, reference: bool) -> None:
    """Ready is who has run a task: at this log level a worker says nothing."""
    deployment = made.deployment
    started: list[CeleryWorker] = []
    if worker:
        started.append(_start_worker(deployment, "bench.app:app", {}))
        made.app.tasks[NOTE].delay()
    if reference:
        env = {"DELEGATION_REDIS__URL": deployment.valkey.url(1, user=ADMIN)}
        started.append(_start_worker(deployment, "bench.reference_app:app", env))
        made.reference.tasks[REFERENCE_NOTE].delay()
    for each, is_reference in zip(started, [False, True] if worker else [True], strict=False):
        _await_ready(each, made.reference_redis if is_reference else made.redis)


def _start_worker(deployment: Deployment, app: str, env: Mapping[str, str]) -> CeleryWorker:
    return deployment.start_worker(wait=False, app=app, env=env, concurrency=SLOTS, options=QUIET)


def _await_ready(worker: ChildProcess, client: redis.Redis) -> None:
    worker.wait_until(lambda: client.lpop(DONE), 60.0, what="first task")
