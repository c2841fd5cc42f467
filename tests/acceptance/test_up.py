"""`delegation up`: a whole deployment in one terminal, found from the next one, gone with Ctrl-C."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.child import ROOT, ChildProcess, child_environment, wait_until
from tests.support.left_behind import left_behind
from tests.support.processes import ScriptedAgent, free_port

COMMAND = [sys.executable, "-m", "workers.cli"]
READY = r"up +\| ready"

#: As docs/celery.md has it; the app names no broker, so it uses the one that `up` starts.
THEIR_APP = """from celery import Celery
from workers import delegate, install

app = install(Celery("shop"))  # once, where the app is made; after config_from_object, if you use that


@app.task
def summarise(outcome):
    return outcome["text"].upper()
"""
THEIR_PROGRAM = """
from shop import *
print((delegate.s(agent="flights", goal='{"artifact": "sunny"}') | summarise.s()).delay().get(timeout=60))
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Path]:
    """A directory with a delegation.toml that names one agent, and no Redis."""
    directory = tmp_path / "a project"
    directory.mkdir()
    with ScriptedAgent(tmp_path, name="flights").start() as agent:
        (directory / "delegation.toml").write_text(
            f'[server]\nbase_url = "http://127.0.0.1:{free_port()}"\n[[agents]]\nid = "flights"\nurl = "{agent.url}"\n',
            encoding="utf-8",
        )
        yield directory


def up_in(project: Path) -> ChildProcess:
    return ChildProcess([*COMMAND, "up"], log=project / "up.log", cwd=project)


def in_another_shell(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return _run([*COMMAND, *arguments], project)


def _run(command: list[str], project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=project,
        env=child_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def assert_nothing_runs(project: Path) -> None:
    assert not (project / ".delegation" / "redis_url").exists()
    wait_until(lambda: not left_behind(str(project)), what="end of what up started")


def test_up_serves_other_shells_and_keeps_what_they_did(project: Path) -> None:
    """A delegation from another shell completes; after Ctrl-C nothing runs on; after a new start it is still there."""
    with up_in(project) as up:
        up.start()
        up.wait_for_output(READY, 60)
        said = in_another_shell(project, "delegate", "flights", '{"artifact": "sunny"}', "--wait")
        assert said.returncode == 0, said.stderr
        delegation_id, text = said.stdout.splitlines()
        assert text == "sunny"
        assert in_another_shell(project, "doctor").returncode == 0
        assert (project / ".delegation" / "redis_url").stat().st_mode & 0o777 == 0o600
        up.send(signal.SIGINT)
        assert up.wait(40) == 130
        assert "Traceback" not in up.output()
        assert_nothing_runs(project)
        assert in_another_shell(project, "list").returncode == 3

        up.start()
        up.wait_for_output(READY, 60)
        assert delegation_id in in_another_shell(project, "list").stdout
        up.send(signal.SIGTERM)
        assert up.wait(40) == 143
        assert_nothing_runs(project)


def test_up_runs_an_app_of_ones_own_from_a_clean_directory(project: Path) -> None:
    """Six lines and two of configuration: its worker runs our steps and its own, and its program finds the broker.

    What happens to a delegation is in that worker's log at the level it has, once, without the URL of any call.
    """
    (project / "shop.py").write_text(THEIR_APP, encoding="utf-8")
    with (project / "delegation.toml").open("a", encoding="utf-8") as config:
        config.write('[celery]\napp = "shop:app"\n')
    with up_in(project) as up:
        up.start()
        up.wait_for_output(READY, 60)
        program = [sys.executable, "-c", THEIR_PROGRAM]
        said = _run(program, project)
        assert (said.returncode, said.stdout) == (0, "SUNNY\n"), said.stderr + up.output()
        up.wait_for_output(r"worker +\| delegation\.settled delegation_id=\S+ agent=flights state=COMPLETED\n")
        assert "warning: " not in up.output()
        assert "HTTP Request" not in up.output()
        up.send(signal.SIGINT)
        assert up.wait(40) == 130
        assert_nothing_runs(project)


def test_the_app_of_the_documentation_is_the_one_above() -> None:
    """What a reader copies is what the test before ran."""
    assert THEIR_APP in (ROOT / "docs" / "celery.md").read_text(encoding="utf-8")


def test_up_does_not_start_twice(project: Path) -> None:
    """A second one in the same project ends with 2 and names the first; the first goes on."""
    with up_in(project) as up:
        up.start()
        up.wait_for_output(READY, 60)
        second = in_another_shell(project, "up")
        assert second.returncode == 2
        assert "runs here already" in second.stderr
        assert up.is_alive
        up.send(signal.SIGINT)
        assert up.wait(40) == 130


def test_a_process_that_ends_ends_the_others(project: Path) -> None:
    """When the store is gone nothing is left to do: up says which process ended, stops the rest, and ends with 1."""
    with up_in(project) as up:
        up.start()
        up.wait_for_output(READY, 60)
        said = in_another_shell(project, "list")
        assert said.returncode == 0
        address = (project / ".delegation" / "redis_url").read_text(encoding="utf-8").strip()
        _shut_down(address)
        assert up.wait(40) == 1
        assert "delegation: valkey ended" in up.output()
        assert_nothing_runs(project)


def test_without_a_configuration_up_says_what_to_do(tmp_path: Path) -> None:
    """One line, exit code 2, and nothing is created."""
    said = in_another_shell(tmp_path, "up")
    assert said.returncode == 2
    assert said.stderr.count("\n") == 1
    assert "delegation.example.toml" in said.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nowhere.at_all:app", r"celery\.app: cannot import 'nowhere\.at_all:app'"),
        ("broken:app", r"celery\.app: .*broken"),
        ("plain:app", r"celery\.app: 'plain:app' carries no delegations"),
    ],
)
def test_a_wrong_app_is_refused_before_anything_starts(project: Path, app: str, said: str) -> None:
    """One line that names the key, exit code 2, and nothing is created."""
    (project / "broken.py").write_text("def app(:\n", encoding="utf-8")
    (project / "plain.py").write_text("from celery import Celery\napp = Celery('plain')\n", encoding="utf-8")
    with (project / "delegation.toml").open("a", encoding="utf-8") as config:
        config.write(f'[celery]\napp = "{app}"\n')
    up = in_another_shell(project, "up")
    assert up.returncode == 2, up.stderr
    assert up.stdout == ""
    assert up.stderr.count("\n") == 1
    assert re.search(said, up.stderr)
    assert not (project / ".delegation").exists()


def test_a_port_that_is_taken_is_told_with_a_way_out(project: Path) -> None:
    """Where no server.base_url is set, the line says what to set."""
    config = project / "delegation.toml"
    config.write_text(re.sub("base_url.*\n", "", config.read_text(encoding="utf-8")), encoding="utf-8")
    with socket.socket() as taken:
        with contextlib.suppress(OSError):  # somebody else has it: as good
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
        up = in_another_shell(project, "up")
    assert up.returncode == 2
    assert up.stderr.startswith("delegation: port 8080, where web listens, is taken")
    assert 'set server.base_url = "http://127.0.0.1:8081"' in up.stderr
    assert_nothing_runs(project)


def _shut_down(redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.shutdown(nosave=True)
