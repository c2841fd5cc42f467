"""What must be there for delegations to work, checked one by one, the cheapest first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any

import httpx
from kombu.exceptions import KombuError, OperationalError

from delegation.errors import ConfigurationError, DelegationError, StateLost, StoreUnavailable
from delegation.settings import Settings
from delegation.store import Store
from workers.carrier import carrying_app
from workers.printable import one_line
from workers.project_directory import names_redis
from workers.queues import queue_lengths
from workers.runtime import current_settings, make_store

OLDEST_REDIS = (6, 2)
#: A sweep runs about four times a second in every worker.
SWEEPER_SILENCE_S = 60.0
#: An entry that is due for longer waits for a worker that is too busy, or not there.
LATE_S = 60.0
WEB_PATIENCE_S = 3.0


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"  #: works, but look at it
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report; ``exit_code`` is what the command ends with if nothing worse was found."""

    name: str
    verdict: Verdict
    text: str
    exit_code: int = 0


def examine(*, ask_agents: bool = True) -> Iterator[Finding]:
    """Each finding as it is made; what depends on a failed check is left out."""
    try:
        settings = current_settings()
    except ConfigurationError as error:
        yield _failed("configuration", str(error), exit_code=error.exit_code)
        return
    yield _ok("configuration", f"{len(settings.agents)} agent{'' if len(settings.agents) == 1 else 's'}")
    store = make_store(settings, timeout_s=WEB_PATIENCE_S)
    try:
        redis = _redis(settings, store)
        yield redis
        if redis.verdict is not Verdict.FAILED:
            yield from _safely("redis", lambda: _durability(store))
            yield from _safely("state", lambda: [_state(store)])
            yield from _safely("worker", lambda: [_worker(store)])
            yield from _safely("due", lambda: _due(store))
            yield _queues()
        yield _web(settings)
        if redis.verdict is not Verdict.FAILED:
            asked: list[dict[str, Any]] = []
            if ask_agents:
                yield from _safely("agents", lambda: _agents(settings, store, asked))
            yield from _safely("follower", lambda: _follower(settings, store, asked))
    finally:
        store.close()


def _safely(name: str, check: Callable[[], Any]) -> Iterator[Finding]:
    """Redis may go while we ask it."""
    try:
        yield from check()
    except DelegationError as error:
        yield _failed(name, str(error), exit_code=error.exit_code)


def _redis(settings: Settings, store: Store) -> Finding:
    where = _where(store)
    try:
        with store.seam():
            info: dict[str, Any] = store.client.info("server")
    except StoreUnavailable as error:
        advice = "" if names_redis(settings) else "; set DELEGATION_REDIS__URL, or start `delegation up`"
        return _failed("redis", f"{where}: {error}{advice}", exit_code=error.exit_code)
    version = str(info.get("redis_version", ""))
    product = f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {version}"
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_REDIS:
        return _failed("redis", f"{where}: {product}; {OLDEST_REDIS[0]}.{OLDEST_REDIS[1]} or newer is needed")
    return _ok("redis", f"{where}: {product}")


def _where(store: Store) -> str:
    """Host and port or path, never the password."""
    asked = store.client.connection_pool.connection_kwargs
    return str(asked.get("path") or f"{asked.get('host')}:{asked.get('port')}")


def _durability(store: Store) -> Iterator[Finding]:
    try:
        with store.seam():
            found: Any = store.client.config_get("appendonly", "appendfsync", "maxmemory-policy")
    except StoreUnavailable:
        yield _warning("durability", "could not be checked: CONFIG GET is not permitted to us")
        return
    problems = []
    if found.get("appendonly") != "yes":
        problems.append("appendonly is off, a restart of Redis loses every record: CONFIG SET appendonly yes")
    elif found.get("appendfsync") == "no":
        problems.append("appendfsync is no, a crash loses the last half minute: CONFIG SET appendfsync everysec")
    if found.get("maxmemory-policy") != "noeviction":
        problems.append("Redis may evict records: CONFIG SET maxmemory-policy noeviction")
    if problems:
        yield _failed("durability", "; ".join(problems))
    else:
        yield _ok("durability", f"appendonly, appendfsync {found.get('appendfsync')}, noeviction")


def _state(store: Store) -> Finding:
    try:
        return _ok("state", f"epoch {store.epoch()}")
    except StateLost as error:
        return _warning("state", str(error))


def _worker(store: Store) -> Finding:
    silence_s = store.sweeper_seen_at()
    if silence_s is None or silence_s >= SWEEPER_SILENCE_S:
        seen = "none has ever run" if silence_s is None else f"none for {silence_s:.0f} s"
        return _failed("worker", f"{seen}; start one: delegation up, or celery -A … worker")
    return _ok("worker", f"swept {silence_s:.1f} s ago")


def _due(store: Store) -> Iterator[Finding]:
    numbers = store.metrics()
    text = f"{numbers['due']} to look at sometime, {numbers['parked']} parked"
    late_s = numbers["oldest_due_age_s"]
    if late_s > LATE_S:
        yield _warning("due", f"{text}; the oldest is late by {late_s:.0f} s")
    else:
        yield _ok("due", text)
    given_up = numbers["counters"].get("continuations_poisoned", 0)
    if given_up:
        said = "published again and again and never seen to run: see workflow.continuation_poisoned in the worker's log"
        yield _warning("continuations", f"{given_up} given up, {said}")
    else:
        yield _ok("continuations", "none given up")


def _queues() -> Finding:
    try:
        lengths = queue_lengths(carrying_app())
    except ConfigurationError as error:
        return _failed("queues", str(error), exit_code=error.exit_code)
    except (OperationalError, KombuError, OSError) as error:
        return _failed("queues", f"the broker does not answer: {error}", exit_code=3)
    return _ok("queues", ", ".join(f"{name} {length}" for name, length in lengths.items()))


def _web(settings: Settings) -> Finding:
    base_url = settings.server.base_url
    if base_url is None:
        return _warning("web", "server.base_url is not set: no agent can push, each is asked")
    try:
        status = httpx.get(f"{base_url}/healthz", timeout=WEB_PATIENCE_S).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return _failed("web", f"{base_url} does not answer: {str(error) or type(error).__name__}", exit_code=3)
    if status == 404:
        # A proxy is told to forward the push path only (docs/push.md).
        return _warning("web", f"{base_url} answers, but /healthz is not there: right if a proxy keeps it inside")
    if status != 200:
        return _failed("web", f"{base_url}/healthz answers {status}", exit_code=3)
    return _ok("web", f"{base_url} answers")


def _follower(settings: Settings, store: Store, asked: list[dict[str, Any]]) -> Iterator[Finding]:
    """Nothing to say where no agent is followed; `off` is followed while it works, where it offers streams."""
    living = [each for each in store.followers() if each.lives]
    wanting, unfollowed = store.wanting_follower()
    is_told_to = any(agent.updates == "follow" for agent in settings.agents)
    if living:
        streams, running = sum(each.streams for each in living), len(living)
        yield _ok("follower", f"{running} running, {streams} streams, {wanting} delegations to follow")
    elif wanting or is_told_to or any(row["watch"] == "follow" for row in asked):
        text = f"none runs, and {unfollowed} of {wanting} delegations to follow are polled instead"
        yield _warning("follower", f"{text}; start one: delegation follower")


def _agents(settings: Settings, store: Store, asked: list[dict[str, Any]]) -> Iterator[Finding]:
    """``asked`` is given a row for each."""
    if not settings.agents:
        yield _warning("agents", "none; add an [[agents]] block to delegation.toml")
        return
    composition = import_module("workers.composition")  # imports a2a, which `doctor --no-agents` need not wait for
    roster = composition.make_roster(settings, store)
    try:
        rows = roster.describe()
    finally:
        roster.close()
    asked += rows
    for row in rows:
        name = f"agent {row['id']}"
        yield _ok(name, f"accepted, {row['watch']}") if row["accepted"] else _failed(name, str(row["reason"]))


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, verdict=Verdict.OK, text=one_line(text))


def _warning(name: str, text: str) -> Finding:
    return Finding(name=name, verdict=Verdict.WARNING, text=one_line(text))


def _failed(name: str, text: str, exit_code: int = 1) -> Finding:
    return Finding(name=name, verdict=Verdict.FAILED, text=one_line(text), exit_code=exit_code)
