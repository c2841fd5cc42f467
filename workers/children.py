"""Start other processes, wait until they are ready, and leave none behind."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Self

from delegation.errors import OperatorError

STOP_WITHIN_S = 10.0  #: then they are killed; nothing is lost by it, the records are the truth
_KEPT_LINES = 400

# On Linux a child also ends when we are killed and can stop nothing. Done by a launcher that becomes the command,
# because preexec_fn is not safe in a process with threads.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone")
os.execvp(sys.argv[2], sys.argv[2:])
"""


class ProcessFailed(OperatorError):
    """A process of ours did not start, or ended by itself."""

    code = "process.failed"
    exit_code = 1

    def __init__(self, detail: str, output: str = "") -> None:
        OperatorError.__init__(self, detail)
        self.args = (detail, output)
        self.output = output


class Child:
    """One process in a session of its own, so that a Ctrl-C reaches us alone and we choose the order of the end."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        on_line: Callable[[str, str], None] | None = None,
        keep_open: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.command = list(command)
        self._env = dict(env) if env is not None else None
        self._cwd = cwd
        self._on_line = on_line
        self._keep_open = tuple(keep_open)
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._changed = threading.Condition()
        self._reader: threading.Thread | None = None
        self._has_said_all = False

    def start(self) -> Self:
        """Call it from the main thread: on Linux the child ends with the thread that started it."""
        self._process = subprocess.Popen(
            _with_launcher(self.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self._cwd,
            env=self._env,
            start_new_session=True,
            pass_fds=self._keep_open,
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {self.name}", daemon=True)
        self._reader.start()
        return self

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def lines(self) -> list[str]:
        """The last lines it wrote to stdout and stderr."""
        with self._changed:
            return list(self._lines)

    def wait_for_line(self, pattern: str, timeout_s: float = 60.0) -> re.Match[str]:
        """The first of its last lines that matches. Raises ProcessFailed when it ends, or takes too long."""
        give_up_at = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = next((match for line in self._lines if (match := re.search(pattern, line))), None)
                if found is not None:
                    return found
                if self._has_said_all or time.monotonic() > give_up_at:
                    break
                self._changed.wait(0.5)
        raise self.failure()

    def failure(self) -> ProcessFailed:
        """What to raise about it."""
        if self._has_said_all:
            self.wait(STOP_WITHIN_S)  # its output ends a moment before itself
        code = None if self._process is None or self.is_alive else self._process.wait()
        what = f"ended with exit code {code}" if code is not None else "does not get ready"
        unseen = self.lines()[-15:] if self._on_line is None else []
        return ProcessFailed(f"{self.name} {what}", "\n".join(unseen))

    def ask_to_stop(self) -> None:
        if self.is_alive and self._process is not None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> None:
        """Until it has ended, or the time is over."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, timeout_s))

    def kill(self) -> None:
        """The whole session: children of a process that ended may be left in it."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._reader is not None:
            self._reader.join(2.0)

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as out:
            for raw in out:
                line = raw.decode("utf-8", "replace").rstrip()
                with self._changed:
                    self._lines.append(line)
                    self._changed.notify_all()
                if self._on_line is not None and line:
                    self._on_line(self.name, line)
        with self._changed:
            self._has_said_all = True
            self._changed.notify_all()


class Children:
    """``with Children() as children: children.start(…)``; at the end all are stopped, and killed if they tarry.

    The first one started is stopped last, by itself: it is the store, and the others still write to it.
    """

    def __init__(self) -> None:
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, child: Child) -> Child:
        self._children.append(child)
        return child.start()

    def ended(self) -> Child | None:
        """One that has ended, if any has."""
        return next((child for child in self._children if not child.is_alive), None)

    def check(self) -> None:
        """Raises ProcessFailed if one has ended."""
        child = self.ended()
        if child is not None:
            child.wait(0.2)
            raise child.failure()

    def stop(self) -> None:
        """A second signal while they stop kills them at once."""
        try:
            self._stop(self._children[1:])
            self._stop(self._children[:1])
        finally:
            for child in self._children:
                child.kill()
            self._children.clear()

    def _stop(self, children: list[Child]) -> None:
        for child in children:
            child.ask_to_stop()
        give_up_at = time.monotonic() + STOP_WITHIN_S
        for child in children:
            child.wait(give_up_at - time.monotonic())


class Ended(SystemExit):
    """A signal asked us to end."""


@contextlib.contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and a closed terminal end us as Ctrl-C does: with everything stopped on the way out.

    Ctrl-C itself is switched on too: a shell starts what it runs in the background with SIGINT ignored, and then a
    `kill -INT` would do nothing. Under nohup a closed terminal stays ignored.
    """

    def end(number: int, _: FrameType | None) -> None:
        raise Ended(128 + number)

    handlers: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: end}
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        handlers[signal.SIGHUP] = end
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _with_launcher(command: list[str]) -> list[str]:
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
