"""How the scripted agent pushes: in order or not, once or often, truly or not; each attempt goes into the ledger."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from tests.support.goal_script import wire_state
from tests.support.ledger import Ledger
from tests.support.wire import post

if TYPE_CHECKING:
    from tests.support.agent_work import Work

_HEADERS = {"both": {"token", "bearer"}, "token": {"token"}, "bearer": {"bearer"}, "none": set[str]()}


class PushSender:
    """Sends pushes in the background, for one task in the order of its states unless its script says otherwise."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._running: set[asyncio.Task[Any]] = set()
        self._last_of_task: dict[str, asyncio.Task[Any]] = {}
        self._held: dict[str, list[Coroutine[Any, Any, Any]]] = {}
        self.statuses: dict[str, int] = {}

    def announce(self, work: Work) -> None:
        """Push the state the task has just reached, as its script wants it."""
        script, state = work.script, work.state
        for config in list(work.push_configs.values()):
            if state in script.push_drop:
                self._ledger.add(
                    "push", task_id=work.id, config_id=config["id"], url=config["url"], state=state, dropped=True
                )
            elif script.pushes(state):
                self._plan(work, state, config)
        if work.is_terminal:
            self._release_held(work)

    async def before_reply(self, work: Work) -> None:
        """The pushes that have to be answered before SendMessage is."""
        claim = work.script.push_before_reply
        state = claim if isinstance(claim, str) else work.state
        for config in list(work.push_configs.values()):
            await self._deliver(work, state, config, _body(work, state, is_first=True))

    async def send(
        self, task_id: str, config: dict[str, Any], body: bytes, *, state: str, headers: dict[str, str]
    ) -> Any:
        """One POST. Returns the HTTP status, or what went wrong as text; either way the ledger knows."""
        started = time.monotonic()
        try:
            result: int | str = await post(config["url"], headers, body)
        except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as problem:
            result = f"{type(problem).__name__}: {problem}"
        outcome = {"status": result} if isinstance(result, int) else {"status": None, "error": result}
        self.statuses[str(outcome["status"])] = self.statuses.get(str(outcome["status"]), 0) + 1
        took_ms = round((time.monotonic() - started) * 1000, 2)
        self._ledger.add(
            "push", task_id=task_id, config_id=config.get("id"), url=config["url"], state=state, ms=took_ms, **outcome
        )
        return result

    def _plan(self, work: Work, state: str, config: dict[str, Any]) -> None:
        # The body is made now: a push tells what was true when the state was reached, also when it is sent late.
        body = _body(work, state, is_first=False)
        delay_s = work.script.push_delay_s(state)
        delivery = self._deliver(work, state, config, body, delay_s=delay_s)
        if work.script.push_order == "reverse":
            self._held.setdefault(work.id, []).append(delivery)
        elif delay_s:
            self._start(delivery)
        else:
            self._last_of_task[work.id] = self._start(_after(self._last_of_task.get(work.id), delivery))

    def _release_held(self, work: Work) -> None:
        last: asyncio.Task[Any] | None = None
        for delivery in reversed(self._held.pop(work.id, [])):
            last = self._start(_after(last, delivery))

    async def _deliver(
        self, work: Work, state: str, config: dict[str, Any], body: bytes, *, delay_s: float = 0
    ) -> None:
        if delay_s:
            await asyncio.sleep(delay_s)
        headers = credentials(config, work.script.push_headers)
        for _ in range(work.script.push_times):
            await self.send(work.id, config, body, state=state, headers=headers)

    def _start(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        running = asyncio.get_running_loop().create_task(coroutine)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return running


def credentials(config: dict[str, Any], which: str = "both") -> dict[str, str]:
    """The headers with which a sender proves itself, as far as the config gives it the means."""
    headers = {"Content-Type": "application/json"}
    authentication = config.get("authentication") or {}
    if "token" in _HEADERS[which] and config.get("token"):
        headers["X-A2A-Notification-Token"] = config["token"]
    if "bearer" in _HEADERS[which] and authentication.get("credentials"):
        headers["Authorization"] = f"{authentication.get('scheme', 'Bearer')} {authentication['credentials']}"
    return headers


def status_update(work: Work, state: str) -> dict[str, Any]:
    """A StreamResponse with a statusUpdate, the shape a2a-sdk pushes."""
    return {"statusUpdate": {"taskId": work.id, "contextId": work.context_id, "status": work.status_to_wire(state)}}


def _body(work: Work, state: str, *, is_first: bool) -> bytes:
    lie = work.script.push_lie
    if isinstance(lie, dict):
        return json.dumps(lie).encode()
    if isinstance(lie, str) and not lie.isupper():
        return lie.encode()
    if isinstance(lie, str):
        return json.dumps(status_update(work, lie)).encode()
    if is_first and state == work.state:
        return json.dumps(
            {"task": {"id": work.id, "contextId": work.context_id, "status": {"state": wire_state(state)}}}
        ).encode()
    return json.dumps(status_update(work, state)).encode()


async def _after(previous: asyncio.Task[Any] | None, then: Coroutine[Any, Any, Any]) -> None:
    if previous is not None:
        await asyncio.wait({previous})
    await then
