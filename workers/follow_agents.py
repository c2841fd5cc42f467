"""Clients of agents for the follower's loop: each is asked for once at a time, however many delegations need it."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection
from concurrent.futures import Executor
from typing import Protocol

from delegation.agent_task import AgentTaskId
from delegation.events import PreparedRequest
from delegation.outbound import Route
from workers.follow_flights import Flights

#: A card may change; whoever subscribes soon after another need not ask Redis for it again.
_KEPT_S = 10.0


class Subscriber(Protocol):
    """What the follower needs of an agent's client (see client.py)."""

    def subscription(self, agent_task_id: AgentTaskId) -> PreparedRequest: ...
    def subscribe_otherwise(self) -> bool: ...
    def route(self) -> Route: ...
    def forget_credentials(self, refused: Collection[str]) -> None: ...


class Clients(Protocol):
    """Where clients come from (see roster.py)."""

    def client(self, agent_id: str, participant_id: str | None = None, interface: str = "") -> Subscriber: ...


class AgentClients:
    """Asked in ``threads``, since a card may have to be fetched."""

    def __init__(self, roster: Clients, threads: Executor) -> None:
        self._roster = roster
        self._flights: Flights[tuple[str, str, str], Subscriber] = Flights(threads)
        self._known: dict[tuple[str, str, str], tuple[float, Subscriber]] = {}

    async def get(self, agent: str, participant_id: str, interface: str) -> Subscriber:
        """Raises as ``Roster.client`` does."""
        key = (agent, participant_id, interface)
        kept_until, known = self._known.get(key, (0.0, None))
        if known is not None and time.monotonic() < kept_until:
            return known
        client = await self._flights.ask(key, functools.partial(self._roster.client, *key))
        now = time.monotonic()
        self._known = {each: kept for each, kept in self._known.items() if now < kept[0]}
        self._known[key] = (now + _KEPT_S, client)
        return client
