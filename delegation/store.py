"""Everything the project keeps in Redis: the keys, and one method per fact, each one script.

Keys, all under one prefix (``redis.key_prefix``, default ``delegation:``):

    d:<delegation id>        hash    the record                              retention after its root ended
    h:<delegation id>        list    history, oldest first, bounded          with the record
    r:<delegation id>        list    replies given to it, JSON, in order     with the record
    c:<delegation id>        string  artifacts as sent, JSON                 with the record
    w:<workflow id>          hash    the workflow                            retention after it ended
    u:<workflow id>          set     ids of its unresolved children          empties itself
    n:<workflow id>          list    notes for it that nobody read, bounded  with the workflow
    t:<workflow id>          list    notes nobody was seen to be told of yet empties itself
    call:<celery id>         string  delegation id of a `delegate` call      with the record
    idem:<scope digest>      hash    id and arguments of an idempotency key  retention
    finalizing:<celery id>   string  somebody runs what follows that call    one lease
    shares:<scope digest>    hash    further calls with that key, each with  retention
                                     what follows it, '' once published
    card:<agent id>          string  the agent's card or refusal, JSON       a cache, with a TTL
    card:<agent id>:accepted string  the last card that was accepted: what   a year: no cache, later cards are
                                     later ones are compared with            trusted by it
    card:<agent id>:paused   string  a later one that nobody has accepted    a year, or until it is settled
    card:<agent id>:told     string  what was logged of its cards lately     a day
    card:<agent id>:lock     string  who is fetching it now                  seconds
    calls:<agent id>         zset    running calls, scored by lease end      empties itself
    waiting:<agent id>       zset    delegations waiting for a call slot     empties itself
    breaker:<agent id>       hash    calls it did not answer, in a row       goes with the first answer
    rate:<agent id>          string  calls begun in this second              a second
    inbox                    zset    delegations that wait for a reply, by   empties itself
                                     when their question was first heard
    follows                  zset    delegations a follower should hold a    empties itself
                                     stream for, scored by its lease's end
    follow_owners            hash    which follower holds each               empties itself
    followers                hash    followers alive: streams and time       trimmed by them
    due                      zset    what must be looked at, by Redis time   the outbox and the timer at once
    roots                    zset    workflows and lone delegations by time  trimmed when they expire
    counters                 hash    what /metrics shows
    sweeper                  string  time of the last sweep
    epoch                    string  random id; gone means Redis lost our state

Nothing that is not ended has a TTL. Channels ``roots:<root id>`` carry the id of whatever changed below that root, the
channel ``follows`` that of a delegation which begins or ceases to want a stream.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from delegation.errors import (
    CircuitOpen,
    IdempotencyConflict,
    StaleWrite,
    UnknownDelegation,
    UnknownWorkflow,
    WorkflowConflict,
)
from delegation.record import decode, dump_json, encode_change, encode_opened
from delegation.redis_access import flag, flatten, new_operation_id, number
from delegation.state import Cause, Change, Delegation, DelegationId, HistoryEntry, Phase
from delegation.store_census import CensusFacts
from delegation.store_due import DueFacts
from delegation.store_follows import FollowFacts
from delegation.store_shares import ShareFacts
from delegation.store_talk import TalkFacts
from delegation.store_workflows import WorkflowFacts
from delegation.watch import wants_follow


class PushAnswer(StrEnum):
    """What the door answers to a push."""

    REFUSED = "refused"
    UNACCEPTABLE = "unacceptable"
    WOKEN = "woken"
    COALESCED = "coalesced"


class Begun(StrEnum):
    """How an attempt to begin a step went."""

    BEGUN = "begun"
    HELD = "held"  #: another step is at work
    BUSY = "busy"  #: all call slots of the agent are taken; the delegation waits in line
    OPEN = "open"  #: the agent's circuit is open
    STALE = "stale"  #: somebody wrote since we loaded


@dataclass(frozen=True, kw_only=True, slots=True)
class Opened:
    id: DelegationId
    existing: bool  #: the same call or idempotency key opened it before


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A record and the Redis time it was read at; :meth:`now` goes on from there by this process's monotonic clock."""

    delegation: Delegation
    read_at: float
    anchor: float

    def now(self) -> float:
        return self.read_at + time.monotonic() - self.anchor


@dataclass(frozen=True, kw_only=True, slots=True)
class Settlement:
    """What became of an attempt to settle. With ``was_parked`` the caller publishes finalize, with ``release_id`` the
    workflow's continuation; when it dies first, the due index brings both back."""

    settled: bool
    was_parked: bool = False
    release_id: str | None = None
    has_note: bool = False  #: somebody is to be told of a note


@dataclass(frozen=True, kw_only=True, slots=True)
class Saved:
    """What should be sent at once after a change that is not the end."""

    wake_now: bool = False  #: a push came while the step was at work
    has_note: bool = False


class Store(WorkflowFacts, TalkFacts, FollowFacts, ShareFacts, DueFacts, CensusFacts):
    """The only door to Redis for our own state. Every method raises StoreUnavailable when Redis does not answer.

    The life of a delegation is here; workflows, replies and cancels, streams, shared calls, the due index and what
    operators look at are in the classes it inherits.
    """

    def open_delegation(
        self,
        delegation: Delegation,
        *,
        deadline_s: float | None = None,
        deadline_at: float | None = None,
        start_after_s: float = 0.0,
        arguments_digest: str = "",
        by_call: bool = True,
    ) -> Opened:
        """Make a delegation durable, or find the one that the same call or the same idempotency key opened before.

        ``arguments_digest`` goes with ``delegation.idempotency``; without ``by_call`` the call's id is new for sure and
        nothing is kept to recognise it. Raises IdempotencyConflict, UnknownWorkflow, WorkflowConflict.
        """
        fields = encode_opened(delegation)
        root = root_of(delegation)
        verdict, known, _ = self.run(
            "open",
            [
                self.key("d", delegation.id),
                self.key("due"),
                self.key("h", delegation.id),
                self.key("counters"),
                self.key("roots"),
                self.key("call", delegation.call_id),
                self.key("idem", delegation.idempotency or "-"),
                self.key("w", root),
                self.key("u", root),
            ],
            [
                delegation.id,
                root,
                flag(delegation.workflow_id is not None),
                delegation.call_id if by_call else "",
                arguments_digest if delegation.idempotency else "",
                number(deadline_s),
                number(deadline_at),
                self.limits.max_deadline_s,
                self.rules.hint_patience_s,
                start_after_s,
                self.limits.history,
                _entry(HistoryEntry(cause=Cause.OPENED, state=delegation.state), Phase.OPENED),
                int(self.limits.max_deadline_s) + self.limits.retention_s,
                len(fields),
                *flatten(fields),
            ],
        )
        if verdict == "conflict":
            raise IdempotencyConflict(f"this idempotency key was used with other arguments, for delegation {known}")
        if verdict == "unknown_workflow":
            raise UnknownWorkflow(f"unknown workflow {root}")
        if verdict == "refused":
            raise WorkflowConflict(f"workflow {root} is {known}: it takes no further delegations now")
        return Opened(id=DelegationId(known), existing=verdict == "existing")

    def load(self, delegation_id: str) -> Loaded:
        """The record as it is. Raises UnknownDelegation."""
        now, *pairs = self.run("load", [self.key("d", delegation_id)], [])
        if not pairs:
            raise UnknownDelegation(f"unknown delegation {delegation_id[:128]}")
        raw = dict(zip(pairs[::2], pairs[1::2], strict=True))
        return Loaded(delegation=decode(delegation_id, raw), read_at=float(now), anchor=time.monotonic())

    def load_many(self, delegation_ids: list[str]) -> list[Delegation]:
        """The records that exist, in the order asked for."""
        with self.seam():
            pipe = self.client.pipeline(transaction=False)
            for delegation_id in delegation_ids:
                pipe.hgetall(self.key("d", delegation_id))
            found = pipe.execute()
        return [decode(i, raw) for i, raw in zip(delegation_ids, found, strict=True) if raw]

    def id_of_call(self, call_id: str) -> DelegationId | None:
        """The delegation that a `delegate` call opened, by the call's Celery id."""
        with self.seam():
            found: Any = self.client.get(self.key("call", call_id))
        return DelegationId(found) if found else None

    def begin(
        self, before: Delegation, after: Delegation, *, counts: tuple[str, ...] = (), unfollowed: bool = False
    ) -> tuple[Begun, Delegation]:
        """Take the lease and a call slot, and store the intent; only then may a call leave. The delegation returned
        carries the new version and fencing number. ``unfollowed`` ends the stream that is held for it.

        Raises CircuitOpen when the agent has answered nobody lately.
        """
        fields = encode_change(before, after)
        verdict, version, fence, now = self.run(
            "begin",
            [
                self.key("d", before.id),
                self.key("due"),
                self.key("calls", before.agent),
                self.key("waiting", before.agent),
                self.key("counters"),
                self.key("breaker", before.agent),
                self.key("rate", before.agent),
                self.key("follows"),
                self.key("follow_owners"),
            ],
            [
                new_operation_id(),
                before.id,
                before.version,
                self.rules.lease_s,
                self.limits.calls_per_agent,
                self.limits.calls_per_second,
                flag(unfollowed),
                len(fields),
                *flatten(fields),
                *counts,
            ],
        )
        if verdict == Begun.OPEN:
            raise CircuitOpen("the agent has not answered lately", max(0.0, float(fence) - float(now)))
        if verdict != Begun.BEGUN:
            return Begun(verdict), before
        timers = replace(after.timers, lease_until=float(now) + self.rules.lease_s)
        followed = after.followed and not unfollowed
        return Begun.BEGUN, replace(after, version=int(version), fence=int(fence), timers=timers, followed=followed)

    def save(self, before: Delegation, change: Change, *, fenced: bool = True) -> Saved:
        """Write a change that is not the end, and end the lease. Raises StaleWrite."""
        after = change.after
        fields = encode_change(before, after)
        waits = after.phase is Phase.WATCHING and after.waits_for_reply and after.progress.question
        verdict, _, wake_now, has_note = self.run(
            "save",
            self._keys_of_change(before),
            [
                *self._arguments_of_change(before, change, fenced=fenced),
                before.wakes,
                self.rules.min_fetch_gap_s,
                flag(wants_follow(after)),
                number(waits.asked_at) if waits else "",
                after.progress.turn,
                len(fields),
                *flatten(fields),
                len(change.history),
                *(_entry(entry, after.phase) for entry in change.history),
                *change.counts,
            ],
        )
        if verdict == "stale":
            raise StaleWrite(f"delegation {before.id} was changed by somebody else")
        return Saved(wake_now=wake_now == "1", has_note=has_note == "1")

    def settle(self, before: Delegation, change: Change, *, overriding: bool = False) -> Settlement:
        """The end of a delegation. ``overriding`` (expiry) needs no lease. Raises StaleWrite."""
        fields = encode_change(before, change.after)
        for name in ("phase", "reply_at", "cancel_at"):
            fields.pop(name, None)
        verdict, parked, release, has_note = self.run(
            "settle",
            [*self._keys_of_change(before), self.key("c", before.id), self.key("u", root_of(before))],
            [
                *self._arguments_of_change(before, change, fenced=not overriding),
                flag(before.workflow_id is not None),
                dump_json(change.content) if change.content else "",
                len(fields),
                *flatten(fields),
                len(change.history),
                *(_entry(entry, Phase.SETTLED) for entry in change.history),
                *change.counts,
            ],
        )
        if verdict == "stale":
            raise StaleWrite(f"delegation {before.id} was changed by somebody else")
        return Settlement(
            settled=verdict == "settled",
            was_parked=parked == "1",
            release_id=release or None,
            has_note=has_note == "1",
        )

    def _keys_of_change(self, before: Delegation) -> list[str]:
        root = root_of(before)
        named: list[tuple[str, str | None]] = [("d", before.id), ("due", None), ("h", before.id), ("counters", None)]
        named += [("calls", before.agent), ("waiting", before.agent), ("roots", None), ("breaker", before.agent)]
        named += [("follows", None), ("follow_owners", None), ("inbox", None), ("w", root), ("n", root), ("t", root)]
        return [self.key(kind, name) for kind, name in named]

    def _arguments_of_change(self, before: Delegation, change: Change, *, fenced: bool) -> list[Any]:
        """What save and settle are both told; without a lease the agent was not called."""
        reached = {True: "1", False: "0", None: ""}[change.reached if fenced else None]
        return [
            new_operation_id(),
            before.id,
            root_of(before),
            before.version,
            before.fence if fenced else "",
            self.rules.hint_patience_s,
            self.limits.history,
            reached,
            self.limits.breaker_failures,
            self.rules.retry_first_s,
            self.rules.retry_max_s,
            change.note if before.workflow_id else "",
            self.limits.notes,
        ]

    def park(self, delegation_id: str) -> bool:
        """True when parked; False when the outcome is known already. Raises UnknownDelegation."""
        verdict = self.run("park", [self.key("d", delegation_id), self.key("counters")], [delegation_id])
        if verdict == "unknown":
            raise UnknownDelegation(f"unknown delegation {delegation_id[:128]}")
        return bool(verdict == "parked")

    def finish(self, delegation: Delegation, call_id: str | None = None) -> None:
        """What follows a call was published. For the call that opened the delegation, which is meant unless another is
        named: SETTLED → RELEASED, and a lone delegation's retention begins."""
        call_id = call_id or delegation.call_id
        self.run(
            "finish",
            [
                self.key("d", delegation.id),
                self.key("due"),
                self.key("roots"),
                self.key("h", delegation.id),
                self.key("c", delegation.id),
                self.key("call", call_id),
                self.key("idem", delegation.idempotency or "-"),
                self.key("w", root_of(delegation)),
                self.key("shares", delegation.idempotency or "-"),
                self.key("r", delegation.id),
            ],
            [
                delegation.id,
                root_of(delegation),
                self.limits.retention_s,
                flag(delegation.workflow_id is not None),
                call_id if call_id != delegation.call_id else "",
            ],
        )

    def receive_push(self, delegation_id: str, digest: str, *, acceptable: bool, claimed: str | None) -> PushAnswer:
        """Verify a push by its token's digest and record the wake; one script, whatever the answer."""
        return PushAnswer(self._push(delegation_id, digest, flag(acceptable), claimed or ""))

    def check_push(self, delegation_id: str, digest: str) -> bool:
        """Whether the credential of a push not read yet is right; a wrong one is counted as refused unread."""
        return self._push(delegation_id, digest, "", "") != PushAnswer.REFUSED

    def _push(self, delegation_id: str, digest: str, acceptable: str, claimed: str) -> str:
        keys = [self.key("d", delegation_id), self.key("due"), self.key("counters")]
        rules = [self.rules.min_fetch_gap_s, self.rules.hint_patience_s]
        return str(self.run("push", keys, [delegation_id, digest, acceptable, claimed, *rules]))


def root_of(delegation: Delegation) -> str:
    """The id under which a delegation is listed: its workflow's, or its own."""
    return delegation.workflow_id or delegation.id


def _entry(entry: HistoryEntry, phase: Phase) -> str:
    return dump_json([entry.cause.value, phase.value, entry.state.value, entry.text])
