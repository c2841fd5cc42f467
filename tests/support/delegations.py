"""Delegations for tests of the core: made as values, or taken to a phase by the store's own scripts."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from delegation import store
from delegation.agent_task import AgentTask, AgentTaskId, Artifact, ContextId, TaskState
from delegation.decide import transition
from delegation.due import Step, choose_steps
from delegation.endings import expire, settle
from delegation.opening import new_workflow_id
from delegation.questions import begin_turn
from delegation.redis_access import Limits
from delegation.state import (
    Brief,
    Cause,
    Change,
    Delegation,
    DelegationId,
    Moment,
    Phase,
    Rules,
    Timers,
    Watch,
    WorkflowId,
)
from delegation.store import Begun, Settlement, Store

NOW = 1_800_000_000.0
TOKEN_DIGEST = hashlib.sha256(b"token").hexdigest()
#: Nothing comes due by itself while a test runs.
CALM = Rules(hint_patience_s=1000.0, call_deadline_s=1000.0, lease_margin_s=500.0, poll_first_s=1000.0)

#: Tests begin more calls in a second than any deployment.
FAST = Limits(calls_per_second=1_000_000)


def a_delegation(phase: Phase = Phase.WATCHING, **changes: Any) -> Delegation:
    """One as if loaded from the store; ``progress`` and ``timers`` are given as dicts of what differs."""
    progress, timers = changes.pop("progress", {}), changes.pop("timers", {})
    known = {"agent_task_id": AgentTaskId("t1"), "state": TaskState.SUBMITTED, "watch": Watch.POLL}
    if phase in (Phase.OPENED, Phase.STARTING):
        known = {}
    made = Delegation(
        id=DelegationId("d1"),
        agent="flights",
        brief=Brief(goal="Find a flight"),
        call_id="c1",
        participant_id="delegation",
        created_at=NOW,
        version=3,
        phase=phase,
        timers=Timers(**{"deadline_at": NOW + 86400, **timers}),
    )
    return replace(made, progress=replace(made.progress, **{**known, **progress}), **changes)


def a_task(state: TaskState | None = TaskState.WORKING, **changes: Any) -> AgentTask:
    """What the agent answers."""
    return replace(AgentTask(id=AgentTaskId("t1"), context_id=ContextId("x1"), state=state), **changes)


def an_artifact(text: str, artifact_id: str = "a1") -> Artifact:
    return Artifact(id=artifact_id, name=artifact_id, text=text, size=len(text), parts=({"text": text},))


def at(now: float = NOW, rand: float = 0.5, **rules: Any) -> Moment:
    return Moment(now=now, rules=Rules(**rules), rand=rand)


def is_near(expected_s: float) -> Any:
    """For timers that a slow machine sets a little later."""
    return pytest.approx(expected_s, abs=20)


def waits_for_deadline(member: str, wait_s: float) -> bool:
    """Whether a due entry is an open workflow's own deadline, days away."""
    return member.startswith("workflow:") and wait_s > 86400


class RepeatingStore(Store):
    """A store whose last script can be run again with the very same arguments, as after a lost reply."""

    def run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        self.answer = super().run(script, keys, args)
        self.call = (script, keys, args)
        return self.answer

    def run_again(self) -> Any:
        return super().run(*self.call)


class Records:
    """A store, and the ways by which steps change what is in it."""

    def __init__(self, client: Any, *, prefix: str, rules: Rules = CALM, limits: Limits | None = None) -> None:
        self.store = RepeatingStore(client, prefix=prefix, rules=rules, limits=limits or FAST)
        self.client = client
        self.key = self.store.key

    def load(self, delegation_id: str) -> Delegation:
        return self.store.load(delegation_id).delegation

    def open_workflow(self) -> WorkflowId:
        workflow_id = new_workflow_id()
        self.store.open_workflow(workflow_id, name="trip", deadline_s=None)
        return workflow_id

    def new(self, *, agent: str = "flights", workflow: WorkflowId | None = None, **changes: Any) -> Delegation:
        """Not stored yet."""
        root = workflow or new_workflow_id()
        made = f"{root}.{self.store.next_child_number(workflow)}" if workflow else root
        return Delegation(
            id=DelegationId(made),
            agent=agent,
            brief=Brief(goal="Find a flight"),
            participant_id="delegation",
            created_at=0.0,
            workflow_id=workflow,
            **{"call_id": f"{made}.delegate", **changes},
        )

    def open(self, *, deadline_s: float | None = None, **changes: Any) -> Delegation:
        made = self.new(**changes)
        self.store.open_delegation(made, deadline_s=deadline_s)
        return self.load(made.id)

    def intend(self, before: Delegation, watch: Watch = Watch.PUSH) -> tuple[Begun, Delegation]:
        """Begin to send, with a push token whose digest is TOKEN_DIGEST; another watch can follow."""
        follows = watch in (Watch.FOLLOW, Watch.OFF)
        intended = {"intent_at": self.store.now(), "watch": watch, "push_config": True, "can_follow": follows}
        progress = replace(before.progress, **intended)
        after = replace(before, phase=Phase.STARTING, push_digest=TOKEN_DIGEST, progress=progress)
        return self.store.begin(before, after)

    def fetch(self, before: Delegation) -> tuple[Begun, Delegation]:
        """Begin to ask the agent."""
        return self.store.begin(before, replace(before, heard="", fetched_at=self.store.now()))

    def hear(self, begun: Delegation, state: TaskState | None = TaskState.WORKING, **changes: Any) -> bool:
        """Save the agent's answer, one that is not the end."""
        moment = Moment(now=self.store.now(), rules=self.store.rules)
        change = transition(begun, a_task(state, **changes), cause=Cause.POLL, moment=moment)
        return self.store.save(begun, change).wake_now

    def ask(self, before: Delegation, words: str = "Which day?", **changes: Any) -> Delegation:
        """The agent is asked how it is, and asks back."""
        state = changes.pop("state", TaskState.INPUT_REQUIRED)
        _, begun = self.fetch(before)
        self.hear(begun, state, status_text=words, **changes)
        return self.load(before.id)

    def begin_reply(self, before: Delegation, text: str = "Monday") -> tuple[Begun, Delegation]:
        """Begin to send the next reply."""
        intent = replace(before, progress=begin_turn(before, {"text": text}, self.store.now()))
        return self.store.begin(before, intent, unfollowed=True)

    def send_reply(self, before: Delegation, text: str = "Monday") -> Delegation:
        """The next reply is under way."""
        verdict, begun = self.begin_reply(before, text)
        assert verdict is Begun.BEGUN
        return begun

    def write(self, begun: Delegation, decide: Callable[..., Change], *given: Any) -> Delegation:
        """Save what a function of decide.py or endings.py makes of it."""
        self.store.save(begun, decide(begun, *given, Moment(now=self.store.now(), rules=self.store.rules)))
        return self.load(begun.id)

    def start(self, **changes: Any) -> Delegation:
        """One that is WATCHING."""
        verdict, begun = self.intend(self.open(**changes))
        assert verdict is Begun.BEGUN
        self.hear(begun)
        return self.load(begun.id)

    def end(self, before: Delegation, state: TaskState = TaskState.COMPLETED, *, text: str = "done") -> Settlement:
        """Settle one whose version and fence are still right."""
        change = settle(before, state, cause=Cause.POLL, moment=Moment(now=self.store.now(), rules=Rules()), text=text)
        return self.store.settle(before, change)

    def expire(self, before: Delegation) -> Settlement:
        change = expire(before, Moment(now=self.store.now(), rules=Rules()))
        return self.store.settle(before, change, overriding=True)

    def finish(self, settled: Delegation) -> None:
        """What follows the call that opened it was published."""
        self.store.finish(settled, settled.call_id)

    def due(self) -> dict[str, float]:
        """Member → seconds from now; without the workflows that only wait for their deadline."""
        found: Any = self.client.zrange(self.key("due"), 0, -1, withscores=True)
        now = self.store.now()
        return {member: score - now for member, score in found if not waits_for_deadline(member, score - now)}

    def due_in(self, delegation_id: str) -> float | None:
        return self.due().get(f"delegation:{delegation_id}")

    def counter(self, name: str) -> int:
        return int(self.client.hget(self.key("counters"), name) or 0)

    def end_lease(self, delegation: Delegation) -> None:
        """Its holder died and the lease has run out."""
        past = self.store.now() - 1
        self.client.hset(self.key("d", delegation.id), "lease_until", past)
        self.client.zadd(self.key("calls", delegation.agent), {delegation.id: past}, xx=True)
        self.client.zadd(self.key("due"), {f"delegation:{delegation.id}": past})

    def steps_of(self, delegation_id: str) -> tuple[Step, ...]:
        """What the sweeper would do if the delegation were due now."""
        self.client.zadd(self.key("due"), {f"delegation:{delegation_id}": 0})
        (due,) = (due for due in self.store.sweep(10) if due.id == delegation_id)
        return choose_steps(Phase(due.phase), due.timers, due.now)

    def all_keys(self) -> list[str]:
        return sorted(self.client.scan_iter(match=f"{self.key('')}*", count=1000))

    def everything(self) -> dict[str, Any]:
        """All our keys and their values."""
        readers: dict[str, Callable[[str], Any]] = {
            "hash": self.client.hgetall,
            "string": self.client.get,
            "set": self.client.smembers,
            "list": lambda key: self.client.lrange(key, 0, -1),
            "zset": lambda key: self.client.zrange(key, 0, -1, withscores=True),
        }
        return {key: readers[self.client.type(key)](key) for key in self.all_keys()}

    def keys_with_ttl(self) -> set[str]:
        return {key.removeprefix(self.store.prefix) for key in self.all_keys() if self.client.ttl(key) != -1}


def kind_of(key: str) -> str:
    """``delegation:t7:n:w1`` → ``n``, of a prefix made for one test."""
    return key.split(":")[2]


def documented_kinds() -> set[str]:
    """What the store's docstring lists: the part of each key before its name."""
    lines = (store.__doc__ or "").splitlines()
    listed = (re.match(r"    ([a-z_]+)(:<[^>]+>[a-z:]*)?  +(hash|list|string|set|zset) ", line) for line in lines)
    return {match[1] for match in listed if match}
