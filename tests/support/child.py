"""Start, watch, stop, freeze and kill one child process; no child outlives the process that started it."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")

# PR_SET_PDEATHSIG is set by a launcher that then becomes the command, not by preexec_fn, which Python warns about in
# a process with threads. The signal comes when the *thread* that started the child ends, so start children from a
# thread that stays.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""
_running: set[ChildProcess] = set()


class ChildFailed(AssertionError):
    """A child ended, or did not get ready; the message holds the end of its output."""


class ChildProcess:
    """One process group, its output in a file.

    ``start`` may be called again after the end; the log is continued, ``output`` begins at the latest start.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path = ROOT
    ) -> None:
        self.command = list(command)
        self.log = log
        self.env = dict(env or {})
        self.cwd = cwd
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0

    def start(self) -> Self:
        if self.is_alive:
            raise RuntimeError(f"{self.command} runs already")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._log_offset = out.tell()
            self._process = subprocess.Popen(
                _with_launcher(self.command),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                cwd=self.cwd,
                env=child_environment(self.env),
                start_new_session=True,
            )
        _running.add(self)
        return self

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._started().poll()

    def output(self) -> str:
        """Everything written to stdout and stderr since the latest start."""
        with self.log.open("rb") as file:
            file.seek(self._log_offset)
            return file.read().decode("utf-8", "replace")

    def wait_for_output(self, pattern: str, timeout_s: float = 20.0) -> re.Match[str]:
        """The first place where the output matches; raises ChildFailed when the process ends or takes too long."""
        return self.wait_until(lambda: re.search(pattern, self.output()), timeout_s, what=f"output {pattern!r}")

    def wait_until(self, condition: Callable[[], T | None], timeout_s: float = 20.0, *, what: str) -> T:
        """The condition's first true value; gives up as soon as the process has ended."""

        def checked() -> T | None:
            has_ended = not self.is_alive
            value = condition()
            if not value and has_ended:
                raise ChildFailed(f"ended with {self.exit_code} before {what}: {self._describe()}")
            return value

        try:
            return wait_until(checked, timeout_s, what=what)
        except TimeoutError as late:
            raise ChildFailed(f"{late}: {self._describe()}") from None

    def wait(self, timeout_s: float = 20.0) -> int:
        """The exit code, once it has ended by itself; raises ChildFailed when it does not."""
        try:
            code = self._started().wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ChildFailed(f"still runs after {timeout_s} s: {self._describe()}") from None
        _running.discard(self)
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._started().send_signal(number)

    def kill(self) -> int:
        """SIGKILL to the whole group, children included, as a machine that goes away; returns the exit code."""
        self._signal_group(signal.SIGKILL)
        return self.wait()

    def stop(self, timeout_s: float = 25.0) -> int | None:
        """SIGTERM and wait; SIGKILL to the group after the time. None when it was not started."""
        if self._process is None:
            return None
        if self.is_alive:
            self.send(signal.SIGTERM)
            self._signal_group(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)
        self._signal_group(signal.SIGKILL)
        return self.wait()

    def pause(self) -> None:
        """SIGSTOP to the whole group: alive, connected, silent."""
        self._signal_group(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_group(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _signal_group(self, number: signal.Signals) -> None:
        # The group may be left with children of a leader that has ended, or be empty.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError(f"{self.command} was not started")
        return self._process

    def _describe(self) -> str:
        return f"{' '.join(self.command)}\n--- end of {self.log} ---\n{self.output()[-4000:]}"


def wait_until(condition: Callable[[], T | None], timeout_s: float = 10.0, *, what: str, every_s: float = 0.02) -> T:
    """The condition's first true value. Raises TimeoutError naming ``what``."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"no {what} within {timeout_s} s")
        time.sleep(every_s)


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def child_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Our own environment without any DELEGATION_ setting, plus what is given; the project stays importable."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("DELEGATION_")}
    given = {**inherited, "PYTHONUNBUFFERED": "1", **extra}
    path = os.pathsep.join(filter(None, [str(ROOT), given.get("PYTHONPATH")]))
    return {**given, "PYTHONPATH": path}


def _with_launcher(command: list[str]) -> list[str]:
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]


@atexit.register
def _kill_all() -> None:
    for child in list(_running):
        child.kill()
