"""What must be there for delegations to work, checked one by one, the cheapest first."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
from kombu.exceptions import KombuError, OperationalError

from delegation.card_changes import SHORT
from delegation.errors import (
    ConfigurationError,
    CredentialUnavailable,
    DelegationError,
    StateLost,
    StoreUnavailable,
)
from delegation.settings import CONFIG_VARIABLE, DEFAULT_FILE, Settings
from delegation.store import Store
from workers.carrier import carrying_app
from workers.printable import one_line
from workers.project_directory import ProjectDirectory, names_redis
from workers.queues import queue_lengths
from workers.redis_server import OLDEST_REDIS, ServerVersion, durability_of
from workers.runtime import current_settings, make_store

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
    yield _configuration(settings)
    store = make_store(settings, timeout_s=WEB_PATIENCE_S)
    try:
        redis = _redis(settings, store)
        yield redis
        if redis.verdict is not Verdict.FAILED:
            yield from _safely("redis", lambda: _durability(store))
            yield from _safely("state", lambda: [_state(store)])
            yield from _safely("worker", lambda: [_worker(store)])
            yield from _safely("due", lambda: [_due(store)])
            yield from _safely("continuations", lambda: _continuations(store))
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


def _configuration(settings: Settings) -> Finding:
    agents = f"{len(settings.agents)} agent{'' if len(settings.agents) == 1 else 's'}"
    if os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE.is_file():
        return _ok("configuration", agents)
    return _warning("configuration", f"no {DEFAULT_FILE} in {Path.cwd()}; defaults are used; {agents}")


def _redis(settings: Settings, store: Store) -> Finding:
    where = redis_address(store)
    project = ProjectDirectory.current()
    has_stopped = not names_redis(settings) and project.path.is_dir() and project.redis_url() is None
    try:
        with store.seam():
            info: dict[str, Any] = store.client.info("server")
    except StoreUnavailable as error:
        advice = "" if names_redis(settings) else "; set DELEGATION_REDIS__URL, or start `delegation up`"
        if not names_redis(settings) and project.path.is_dir():
            advice = f"; `delegation up`, whose data is in {project.path}, is not running: start it"
        return _failed("redis", f"{where}: {str(error).rstrip('.')}{advice}", exit_code=error.exit_code)
    server = ServerVersion.of(info)
    if server.is_too_old:
        return _failed("redis", f"{where}: {server}; {OLDEST_REDIS[0]}.{OLDEST_REDIS[1]} or newer is needed")
    if has_stopped:
        return _warning("redis", f"{where}: {server}; not that of `delegation up`, which is not running here")
    if not server.is_patched:
        advice = (
            "a script can run code there (CVE-2025-49844), unless your distribution patched it; see docs/security.md"
        )
        return _warning("redis", f"{where}: {server}; {advice}")
    return _ok("redis", f"{where}: {server}")


def redis_address(store: Store) -> str:
    """Host and port or path, never the password."""
    asked = store.client.connection_pool.connection_kwargs
    return str(asked.get("path") or f"{asked.get('host')}:{asked.get('port')}")


def _durability(store: Store) -> Iterator[Finding]:
    with store.seam():
        found = durability_of(store.client)
    problems = []
    if found.get("appendonly") != "yes":
        problems.append(f"appendonly is off, a restart of Redis loses every record: {_set('appendonly yes')}")
    elif found.get("appendfsync") == "no":
        problems.append(f"appendfsync is no, a crash loses the last half minute: {_set('appendfsync everysec')}")
    if found.get("maxmemory-policy") != "noeviction":
        problems.append(f"Redis may evict records: {_set('maxmemory-policy noeviction')}")
    if problems:
        yield _failed("durability", "; ".join(problems))
    else:
        appendfsync = found.get("appendfsync", "not known (CONFIG GET is not permitted to us)")
        yield _ok("durability", f"appendonly, appendfsync {appendfsync}, noeviction")


def _set(what: str) -> str:
    """Both: a restart forgets CONFIG SET, and one that finds AOF newly switched on reads no older snapshot."""
    return f"CONFIG SET {what} as its admin, then write {what} into redis.conf, for the next start"


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


def _due(store: Store) -> Finding:
    numbers = store.metrics()
    text = f"{numbers['due']} due now, {numbers['scheduled']} scheduled, {numbers['parked']} parked"
    late_s = numbers["oldest_due_age_s"]
    if late_s > LATE_S:
        return _warning("due", f"{text}; the oldest is late by {late_s:.0f} s")
    return _ok("due", text)


def _continuations(store: Store) -> Iterator[Finding]:
    """One that was published once is asked after only when it is time to publish it again: most of those ran."""
    given_up = store.metrics()["counters"].get("continuations_poisoned", 0)
    publishes = store.publishes_of_unseen_continuations()
    repeated = sum(1 for count in publishes if count > 1)
    problems = []
    if given_up:
        said = "published again and again and never seen to run: see workflow.continuation_poisoned in the worker's log"
        problems.append(f"{given_up} given up, {said}")
    if repeated:
        problems.append(f"{repeated} published more than once and not seen to run: is there a worker for its queue?")
    if problems:
        yield _warning("continuations", "; ".join(problems))
    else:
        just_now = f", {len(publishes)} published just now" if publishes else ""
        yield _ok("continuations", f"none given up{just_now}")


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
        return _warning("web", "server.base_url is not set: no agent can push, each is followed or asked")
    try:
        with httpx.Client(timeout=WEB_PATIENCE_S, trust_env=False, follow_redirects=False) as client:
            status = client.get(f"{base_url}/healthz").status_code
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
        if row["accepted"] and row["stale"]:
            yield _warning(name, f"card is stale: {row['stale']}{secret_advice(row)}; {_accepted(row)}")
        elif row["accepted"]:
            yield _ok(name, _accepted(row))
        else:
            yield _failed(name, f"{row['reason']}{secret_advice(row)}")


def secret_advice(row: Mapping[str, Any]) -> str:
    """Where a secret was looked for that is missing: workers have another environment than a shell."""
    said = f"{row['reason']} {row['stale']}"
    is_missing = CredentialUnavailable.code in said and "env:" in said
    return " (looked for in this shell's environment; workers have their own)" if is_missing else ""


def _accepted(row: dict[str, Any]) -> str:
    signed = {"verified": "signature verified", "present": "signed, not verified"}.get(row["signed"], "not signed")
    shown = f"shown {row['auth']}" if row["auth"] else "no credentials"
    return f"accepted, {row['watch']}; version {row['version']}, {shown}, {signed}, card {row['fingerprint'][:SHORT]}"


def _ok(name: str, text: str) -> Finding:
    return Finding(name=name, verdict=Verdict.OK, text=one_line(text))


def _warning(name: str, text: str) -> Finding:
    return Finding(name=name, verdict=Verdict.WARNING, text=one_line(text))


def _failed(name: str, text: str, exit_code: int = 1) -> Finding:
    return Finding(name=name, verdict=Verdict.FAILED, text=one_line(text), exit_code=exit_code)
