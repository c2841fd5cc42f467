"""Reads an agent's stream by hand, for tests of the agents themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Self

import httpx


class EventReader:
    """One streaming JSON-RPC call; iterating gives what is in the envelopes, a StreamResponse or ``{"error": …}``.

    ``raw`` is the body so far, ``comments`` how many keep-alives were in it. Leaving it hangs up.
    """

    def __init__(self, agent_url: str, method: str, *, path: str = "/rpc", headers: Any = None, **params: Any) -> None:
        self.raw = b""
        self.comments = 0
        self._http = httpx.Client(base_url=agent_url, trust_env=False, timeout=20)
        body = {"jsonrpc": "2.0", "id": "s-1", "method": method, "params": params}
        request = self._http.build_request("POST", path, json=body, headers={"A2A-Version": "1.0", **(headers or {})})
        self.response = self._http.send(request, stream=True)
        self._events = self._read()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._events

    def next(self) -> dict[str, Any]:
        return next(self._events)

    def states(self) -> list[str]:
        """The states of all that is still to come: of the task first, then of the status updates."""
        told = [event.get("statusUpdate") or event.get("task") for event in self]
        return [each["status"]["state"].removeprefix("TASK_STATE_") for each in told if each]

    def close(self) -> None:
        self.response.close()
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[dict[str, Any]]:
        rest = b""
        for chunk in self.response.iter_bytes():
            self.raw += chunk
            *blocks, rest = (rest + chunk).split(b"\r\n\r\n")
            for block in blocks:
                data = [line[5:].strip() for line in block.split(b"\r\n") if line.startswith(b"data:")]
                self.comments += block.startswith(b":")
                if data:
                    envelope = json.loads(b"\n".join(data))
                    assert envelope["id"] == "s-1"
                    yield envelope["result"] if "result" in envelope else {"error": envelope["error"]}
