"""A test's hand on the agents in ``tests/peers``; what other people's servers need is installed once in ``.peers``."""

from __future__ import annotations

import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import httpx

from delegation.agent_task import AgentTaskId
from tests.support.child import ROOT, ChildProcess, free_port, wait_until

INSTALLED = ROOT / ".peers"
SOURCES = ROOT / "tests" / "peers"
INSTALL_S = 120.0
#: The one reason that skips in CI as well (conftest.py).
NO_NODE = "needs Node.js 20 or newer, and npm"
#: HTTP+JSON's paths below the interface's URL, and whose they are.
_PATHS = (
    (r"POST /message:send", "SendMessage"),
    (r"POST /message:stream", "SendStreamingMessage"),
    (r"GET /tasks/[^/]+", "GetTask"),
    (r"GET /tasks", "ListTasks"),
    (r"POST /tasks/[^/]+:cancel", "CancelTask"),
    (r"(GET|POST) /tasks/[^/]+:subscribe", "SubscribeToTask"),
    (r"DELETE /tasks/[^/]+/pushNotificationConfigs/[^/]+", "DeleteTaskPushNotificationConfig"),
)
#: What A2A 0.3 called them.
_OLD_NAMES = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
}


_failed: dict[str, str] = {}


class NotInstalled(Exception):
    """The peer cannot run on this machine; the message is the reason for the skip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request that a peer got."""

    method: str  #: as it was called, or "GET /path"
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    status: int | None
    stream: bool
    ended: str | None  #: who ended the answer: "agent", "client"; None while it lasts

    @property
    def name(self) -> str:
        """A2A 1.0's name of the method."""
        return _OLD_NAMES.get(self.method, self.method)

    @property
    def message(self) -> dict[str, Any]:
        """What a send brought."""
        found: dict[str, Any] = self.params.get("message") or _with_1_0s_names(self.params.get("request", {}))
        return found

    @property
    def task_id(self) -> str:
        """Whose task it is about."""
        in_path = re.search(r"/tasks/([^/:]+)", self.path)
        named = in_path[1] if in_path else self.params.get("taskId", self.params.get("id", ""))
        return str(self.message.get("taskId", "") or named)

    @property
    def params(self) -> dict[str, Any]:
        """Of either binding."""
        found: dict[str, Any] = self.body.get("params", self.body)
        return found


class Peer(ChildProcess):
    """One agent of ``tests/peers``; the URL stays through restarts, the tasks do not."""

    def __init__(self, name: str, command: Sequence[str], *, log: Path) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        super().__init__([*command, f"--port={self.port}"], log=log)

    def start(self) -> Self:
        super().start()
        ready = json.loads(self.wait_for_output(r'\{"ready".*\}', 30).group())
        assert ready["ready"] == self.url
        return self

    def go_on(self, context_id: str) -> None:
        """Let a held task go on."""
        httpx.post(f"{self.url}/_go/{context_id}", trust_env=False, timeout=30).raise_for_status()

    def calls(self, *methods: str) -> list[Call]:
        """Its requests in order, of these methods or all."""
        seen: list[dict[str, Any]] = httpx.get(f"{self.url}/_seen", trust_env=False, timeout=30).json()
        calls = [_read_call(entry) for entry in seen]
        return [call for call in calls if not methods or call.method in methods]

    def sends(self, context_id: str) -> list[Call]:
        """The messages of one delegation."""
        sent = [call for call in self.calls() if call.name in ("SendMessage", "SendStreamingMessage")]
        return [call for call in sent if call.message["contextId"] == context_id]

    def about(self, task_id: AgentTaskId | str, *methods: str) -> list[Call]:
        """Its requests about one task."""
        about = [call for call in self.calls() if call.task_id == task_id]
        return [call for call in about if not methods or call.name in methods]

    def wait_until_quiet(self, timeout_s: float = 15.0) -> None:
        """Until no stream is open."""
        what = f"end of all streams at {self.name}"
        wait_until(lambda: all(call.ended for call in self.calls() if call.stream), timeout_s, what=what)


def sdk_peer(directory: Path, name: str = "sdk", *flags: str) -> Peer:
    """On a2a-sdk's server, which the tests have anyway."""
    return Peer(name, [sys.executable, "-m", "tests.peers.sdk_agent", *flags], log=directory / f"{name}.log")


def js_peer(directory: Path, name: str = "js", *flags: str) -> Peer:
    """On the JavaScript SDK. Raises NotInstalled."""
    agent = install_js() / "agent.mjs"
    return Peer(name, [_node(), str(agent), *flags], log=directory / f"{name}.log")


def fasta2a_peer(directory: Path, name: str = "fasta2a", *flags: str) -> Peer:
    """On fasta2a. Raises NotInstalled."""
    python = install_python("fasta2a") / "bin" / "python"
    return Peer(name, [str(python), "-m", "tests.peers.fasta2a_agent", *flags], log=directory / f"{name}.log")


def sdk_03_peer(directory: Path, name: str = "sdk03", *flags: str) -> Peer:
    """On the last a2a-sdk that speaks A2A 0.3 alone. Raises NotInstalled."""
    python = install_python("a2a03") / "bin" / "python"
    return Peer(name, [str(python), "-m", "tests.peers.sdk_03_agent", *flags], log=directory / f"{name}.log")


def toolnexus_peer(directory: Path, name: str = "toolnexus") -> Peer:
    """On toolnexus's own server, which keeps no log of its requests. Raises NotInstalled."""
    python = install_python("toolnexus") / "bin" / "python"
    return Peer(name, [str(python), "-m", "tests.peers.toolnexus_agent"], log=directory / f"{name}.log")


def a2a03_peer(directory: Path, name: str = "a2a03") -> Peer:
    """On the last SDK of A2A 0.3. Raises NotInstalled."""
    python = install_python("a2a03") / "bin" / "python"
    return Peer(name, [str(python), "-m", "tests.peers.a2a03_agent"], log=directory / f"{name}.log")


# ---------------------------------------------------------------- installing


@cache
def install_js() -> Path:
    """Where the JavaScript agent runs. Its packages are those of the lock file, checked by their digests."""
    node, sources = _node(), [SOURCES / "js" / name for name in ("package.json", "package-lock.json", "agent.mjs")]

    def make(directory: Path) -> None:
        for source in sources:
            shutil.copy(source, directory)
        options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1"]
        _run(["npm", "ci", *options], directory)

    return _installed("js", [node, *(source.read_text(encoding="utf-8") for source in sources)], make)


@cache
def install_python(name: str) -> Path:
    """A Python environment with what `<name>_requirements.txt` pins and without us."""
    requirements = SOURCES / f"{name}_requirements.txt"

    def make(directory: Path) -> None:
        _run([sys.executable, "-I", "-m", "venv", str(directory)], ROOT)
        pip = [
            str(directory / "bin" / "python"),
            "-I",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
        ]
        _run([*pip, "--requirement", str(requirements)], ROOT)

    return _installed(name, [sys.version, requirements.read_text(encoding="utf-8")], make)


def _installed(name: str, made_from: Sequence[str], make: Callable[[Path], None]) -> Path:
    """The directory, made anew when what it is made from has changed. One process at a time, and one try."""
    if name in _failed:
        raise NotInstalled(_failed[name])
    directory, stamp = INSTALLED / name, INSTALLED / f"{name}.made"
    digest = hashlib.sha256("\0".join(made_from).encode()).hexdigest()
    INSTALLED.mkdir(exist_ok=True)
    with _alone(INSTALLED / f"{name}.lock"):
        if not (directory.is_dir() and stamp.is_file() and stamp.read_text() == digest):
            stamp.unlink(missing_ok=True)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            try:
                make(directory)
            except NotInstalled as reason:
                _failed[name] = str(reason)
                raise
            stamp.write_text(digest)
    return directory


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _node() -> str:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        raise NotInstalled(NO_NODE)
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    if int((re.match(r"v(\d+)", version) or [0, 0])[1]) < 20:
        raise NotInstalled(f"{NO_NODE}, and found {version.strip()}")
    return node


def _run(command: Sequence[str], directory: Path) -> None:
    what = " ".join([Path(command[0]).name, *command[1:4]])
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{what} took longer than {INSTALL_S} s") from None
    if done.returncode:
        raise NotInstalled(f"{what} failed: {' '.join((done.stderr or done.stdout).split())[-300:]}")


# ---------------------------------------------------------------- reading the log


def _read_call(entry: dict[str, Any]) -> Call:
    body = json.loads(entry["body"]) if entry["body"].startswith("{") else {}
    return Call(
        method=body.get("method") or _method_of(entry["method"], entry["path"]),
        path=entry["path"],
        headers=entry["headers"],
        body=body,
        status=entry["status"],
        stream=entry["stream"],
        ended=entry["ended"],
    )


def _method_of(verb: str, path: str) -> str:
    line = f"{verb} {path.removeprefix('/rest').removeprefix('/v1')}"
    return next((name for pattern, name in _PATHS if re.fullmatch(pattern, line)), line)


def _with_1_0s_names(message: dict[str, Any]) -> dict[str, Any]:
    """As HTTP+JSON's messages of 0.3 come from the SDK: in protobuf's names."""
    names = {"message_id": "messageId", "context_id": "contextId", "task_id": "taskId", "content": "parts"}
    return {names.get(name, name): value for name, value in message.items()}
