"""Keep cards in Redis for all processes, and in each process for half a minute: one fetch at a time and agent."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import redis
from redis.lock import Lock

from delegation.cards import CARD_DEADLINE_S, CheckedCard, check_card, fetch_card
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentRefused,
    AgentUnreachable,
    CallAmbiguous,
    StoreUnavailable,
    UnsupportedExtensionError,
)
from delegation.outbound import GuardedTransport
from delegation.settings import AgentSettings

REFUSAL_TTL_S = 60
#: A failed fetch is remembered just long enough that everybody who waited for it hears of it.
FAILURE_TTL_S = 5
#: The last accepted card is kept this long for delegations under way.
ACCEPTED_TTL_S = 30 * 86_400
MEMORY_S = 30.0
POLL_S = 0.05
#: A step waits this long for somebody else's fetch. One slot may hang at an agent's card, not the whole worker.
STEP_PATIENCE_S = 0.3

_KINDS: Mapping[str, type[AgentError]] = {
    kind.__name__: kind
    for kind in (AgentRefused, UnsupportedExtensionError, AgentUnreachable, AgentBusy, CallAmbiguous)
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Verdict:
    """A card, or why there is none; what Redis keeps, as JSON."""

    fetched_at: str
    card: Any = None
    kind: str = ""
    detail: str = ""

    def read(self, agent: AgentSettings) -> CheckedCard:
        """Checked anew whenever it is taken from Redis: the settings may have changed since."""
        if self.kind:
            raise _KINDS.get(self.kind, CallAmbiguous)(self.detail)
        return check_card(agent, self.card, fetched_at=self.fetched_at)


class CardCache:
    """Cards for all processes: one fetch at a time and agent, kept in Redis for `ttl_s`, refusals for a minute.

    `card_key(agent_id)` names the Redis key; `:lock` and `:accepted` are appended for the two beside it.
    """

    def __init__(
        self,
        client: redis.Redis,
        card_key: Callable[[str], str],
        *,
        transport_of: Callable[[AgentSettings], GuardedTransport],
        participant_id: str,
        ttl_s: float,
        max_bytes: int,
        patience_s: float = CARD_DEADLINE_S + 2,
    ) -> None:
        self._redis = client
        self._card_key = card_key
        self._transport_of = transport_of
        self._participant_id = participant_id
        self._ttl_s = max(1, int(ttl_s))
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._memory: dict[str, tuple[float, CheckedCard | AgentError]] = {}

    def get(self, agent: AgentSettings) -> CheckedCard:
        """The agent's card. Raises as `fetch_card` does, AgentBusy while somebody fetches it, and StoreUnavailable."""
        remembered = self._memory.get(agent.id)
        if remembered is None or remembered[0] < time.monotonic():
            remembered = self._remember(agent)
        outcome = remembered[1]
        if isinstance(outcome, CheckedCard):
            return outcome
        raise type(outcome)(outcome.detail)  # a new one: threads share what is remembered

    def last_accepted(self, agent: AgentSettings) -> CheckedCard | None:
        """The last card that passed, for delegations under way: they keep the interface they started with."""
        with _seam():
            kept = self._redis.get(self._card_key(agent.id) + ":accepted")
        try:
            return _decode(kept).read(agent) if kept else None
        except AgentError:
            return None

    def _remember(self, agent: AgentSettings) -> tuple[float, CheckedCard | AgentError]:
        verdict = self._verdict(agent)
        outcome: CheckedCard | AgentError
        try:
            outcome = verdict.read(agent)
            seconds = MEMORY_S
        except AgentError as error:
            outcome = error.with_traceback(None)
            seconds = float(FAILURE_TTL_S)
        self._memory[agent.id] = remembered = (time.monotonic() + min(seconds, self._ttl_s), outcome)
        return remembered

    def _verdict(self, agent: AgentSettings) -> _Verdict:
        """From Redis, else fetched by whoever holds the lock; a dead holder's lasts as long as a fetch may."""
        key = self._card_key(agent.id)
        give_up_at = time.monotonic() + self._patience_s
        lock = self._redis.lock(key + ":lock", timeout=CARD_DEADLINE_S + 2, thread_local=False)
        while True:
            with _seam():
                kept = self._redis.get(key)
                if kept:
                    return _decode(kept)
                locked = lock.acquire(blocking=False)
            if locked:
                break
            if time.monotonic() > give_up_at:
                raise AgentBusy("its card is being fetched by somebody else")
            time.sleep(POLL_S)
        try:
            return self._fetch(agent, key)
        finally:
            _release(lock)

    def _fetch(self, agent: AgentSettings, key: str) -> _Verdict:
        with _seam():
            kept = self._redis.get(key)  # the last holder may have stored it between our look and our lock
            if kept:
                return _decode(kept)
            seconds, _ = self._redis.time()
        fetched_at = datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        verdict, ttl_s = self._ask(agent, fetched_at)
        text = json.dumps(asdict(verdict))
        with _seam():
            self._redis.set(key, text, ex=ttl_s)
            if not verdict.kind:
                self._redis.set(key + ":accepted", text, ex=ACCEPTED_TTL_S)
        return verdict

    def _ask(self, agent: AgentSettings, fetched_at: str) -> tuple[_Verdict, int]:
        """What the agent's server says now, and for how long that is believed."""
        try:
            transport = self._transport_of(agent)
            card = fetch_card(
                agent, transport, participant_id=self._participant_id, max_bytes=self._max_bytes, fetched_at=fetched_at
            )
            return _Verdict(fetched_at=fetched_at, card=card.raw), self._ttl_s
        except AgentError as error:
            kind = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), CallAmbiguous.__name__)
            refused = isinstance(error, AgentRefused | UnsupportedExtensionError)
            return _Verdict(fetched_at=fetched_at, kind=kind, detail=error.detail), (
                min(REFUSAL_TTL_S, self._ttl_s) if refused else FAILURE_TTL_S
            )


def _decode(kept: Any) -> _Verdict:
    try:
        return _Verdict(**json.loads(kept))
    except (ValueError, TypeError):
        return _Verdict(fetched_at="", kind=CallAmbiguous.__name__, detail="the card kept in Redis is not readable")


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
