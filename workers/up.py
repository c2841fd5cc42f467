"""`delegation up`: every process of a project on this machine, in one terminal."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime

import click

from delegation.errors import ConfigurationError
from delegation.settings import CONFIG_VARIABLE, DEFAULT_FILE, Settings, load_settings
from workers import processes
from workers.children import Child, Children, ending_on_signals
from workers.embedded_valkey import EmbeddedValkey
from workers.printable import one_line
from workers.project_directory import ProjectDirectory, names_redis
from workers.runtime import make_store

_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_WIDTH = 8
_LOOK_EVERY_S = 0.2


def run_up() -> None:
    """Until a signal comes, or one of the processes ends.

    Raises ConfigurationError, StoreUnavailable, ProcessFailed.
    """
    settings = _settings()
    processes.check_app(settings)
    project = ProjectDirectory.current()
    project.create()
    with ExitStack() as ends, ending_on_signals():
        lock = ends.enter_context(project.locked())
        children = ends.enter_context(Children())
        output = Output()
        redis = _redis_for(settings, project, children, output, lock, ends)
        _start_all(settings, children, output, redis)
        _wait(children)


class Output:
    """Lines of several processes, one after the other, each with the time and who said it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._colours: dict[str, str] = {}

    def __call__(self, name: str, line: str) -> None:
        if processes.is_noise(line):
            return
        with self._lock:
            colour = self._colours.setdefault(name, _COLOURS[len(self._colours) % len(_COLOURS)])
            prefix = click.style(f"{datetime.now().astimezone():%H:%M:%S} {name:<{_WIDTH}} |", fg=colour)
            click.echo(f"{prefix} {one_line(processes.without_stamp(line))}")


def _settings() -> Settings:
    settings = load_settings()
    if not (os.environ.get(CONFIG_VARIABLE) or DEFAULT_FILE.is_file() or settings.agents):
        raise ConfigurationError(
            "no delegation.toml here: copy delegation.example.toml and name your agents in it, or see `delegation demo`"
        )
    return settings


def _redis_for(
    settings: Settings, project: ProjectDirectory, children: Children, output: Output, lock: int, ends: ExitStack
) -> dict[str, str]:
    """What the processes must be told about Redis: nothing when the configuration says where it is."""
    if names_redis(settings):
        make_store(settings).ping()  # a worker would wait for it without an end
        return {}
    valkey = EmbeddedValkey(project.path / "valkey")
    server = children.start(valkey.child(keep_open=(lock,)))
    valkey.wait_until_ready(server)
    project.write_redis_url(valkey.url)
    ends.callback(project.forget_redis_url)
    output("valkey", f"data in {project.path / 'valkey'}")
    return {"DELEGATION_REDIS__URL": valkey.url}


def _start_all(settings: Settings, children: Children, output: Output, redis: dict[str, str]) -> None:
    env = processes.child_environment(redis)
    address = processes.web_address(settings)
    web = children.start(Child("web", processes.web_command(address), env=env, on_line=output))
    worker = children.start(Child("worker", processes.worker_command(settings), env=env, on_line=output))
    follower = children.start(Child("follower", processes.follower_command(), env=env, on_line=output))
    flower_port = processes.flower_port() if processes.has_flower() else None
    if flower_port is not None:
        flower = Child("flower", processes.flower_command(settings, flower_port), env=env, on_line=output)
        children.start(flower)
    processes.wait_until_web_is_ready(web)
    processes.wait_until_worker_is_ready(worker)
    processes.wait_until_follower_is_ready(follower)
    for line in _greeting(settings, address, flower_port):
        output("up", line)


def _greeting(settings: Settings, address: str, flower_port: int | None) -> Iterator[str]:
    yield f"web http://{address}/metrics" + (f", Flower http://127.0.0.1:{flower_port}" if flower_port else "")
    if settings.server.base_url is None:
        yield "no server.base_url: agents cannot push, each is followed or asked instead"
    yield "ready; in another shell here: delegation agents, delegation delegate AGENT GOAL --wait. Ctrl-C ends all."


def _wait(children: Children) -> None:
    while True:
        children.check()
        threading.Event().wait(_LOOK_EVERY_S)
