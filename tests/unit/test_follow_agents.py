"""Clients that the follower has asked for are kept for a short time."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from workers import follow_agents


class Roster:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def client(self, agent_id: str, participant_id: str | None = None, interface: str = "") -> Any:
        self.asked.append(agent_id)
        return object()


def test_a_client_is_asked_for_once_while_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards anew; and those whose time is over are not held until somebody asks for them."""
    roster = Roster()
    with ThreadPoolExecutor(1) as threads:
        clients = follow_agents.AgentClients(roster, threads)

        async def ask(*agents: str) -> None:
            for agent in agents:
                await clients.get(agent, "us", "")

        asyncio.run(ask("a", "a", "b"))
        assert roster.asked == ["a", "b"]
        monkeypatch.setattr(follow_agents, "_KEPT_S", 0.0)
        asyncio.run(ask("c", "d", "c"))
        assert roster.asked == ["a", "b", "c", "d", "c"]
        assert [agent for agent, _, _ in clients._known] == ["a", "b", "c"]
