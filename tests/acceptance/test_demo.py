"""The demo keeps its promises, and leaves nothing behind however it ends."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.child import ChildProcess, wait_until
from tests.support.left_behind import left_behind

DEMO = [sys.executable, "-m", "workers.cli", "demo"]


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[ChildProcess]:
    with ChildProcess(DEMO, log=tmp_path / "demo.log") as child:
        yield child


def directory_of(demo: ChildProcess) -> Path:
    return Path(demo.wait_for_output(r"DELEGATION_CONFIG=(\S+)/delegation\.toml", 60).group(1))


def assert_nothing_is_left(directory: Path) -> None:
    assert not directory.exists()
    wait_until(lambda: not left_behind(str(directory)), what="end of what the demo started")


def test_the_demo_does_the_main_job(demo: ChildProcess) -> None:
    """Six delegations end, one of them FAILED; a forged push is refused; the continuation runs and is told once."""
    demo.start()
    directory = directory_of(demo)
    assert demo.wait(90) == 0, demo.output()
    said = demo.output()
    assert len(re.findall(r"^\d\d:\d\d:\d\d .* COMPLETED ", said, re.MULTILINE)) == 5
    assert len(re.findall(r"^\d\d:\d\d:\d\d .* FAILED ", said, re.MULTILINE)) == 1
    assert re.search(r"Forged push for '(flights|invoice)': refused with 404", said)
    assert said.count("the continuation ran once") == 1
    assert len(re.findall(r"^  Best hotel: ", said, re.MULTILINE)) == 1
    assert not re.search(r"Traceback|Warning|deprecat", said)
    assert_nothing_is_left(directory)


def test_ctrl_c_in_the_middle_ends_everything(demo: ChildProcess) -> None:
    """Interrupted at work, the demo stops all its processes, removes its directory and ends with 130."""
    demo.start()
    directory = directory_of(demo)
    demo.wait_for_output(r"flights +pushing +push", 60)
    demo.send(signal.SIGINT)
    assert demo.wait(40) == 130
    assert "Traceback" not in demo.output()
    assert_nothing_is_left(directory)


def test_a_killed_demo_takes_its_processes_along(demo: ChildProcess) -> None:
    """Not even kill -9 leaves a server behind (on Linux; its directory stays)."""
    if sys.platform != "linux":
        pytest.skip("only Linux tells a child that its parent died")
    demo.start()
    directory = directory_of(demo)
    demo.send(signal.SIGKILL)
    assert demo.wait(10) == -signal.SIGKILL
    wait_until(lambda: not left_behind(str(directory)), what="end of what the demo started")
    shutil.rmtree(directory)


def test_kept_it_stays_until_ctrl_c(demo: ChildProcess) -> None:
    """With --keep everything runs on after the end of the job, for a look around; Ctrl-C is then a good end."""
    demo.command.append("--keep")
    demo.start()
    directory = directory_of(demo)
    demo.wait_for_output("stays up until Ctrl-C", 90)
    assert (directory / "delegation.toml").exists()
    demo.send(signal.SIGINT)
    assert demo.wait(40) == 0, demo.output()
    assert_nothing_is_left(directory)


def test_a_process_that_fails_is_named_with_its_last_words(demo: ChildProcess) -> None:
    """When one of its processes does not start, the demo shows the end of its output, and one line why."""
    demo.env["FLOWER_MAX_WORKERS"] = "many"
    demo.start()
    assert demo.wait(60) == 1
    lines = demo.output().splitlines()
    assert lines[-1] == "delegation: flower ended with exit code 1"
    assert any("ValueError" in line for line in lines)
