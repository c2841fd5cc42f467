"""Pushes per second at the door, accepted and rejected, against a bare Flask view under the same gunicorn."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from bench.load import post, send_all
from bench.progress import say
from bench.stage import Scale, Stage, stage, web
from bench.table import Goal, Row
from delegation.agent_task import AgentTaskId, TaskState
from delegation.opening import make_delegation
from delegation.state import Change, Phase, Watch
from delegation.store import Store
from workers.celery_settings import QUEUE

ACCEPTED, REJECTED = 202, 404
GOAL = Goal(at_least=0.6)


def measure(scale: Scale) -> list[Row]:
    """All figures of this subject. Raises ConnectionError, or ValueError when an answer is not the expected one."""
    pushes = scale.of(3000, 500)
    rates: dict[str, list[float]] = {"bare": [], "woken": [], "coalesced": [], "rejected": []}
    with stage({"agent": {}}, worker=False, reference=False) as made, _bare_door(made) as bare_port:
        targets = [_watching(made.store, number) for number in range(pushes)]
        right = [_push(delegation_id, token) for delegation_id, token in targets]
        wrong = [_push(delegation_id, secrets.token_urlsafe(32)) for delegation_id, _ in targets]
        port = _port(made)
        for warm_up in (bare_port, port):
            _rate(warm_up, wrong[:100], None)
        for number in range(scale.rounds):
            say(f"door: round {number + 1} of {scale.rounds}")
            _forget_wakes(made, [delegation_id for delegation_id, _ in targets])
            rates["bare"].append(_rate(bare_port, right, ACCEPTED))
            rates["woken"].append(_rate(port, right, ACCEPTED))
            rates["coalesced"].append(_rate(port, right, ACCEPTED))
            rates["rejected"].append(_rate(port, wrong, REJECTED))
    return [
        Row(what=f"pushes {what} (bare Flask view, one INCR)", ours=ours, reference=rates["bare"], unit="/s", goal=GOAL)
        for what, ours in (
            ("accepted, each sends a wake", rates["woken"]),
            ("accepted, a wake is under way", rates["coalesced"]),
            ("rejected for their token", rates["rejected"]),
        )
    ]


def _rate(port: int, requests: Sequence[bytes], status: int | None) -> float:
    seconds, statuses = send_all(port, requests)
    if status is not None and statuses != Counter({status: len(requests)}):
        raise ValueError(f"expected {len(requests)} × {status}, not {dict(statuses)}")
    return len(requests) / seconds


def _push(delegation_id: str, token: str) -> bytes:
    status = {"state": "TASK_STATE_COMPLETED", "timestamp": "2030-01-01T00:00:00Z"}
    body = {"statusUpdate": {"taskId": secrets.token_hex(16), "contextId": delegation_id, "status": status}}
    credentials = {"Authorization": f"Bearer {token}", "X-A2A-Notification-Token": token}
    headers = {"Content-Type": "application/json", **credentials}
    return post(f"/a2a/push/{delegation_id}", headers, json.dumps(body).encode())


def _watching(store: Store, number: int) -> tuple[str, str]:
    """A delegation that waits for a push, made without an agent, and the token it believes."""
    token = secrets.token_urlsafe(32)
    arguments = {"agent": "agent", "goal": f"bench {number}"}
    opened = make_delegation(arguments, call_id=None, participant_id="bench", canvas={})
    store.open_delegation(opened, by_call=False)
    before = store.load(opened.id).delegation
    progress = replace(
        before.progress,
        state=TaskState.WORKING,
        agent_task_id=AgentTaskId(f"t{number}"),
        watch=Watch.PUSH,
        push_config=True,
    )
    timers = replace(before.timers, publish_at=None)
    digest = hashlib.sha256(token.encode()).hexdigest()
    after = replace(before, phase=Phase.WATCHING, push_digest=digest, progress=progress, timers=timers)
    store.save(before, Change(after=after), fenced=False)
    return opened.id, token


def _forget_wakes(made: Stage, delegation_ids: Sequence[str]) -> None:
    """As if a worker had looked at each long ago, so that the next push wakes again."""
    pipe = made.redis.pipeline(transaction=False)
    for delegation_id in delegation_ids:
        pipe.hdel(made.store.key("d", delegation_id), "hinted_at", "refetch_at")
    pipe.delete(made.key(QUEUE))
    pipe.execute()


@contextmanager
def _bare_door(made: Stage) -> Iterator[int]:
    with web(made.deployment, "bench.bare_door:app") as bare:
        yield bare.start().port


def _port(made: Stage) -> int:
    assert made.deployment.web is not None
    return made.deployment.web.port
