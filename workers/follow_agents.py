"""Clients of agents for the follower's loop: each is asked for once at a time, however many delegations need it."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor
from typing import Protocol

from delegation.agent_task import AgentTaskId
from delegation.events import PreparedRequest

#: A card may change; whoever subscribes soon after another need not ask Redis for it again.
_KEPT_S = 10.0


class Subscriber(Protocol):
    """What the follower needs of an agent's client (see client.py)."""

    def subscription(self, agent_task_id: AgentTaskId) -> PreparedRequest: ...


class Clients(Protocol):
    """Where clients come from (see roster.py)."""

    def client(self, agent_id: str, participant_id: str | None = None) -> Subscriber: ...


class AgentClients:
    """One agent whose card does not come holds one of the ``threads``, not all of them."""

    def __init__(self, roster: Clients, threads: Executor) -> None:
        self._roster = roster
        self._threads = threads
        self._known: dict[tuple[str, str], tuple[float, Subscriber]] = {}
        self._asked: dict[tuple[str, str], asyncio.Future[Subscriber]] = {}

    async def get(self, agent: str, participant_id: str) -> Subscriber:
        """Raises as ``Roster.client`` does."""
        key = (agent, participant_id)
        kept_until, client = self._known.get(key, (0.0, None))
        if client is not None and time.monotonic() < kept_until:
            return client
        asked = self._asked.get(key)
        if asked is None:
            asked = asyncio.get_running_loop().run_in_executor(
                self._threads, self._roster.client, agent, participant_id
            )
            self._asked[key] = asked
            asked.add_done_callback(lambda answered: self._keep(key, answered))
        return await asyncio.shield(asked)  # whoever stops waiting does not stop the others

    def _keep(self, key: tuple[str, str], answered: asyncio.Future[Subscriber]) -> None:
        del self._asked[key]
        if not answered.cancelled() and answered.exception() is None:
            self._known[key] = (time.monotonic() + _KEPT_S, answered.result())
