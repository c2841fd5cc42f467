"""One followed delegation: subscribe, read, wake on news, wait, subscribe again, until it is no longer ours."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

import structlog

from delegation.agent_task import AgentTaskId
from delegation.errors import (
    AgentBusy,
    AgentError,
    AnswerTooLarge,
    AuthenticationRefused,
    CallAmbiguous,
    CredentialUnavailable,
    MethodNotOffered,
    StoreUnavailable,
    UnknownAgent,
    UnknownDelegation,
)
from delegation.events import EventSplitter, PreparedRequest, read_event
from delegation.outbound import Route
from delegation.replies import read_reply
from delegation.state import Delegation, Phase
from delegation.store import Loaded
from delegation.store_follows import FollowAnswer, FollowEvent
from delegation.version_0_3 import VERSION as VERSION_0_3
from workers.follow_agents import Subscriber
from workers.follow_connection import Answer, Connections, Silence
from workers.follow_news import Heard, News, begin_hearing, hear, hear_unreadable
from workers.follow_pace import End, Ending, Tries, choose_next

log = structlog.get_logger("delegation")

#: Between attempts while Redis is away.
STORE_RETRY_S = 1.0
#: -32004 alone may mean that the agent task has ended; these can only mean that there are no streams.
_MAY_HAVE_ENDED = -32004
_NO_SUCH_CALL = (405, 501)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is needed to subscribe once."""

    client: Subscriber
    request: PreparedRequest
    route: Route
    interval_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """The numbers of the settings, seconds and bytes."""

    answer_within_s: float
    min_wake_gap_s: float
    event_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """What goes with an event that is told."""

    claimed: str = ""  #: the state that was heard
    age_s: float = 0.0  #: of the delegation


_NOTHING_MORE = Fact()


class Surroundings(Protocol):
    """What a followed delegation needs of its follower; nothing here blocks the loop."""

    pace: Pace
    connections: Connections

    def load(self, delegation_id: str) -> Awaitable[Loaded]: ...
    def prepare(self, delegation: Delegation, agent_task_id: AgentTaskId) -> Awaitable[Plan]: ...
    def tell(self, delegation_id: str, event: FollowEvent, fact: Fact) -> Awaitable[FollowAnswer]: ...
    def interval_s(self, agent: str) -> float: ...
    def send_wake(self, delegation_id: str) -> None: ...
    def lost(self, delegation_id: str) -> None: ...
    def stream_changed(self, by: int) -> None: ...


class Following:
    """Follows one delegation in a task of its own. Ends by itself when there is nothing to follow any more."""

    def __init__(self, delegation_id: str, around: Surroundings) -> None:
        self.id = delegation_id
        self._around = around
        self._outbox = Outbox(delegation_id, around)
        self._reason = ""
        self._is_cancelled = False
        self.task = asyncio.create_task(self._run(), name=f"follow {delegation_id}")

    def cancel(self) -> None:
        """Once and no more: a second cancellation would interrupt the closing of the connection (encode/httpx#3782)."""
        if not self._is_cancelled:
            self._is_cancelled = True
            self.task.cancel()

    async def _run(self) -> None:
        try:
            await self._follow()
        except Exception:  # whatever it is, the lease runs out and somebody tries again
            log.exception("follower.stream_crashed", delegation_id=self.id)
        finally:
            await self._outbox.close()

    async def _follow(self) -> None:
        tries = Tries()
        while True:
            loaded = await self._load()
            agent_task_id = loaded.delegation.progress.agent_task_id if loaded is not None else None
            if loaded is None or agent_task_id is None or loaded.delegation.phase is not Phase.WATCHING:
                self._outbox.put(FollowEvent.HEARD)  # the store takes out what has ended
                await self._outbox.empty()
                return
            delegation = loaded.delegation
            end = await self._try_once(loaded, agent_task_id)
            self._log(delegation, end)
            interval_s = self._around.interval_s(delegation.agent)
            what_next = choose_next(tries, end, interval_s=interval_s, rand=random.random())
            tries = what_next.tries
            if what_next.gap_s is None:
                self._outbox.put(FollowEvent.NOT_OFFERED)
                await self._outbox.empty()
                return
            if what_next.wake:
                self._outbox.put(FollowEvent.HEARD)
            await asyncio.sleep(what_next.gap_s)

    async def _load(self) -> Loaded | None:
        while True:
            try:
                return await self._around.load(self.id)
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_S)
            except UnknownDelegation:
                return None

    async def _try_once(self, loaded: Loaded, agent_task_id: AgentTaskId) -> End:
        """One stream from its beginning to its end, whatever that is."""
        reading = Reading(loaded, self._around, self._outbox)
        try:
            plan = await self._prepare(loaded.delegation, agent_task_id)
            return await reading.run(plan, agent_task_id)
        except UnknownAgent as error:  # another follower's configuration may be newer
            return reading.end(Ending.NOT_TRIED, error.code)
        except Silence:
            return reading.end(Ending.SILENT, "silence")
        except MethodNotOffered as error:
            refused = error.a2a_code == _MAY_HAVE_ENDED
            return reading.end(Ending.REFUSED if refused else Ending.NOT_OFFERED, error.code)
        except (AuthenticationRefused, CredentialUnavailable) as error:  # a look would fare no better: no wake
            return reading.end(Ending.NOT_TRIED, error.code)
        except AgentBusy as error:
            return replace(reading.end(Ending.FAILED, error.code), retry_after_s=error.retry_after_s or 0.0)
        except AgentError as error:
            return reading.end(Ending.FAILED, error.code)

    async def _prepare(self, delegation: Delegation, agent_task_id: AgentTaskId) -> Plan:
        while True:
            try:
                return await self._around.prepare(delegation, agent_task_id)
            except StoreUnavailable:  # where cards are kept
                await asyncio.sleep(STORE_RETRY_S)

    def _log(self, delegation: Delegation, end: End) -> None:
        """Once for each change of the reason: an agent that is away says the same for hours."""
        if end.reason and end.reason != self._reason:
            log.info(
                "follower.stream_failed", delegation_id=self.id, agent=delegation.agent, how=end.ending, code=end.reason
            )
        self._reason = end.reason


class Reading:
    """One stream while it is read."""

    def __init__(self, loaded: Loaded, around: Surroundings, outbox: Outbox) -> None:
        self._age_s = loaded.now() - loaded.delegation.created_at
        self._around = around
        self._outbox = outbox
        self._heard: Heard = begin_hearing(loaded.delegation.progress, _now())
        self._opened_at: float | None = None
        self._told_news = False
        self._doubt: asyncio.TimerHandle | None = None
        self._interval_s = 0.0

    async def run(self, plan: Plan, agent_task_id: AgentTaskId) -> End:
        """To the orderly end. Raises Silence and AgentError kinds for all others."""
        self._interval_s = plan.interval_s
        async with self._around.connections.send(plan.request, plan.route) as answer:
            if not answer.is_stream:
                await self._read_error(plan, answer)
            self._opened_at = time.monotonic()
            self._around.stream_changed(+1)
            self._outbox.put(FollowEvent.SUBSCRIBED, Fact(age_s=self._age_s))
            if plan.request.question.version == VERSION_0_3:  # tasks/resubscribe does not begin with the task
                self._outbox.put(FollowEvent.HEARD)
            try:
                await self._read(plan, answer, agent_task_id)
            finally:
                self._around.stream_changed(-1)
                self._settle_doubt()
        return self.end(Ending.ENDED, "")

    def end(self, ending: Ending, reason: str) -> End:
        lived_s = 0.0 if self._opened_at is None else time.monotonic() - self._opened_at
        return End(
            ending=ending,
            lived_s=lived_s,
            was_open=self._opened_at is not None,
            told_news=self._told_news,
            reason=reason,
        )

    async def _read_error(self, plan: Plan, answer: Answer) -> None:
        """Raises what the answer means."""
        if answer.status in _NO_SUCH_CALL:
            if plan.client.subscribe_otherwise():
                raise CallAmbiguous(f"SubscribeToTask: HTTP {answer.status}; there is another way")
            raise MethodNotOffered(f"SubscribeToTask: HTTP {answer.status}")
        body = await answer.read(self._around.pace.answer_within_s)
        try:
            read_reply(plan.request.question, answer.status, answer.headers, body)
        except AuthenticationRefused:
            plan.client.forget_credentials(plan.request.question.secrets)
            raise
        raise CallAmbiguous("SubscribeToTask: the answer is no event stream")

    async def _read(self, plan: Plan, answer: Answer, agent_task_id: AgentTaskId) -> None:
        splitter = EventSplitter(self._around.pace.event_bytes)
        async with aclosing(answer.chunks()) as chunks:
            async for chunk in chunks:
                for payload in splitter.feed(chunk):
                    self._take(plan, payload, agent_task_id)
        if splitter.finish():
            raise CallAmbiguous("the stream was cut within an event")

    def _take(self, plan: Plan, payload: bytes, agent_task_id: AgentTaskId) -> None:
        """One event. Raises the agent's own error; what cannot be read is one more reason to look."""
        try:
            event = read_event(plan.request.question, payload)
            if event.task_id not in ("", agent_task_id):
                raise CallAmbiguous("the event is about another task")
        except CallAmbiguous as error:
            if error.a2a_code is not None or isinstance(error, AnswerTooLarge):
                raise
            self._heard, news = hear_unreadable(self._heard)
        else:
            self._heard, news = hear(self._heard, event, _now())
        self._tell(news)

    def _tell(self, news: News | None) -> None:
        if news is not None:
            self._told_news = True
            self._outbox.put(FollowEvent.HEARD, Fact(claimed=news.claimed))
        if self._heard.is_in_doubt and self._doubt is None:
            self._doubt = asyncio.get_running_loop().call_later(self._interval_s, self._settle_doubt)

    def _settle_doubt(self) -> None:
        """When the stream ends, or has been quiet about it for long enough."""
        if self._doubt is not None:
            self._doubt.cancel()
            self._doubt = None
            if self._heard.is_in_doubt:
                self._heard = replace(self._heard, skipped=None)
                self._outbox.put(FollowEvent.HEARD)


class Outbox:
    """What is to be told about one delegation: one call at a time, news in between told as one, and never too often."""

    def __init__(self, delegation_id: str, around: Surroundings) -> None:
        self._id = delegation_id
        self._around = around
        self._waiting: dict[FollowEvent, Fact] = {}
        self._teller: asyncio.Task[None] | None = None

    def put(self, event: FollowEvent, fact: Fact = _NOTHING_MORE) -> None:
        self._waiting[event] = fact
        if self._teller is None or self._teller.done():
            self._teller = asyncio.create_task(self._tell_all(), name=f"tell {self._id}")

    async def empty(self) -> None:
        """Wait until all is told."""
        if self._teller is not None:
            await asyncio.wait({self._teller})

    async def close(self) -> None:
        """What is not told by now another follower will hear: its first snapshot differs from the record."""
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.wait({self._teller})

    async def _tell_all(self) -> None:
        try:
            while self._waiting:
                event = next(iter(self._waiting))
                answer = await self._tell(event, self._waiting.pop(event))
                if answer is FollowAnswer.REFUSED:
                    self._waiting.clear()
                    self._around.lost(self._id)
                elif answer is FollowAnswer.WOKEN:
                    self._around.send_wake(self._id)
                if event is FollowEvent.HEARD and self._waiting:
                    await asyncio.sleep(self._around.pace.min_wake_gap_s)
        except Exception:  # a wake that is lost here is made up for by the next stream's first snapshot
            log.exception("follower.telling_crashed", delegation_id=self._id)

    async def _tell(self, event: FollowEvent, fact: Fact) -> FollowAnswer:
        while True:
            try:
                return await self._around.tell(self._id, event, fact)
            except StoreUnavailable:
                await asyncio.sleep(STORE_RETRY_S)


def _now() -> datetime:
    """This machine's clock: used to tell a possible time from an impossible one, by a day."""
    return datetime.now(UTC)
