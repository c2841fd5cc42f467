"""Keep cards in Redis for all processes, and in each process for half a minute: one look at a time and agent.

Beside what counts now (the key itself, for as long as it is fresh) there are, for each agent: `:accepted`, the last
card that new work was given by; `:paused`, one that has changed since in a way that an operator must accept; `:told`,
what was logged already; `:lock`, held by whoever looks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import redis
import structlog
from redis.lock import Lock

from delegation.card_fetch import CARD_DEADLINE_S
from delegation.card_pipeline import FAILURE_TTL_S, CardPipeline, Look, Remark
from delegation.card_verdict import Verdict, decode, encode
from delegation.cards import CheckedCard
from delegation.errors import AgentBusy, AgentError, StoreUnavailable
from delegation.pinned_cards import PinnedCards
from delegation.settings import AgentSettings

#: The last accepted card is what later ones are compared with, so it outlives every pause in the work.
ACCEPTED_TTL_S = 365 * 86_400
MEMORY_S = 30.0
POLL_S = 0.05
#: A step waits this long for somebody else's fetch. One slot may hang at an agent's card, not the whole worker.
STEP_PATIENCE_S = 0.3
#: A dead holder's lock lasts as long as a look may: the card, the keys, the extended card.
LOCK_S = CARD_DEADLINE_S + 12.0

log = structlog.get_logger("delegation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A verdict as a process remembers it, with the outcome of checking it."""

    verdict: Verdict
    outcome: CheckedCard | AgentError
    until: float  #: on the monotonic clock


class CardCache:
    """``card_key(agent_id)`` names the Redis key; names are appended to it for those beside it."""

    def __init__(
        self,
        client: redis.Redis,
        card_key: Callable[[str], str],
        pipeline: CardPipeline,
        *,
        max_bytes: int,
        patience_s: float = CARD_DEADLINE_S + 2,
    ) -> None:
        self._redis = client
        self._card_key = card_key
        self._pipeline = pipeline
        self._pinned = PinnedCards(pipeline.judge_pinned, max_bytes=max_bytes)
        self._patience_s = patience_s
        self._memory: dict[str, Kept] = {}
        self._under_way: dict[str, Kept] = {}

    def get(self, agent: AgentSettings) -> CheckedCard:
        """The agent's card for new work.

        Raises as `fetch_card` does, AgentPaused, AgentBusy while somebody fetches it, and StoreUnavailable.
        """
        outcome = self.look(agent).outcome
        if isinstance(outcome, CheckedCard):
            return outcome
        raise type(outcome)(*outcome.args)  # a new one: threads share what is remembered

    def look(self, agent: AgentSettings) -> Kept:
        """What is known of the card now, and why it is refused if it is. Raises AgentBusy and StoreUnavailable."""
        remembered = self._memory.get(agent.id)
        if remembered is None or remembered.until < time.monotonic():
            remembered = self._remember(agent)
        return remembered

    def under_way(self, agent: AgentSettings) -> CheckedCard | None:
        """The last accepted card, for delegations that have begun: nothing is fetched for them. None: there is none."""
        kept = self._under_way.get(agent.id)
        if kept is None or kept.until < time.monotonic():
            began_at = time.monotonic()
            verdict = self._pinned.look(agent) if agent.card else self._accepted(agent)
            kept = _checked(agent, verdict or Verdict(kind=AgentBusy.__name__), began_at + MEMORY_S)
            if not isinstance(kept.outcome, CheckedCard):
                return None
            self._under_way[agent.id] = kept
        return kept.outcome if isinstance(kept.outcome, CheckedCard) else None

    def review(self, agent: AgentSettings) -> tuple[Verdict, Verdict | None]:
        """What the agent's server says at this moment, and the card accepted before. Raises as `look` does."""
        if agent.card is None:
            with _seam():
                self._redis.delete(self._card_key(agent.id))
        self._memory.pop(agent.id, None)
        return self.look(agent).verdict, self._accepted(agent)

    def accept(self, agent: AgentSettings, seen: Verdict) -> bool:
        """Let new work go by the card that was `seen` paused. False if that is not what is there any more."""
        key = self._card_key(agent.id)
        with _seam(), self._redis.pipeline() as steps:
            steps.watch(key)  # type: ignore[no-untyped-call]
            kept = steps.get(key)
            verdict = decode(kept) if kept else Verdict()
            if not verdict.is_paused or (verdict.card, verdict.signed) != (seen.card, seen.signed):
                return False
            text = encode(replace(verdict, kind="", detail=""))
            steps.multi()
            steps.set(key, text, px=_milliseconds(verdict.fresh_s))
            steps.set(f"{key}:accepted", text, ex=ACCEPTED_TTL_S)
            steps.delete(f"{key}:paused")
            try:
                steps.execute()
            except redis.WatchError:
                return False
        self._memory.pop(agent.id, None)
        return True

    def _remember(self, agent: AgentSettings) -> Kept:
        began_at = time.monotonic()
        if agent.card:
            verdict, fresh_s = self._pinned.look(agent), 0.0  # whether the file has changed is cheap to see
        else:
            verdict, fresh_s = self._verdict(agent)
        kept = _checked(agent, verdict, began_at)
        is_card = isinstance(kept.outcome, CheckedCard)
        # Not longer than in Redis, from before it was read: a card is never used past its time.
        kept = replace(kept, until=began_at + min(fresh_s, MEMORY_S if is_card else FAILURE_TTL_S))
        self._memory[agent.id] = kept
        if is_card:
            self._under_way[agent.id] = replace(kept, until=began_at + MEMORY_S)
        return kept

    def _verdict(self, agent: AgentSettings) -> tuple[Verdict, float]:
        """From Redis, else fetched by whoever holds the lock; and the seconds for which it counts from now."""
        key = self._card_key(agent.id)
        give_up_at = time.monotonic() + self._patience_s
        lock = self._redis.lock(key + ":lock", timeout=LOCK_S, thread_local=False)
        while True:
            with _seam():
                if kept := self._kept(agent, key):
                    return kept
                locked = lock.acquire(blocking=False)
            if locked:
                break
            if time.monotonic() > give_up_at:
                raise AgentBusy("its card is being fetched by somebody else")
            time.sleep(POLL_S)
        try:
            # The last holder may have stored it between our look and our lock.
            with _seam():
                kept = self._kept(agent, key)
            return kept or self._fetch(agent, key)
        finally:
            _release(lock)

    def _kept(self, agent: AgentSettings, key: str) -> tuple[Verdict, float] | None:
        with self._redis.pipeline(transaction=True) as steps:
            steps.get(key)
            steps.time()
            text, (seconds, micros) = steps.execute()
        verdict = decode(text) if text else None
        if verdict is None or (verdict.url and not verdict.is_about(agent)):
            return None
        age_s = seconds + micros / 1e6 - verdict.looked_at
        return verdict, max(0.0, verdict.fresh_s - age_s) if verdict.url else FAILURE_TTL_S

    def _fetch(self, agent: AgentSettings, key: str) -> tuple[Verdict, float]:
        with _seam():
            seconds, micros = self._redis.time()
            paused = self._redis.get(f"{key}:paused")
        now = seconds + micros / 1e6
        look = self._pipeline.look(agent, self._accepted(agent), now, paused=decode(paused) if paused else None)
        self._tell(agent, key, look)
        verdict = replace(look.verdict, looked_at=now)
        text = encode(verdict)
        with _seam(), self._redis.pipeline(transaction=True) as steps:
            steps.set(key, text, px=_milliseconds(verdict.fresh_s))
            if verdict.is_paused:
                steps.set(f"{key}:paused", text, ex=ACCEPTED_TTL_S)
            elif not verdict.kind and not verdict.stale:
                steps.set(f"{key}:accepted", text, ex=ACCEPTED_TTL_S)
                steps.delete(f"{key}:paused")
            steps.execute()
        return verdict, verdict.fresh_s

    def _accepted(self, agent: AgentSettings) -> Verdict | None:
        with _seam():
            text = self._redis.get(self._card_key(agent.id) + ":accepted")
        verdict = decode(text) if text else None
        return verdict if verdict and isinstance(verdict.card, dict) and not verdict.kind else None

    def _tell(self, agent: AgentSettings, key: str, look: Look) -> None:
        """Log what is new: a failure that lasts, or a change that waits for an operator, is told of once."""
        told = json.dumps([remark.key() for remark in look.remarks])
        with _seam():
            before = self._redis.set(f"{key}:told", told, ex=ACCEPTED_TTL_S, get=True)
        for remark in look.remarks:
            if remark.key() not in _read_told(before):
                _log(agent, remark)


def _log(agent: AgentSettings, remark: Remark) -> None:
    say = log.warning if remark.warns else log.info
    say(remark.event, agent=agent.id, **dict(remark.facts))


def _read_told(text: Any) -> list[str]:
    try:
        told = json.loads(text or "[]")
    except ValueError:
        return []
    return told if isinstance(told, list) else []


def _checked(agent: AgentSettings, verdict: Verdict, until: float) -> Kept:
    outcome: CheckedCard | AgentError
    try:
        outcome = verdict.read(agent)
    except AgentError as error:
        outcome = error.with_traceback(None)
    return Kept(verdict=verdict, outcome=outcome, until=until)


def _milliseconds(seconds: float) -> int:
    return max(1, int(seconds * 1000))


def _release(lock: Lock) -> None:
    with suppress(redis.RedisError):  # it has expired, or will
        lock.release()


@contextmanager
def _seam() -> Iterator[None]:
    """No redis exception leaves this module."""
    try:
        yield
    except redis.RedisError as error:
        raise StoreUnavailable(f"Redis does not answer: {type(error).__name__}") from error
