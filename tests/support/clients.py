"""Clients for the tests of calls: of a raw server, and of an agent on the official SDK."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from delegation.agent_task import AgentTask, ContextId, OutgoingMessage, TaskState
from delegation.card_fetch import ask_for_card
from delegation.cards import CheckedCard, Extension, Interface, allowed_origins, check_card
from delegation.client import AgentClient
from delegation.errors import AgentRefused
from delegation.outbound import GuardedTransport
from delegation.settings import AgentSettings, LimitSettings
from tests.support.child import ChildProcess, wait_until

DEADLINE_S = 5.0
PATIENCE_S = 1.0  #: how much later than its deadline a call may end


def message(text: str, number: int = 1, **fields: Any) -> OutgoingMessage:
    return OutgoingMessage(message_id=f"m{number}", context_id=ContextId(f"ctx-{number}"), text=text, **fields)


def fetch_card(
    agent: AgentSettings, transport: GuardedTransport, *, max_bytes: int = 1 << 20, deadline_s: float = 10.0
) -> CheckedCard:
    """The card as its server has it now, checked alone."""
    answer = ask_for_card(agent, transport, participant_id="us", max_bytes=max_bytes, deadline_s=deadline_s)
    if answer.unreadable:
        raise AgentRefused(answer.unreadable)
    return check_card(agent, answer.card)


def client_of(
    url: str,
    binding: str = "JSONRPC",
    *,
    answer_bytes: int = 100_000,
    event_bytes: int = 50_000,
    stream_start_s: float = 10.0,
    can_stream: bool = False,
    tenant: str = "",
    version: str = "1.0",
    extensions: tuple[str, ...] = (),
    **settings: Any,
) -> tuple[AgentClient, GuardedTransport]:
    """A client as the roster would build it for a card with one interface, and its transport."""
    agent = AgentSettings(id="agent", url=url, **settings)
    card = CheckedCard(
        name="raw",
        description="raw",
        version="1",
        interface=Interface(url=f"{url}/rpc", binding=binding, protocol_version=version, tenant=tenant),
        can_push=True,
        can_stream=can_stream,
        extensions=tuple(Extension(uri=uri, required=False) for uri in extensions),
    )
    transport = GuardedTransport(allowed_origins(agent))
    limits = LimitSettings(answer_bytes=answer_bytes, event_bytes=event_bytes)
    client = AgentClient(agent, card, "us", transport=transport, limits=limits, stream_start_s=stream_start_s)
    return client, transport


class SdkAgent:
    """A client for the agent process as an operator would configure it, and what the agent saw."""

    def __init__(self, url: str) -> None:
        self.url = url
        agent = AgentSettings(id="sdk", url=url, headers={"X-Team": "travel"})
        self.transport = GuardedTransport(allowed_origins(agent))
        self.card = fetch_card(agent, self.transport)
        self.client = AgentClient(agent, self.card, "us", transport=self.transport, limits=LimitSettings())

    def seen(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = httpx.get(f"{self.url}/_seen", trust_env=False).json()
        return entries

    def streams(self) -> dict[str, int]:
        """`opened` since the start, `open` now: event streams as the agent counts them."""
        counts: dict[str, int] = httpx.get(f"{self.url}/_streams", trust_env=False).json()
        return counts

    def wait_until_no_stream_is_open(self) -> None:
        wait_until(lambda: self.streams()["open"] == 0, what="end of all streams")

    def until(self, task: AgentTask, state: TaskState) -> AgentTask:
        def look() -> AgentTask | None:
            found = self.client.get_task(task.id, deadline_s=DEADLINE_S)
            return found if found.state is state else None

        return wait_until(look, what=state)


@contextmanager
def sdk_agent_process(binding: str, log: Path, *options: str) -> Iterator[SdkAgent]:
    command = [sys.executable, "-m", "tests.support.sdk_agent", "--binding", binding, *options]
    with ChildProcess(command, log=log).start() as process:
        agent = SdkAgent(json.loads(process.wait_for_output(r'\{"ready".*\}').group())["ready"])
        yield agent
        agent.transport.close()
