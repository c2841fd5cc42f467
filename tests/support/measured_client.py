"""Ask a hostile agent something, and measure what that costs: each question in a forked process of its own.

Questions come as lines of JSON, answers go out the same way. A fork starts from the same memory each time, with all
modules loaded, so what it grows by is what the question took.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import delegation.token_endpoint
import workers.follow_connection
from delegation.agent_task import AgentTaskId
from delegation.auth_settings import OAuth2Credential, OpenIdCredential
from delegation.card_keys import load_keys
from delegation.cards import allowed_origins
from delegation.errors import AgentError, CallAmbiguous
from delegation.events import EventSplitter, read_event
from delegation.origins import read_origin
from delegation.outbound import GuardedTransport
from delegation.replies import read_reply
from delegation.settings import AgentSettings, LimitSettings
from delegation.token_endpoint import TokenSource
from tests.support.clients import client_of, fetch_card, message
from workers.follow_connection import Connections, Silence

#: The limits that are in force where nobody sets any.
LIMITS = LimitSettings()
T1 = AgentTaskId("t1")


def ask(url: str, deadline_s: float, binding: str = "JSONRPC") -> int:
    client, transport = client_of(
        url, binding, answer_bytes=LIMITS.answer_bytes, event_bytes=LIMITS.event_bytes, can_stream=True, allow_http=True
    )
    try:
        client.get_task(T1, deadline_s=deadline_s)
    finally:
        _close(transport)
    return 0


def ask_http_json(url: str, deadline_s: float) -> int:
    return ask(url, deadline_s, "HTTP+JSON")


def start(url: str, deadline_s: float, binding: str = "JSONRPC") -> int:
    client, transport = client_of(
        url, binding, answer_bytes=LIMITS.answer_bytes, event_bytes=LIMITS.event_bytes, can_stream=True, allow_http=True
    )
    try:
        client.start_task(message("hi"), push=None, deadline_s=deadline_s)
    finally:
        _close(transport)
    return 0


def start_http_json(url: str, deadline_s: float) -> int:
    return start(url, deadline_s, "HTTP+JSON")


def fetch(url: str, deadline_s: float) -> int:
    agent = AgentSettings(id="agent", url=url, allow_http=True)
    transport = GuardedTransport(allowed_origins(agent))
    try:
        fetch_card(agent, transport, max_bytes=LIMITS.card_bytes, deadline_s=deadline_s)
    finally:
        _close(transport)
    return 0


def get_token(url: str, deadline_s: float) -> int:
    os.environ["CLIENT_SECRET"] = "a secret of the test"
    credential = OAuth2Credential.model_validate(
        {"type": "oauth2", "token_url": f"{url}/token", "client_id": "us", "client_secret": "env:CLIENT_SECRET"}
    )
    TokenSource(credential, (), lambda at: GuardedTransport([read_origin(at)])).token()
    return 0


def discover(url: str, deadline_s: float) -> int:
    os.environ["CLIENT_SECRET"] = "a secret of the test"
    credential = OpenIdCredential.model_validate(
        {"type": "oidc", "issuer": url, "client_id": "us", "client_secret": "env:CLIENT_SECRET"}
    )
    TokenSource(credential, (), lambda at: GuardedTransport([read_origin(at)])).token()
    return 0


def load_signature_keys(url: str, deadline_s: float) -> int:
    agent = AgentSettings(id="agent", url="http://127.0.0.1:9", signature_keys=f"{url}/keys", allow_http=True)
    with closing(GuardedTransport([read_origin(url)])) as transport:
        load_keys(agent, lambda _: transport)
    return 0


def follow(url: str, deadline_s: float, binding: str = "JSONRPC") -> int:
    """As the follower reads a subscription, but for a second longer than it may wait for the answer at most."""
    return asyncio.run(_follow(url, deadline_s, binding))


def follow_http_json(url: str, deadline_s: float) -> int:
    return follow(url, deadline_s, "HTTP+JSON")


async def _follow(url: str, deadline_s: float, binding: str) -> int:
    client, _ = client_of(url, binding, can_stream=True, allow_http=True)
    request, route = client.subscription(T1), client.route()
    with ThreadPoolExecutor(2) as threads:
        connections = Connections(threads, answer_within_s=deadline_s, idle_s=deadline_s)
        try:
            async with asyncio.timeout(deadline_s + 1.0), connections.send(request, route) as answer:
                if not answer.is_stream:
                    body = await answer.read(deadline_s)
                    read_reply(request.question, answer.status, answer.headers, body)
                    raise CallAmbiguous("no stream")
                splitter = EventSplitter(LIMITS.event_bytes)
                async with aclosing(answer.chunks()) as chunks:
                    async for piece in chunks:
                        for payload in splitter.feed(piece):
                            read_event(request.question, payload)
                splitter.finish()
        finally:
            assert connections.open == 0
    return 0


def _close(transport: GuardedTransport) -> None:
    """What is left in the pool after an answer is idle: nothing half read is kept."""
    pool = transport._pool()
    assert all(connection.is_idle() for connection in pool.connections), pool.connections
    transport.close()


WAYS: dict[str, Callable[[str, float], int]] = {
    "call": ask,
    "call by HTTP+JSON": ask_http_json,
    "stream start": start,
    "stream start by HTTP+JSON": start_http_json,
    "card": fetch,
    "token": get_token,
    "discovery": discover,
    "keys": load_signature_keys,
    "subscription": follow,
    "subscription by HTTP+JSON": follow_http_json,
}


def measure(question: dict[str, Any]) -> dict[str, Any]:
    """What happened, how long it took, and by how many MB the process grew at most."""
    ask(question["good"], 30.0)
    way = WAYS[question["way"]]
    # Nobody wants to wait for what the settings cannot shorten.
    delegation.token_endpoint.DEADLINE_S = question["deadline_s"]
    workers.follow_connection.CONNECT_AT_MOST_S = question["deadline_s"]
    fds = _open_files()
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before, began, cpu = _memory("VmRSS"), time.monotonic(), time.process_time()
    outcome, detail = "answer", ""
    try:
        way(question["url"], question["deadline_s"])
    except AgentError as error:
        outcome, detail = type(error).__name__, error.detail
    except (Silence, TimeoutError) as error:  # of a stream that is open: the follower's own
        outcome = type(error).__name__
    found = {
        "outcome": outcome,
        "detail": detail,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "grown_mb": round((_memory("VmHWM") - before) / 1024, 1),
        "left_open": _open_files() - fds,
    }
    ask(question["good"], 30.0)
    return found


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            try:
                found = measure(json.loads(line))
            except BaseException:  # noqa: BLE001  told to whoever asked
                found = {"outcome": traceback.format_exc()}
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
