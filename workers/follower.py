"""`delegation follower`: one event loop that holds the streams of thousands of delegations, and only wakes.

Each delegation is leased in Redis. A follower that dies stops renewing, and another takes over what it held; one that
is asked to stop gives everything back at once. The loop blocks on nothing: Redis, cards and the broker are asked in
threads.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import re
import secrets
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import click
import structlog

from delegation.agent_task import AgentTaskId
from delegation.errors import StoreUnavailable, UnknownAgent
from delegation.events import PreparedRequest
from delegation.outbound import Route
from delegation.redis_access import new_operation_id
from delegation.settings import AgentSettings, Settings
from delegation.state import Delegation
from delegation.store import Loaded, Store
from delegation.store_follows import FollowAnswer, FollowEvent
from delegation.watch import recheck_s
from workers.carrier import carrying_app
from workers.follow_agents import AgentClients, Clients, Subscriber
from workers.follow_connection import Connections
from workers.follow_listener import Listener
from workers.follow_stream import Fact, Following, Pace, Plan
from workers.follow_wakes import WakeSender
from workers.runtime import current_settings, make_store

log = structlog.get_logger("delegation")

P = ParamSpec("P")
R = TypeVar("R")

READY = "follower ready"
#: Small, so that a burst is shared with the other followers.
BATCH = 25
_TURN_S = 1.0
_JITTER_S = 0.05
#: Who holds more than the others lets them go first by this much.
_MODESTY_S = 0.3
_STOP_WITHIN_S = 5.0
#: A frozen Redis must not hold up the end of the process for long.
_STORE_TIMEOUT_S = 5.0
_STORE_THREADS = 4
_AGENT_THREADS = 16
_LOOK_UP_THREADS = 4
#: Of one agent: a card or token endpoint that hangs must leave threads to the other agents.
_PREPARING_AT_ONCE = 4
_WAKE_THREADS = 2
_USUAL_INTERVAL_S = float(AgentSettings.model_fields["follow_interval"].default.total_seconds())


def run_follower() -> None:
    """Until SIGTERM or SIGINT. Raises ConfigurationError."""
    os.environ.setdefault("OTEL_INSTRUMENTATION_A2A_SDK_ENABLED", "false")
    settings = current_settings()
    app = carrying_app()
    store = make_store(settings, timeout_s=_STORE_TIMEOUT_S)
    roster = import_module("workers.composition").make_roster(settings, store)  # imports a2a
    try:
        asyncio.run(_run(settings, store, roster, app))
    finally:
        roster.close()
        store.close()


async def _run(settings: Settings, store: Store, roster: Clients, app: Any) -> None:
    """Made inside the loop that it runs in."""
    follower = Follower(settings, store, roster, app)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, follower.stop)
    await follower.run()


class Follower:
    """What one process follows. It is the surroundings of each :class:`Following`."""

    def __init__(self, settings: Settings, store: Store, roster: Clients, app: Any) -> None:
        timing = settings.timing
        self.id = f"{re.sub(r'[^A-Za-z0-9.-]', '-', socket.gethostname())}-{os.getpid()}-{secrets.token_hex(3)}"
        self.pace = Pace(
            answer_within_s=timing.call_deadline.total_seconds(),
            min_wake_gap_s=timing.min_fetch_gap.total_seconds(),
            event_bytes=settings.limits.event_bytes,
        )
        self._settings = settings
        self._store = store
        self._lease_s = timing.follow_lease.total_seconds()
        # Of their own: a storm of news must not keep leases from being renewed, nor a silent Redis us from ending.
        self._lease_threads = ThreadPoolExecutor(1, thread_name_prefix="leases")
        self._store_threads = ThreadPoolExecutor(_STORE_THREADS, thread_name_prefix="store")
        self._agent_threads = ThreadPoolExecutor(_AGENT_THREADS, thread_name_prefix="agents")
        self._look_up_threads = ThreadPoolExecutor(_LOOK_UP_THREADS, thread_name_prefix="look-ups")
        self._wake_threads = ThreadPoolExecutor(_WAKE_THREADS, thread_name_prefix="wakes")
        self._preparing: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_PREPARING_AT_ONCE))
        self._clients = AgentClients(roster, self._agent_threads)
        self.connections = Connections(
            self._look_up_threads,
            answer_within_s=self.pace.answer_within_s,
            idle_s=timing.follow_idle.total_seconds(),
        )
        self.send_wake = WakeSender(app, self._wake_threads)
        self._held: dict[str, Following] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._streams = 0
        self._told: set[str] = set()
        self._attention = asyncio.Event()
        self._is_stopping = False
        self._renew_at = 0.0
        self._operation = new_operation_id()
        self._mean_of_others: float | None = None
        self._is_cut_off = False

    def stop(self) -> None:
        self._is_stopping = True
        self._attention.set()

    async def run(self) -> None:
        """Until stopped; then nothing of it is left."""
        loop = asyncio.get_running_loop()
        listener = Listener(
            self._store,
            on_id=lambda delegation_id: _call_in(loop, lambda: self._hear_of(delegation_id)),
            on_gap=lambda: _call_in(loop, self._hear_of_all),
        )
        listener.start()
        log.info("follower.started", follower=self.id)
        try:
            await self._turns()
        finally:
            listener.stop()
            await self._leave()
            listener.join(_STOP_WITHIN_S)

    # ------------------------------------------------------------ what to follow

    async def _turns(self) -> None:
        is_ready = False
        while not self._is_stopping:
            if await self._turn() and not is_ready:
                is_ready = True
                click.echo(READY)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._attention.wait(), _TURN_S)
            self._attention.clear()
            await asyncio.sleep(random.random() * _JITTER_S + (_MODESTY_S if self._holds_more_than_others else 0.0))

    async def _turn(self) -> bool:
        """False while Redis is away: streams are kept, and what became of the leases is the first thing to ask."""
        told, self._told = self._told, set()
        try:
            await self._renew(told)
            await self._claim()
        except StoreUnavailable as error:
            self._told |= told
            self._renew_at = 0.0
            if not self._is_cut_off:
                log.warning("follower.store_unavailable", code=error.code, held=len(self._held))
            self._is_cut_off = True
            return False
        self._is_cut_off = False
        return True

    async def _renew(self, told: Iterable[str]) -> None:
        now = time.monotonic()
        is_time = now >= self._renew_at
        ids = list(self._held) if is_time else [each for each in told if each in self._held]
        if ids:
            lost = await self._ask_for_leases(self._store.renew_follows, self.id, ids, lease_s=self._lease_s)
            await self._end(lost)
        if is_time:
            self._renew_at = now + self._lease_s / 3

    async def _claim(self) -> None:
        while not self._is_stopping:
            room = max(0, self._settings.limits.streams - len(self._held))
            claim = await self._ask_for_leases(
                self._store.claim_follows,
                self.id,
                at_most=min(BATCH, room),
                lease_s=self._lease_s,
                held=len(self._held),
                streams=self._streams,
                operation=self._operation,
            )
            self._operation = new_operation_id()
            self._mean_of_others = claim.mean_of_others
            await self._end([each for each in claim.ids if each in self._held])  # it stopped and started meanwhile
            for each in claim.ids:
                self._start(each)
            if claim.taken_over:
                log.info("follower.taken_over", count=claim.taken_over)
            if len(claim.ids) < BATCH:
                return
            await asyncio.sleep(random.random() * _JITTER_S)

    @property
    def _holds_more_than_others(self) -> bool:
        return self._mean_of_others is not None and len(self._held) > self._mean_of_others + BATCH

    def _start(self, delegation_id: str) -> None:
        following = Following(delegation_id, self)
        self._held[delegation_id] = following
        following.task.add_done_callback(lambda _: self._forget(following))

    def _forget(self, following: Following) -> None:
        if self._held.get(following.id) is following:
            del self._held[following.id]

    async def _end(self, delegation_ids: Iterable[str]) -> None:
        """Close their streams; when this returns they are closed."""
        ending = [self._held.pop(each) for each in delegation_ids if each in self._held]
        for following in ending:
            following.cancel()
        if ending:
            await asyncio.wait({following.task for following in ending})

    async def _leave(self) -> None:
        ids, followings = list(self._held), list(self._held.values())
        self._held.clear()
        for following in followings:
            following.cancel()
        tasks = {following.task for following in followings} | self._closing
        if tasks:
            await asyncio.wait(tasks, timeout=_STOP_WITHIN_S)
        with suppress(StoreUnavailable):  # then the leases run out
            await self._ask_for_leases(self._store.drop_follows, self.id, ids, leaving=True)
        log.info("follower.stopped", given_back=len(ids), streams=self._streams, connections=self.connections.open)
        pools = (self._store_threads, self._agent_threads, self._look_up_threads, self._wake_threads)
        for threads in (self._lease_threads, *pools):
            threads.shutdown(wait=False, cancel_futures=True)

    # ------------------------------------------------------------ told by the listener's thread

    def _hear_of(self, delegation_id: str) -> None:
        self._told.add(delegation_id)
        self._attention.set()

    def _hear_of_all(self) -> None:
        self._renew_at = 0.0
        self._attention.set()

    # ------------------------------------------------------------ surroundings of each stream

    async def load(self, delegation_id: str) -> Loaded:
        return await self._ask(self._store.load, delegation_id)

    async def prepare(self, delegation: Delegation, agent_task_id: AgentTaskId) -> Plan:
        agent = self._settings.agent(delegation.agent)
        interface = delegation.progress.interface
        async with self._preparing[agent.id]:
            client = await self._clients.get(delegation.agent, delegation.participant_id, interface)
            # In a thread: a token may have to be asked for, and certificates read.
            prepare = functools.partial(_prepare, client, agent_task_id)
            request, route = await asyncio.get_running_loop().run_in_executor(self._agent_threads, prepare)
        return Plan(
            client=client,
            request=request,
            route=route,
            interval_s=agent.follow_interval.total_seconds(),
        )

    async def tell(self, delegation_id: str, event: FollowEvent, fact: Fact) -> FollowAnswer:
        next_look_s = recheck_s(fact.age_s, self._store.rules)
        return await self._ask(
            self._store.tell_follow,
            delegation_id,
            self.id,
            event,
            claimed=fact.claimed,
            next_look_s=next_look_s * (1 + random.random() / 5),
        )

    def interval_s(self, agent: str) -> float:
        try:
            return self._settings.agent(agent).follow_interval.total_seconds()
        except UnknownAgent:
            return _USUAL_INTERVAL_S

    def lost(self, delegation_id: str) -> None:
        following = self._held.pop(delegation_id, None)
        if following is not None:
            self._closing.add(following.task)
            following.task.add_done_callback(self._closing.discard)
            following.cancel()

    def stream_changed(self, by: int) -> None:
        self._streams += by

    async def _ask(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """A call of the store, in a thread."""
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._store_threads, work)

    async def _ask_for_leases(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        work = functools.partial(call, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._lease_threads, work)


def _prepare(client: Subscriber, agent_task_id: AgentTaskId) -> tuple[PreparedRequest, Route]:
    return client.subscription(agent_task_id), client.route()


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(call)
