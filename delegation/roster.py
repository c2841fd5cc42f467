"""The agents of the configuration: who was accepted, who was refused and why, and a client for each."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

from delegation.card_cache import CardCache
from delegation.cards import CARD_DEADLINE_S, CheckedCard, allowed_origins
from delegation.client import AgentClient
from delegation.errors import AgentError
from delegation.outbound import GuardedTransport
from delegation.settings import AgentSettings, Settings
from delegation.watch import choose

#: A roster of hanging agents is described in about the time of one.
DESCRIBE_THREADS = 16


class Roster:
    """One per process, shared by its threads; nothing is fetched or opened before it is needed.

    `card_key(agent_id)` names the Redis key of an agent's card; another process that fetches it is waited for as long
    as `card_patience_s`.
    """

    def __init__(
        self,
        settings: Settings,
        client: redis.Redis,
        card_key: Callable[[str], str],
        *,
        card_patience_s: float = CARD_DEADLINE_S + 2,
    ) -> None:
        self._settings = settings
        self._transports: dict[str, GuardedTransport] = {}
        self._clients: dict[tuple[str, str], tuple[int, AgentClient]] = {}
        self._cards = CardCache(
            client,
            card_key,
            transport_of=self._transport,
            participant_id=settings.server.participant_id,
            ttl_s=settings.timing.card_ttl.total_seconds(),
            max_bytes=settings.limits.card_bytes,
            patience_s=card_patience_s,
        )

    def config(self, agent_id: str) -> AgentSettings:
        """Raises UnknownAgent, which names the valid ids."""
        return self._settings.agent(agent_id)

    def card(self, agent_id: str) -> CheckedCard:
        """The agent's card as it is now, for new work.

        Raises UnknownAgent; AgentRefused or UnsupportedExtensionError when it is refused; AgentUnreachable, AgentBusy
        or CallAmbiguous when that is not known now; StoreUnavailable.
        """
        return self._cards.get(self.config(agent_id))

    def client(self, agent_id: str, participant_id: str | None = None) -> AgentClient:
        """A client for the agent that calls it as `participant_id` (None: the settings'), kept while its card is alike.

        Where there is no card now, the last accepted one serves: what is under way keeps the interface it started
        with (ask :meth:`card` before new work). Raises as :meth:`card` does if there never was one.
        """
        agent = self.config(agent_id)
        try:
            card = self._cards.get(agent)
        except AgentError:
            accepted = self._cards.last_accepted(agent)
            if accepted is None:
                raise
            card = accepted
        return self._client_for(agent, card, participant_id or self._settings.server.participant_id)

    def describe(self) -> list[dict[str, Any]]:
        """For each agent of the configuration, in its order: what `delegation agents --json` shows.

        A refused or unreachable agent is shown with its reason and stops nobody. Raises StoreUnavailable only.
        """
        agents = self._settings.agents
        with ThreadPoolExecutor(max_workers=DESCRIBE_THREADS, thread_name_prefix="roster") as threads:
            return list(threads.map(self._describe, agents))

    def close(self) -> None:
        """Close this process's connections to agents."""
        for transport in self._transports.values():
            transport.close()

    def _describe(self, agent: AgentSettings) -> dict[str, Any]:
        try:
            card = self._cards.get(agent)
        except AgentError as error:
            return _row(agent, reason=f"{error.code}: {error.detail}")
        return _row(
            agent,
            name=card.name,
            accepted=True,
            watch=choose(agent.updates, card, base_url=self._settings.server.base_url).value,
            skills=[{"id": skill.id, "name": skill.name, "description": skill.description} for skill in card.skills],
            card_fetched_at=card.fetched_at,
        )

    def _client_for(self, agent: AgentSettings, card: CheckedCard, participant_id: str) -> AgentClient:
        key = (agent.id, participant_id)
        pid, client = self._clients.get(key, (0, None))
        if client is not None and pid == os.getpid() and _speaks_alike(client.card, card):
            return client
        client = AgentClient(
            agent,
            card,
            participant_id,
            transport=self._transport(agent),
            limits=self._settings.limits,
            stream_start_s=self._settings.timing.stream_start.total_seconds(),
        )
        self._clients[key] = (os.getpid(), client)  # two threads may both build one; the last stays, both work
        return client

    def _transport(self, agent: AgentSettings) -> GuardedTransport:
        transport = self._transports.get(agent.id)
        return transport or self._transports.setdefault(agent.id, GuardedTransport(allowed_origins(agent)))


def _speaks_alike(one: CheckedCard, other: CheckedCard) -> bool:
    return (one.interface, one.can_stream, one.active_extensions) == (
        other.interface,
        other.can_stream,
        other.active_extensions,
    )


def _row(agent: AgentSettings, **facts: Any) -> dict[str, Any]:
    names = ("id", "name", "accepted", "reason", "watch", "skills", "card_fetched_at")
    return dict.fromkeys(names) | {"id": agent.id, "accepted": False, "skills": []} | facts
