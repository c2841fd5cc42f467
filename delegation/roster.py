"""The agents of the configuration: who was accepted, who was refused and why, and a client for each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import redis
import structlog

from delegation.access import AgentAccess
from delegation.card_cache import CardCache
from delegation.card_changes import Changes
from delegation.card_fetch import CARD_DEADLINE_S
from delegation.card_keys import load_keys
from delegation.card_pipeline import CardPipeline, changes_since, unforeseen
from delegation.card_verdict import Verdict
from delegation.cards import CheckedCard, Interface, at_interface, check_card
from delegation.client import TOKEN_DEADLINE_S, AgentClient
from delegation.errors import AgentError, DelegationError, StoreUnavailable
from delegation.roster_rows import empty_row, facts_of_card, facts_of_verdict, reason_of
from delegation.roster_text import ListedAgent, listed, render
from delegation.settings import AgentSettings, Settings

#: A roster of hanging agents is described in about the time of one.
DESCRIBE_THREADS = 16
#: Kept for agents, participants and interfaces; the oldest goes first, and is made anew when it is needed again.
MOST_CLIENTS = 256

log = structlog.get_logger("delegation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Review:
    """An agent's card as it is now, and what has changed since one was accepted."""

    agent: AgentSettings
    found: Verdict
    accepted: Verdict | None
    changes: Changes


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
        self._accesses: dict[str, AgentAccess] = {}
        self._told: dict[str, ListedAgent] = {}
        self._rendered: tuple[tuple[ListedAgent, ...], str] = ((), "")
        self._clients: dict[tuple[str, str, Interface], tuple[int, AgentClient]] = {}
        max_bytes = settings.limits.card_bytes
        pipeline = CardPipeline(
            transport_of=lambda agent: self._access(agent).cards,
            keys_of=lambda agent, left_s: load_keys(agent, self._access(agent).keys, deadline_s=left_s),
            extended_of=self._extended_card,
            participant_id=settings.server.participant_id,
            ttl_s=settings.timing.card_ttl.total_seconds(),
            max_bytes=max_bytes,
        )
        self._cards = CardCache(client, card_key, pipeline, max_bytes=max_bytes, patience_s=card_patience_s)

    def config(self, agent_id: str) -> AgentSettings:
        """Raises UnknownAgent, which names the valid ids."""
        return self._settings.agent(agent_id)

    def card(self, agent_id: str) -> CheckedCard:
        """The agent's card as it is now, for new work.

        Raises UnknownAgent; AgentRefused or UnsupportedExtensionError when it is refused; AgentPaused when it changed
        and an operator has to accept it first; AgentUnreachable, AgentBusy or CallAmbiguous when that is not known now;
        StoreUnavailable.
        """
        return self._cards.get(self.config(agent_id))

    def client(self, agent_id: str, participant_id: str | None = None, interface: str = "") -> AgentClient:
        """A client for the agent that calls it as `participant_id` (None: the settings'), kept while its card is alike.

        The last accepted card serves, fresh or not: no look at what is under way fetches one (ask :meth:`card` before
        new work). `interface` is the one it was sent to (`CheckedCard.interface_key`), whatever the card names by now.
        Raises as :meth:`card` does if there never was a card.
        """
        agent = self.config(agent_id)
        card = at_interface(agent, self._cards.under_way(agent) or self._cards.get(agent), interface)
        return self._client_for(agent, card, participant_id or self._settings.server.participant_id)

    def describe(self) -> list[dict[str, Any]]:
        """For each agent of the configuration, in its order: what `delegation agents --json` shows.

        A refused or unreachable agent is shown with its reason and stops nobody. Raises StoreUnavailable only.
        """
        agents = self._settings.agents
        with ThreadPoolExecutor(max_workers=DESCRIBE_THREADS, thread_name_prefix="roster") as threads:
            return list(threads.map(self._describe, agents))

    def listed(self) -> tuple[ListedAgent, ...]:
        """The agents that take new work, sorted by id, with the texts shown of them. Raises StoreUnavailable only."""
        agents = self._settings.agents
        with ThreadPoolExecutor(max_workers=DESCRIBE_THREADS, thread_name_prefix="roster") as threads:
            found = [each for each in threads.map(self._listed, agents) if each is not None]
        return tuple(sorted(found, key=lambda each: each.id))

    def render(self) -> str:
        """The `agents` section of a model's context (roster_text.py): byte-identical while the cards are.

        Each call looks whether they still are (card_cache.py). Refused, paused and unreachable agents are not in it.
        Raises StoreUnavailable only.
        """
        agents = self.listed()
        shown, section = self._rendered
        if section and agents == shown:
            return section
        section = render(agents, told=self._told.values())
        self._told = {**self._told, **{each.id: each for each in agents}}  # a new one: threads share it
        log.info("roster.rendered", agents=[each.id for each in agents], chars=len(section))
        self._rendered = (agents, section)
        return section

    def review(self, agent_id: str) -> Review:
        """What there is to accept of an agent's card, fetched at this moment.

        Raises UnknownAgent, and as :meth:`card` does when there is no card to accept.
        """
        agent = self.config(agent_id)
        verdict, accepted = self._cards.review(agent)
        if verdict.kind and not verdict.is_paused:
            raise verdict.error()
        changes = changes_since(agent, accepted, verdict) if verdict.is_paused else Changes()
        return Review(agent=agent, found=verdict, accepted=accepted, changes=changes)

    def accept(self, review: Review) -> bool:
        """Let new work go by the card that was reviewed. False if its server shows another one by now."""
        return self._cards.accept(review.agent, review.found)

    def close(self) -> None:
        """Close this process's connections to agents."""
        for access in self._accesses.values():
            access.close()

    def _listed(self, agent: AgentSettings) -> ListedAgent | None:
        card: object
        try:
            card = self._cards.look(agent).outcome
        except AgentError:  # somebody else fetches it just now
            card = self._cards.under_way(agent)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  see unforeseen
            card = unforeseen(agent, error)
        return listed(agent, card) if isinstance(card, CheckedCard) else None

    def _describe(self, agent: AgentSettings) -> dict[str, Any]:
        row, base_url = empty_row(agent.id), self._settings.server.base_url
        try:
            kept = self._cards.look(agent)
            row |= facts_of_verdict(kept.verdict)
            if isinstance(kept.outcome, CheckedCard):
                row |= facts_of_card(agent, kept.outcome, base_url)
                # Whether work can go there now: what it is to be shown has to be there, a token included.
                self._access(agent).credentials(kept.outcome.credentials).present(time.monotonic() + TOKEN_DEADLINE_S)
                return row | {"accepted": True}
            row |= {"reason": reason_of(kept.outcome)}
            if kept.verdict.is_paused:
                row |= facts_of_card(agent, check_card(agent, kept.verdict.card), base_url)
        except StoreUnavailable:
            raise
        except DelegationError as error:
            row |= {"reason": row["reason"] or reason_of(error)}
        except Exception as error:  # noqa: BLE001  see unforeseen
            row |= {"reason": row["reason"] or reason_of(unforeseen(agent, error))}
        return row

    def _client_for(self, agent: AgentSettings, card: CheckedCard, participant_id: str) -> AgentClient:
        key = (agent.id, participant_id, card.interface)
        pid, client = self._clients.get(key, (0, None))
        if client is not None and pid == os.getpid() and _speaks_alike(client.card, card):
            return client
        client = AgentClient(
            agent,
            card,
            participant_id,
            transport=self._access(agent).calls,
            limits=self._settings.limits,
            credentials=self._access(agent).credentials(card.credentials),
            stream_start_s=self._settings.timing.stream_start.total_seconds(),
        )
        self._clients[key] = (os.getpid(), client)  # two threads may both build one; the last stays, both work
        while len(self._clients) > MOST_CLIENTS:
            self._clients.pop(next(iter(self._clients), key), None)
        return client

    def _access(self, agent: AgentSettings) -> AgentAccess:
        access = self._accesses.get(agent.id)
        return access or self._accesses.setdefault(agent.id, AgentAccess(agent))

    def _extended_card(self, agent: AgentSettings, card: CheckedCard, left_s: float) -> Any:
        client = self._client_for(agent, card, self._settings.server.participant_id)
        return client.extended_card(deadline_s=left_s, max_bytes=self._settings.limits.card_bytes)


def _speaks_alike(one: CheckedCard, other: CheckedCard) -> bool:
    return all(
        getattr(one, name) == getattr(other, name)
        for name in ("interface", "can_stream", "active_extensions", "credentials")
    )
