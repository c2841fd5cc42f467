"""A whole deployment for one test: configuration file, Valkey, workers, web and agents, gone at the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from delegation.settings import Settings, load_settings
from delegation.store import Store
from tests.support.agent_handle import ScriptedAgent
from tests.support.child import ROOT, ChildProcess, child_environment
from tests.support.services import CeleryWorker, Follower, SampleAgent, ValkeyProcess, Web

#: Short enough for tests, long enough not to fire by themselves on a slow machine.
FAST_TIMING: dict[str, Any] = {
    "call_deadline": 3,
    "lease_margin": 1,
    "hint_patience": 1,
    "poll_first": 0.2,
    "poll_max": 1,
    "recheck_first": 2,
    "recheck_max": 10,
    "retry_first": 0.2,
    "retry_max": 1,
    "unavailable_after": 10,
    "refetch": [0.2, 0.4, 0.8],
    "min_fetch_gap": 0.1,
    "lost_after": 3,
    "sweep_interval": 0.1,
}
Agent = ScriptedAgent | SampleAgent | str


class Deployment:
    """``with Deployment(tmp_path, agents={"flights": agent}) as it: …``

    ``agents``: a handle (started here unless it runs), or the URL of what somebody else runs.
    ``agent_settings``: further keys of one agent's ``[[agents]]``; ``timing`` and ``config`` (sections) go over the
    defaults; ``env`` goes to every process. Everything is in the file, so that this process can read it as well.
    """

    def __init__(
        self,
        directory: Path,
        *,
        agents: Mapping[str, Agent],
        agent_settings: Mapping[str, Mapping[str, Any]] | None = None,
        timing: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        workers: int = 1,
        web: bool = True,
        follower: bool = False,
        pool: str = "threads",
        concurrency: int = 8,
        valkey: ValkeyProcess | None = None,
    ) -> None:
        self.directory = directory
        self.agents = dict(agents)
        self.config_path = directory / "delegation.toml"
        self.env = {"DELEGATION_CONFIG": str(self.config_path), **(env or {})}
        self.workers: list[CeleryWorker] = []
        self.followers: list[Follower] = []
        self.valkey = valkey or ValkeyProcess(directory / "valkey")
        self.web = Web(log=directory / "web.log", env=self.env) if web else None
        self._agent_settings = agent_settings or {}
        self._timing = {**FAST_TIMING, **(timing or {})}
        self._config = dict(config or {})
        self._first_workers = workers
        self._has_follower = follower
        self._pool = pool
        self._concurrency = concurrency
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def start_worker(self, *, wait: bool = True, env: Mapping[str, str] | None = None, **options: Any) -> CeleryWorker:
        """One more worker, e.g. with ``env={"DELEGATION_FAILPOINT": "send.after_call:kill:1"}``."""
        name = f"w{len(self.workers) + 1}"
        options = {"pool": self._pool, "concurrency": self._concurrency, **options}
        worker = CeleryWorker(log=self.directory / f"{name}.log", env={**self.env, **(env or {})}, name=name, **options)
        self.workers.append(worker)
        self._end(worker)
        return worker.start(wait=wait)

    def start_follower(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> Follower:
        """One more follower."""
        name = f"follower{len(self.followers) + 1}"
        follower = Follower(log=self.directory / f"{name}.log", env={**self.env, **(env or {})})
        self.followers.append(follower)
        self._end(follower)
        return follower.start(wait=wait)

    def settings(self) -> Settings:
        return load_settings(self.config_path)

    def store(self) -> Store:
        """A store on the same records; closed at the end."""
        settings = self.settings()
        store = Store.connect(settings.redis.url, prefix=settings.redis.key_prefix)
        self._ends.callback(store.close)
        return store

    def command(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run the `delegation` command in this deployment and return what it said."""
        return self.python("from workers.cli import main; main()", *arguments, timeout_s=timeout_s)

    def python(self, code: str, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run Python in this deployment, as one of its users would."""
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=ROOT,
            env=child_environment(self.env),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def logs(self) -> str:
        """The end of every process's output, for a test that fails."""
        children = [*self.workers, *self.followers, *([self.web] if self.web else [])]
        return "\n".join(f"--- {child.log.name} ---\n{child.output()[-4000:]}" for child in children)

    def _start(self) -> None:
        self._end(self.valkey)
        if not self.valkey.is_alive:
            self.valkey.start()
        for agent in self.agents.values():
            if isinstance(agent, ChildProcess) and not agent.is_alive:
                self._end(agent)
                agent.start()
        self.config_path.write_text(toml_of(self._whole_config()), encoding="utf-8")
        if self.web is not None:
            self._end(self.web)
            self.web.start()
        for _ in range(self._first_workers):
            self.start_worker(wait=False)
        if self._has_follower:
            self.start_follower(wait=False)
        for worker in self.workers:
            worker.wait_until_ready()
        for follower in self.followers:
            follower.wait_until_ready()

    def _end(self, child: ChildProcess) -> None:
        # The test is over and its outcome known, so nothing is gained by a soft shutdown.
        self._ends.callback(lambda: child.kill() if child.is_alive else None)

    def _whole_config(self) -> dict[str, Any]:
        agents = [
            {"id": agent_id, "url": agent if isinstance(agent, str) else agent.url, "allow_http": True}
            | dict(self._agent_settings.get(agent_id, {}))
            for agent_id, agent in self.agents.items()
        ]
        defaults = {
            "server": {"base_url": self.web.url} if self.web else {},
            "redis": {"url": self.valkey.url()},
            "timing": self._timing,
        }
        sections = {**defaults, **{name: value for name, value in self._config.items() if name not in defaults}}
        for name in set(defaults) & set(self._config):
            sections[name] = {**defaults[name], **self._config[name]}
        return {**sections, "agents": agents}


def toml_of(config: Mapping[str, Any]) -> str:
    """TOML for our settings: plain keys, sections, and lists of sections one level deep."""
    plain = {key: value for key, value in config.items() if not _is_section(value) and not _is_section_list(value)}
    lines = [f"{key} = {_toml_value(value)}" for key, value in plain.items()]
    for name, value in config.items():
        if _is_section(value):
            lines += ["", f"[{name}]", *(f"{_toml_key(key)} = {_toml_value(each)}" for key, each in value.items())]
        elif _is_section_list(value):
            for section in value:
                lines += ["", f"[[{name}]]"]
                lines += [f"{_toml_key(key)} = {_toml_value(each)}" for key, each in section.items()]
    return "\n".join(lines) + "\n"


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_section_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _toml_key(key: str) -> str:
    return json.dumps(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml_key(key)} = {_toml_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False)
