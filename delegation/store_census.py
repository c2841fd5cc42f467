"""What operators ask the store: is it there, how full is it, what is in it. Part of the store (its keys: store.py)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from delegation.errors import StateLost
from delegation.redis_access import RedisAccess


class CensusFacts(RedisAccess):
    """Health, metrics and listings; nothing here decides anything."""

    def ping(self) -> None:
        """Raises StoreUnavailable."""
        with self.seam():
            self.client.ping()

    def make_epoch(self) -> str:
        """The id of this Redis' memory of us, written once by the first worker that finds none."""
        with self.seam():
            self.client.set(self.key("epoch"), secrets.token_hex(8), nx=True)
            found: Any = self.client.get(self.key("epoch"))
        return str(found)

    def epoch(self) -> str:
        """Raises StateLost when Redis does not know us: flushed, evicted, another database, or no worker came yet."""
        with self.seam():
            found: Any = self.client.get(self.key("epoch"))
        if found is None:
            raise StateLost("no state of ours in this Redis: it is new, or its data was lost")
        return str(found)

    def now(self) -> float:
        """Redis time, the only clock (law 9)."""
        with self.seam():
            seconds, micros = self.client.time()
        return float(seconds + micros / 1e6)

    def sweeper_seen_at(self) -> float | None:
        """Seconds since any worker last swept; None when none ever did."""
        with self.seam():
            found: Any = self.client.get(self.key("sweeper"))
        return None if found is None else max(0.0, self.now() - float(found))

    def metrics(self) -> dict[str, Any]:
        """``due`` now, ``scheduled`` in all, ``oldest_due_age_s``, ``parked``, ``counters`` (named by the scripts)."""
        with self.seam():
            now = self.now()
            pipe = self.client.pipeline(transaction=False)
            pipe.zcount(self.key("due"), "-inf", now)
            pipe.zcard(self.key("due"))
            pipe.zrange(self.key("due"), 0, 0, withscores=True)
            pipe.hgetall(self.key("counters"))
            due, scheduled, oldest, counters = pipe.execute()
        age = max(0.0, now - oldest[0][1]) if oldest else 0.0
        numbers = {name: int(value) for name, value in counters.items()}
        parked = numbers.pop("parked", 0)
        return {
            "due": due,
            "scheduled": scheduled,
            "oldest_due_age_s": age,
            "parked": parked,
            "counters": numbers,
        }

    def publishes_of_unseen_continuations(self) -> list[int]:
        """How often each continuation was published that is not (yet) known to run, of every workflow."""
        last = self.now() + self.rules.hint_patience_s * 2**self.rules.attempts  # no publication is further ahead
        found: list[int] = []
        start, page = 0, 1000
        while True:
            with self.seam():
                names: Any = self.client.zrangebyscore(self.key("due"), "-inf", last, start=start, num=page)
                pipe = self.client.pipeline(transaction=False)
                for name in names:
                    kind, _, record = name.partition(":")
                    if kind == "workflow":
                        pipe.hmget(self.key("w", record), "publish_at", "publishes")
                rows = pipe.execute()
            found += [int(publishes) for due, publishes in rows if due and int(publishes or 0)]
            if len(names) < page:
                return found
            start += page

    def count(self, name: str, by: int = 1) -> None:
        """Increment a counter that belongs to no script."""
        with self.seam():
            self.client.hincrby(self.key("counters"), name, by)

    def list_roots(self, limit: int) -> list[tuple[str, bool]]:
        """Workflows and lone delegations, newest first: (id, is a workflow). Expired ones are dropped on the way."""
        with self.seam():
            ids: Any = self.client.zrange(self.key("roots"), 0, limit - 1, desc=True)
        return self._roots_that_exist(ids)

    def all_roots(self, page: int = 100) -> Iterator[tuple[str, bool]]:
        """As ``list_roots``, every one, read page by page; one may come twice when others are added meanwhile."""
        start = 0
        while True:
            with self.seam():
                ids: Any = self.client.zrange(self.key("roots"), start, start + page - 1, desc=True)
            if not ids:
                return
            found = self._roots_that_exist(ids)
            yield from found
            start += len(found)  # the expired ones are gone, and those behind them have moved up

    def trim_roots(self, limit: int = 500) -> int:
        """Drop the expired ones of the oldest ``limit``, which no listing may ever come to; how many there were."""
        with self.seam():
            ids: Any = self.client.zrange(self.key("roots"), 0, limit - 1)
        return len(ids) - len(self._roots_that_exist(ids))

    def _roots_that_exist(self, ids: list[str]) -> list[tuple[str, bool]]:
        with self.seam():
            pipe = self.client.pipeline(transaction=False)
            for root in ids:
                pipe.exists(self.key("w", root))
                pipe.exists(self.key("d", root))
            found = pipe.execute()
            gone = [root for root, w, d in zip(ids, found[::2], found[1::2], strict=True) if not (w or d)]
            if gone:
                self.client.zrem(self.key("roots"), *gone)
        return [(root, bool(w)) for root, w, d in zip(ids, found[::2], found[1::2], strict=True) if w or d]

    def calls_in_flight(self, agent: str) -> int:
        """Calls to an agent running now, over all workers."""
        with self.seam():
            count: Any = self.client.zcount(self.key("calls", agent), self.now(), "+inf")
        return int(count)

    @contextmanager
    def listen(self, root_id: str) -> Iterator[Callable[[float], str | None]]:
        """Yields a function that waits so many seconds at most for a change below ``root_id``."""
        with self.seam():
            pubsub: Any = self.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
            pubsub.subscribe(self.key("roots", root_id))

        def next_change(wait_s: float) -> str | None:
            with self.seam():
                message = pubsub.get_message(timeout=wait_s)
            return str(message["data"]) if message else None

        try:
            yield next_change
        finally:
            pubsub.close()

    def history(self, delegation_id: str) -> list[dict[str, Any]]:
        """The story, oldest first: ``at cause phase state text``."""
        with self.seam():
            lines: Any = self.client.lrange(self.key("h", delegation_id), 0, -1)
        return [_read_entry(line) for line in lines]

    def content(self, delegation_id: str) -> str | None:
        """The artifacts as the agent sent them, JSON; None when there were none."""
        with self.seam():
            found: Any = self.client.get(self.key("c", delegation_id))
        return str(found) if found is not None else None


def _read_entry(line: str) -> dict[str, Any]:
    at, _, rest = line.partition(" ")
    cause, phase, state, text = json.loads(rest)
    return {"at": float(at), "cause": cause, "phase": phase, "state": state, "text": text}
