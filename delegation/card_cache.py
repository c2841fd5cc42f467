"""Keep cards in Redis for all processes, and in each process for half a minute: one look at a time and agent.

Beside what counts now (the key itself, for as long as it is fresh) there are, for each agent: `:accepted`, the last
card that new work was given by; `:paused`, one that has changed since in a way that an operator must accept; `:told`,
what was logged in the last day; `:lock`, held by whoever looks.

`:accepted` is what later cards are trusted by. So one that is there and cannot be read is not none: the next card has
to be accepted by an operator. Nothing is stored over one that has changed since a look began.
"""

from __future__ import annotations

import hashlib
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
from delegation.card_pipeline import FAILURE_TTL_S, LOOK_DEADLINE_S, CardPipeline, Look, Remark, unforeseen
from delegation.card_verdict import Kind, Verdict, decode, encode
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
#: A dead holder's lock lasts a little longer than a look may.
LOCK_S = LOOK_DEADLINE_S + 4.0
#: What was told is not told again for a day; of each agent no more than so many warnings, and so many other remarks.
TOLD_S = 86_400
MOST_TOLD = 32

log = structlog.get_logger("delegation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kept:
    """A verdict as a process remembers it, with the outcome of checking it."""

    verdict: Verdict
    outcome: CheckedCard | AgentError
    until: float  #: on the monotonic clock


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What counts, for how long from now on; and the card, where it was just checked."""

    verdict: Verdict
    fresh_s: float
    checked: CheckedCard | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Accepted:
    """What stands in Redis as `:accepted`. ``verdict`` is None for what cannot be read, too."""

    text: bytes | str | None
    verdict: Verdict | None

    @property
    def is_forgotten(self) -> bool:
        return self.text is not None and self.verdict is None


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

        Raises AgentRefused, AuthenticationRefused or UnsupportedExtensionError for a card that is refused, AgentPaused,
        AgentUnreachable or CallAmbiguous where that is not known now, AgentBusy while somebody fetches it, and
        StoreUnavailable.
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
            verdict = self._pinned.look(agent) if agent.card else self._accepted(agent).verdict
            kept = _checked(agent, verdict or Verdict(kind=Kind.BUSY), began_at + MEMORY_S)
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
        return self.look(agent).verdict, self._accepted(agent).verdict

    def accept(self, agent: AgentSettings, seen: Verdict) -> bool:
        """Let new work go by the card that was `seen` paused. False if that is not what is there any more."""
        key = self._card_key(agent.id)
        with _seam(), self._redis.pipeline() as steps:
            steps.watch(key)  # type: ignore[no-untyped-call]
            kept = steps.get(key)
            verdict = decode(kept) if kept else None
            if verdict is None or not verdict.is_paused or not _is_same(verdict, seen):
                return False
            text = encode(replace(verdict, kind=Kind.NONE, detail=""))
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
        # Whether a file has changed is cheap to see.
        found = _Found(verdict=self._pinned.look(agent), fresh_s=0.0) if agent.card else self._found(agent)
        kept = _checked(agent, found.verdict, began_at, found.checked)
        is_card = isinstance(kept.outcome, CheckedCard)
        # Not longer than in Redis, from before it was read: a card is never used past its time.
        kept = replace(kept, until=began_at + min(found.fresh_s, MEMORY_S if is_card else FAILURE_TTL_S))
        self._memory[agent.id] = kept
        if is_card:
            self._under_way[agent.id] = replace(kept, until=began_at + MEMORY_S)
        return kept

    def _found(self, agent: AgentSettings) -> _Found:
        """From Redis, else fetched by whoever holds the lock."""
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

    def _kept(self, agent: AgentSettings, key: str) -> _Found | None:
        with self._redis.pipeline(transaction=True) as steps:
            steps.get(key)
            steps.time()
            text, (seconds, micros) = steps.execute()
        verdict = decode(text) if text else None
        if verdict is None or not verdict.is_about(agent, self._pipeline.judged(agent)):
            return None
        age_s = seconds + micros / 1e6 - verdict.looked_at
        return _Found(verdict=verdict, fresh_s=max(0.0, verdict.fresh_s - age_s))

    def _fetch(self, agent: AgentSettings, key: str) -> _Found:
        with _seam():
            seconds, micros = self._redis.time()
            paused = self._redis.get(f"{key}:paused")
        now, accepted = seconds + micros / 1e6, self._accepted(agent)
        before = decode(paused) if paused else None
        # Whoever was paused was accepted before, wherever that is now.
        is_lost = paused is not None and accepted.text is None and (before is None or before.url == agent.url)
        look = self._pipeline.look(
            agent,
            accepted.verdict,
            now,
            paused=before,
            is_forgotten=accepted.is_forgotten or is_lost,
        )
        verdict = replace(look.verdict, looked_at=now)
        with _seam():
            if self._store(key, verdict, accepted.text):
                self._tell(agent, key, look, now)
                return _Found(verdict=verdict, fresh_s=verdict.fresh_s, checked=look.checked)
            kept = self._kept(agent, key)
        if kept is None:
            raise AgentBusy("another card was accepted while this one was looked at")
        return kept

    def _store(self, key: str, verdict: Verdict, accepted: bytes | str | None) -> bool:
        """False, and nothing is stored, if the accepted card is another one than when the look began."""
        text = encode(verdict)
        with self._redis.pipeline() as steps:
            steps.watch(f"{key}:accepted")  # type: ignore[no-untyped-call]
            if steps.get(f"{key}:accepted") != accepted:
                return False
            steps.multi()
            steps.set(key, text, px=_milliseconds(verdict.fresh_s))
            if verdict.is_paused:
                steps.set(f"{key}:paused", text, ex=ACCEPTED_TTL_S)
            elif not verdict.kind and not verdict.stale:
                steps.set(f"{key}:accepted", text, ex=ACCEPTED_TTL_S)
                steps.delete(f"{key}:paused")
            try:
                steps.execute()
            except redis.WatchError:
                return False
        return True

    def _accepted(self, agent: AgentSettings) -> _Accepted:
        with _seam():
            text = self._redis.get(self._card_key(agent.id) + ":accepted")
        verdict = decode(text) if text is not None else None
        is_card = verdict is not None and verdict.card is not None and not verdict.kind
        return _Accepted(text=text, verdict=verdict if is_card else None)

    def _tell(self, agent: AgentSettings, key: str, look: Look, now: float) -> None:
        """Log what is new, once a day: a failure that lasts, or a card that goes back and forth, is told of once."""
        if not look.remarks:
            return
        told = _read_told(self._redis.get(f"{key}:told"), now)
        for remark in look.remarks:
            digest = hashlib.sha256(remark.key().encode()).hexdigest()[:16]
            alike = sum(warned == remark.warns for _, warned in told.values())
            if digest not in told and alike < MOST_TOLD:
                told[digest] = (now, remark.warns)
                _log(agent, remark)
        self._redis.set(f"{key}:told", json.dumps(told), ex=TOLD_S)


def _log(agent: AgentSettings, remark: Remark) -> None:
    say = log.warning if remark.warns else log.info
    say(remark.event, agent=agent.id, **dict(remark.facts))


def _read_told(text: Any, now: float) -> dict[str, tuple[float, bool]]:
    """What was told in the last day, when, and whether as a warning."""
    try:
        told = {str(digest): (float(at), bool(warns)) for digest, (at, warns) in json.loads(text or "{}").items()}
    except (ValueError, TypeError, AttributeError):
        return {}
    return {digest: (at, warns) for digest, (at, warns) in told.items() if now - TOLD_S < at <= now}


def _checked(agent: AgentSettings, verdict: Verdict, until: float, checked: CheckedCard | None = None) -> Kept:
    outcome: CheckedCard | AgentError
    try:
        outcome = checked if checked is not None and not verdict.kind else verdict.read(agent)
    except AgentError as error:
        outcome = error.with_traceback(None)
    except Exception as error:  # noqa: BLE001  see unforeseen
        outcome = unforeseen(agent, error)
    return Kept(verdict=verdict, outcome=outcome, until=until)


def _is_same(one: Verdict, other: Verdict) -> bool:
    """Whether they are of the same cards; when they were looked at does not matter."""
    return (one.card, one.base, one.signed) == (other.card, other.base, other.signed)


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
