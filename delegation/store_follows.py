"""What Redis keeps of delegations that are followed, and of who follows them. Part of the store (keys: store.py).

follows          zset    delegations that want a follower, scored by the end of their lease (0: nobody's);
                         also the channel on which the id of each that starts or stops wanting one is told
follow_owners    hash    delegation -> the follower that holds it
followers        hash    follower -> when it was seen, how much it holds, how many streams are open, its last claim
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from delegation.redis_access import RedisAccess, flag, new_operation_id

#: One script must not keep Redis busy for long.
PAGE = 500
#: The heartbeat is about one a second.
FOLLOWER_SILENCE_S = 10.0
#: As in follow_claim.lua, which drops what is silent for longer; without a follower nobody does.
FORGOTTEN_AFTER_S = 60.0


class FollowEvent(StrEnum):
    """What a follower says about a delegation."""

    SUBSCRIBED = "subscribed"  #: a stream is open: it need not be polled meanwhile
    HEARD = "heard"  #: something may have changed: wake
    NOT_OFFERED = "not_offered"  #: the agent does not offer streams: hear of it in another way


class FollowAnswer(StrEnum):
    """What became of it."""

    REFUSED = "refused"  #: the delegation is no longer this follower's
    NOTED = "noted"
    WOKEN = "woken"  #: send a wake message
    COALESCED = "coalesced"  #: a wake is under way


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """What a follower got."""

    ids: tuple[str, ...]
    taken_over: int  #: how many of them another follower lost
    mean_of_others: float | None  #: held by the other living followers; None when there is none


@dataclass(frozen=True, kw_only=True, slots=True)
class FollowerSeen:
    """A follower as operators see it."""

    id: str
    held: int  #: delegations
    streams: int  #: open now; the others wait for their next one
    silent_s: float

    @property
    def lives(self) -> bool:
        return self.silent_s <= FOLLOWER_SILENCE_S


class FollowFacts(RedisAccess):
    """Leases on delegations that are followed. Each method raises StoreUnavailable when Redis does not answer."""

    def claim_follows(
        self, follower: str, *, at_most: int, lease_s: float, held: int, streams: int, operation: str | None = None
    ) -> Claim:
        """Take what nobody follows; with ``at_most=0`` only say that this follower lives.

        A repeat with the same ``operation`` gets the same answer, so that a claim whose reply was lost is not lost.
        """
        mean, taken_over, *ids = self.run(
            "follow_claim",
            [self.key("follows"), self.key("follow_owners"), self.key("followers"), self.key("counters")],
            [operation or new_operation_id(), follower, at_most, lease_s, held, streams],
        )
        others = float(mean)
        return Claim(ids=tuple(ids), taken_over=int(taken_over), mean_of_others=None if others < 0 else others)

    def renew_follows(self, follower: str, delegation_ids: Sequence[str], *, lease_s: float) -> list[str]:
        """Extend the leases; the ids that are no longer this follower's."""
        lost: list[str] = []
        for first in range(0, len(delegation_ids), PAGE):
            page = delegation_ids[first : first + PAGE]
            keys = [self.key("follows"), self.key("follow_owners")]
            lost += self.run("follow_renew", keys, [follower, lease_s, *page])
        return lost

    def tell_follow(
        self,
        delegation_id: str,
        follower: str,
        event: FollowEvent,
        *,
        claimed: str = "",
        next_look_s: float = 0.0,
    ) -> FollowAnswer:
        """One fact about a followed delegation. ``claimed`` is the state that was heard, only ever compared;
        ``next_look_s`` goes with SUBSCRIBED: how long it need not be looked at, should nothing be heard."""
        answer = self.run(
            "follow_event",
            [
                self.key("d", delegation_id),
                self.key("due"),
                self.key("counters"),
                self.key("follows"),
                self.key("follow_owners"),
            ],
            [
                new_operation_id(),
                delegation_id,
                follower,
                event.value,
                claimed,
                self.rules.min_fetch_gap_s,
                self.rules.hint_patience_s,
                next_look_s,
            ],
        )
        return FollowAnswer(answer)

    def drop_follows(self, follower: str, delegation_ids: Sequence[str], *, leaving: bool) -> None:
        """Give leases back; what nobody takes soon is polled. ``leaving``: the follower ends."""
        pages = [delegation_ids[first : first + PAGE] for first in range(0, len(delegation_ids), PAGE)] or [[]]
        keys = [self.key("follows"), self.key("follow_owners"), self.key("followers"), self.key("due")]
        for page in pages:
            records = [self.key("d", delegation_id) for delegation_id in page]
            self.run("follow_drop", [*keys, *records], [follower, flag(leaving), self.rules.hint_patience_s, *page])

    def free_dead_follows(self) -> int:
        """Give back what dead followers hold and no living one has taken over, so that it is polled; how many."""
        with self.seam():
            seconds, micros = self.client.time()
            ids: Any = self.client.zrangebyscore(self.key("follows"), "(0", seconds + micros / 1e6, start=0, num=PAGE)
            owners: Any = self.client.hmget(self.key("follow_owners"), ids) if ids else []
        held: dict[str, list[str]] = {}
        for delegation_id, owner in zip(ids, owners, strict=True):
            held.setdefault(owner or "", []).append(delegation_id)
        for owner, theirs in held.items():
            self.drop_follows(owner, theirs, leaving=False)
        return len(ids)

    def followers(self) -> list[FollowerSeen]:
        """Those seen in the last minute, by id."""
        with self.seam():
            seconds, micros = self.client.time()
            found: Any = self.client.hgetall(self.key("followers"))
        now = float(seconds + micros / 1e6)
        seen = ((follower, line.split(" ", 3)) for follower, line in sorted(found.items()))
        known = [
            FollowerSeen(id=i, held=int(w[1]), streams=int(w[2]), silent_s=max(0.0, now - float(w[0]))) for i, w in seen
        ]
        return [each for each in known if each.silent_s <= FORGOTTEN_AFTER_S]

    def wanting_follower(self) -> tuple[int, int]:
        """How many delegations want to be followed, and how many of them nobody follows now."""
        with self.seam():
            seconds, micros = self.client.time()
            pipe = self.client.pipeline(transaction=False)
            pipe.zcard(self.key("follows"))
            pipe.zcount(self.key("follows"), "-inf", seconds + micros / 1e6)
            wanting, unfollowed = pipe.execute()
        return int(wanting), int(unfollowed)

    @contextmanager
    def listen_to_follows(self) -> Iterator[Callable[[float], str | None]]:
        """Yields a function that waits so many seconds at most for the id of a delegation that starts or stops
        wanting to be followed."""
        with self.seam():
            pubsub: Any = self.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
            pubsub.subscribe(self.key("follows"))

        def next_id(wait_s: float) -> str | None:
            with self.seam():
                message = pubsub.get_message(timeout=wait_s)
            return str(message["data"]) if message else None

        try:
            yield next_id
        finally:
            pubsub.close()
