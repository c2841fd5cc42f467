"""GetTask calls per second through the product's client, against httpx with the same pool and nothing around it."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from bench.progress import say
from bench.stage import Scale
from bench.table import Goal, Row
from delegation.agent_task import AgentTask, AgentTaskId, ContextId, OutgoingMessage, TaskState
from delegation.cards import CheckedCard, allowed_origins, standard_headers
from delegation.client import HISTORY, AgentClient
from delegation.outbound import KEEPALIVE_S, MAX_CONNECTIONS, GuardedTransport
from delegation.settings import AgentSettings, LimitSettings
from tests.support.clients import fetch_card
from tests.support.processes import ScriptedAgent

THREADS = (1, 16)
DEADLINE_S = 30.0
PARTICIPANT = "bench"
GOAL = '{"states": [["COMPLETED", 0]]}'


def measure(scale: Scale) -> list[Row]:
    """All figures of this subject. Raises AgentError or httpx's errors when a call fails."""
    calls = scale.of(1600, 320)
    rates: dict[int, tuple[list[float], list[float]]] = {threads: ([], []) for threads in THREADS}
    with tempfile.TemporaryDirectory(prefix="bench-") as name, ScriptedAgent(Path(name)).start() as agent:
        settings = AgentSettings(id="agent", url=agent.url, allow_http=True)
        transport = GuardedTransport(allowed_origins(settings))
        limits = LimitSettings()
        card = fetch_card(settings, transport)
        client = AgentClient(settings, card, PARTICIPANT, transport=transport, limits=limits)
        task_id = _start_task(client)
        with _raw_client(settings, card) as raw:
            ours, theirs = _our_call(client, task_id), _raw_call(raw, card, task_id)
            for number in range(scale.rounds):
                say(f"client: round {number + 1} of {scale.rounds}")
                for threads, (mine, reference) in rates.items():
                    mine.append(_rate(ours, calls, threads))
                    reference.append(_rate(theirs, calls, threads))
        transport.close()
    return [
        Row(
            what=f"GetTask per second, {threads} thread{'s' if threads > 1 else ''} (raw httpx, same pool)",
            ours=mine,
            reference=reference,
            unit="/s",
            goal=Goal(at_least=0.7),
        )
        for threads, (mine, reference) in rates.items()
    ]


def _start_task(client: AgentClient) -> AgentTaskId:
    message = OutgoingMessage(message_id="m1", context_id=ContextId("c1"), text=GOAL)
    answer = client.send_message(message, push=None, deadline_s=DEADLINE_S)
    assert isinstance(answer, AgentTask)
    return answer.id


def _our_call(client: AgentClient, task_id: AgentTaskId) -> Callable[[], None]:
    def call() -> None:
        assert client.get_task(task_id, deadline_s=DEADLINE_S).state is TaskState.COMPLETED

    return call


def _raw_client(settings: AgentSettings, card: CheckedCard) -> httpx.Client:
    pool = httpx.Limits(
        max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS, keepalive_expiry=KEEPALIVE_S
    )
    headers = standard_headers(settings, PARTICIPANT, extensions=card.active_extensions)
    return httpx.Client(limits=pool, headers=headers, timeout=DEADLINE_S, trust_env=False)


def _raw_call(raw: httpx.Client, card: CheckedCard, task_id: AgentTaskId) -> Callable[[], None]:
    """The least that is a GetTask: an envelope with an id of its own, and the state in the answer."""
    params = {"id": task_id, "historyLength": HISTORY}

    def call() -> None:
        envelope = {"jsonrpc": "2.0", "id": str(uuid.uuid4()), "method": "GetTask", "params": params}
        answer = raw.post(card.interface.url, json=envelope).json()
        assert answer["result"]["status"]["state"] == "TASK_STATE_COMPLETED"

    return call


def _rate(call: Callable[[], None], calls: int, threads: int) -> float:
    """Calls per second; connections are made before the clock starts."""

    def work(times: int) -> None:
        for _ in range(times):
            call()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, [2] * threads))
        began = time.monotonic()
        list(pool.map(work, [calls // threads] * threads))
        return calls / (time.monotonic() - began)
