"""A test's hand on a scripted agent in another process: steer it, read its ledger, take it away and bring it back."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.child import ChildProcess, wait_until
from tests.support.identity_tls import ServerTls
from tests.support.ledger import Entry, read_ledger


class ScriptedAgent(ChildProcess):
    """``ScriptedAgent(directory, **AgentConfig fields).start()``; the URL stays the same through every restart."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "agent",
        port: int = 0,
        fsync: bool = False,
        tls: ServerTls | None = None,
        **config: Any,
    ) -> None:
        self.name = name
        self.port = port
        self.ledger_path = directory / f"{name}.ledger.jsonl"
        self.tls = tls  #: may be changed before a start
        self._fsync = fsync
        self._config: dict[str, Any] = {"name": name, **config}
        self._memory: Any = None
        self._rules: list[dict[str, Any]] = []
        self._control: httpx.Client | None = None
        super().__init__([], log=directory / f"{name}.log")

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def start(self) -> Self:
        """With the configuration and rules in force at the end, and the tasks if ``stop`` or ``kill`` kept them.

        Rules start counting anew.
        """
        self.command = [sys.executable, "-m", "tests.support.scripted_agent", "--port", str(self.port), "--control"]
        self.command += ["--ledger", str(self.ledger_path), "--config", json.dumps(self._config)]
        self.command += ["--fsync"] if self._fsync else []
        self.command += ["--tls", json.dumps(self.tls.to_json())] if self.tls else []
        super().start()
        ready = json.loads(self.wait_for_output(r'\{"ready".*\}').group())
        self.port = int(ready["ready"].rpartition(":")[2])
        self._control = httpx.Client(base_url=ready["control"], trust_env=False, timeout=30)
        if self._rules:
            self._post("/_script", self._rules)
        if self._memory is not None:
            self._post("/_memory", self._memory)
            self._memory = None
        return self

    # -------------------------------------------------------- steer

    def script(self, rules: Sequence[Mapping[str, Any]], *, append: bool = False) -> None:
        """Replace (or extend) the rules; see rules.py for what one can say."""
        self._rules = [*(self._rules if append else []), *map(dict, rules)]
        self._post("/_script", {"rules": [dict(rule) for rule in rules], "append": append})

    def configure(self, **values: Any) -> None:
        """Change fields of AgentConfig."""
        self._config = {**self._config, **values}
        self._post("/_config", values)

    def move(self, task_id: str, state: str, text: str = "", artifact: Any = None) -> dict[str, Any]:
        """Put a task into a state now, with the pushes that belong to it; returns the task."""
        moved: dict[str, Any] = self._post(
            "/_move", {"taskId": task_id, "state": state, "text": text, "artifact": artifact}
        )
        return moved

    def push(self, task_id: str = "", **options: Any) -> list[int | str]:
        """Push now; options: url, state, body, token, headers, times, with ("both", "token", "bearer", "none").

        Returns the receiver's statuses, or what went wrong as text.
        """
        statuses: list[int | str] = self._post("/_push", {"taskId": task_id, **options})["statuses"]
        return statuses

    def cut_streams(self, task_id: str = "", how: str = "reset") -> int:
        """End the open streams of a task, or all: "close" (as it should be), "cut" (FIN in the middle), "reset", or
        "half" (silence for good on an open connection; it still counts as open). Returns how many it hit."""
        return int(self._post("/_stream", {"taskId": task_id, "cut": how})["streams"])

    def emit(self, task_id: str, raw: str | bytes = b"", *, event: Mapping[str, Any] | None = None) -> int:
        """Write bytes as they are, or one StreamResponse in an envelope, into a task's open streams.

        Returns how many streams it has.
        """
        data = base64.b64encode(raw.encode() if isinstance(raw, str) else raw).decode()
        what = {"base64": data} if event is None else {"event": dict(event)}
        return int(self._post("/_stream", {"taskId": task_id, **what})["streams"])

    # -------------------------------------------------------- look

    def ledger(self, kind: str | None = None) -> list[Entry]:
        """From the file, so that a stopped or frozen agent can be asked too."""
        entries = read_ledger(self.ledger_path) if self.ledger_path.exists() else []
        return [entry for entry in entries if kind in (None, entry["kind"])]

    def calls(self, method: str | None = None) -> list[Entry]:
        """A2A calls by method name, other HTTP calls as "GET /path"."""
        return [entry for entry in self.ledger("call") if method in (None, entry["method"])]

    def sends(self) -> list[Entry]:
        """SendMessage and SendStreamingMessage."""
        return [entry for entry in self.calls() if entry["method"] in ("SendMessage", "SendStreamingMessage")]

    def refused(self) -> list[Entry]:
        """Calls that lacked what the configuration wants (`credentials`, `card_credentials`)."""
        return [entry for entry in self.calls() if entry["refused"]]

    def created(self) -> list[Entry]:
        """One entry for each task that was started."""
        return self.ledger("task")

    def pushes(self) -> list[Entry]:
        """One entry for each attempt (``status`` or ``error``), and for each that was dropped on purpose."""
        return self.ledger("push")

    def tasks(self) -> list[dict[str, Any]]:
        """The tasks as they are now, each with its ``push_configs``, tokens included."""
        tasks: list[dict[str, Any]] = self._get("/_tasks")
        return tasks

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self._get("/_stats")
        return stats

    def open_connections(self) -> int:
        """How many connections are open, ours not counted."""
        return int(self._get("/_open")["open"])

    def streams_open(self) -> int:
        """How many streams are open at this moment."""
        return int(self.stats()["streams_open"])

    def wait_for_streams(self, count: int, timeout_s: float = 10.0) -> None:
        """Until exactly so many streams are open."""
        wait_until(lambda: self.streams_open() == count, timeout_s, what=f"{count} open streams at {self.name}")

    def wait_for(self, predicate: Callable[[list[Entry]], Any], timeout_s: float = 10.0, *, what: str = "entry") -> Any:
        """The predicate's first true value over the whole ledger."""
        return wait_until(lambda: predicate(self.ledger()), timeout_s, what=f"{what} in the ledger of {self.name}")

    def wait_for_calls(self, method: str, count: int = 1, timeout_s: float = 10.0) -> list[Entry]:
        what = f"{count} × {method} in the ledger of {self.name}"
        return wait_until(lambda: found if len(found := self.calls(method)) >= count else None, timeout_s, what=what)

    def wait_for_pushes(self, count: int = 1, timeout_s: float = 10.0) -> list[Entry]:
        what = f"{count} pushes in the ledger of {self.name}"
        return wait_until(lambda: found if len(found := self.pushes()) >= count else None, timeout_s, what=what)

    # -------------------------------------------------------- take away

    def stop(self, timeout_s: float = 5.0, *, keep_memory: bool = True) -> int | None:
        self._leave(keep_memory=keep_memory)
        return super().stop(timeout_s)

    def kill(self, *, keep_memory: bool = True) -> int:
        """``keep_memory=False``: the next ``start`` knows none of its tasks."""
        self._leave(keep_memory=keep_memory)
        return super().kill()

    def restart(self, *, keep_memory: bool = True) -> None:
        self.kill(keep_memory=keep_memory)
        self.start()

    def _leave(self, *, keep_memory: bool) -> None:
        if self._control is None:
            return
        self.resume()
        if keep_memory and self.is_alive:
            self._memory = self._get("/_memory")
        self._control.close()
        self._control = None

    def _get(self, path: str) -> Any:
        return _json(self._controlling().get(path))

    def _post(self, path: str, value: Any) -> Any:
        return _json(self._controlling().post(path, json=value))

    def _controlling(self) -> httpx.Client:
        if self._control is None:
            raise RuntimeError(f"{self.name} does not run")
        return self._control


def _json(response: httpx.Response) -> Any:
    if response.is_error:
        raise ValueError(f"the agent refused: {response.text}")
    return response.json()
