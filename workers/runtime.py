"""Composes settings, store, agents and story for a process: lazily, after fork, once."""

from __future__ import annotations

import importlib
import os
import threading
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any

from delegation.redis_access import Limits
from delegation.settings import Settings, TimingSettings, load_settings
from delegation.state import Rules
from delegation.store import Store
from workers.project_directory import with_project_redis

_lock = threading.RLock()


@dataclass
class Runtime:
    """What one process needs; the parts that speak A2A are made at first use, so that commands start fast."""

    settings: Settings
    store: Store
    pid: int = field(default_factory=os.getpid)
    _lifecycle: Any = None
    _roster: Any = None

    @property
    def lifecycle(self) -> Any:
        """The story, with a client per agent."""
        if self._lifecycle is None:
            with _lock:
                if self._lifecycle is None:
                    self._lifecycle = _composition().make_lifecycle(self.settings, self.store)
        return self._lifecycle

    @property
    def roster(self) -> Any:
        """The agents as a model is shown them; unlike a step, whoever asks waits for a card that is being fetched."""
        if self._roster is None:
            with _lock:
                if self._roster is None:
                    self._roster = _composition().make_roster(self.settings, self.store)
        return self._roster


def _composition() -> Any:
    os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")  # a tenth of each call
    # The one late import: a2a costs a quarter of a second and 28 MiB, and most commands never speak it.
    return importlib.import_module("workers.composition")


_current: Runtime | None = None


def runtime() -> Runtime:
    """This process's runtime; a forked child makes its own. Raises ConfigurationError."""
    global _current
    if _current is None or _current.pid != os.getpid():
        with _lock:
            if _current is None or _current.pid != os.getpid():
                settings = current_settings()
                _current = Runtime(settings=settings, store=make_store(settings))
    return _current


@lru_cache(maxsize=1)
def current_settings() -> Settings:
    """The settings, read once. Raises ConfigurationError."""
    return with_project_redis(load_settings())


def reset_runtime() -> None:
    """Forget everything composed, for tests and for a command that has just changed the environment."""
    global _current
    with _lock:
        _current = None
        current_settings.cache_clear()


def make_store(settings: Settings, *, timeout_s: float = 10.0) -> Store:
    """A store as the settings say."""
    limits = Limits(
        calls_per_agent=settings.limits.calls_per_agent,
        calls_per_second=settings.limits.calls_per_second,
        breaker_failures=settings.limits.breaker_failures,
        history=settings.limits.history,
        notes=settings.limits.notes,
        retention_s=int(settings.defaults.retention.total_seconds()),
        max_deadline_s=settings.defaults.max_deadline.total_seconds(),
    )
    return Store.connect(
        settings.redis.url,
        prefix=settings.redis.key_prefix,
        rules=make_rules(settings),
        limits=limits,
        timeout_s=timeout_s,
    )


def make_rules(settings: Settings) -> Rules:
    """The numbers of the settings, in seconds."""
    timing, limits = settings.timing, settings.limits
    durations: dict[str, Any] = {
        f"{name}_s": value.total_seconds()
        for name in TimingSettings.model_fields
        if isinstance(value := getattr(timing, name), timedelta) and f"{name}_s" in Rules.__dataclass_fields__
    }
    return Rules(
        **durations,
        refetch_s=tuple(timing.refetch),
        attempts=limits.attempts,
        message_text_bytes=limits.message_text_bytes,
        artifact_bytes=limits.artifact_bytes,
        rounds=limits.rounds,
        same_turns=limits.same_turns,
    )


__all__ = ["Runtime", "current_settings", "make_rules", "make_store", "reset_runtime", "runtime"]
