"""`/healthz`, `/readyz` and `/metrics`: is the process up, can it do its work, and how much of it is there."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from flask import Flask, Response, jsonify
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from delegation.agent_task import TaskState
from delegation.errors import StateLost, StoreUnavailable
from delegation.state import Cause
from delegation.store_follows import FollowerSeen
from web.answers import unavailable

log = structlog.get_logger(__name__)

#: A sweep runs about four times a second in every worker; a minute of silence means no worker is there.
SWEEPER_SILENCE_S = 60.0

#: Flat counters of the store with their help text; a name that is not here is exported without one.
_COUNTER_HELP = {
    "pushes_accepted": "Pushes with a right credential.",
    "pushes_rejected": "Pushes refused: unknown delegation, wrong credential, or ended.",
    "pushes_refused_unread": "Those refused without reading them: their source's credentials kept failing.",
    "fetches": "GetTask calls.",
    "sends": "SendMessage calls.",
    "replies": "Messages sent to agents that had asked.",
    "cancels": "CancelTask calls for delegations that somebody cancelled.",
    "credentials_refused": "Calls of delegations that an agent answered 401 or 403.",
    "redriven": "Step messages sent again by a sweeper.",
    "opened": "Delegations opened.",
    "look_ups": "ListTasks calls after an ambiguous send.",
    "sends_reconciled": "Ambiguous sends whose task was found at the agent.",
    "sends_repeated": "Messages sent again because the agent does not have them.",
    "orphans_cancelled": "Agent tasks cancelled because the record had decided without them.",
    "clean_ups": "Attempts to remove what a settled delegation left at its agent.",
    "released": "Releases of workflows.",
    "continuations_poisoned": "Continuations published again and again and never seen to run.",
    "follows_opened": "Streams opened by followers.",
    "follow_wakes": "Wakes by followers.",
    "follows_taken_over": "Delegations taken over from a follower whose lease ran out.",
    "children_repaired": "Children put into or out of an unresolved set by the janitor; should stay 0.",
}
_GAUGES = {
    "due": ("delegation_due", "Due entries whose time has come."),
    "oldest_due_age_s": ("delegation_oldest_due_age_seconds", "Age of the oldest due entry."),
    "parked": ("delegation_parked", "Parked delegations."),
}
_COUNTER_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_CAUSES = frozenset(Cause)

QueueLengths = Callable[[], Mapping[str, int]]


class HealthStore(Protocol):
    """What these routes need of the store."""

    def ping(self) -> None: ...
    def epoch(self) -> object: ...
    def sweeper_seen_at(self) -> float | None: ...
    def metrics(self) -> Mapping[str, Any]: ...
    def followers(self) -> Sequence[FollowerSeen]: ...


@dataclass(frozen=True, kw_only=True, eq=False)  # a registry keys its collectors by identity
class DelegationCollector(Collector):
    """What Redis counted for all processes, read at scrape time; so any replica of web answers for the deployment.

    Labels come from our own enums and the configuration: a state, a cause, a queue. Never an id, a text or a name an
    agent chose.
    """

    store: HealthStore
    queue_lengths: QueueLengths

    def describe(self) -> list[Metric]:
        """Nothing, so that registering does not scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        metrics = self.store.metrics()
        for key, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=float(metrics[key]))
        counters: Mapping[str, int] = metrics["counters"]
        yield from _followers(self.store.followers())
        yield from _flat_counters(counters)
        yield _settled(counters)
        yield from self._queues()

    def _queues(self) -> Iterator[Metric]:
        family = GaugeMetricFamily("delegation_queue_length", "Messages waiting in a queue.", labels=["queue"])
        try:
            lengths = self.queue_lengths()
        except Exception as error:  # noqa: BLE001  the broker's seam; the store's numbers are still worth a scrape
            log.warning("metrics.queue_lengths_not_read", error=type(error).__name__)
            return
        for queue, length in sorted(lengths.items()):
            family.add_metric([queue], float(length))
        yield family


def _followers(seen: Sequence[FollowerSeen]) -> Iterator[Metric]:
    """Sums, no label: a follower's id holds the name of its machine, and there is a new one at each start."""
    living = [each for each in seen if each.lives]
    yield GaugeMetricFamily("delegation_followers", "Followers running.", value=float(len(living)))
    streams = float(sum(each.streams for each in living))
    yield GaugeMetricFamily("delegation_follow_streams", "Streams that followers hold open.", value=streams)
    held = float(sum(each.held for each in living))
    yield GaugeMetricFamily("delegation_follows_held", "Delegations leased by followers.", value=held)


def _flat_counters(counters: Mapping[str, int]) -> Iterator[Metric]:
    known = dict.fromkeys(_COUNTER_HELP, 0) | dict(counters)
    for name, count in sorted(known.items()):
        if _COUNTER_NAME.fullmatch(name):
            yield CounterMetricFamily(f"delegation_{name}", _COUNTER_HELP.get(name, ""), value=float(count))


def _settled(counters: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(
        "delegation_settled", "Delegations settled, by state and by what let us hear of it.", labels=["state", "cause"]
    )
    totals: Counter[tuple[str, str]] = Counter()
    for name, count in counters.items():
        prefix, _, labels = name.partition(":")
        if prefix == "settled":
            state, _, cause = labels.partition(":")
            totals[_state_label(state), cause if cause in _CAUSES else "other"] += count
    for (state, cause), count in sorted(totals.items()):
        family.add_metric([state, cause], float(count))
    return family


def _state_label(state: str) -> str:
    return state if state in TaskState.__members__ else "other"


def unready_reasons(store: HealthStore) -> list[str]:
    """Why this deployment cannot do its work now; empty when it can. No address or credential is in a reason."""
    try:
        store.ping()
        store.epoch()
        silence_s = store.sweeper_seen_at()
    except StoreUnavailable:
        return ["redis: does not answer"]
    except StateLost:
        return ["redis: answers, but our state in it is gone"]
    if silence_s is None:
        return ["sweeper: never seen; is a worker running?"]
    if silence_s >= SWEEPER_SILENCE_S:
        return [f"sweeper: last seen {silence_s:.0f} s ago; is a worker running?"]
    return []


@dataclass(frozen=True, kw_only=True)
class HealthDoor:
    """The three routes for operators. They are not meant for the internet: the proxy forwards the push path only."""

    store: HealthStore
    registry: CollectorRegistry

    def register(self, app: Flask) -> None:
        for path in ("healthz", "readyz", "metrics"):
            app.add_url_rule(f"/{path}", path, getattr(self, path), methods=["GET"])

    def healthz(self) -> Response:
        """This process answers; says nothing of Redis, or an outage of Redis would restart every web process."""
        return jsonify(status="ok")

    def readyz(self) -> Response:
        reasons = unready_reasons(self.store)
        answer = jsonify(ready=not reasons, reasons=reasons)
        answer.status_code = 503 if reasons else 200
        return answer

    def metrics(self) -> Response:
        try:
            text = generate_latest(self.registry)
        except (StoreUnavailable, StateLost):
            return unavailable()
        return Response(text, content_type=CONTENT_TYPE_PLAIN_0_0_4)


def health_door(store: HealthStore, queue_lengths: QueueLengths) -> HealthDoor:
    """The health routes over a registry of their own, so nothing a library registers globally leaks into it."""
    registry = CollectorRegistry()
    registry.register(DelegationCollector(store=store, queue_lengths=queue_lengths))
    return HealthDoor(store=store, registry=registry)
