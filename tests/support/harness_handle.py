"""A test's hand on a harness agent in another process."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Self

import httpx

from tests.support.child import ChildProcess, free_port, wait_until


class HarnessAgent(ChildProcess):
    """``HarnessAgent(directory).start()``; the URL stays through restarts, the tasks do not.

    Options: ``push`` (on the card), ``adds_sender`` (who sent an envelope without themselves is not locked out),
    ``requires_extension`` (the task extension is required on the card and in every call).
    """

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "harness",
        push: bool = True,
        adds_sender: bool = False,
        requires_extension: bool = False,
    ) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "tests.support.harness_agent", "--port", str(self.port)]
        command += ["--no-push"] if not push else []
        command += ["--adds-sender"] if adds_sender else []
        command += ["--requires-extension"] if requires_extension else []
        super().__init__(command, log=directory / f"{name}.log")

    def start(self) -> Self:
        super().start()
        ready = json.loads(self.wait_for_output(r'\{"ready".*\}').group())
        assert ready["ready"] == self.url
        return self

    def calls(self, method: str | None = None) -> list[dict[str, Any]]:
        """Its requests in order: ``method`` ("SendMessage", else "GET /path"), ``headers``, ``params``."""
        entries: list[dict[str, Any]] = self._get("/_log")
        return [entry for entry in entries if method in (None, entry["method"])]

    def streams_open(self) -> int:
        return int(self._get("/_open")["open"])

    def streams_opened(self) -> int:
        return int(self._get("/_open")["opened"])

    def wait_for_streams(self, count: int, timeout_s: float = 10.0) -> None:
        """Until exactly so many streams are open."""
        wait_until(lambda: self.streams_open() == count, timeout_s, what=f"{count} open streams at {self.name}")

    def wait_for_calls(self, method: str, count: int = 1, timeout_s: float = 10.0) -> list[dict[str, Any]]:
        what = f"{count} × {method} at {self.name}"
        return wait_until(lambda: found if len(found := self.calls(method)) >= count else None, timeout_s, what=what)

    def _get(self, path: str) -> Any:
        return httpx.get(f"{self.url}{path}", trust_env=False, timeout=30).raise_for_status().json()
