"""How we talk to Redis: one client that never retries by itself, scripts by SHA, one error type."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.commands.core import Script
from redis.retry import Retry

from delegation.errors import StoreUnavailable
from delegation.state import Rules

#: Each script, and what is included before it.
_SCRIPTS = {
    "number": ("number",),
    "open": ("due", "open"),
    "load": ("due", "load"),
    "begin": ("due", "marks", "begin"),
    "save": ("due", "marks", "save"),
    "settle": ("due", "marks", "release", "settle"),
    "park": ("park",),
    "load_to_finalize": ("load_to_finalize",),
    "share": ("due", "share"),
    "finish": ("due", "finish"),
    "push": ("due", "wake", "push"),
    "reply": ("due", "reply"),
    "cancel": ("due", "cancel"),
    "sweep": ("due", "sweep"),
    "open_workflow": ("due", "open_workflow"),
    "join": ("due", "marks", "release", "join"),
    "repair": ("due", "marks", "release", "repair"),
    "end_workflow": ("due", "marks", "release", "end_workflow"),
    "expire_workflow": ("due", "marks", "release", "expire_workflow"),
    "continuation": ("due", "continuation"),
    "drop_timer": ("due", "drop_timer"),
    "retire_child": ("due", "retire_child"),
    "drain_notes": ("drain_notes",),
    "untold": ("due", "untold"),
    "told": ("due", "told"),
    "follow_claim": ("due", "follow_claim"),
    "follow_renew": ("due", "follow_renew"),
    "follow_event": ("due", "wake", "follow_event"),
    "follow_drop": ("due", "follow_drop"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The numbers that bound what is kept."""

    calls_per_agent: int = 8
    calls_per_second: int = 200
    breaker_failures: int = 10
    history: int = 200
    notes: int = 1000
    depth: int = 8  #: of workflows inside workflows
    retention_s: int = 7 * 86400
    max_deadline_s: float = 7 * 86400.0


class RedisAccess:
    """Keys, scripts and errors; what is kept is told by the classes above."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "delegation:",
        rules: Rules | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.client = client
        self.prefix = prefix
        self.rules = rules or Rules()
        self.limits = limits or Limits()
        self._scripts = {name: _register(client, parts) for name, parts in _SCRIPTS.items()}

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        prefix: str = "delegation:",
        rules: Rules | None = None,
        limits: Limits | None = None,
        timeout_s: float = 10.0,
        max_connections: int = 64,
    ) -> Self:
        """With a pool of its own. No retry: a call whose reply was lost must not run twice unseen (law 4)."""
        pool = redis.BlockingConnectionPool.from_url(
            url,
            decode_responses=True,
            max_connections=max_connections,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=min(3.0, timeout_s),
            socket_keepalive=True,
            health_check_interval=10,
            retry=Retry(NoBackoff(), 0),
        )
        return cls(redis.Redis.from_pool(pool), prefix=prefix, rules=rules, limits=limits)

    def key(self, kind: str, name: str | None = None) -> str:
        """``<prefix><kind>`` or ``<prefix><kind>:<name>``; the kinds are listed in store.py."""
        if name is None:
            return f"{self.prefix}{kind}"
        # An id from a command line may hold lone surrogates, which no key can: then it is an unknown one.
        return f"{self.prefix}{kind}:{name}".encode("utf-8", "replace").decode()

    def run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        """Run a script and return its answer."""
        with self.seam():
            return self._scripts[script](keys=keys, args=args)

    @contextmanager
    def seam(self) -> Iterator[None]:
        """No redis exception leaves the store."""
        try:
            yield
        except redis.RedisError as error:
            raise StoreUnavailable(what_is_wrong(error)) from error

    def close(self) -> None:
        self.client.close()


def what_is_wrong(error: BaseException) -> str:
    """One that knows us not, or denies us a command, did answer."""
    is_refusal = isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError)
    return f"Redis {'refuses us' if is_refusal else 'does not answer'}: {error}"


def new_operation_id() -> str:
    """Names one attempt to write: a repeat of the very same call is answered, not run again (law 4)."""
    return secrets.token_hex(8)


def flag(value: bool) -> str:
    return "1" if value else "0"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def flatten(fields: Mapping[str, str]) -> list[str]:
    return [part for pair in fields.items() for part in pair]


def _register(client: redis.Redis, parts: tuple[str, ...]) -> Script:
    folder = files("delegation") / "scripts"
    source = "\n".join((folder / f"{part}.lua").read_text() for part in parts)
    return client.register_script(source)
