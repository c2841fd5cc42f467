"""What must be true when everything has come to rest, whatever happened before: the agents' ledgers joined with Redis.

The names I1 … I10 are those of the project's list of invariants; what our own log says is no evidence for any of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from delegation.agent_task import TaskState
from delegation.state import Delegation, Phase
from delegation.workflow import Workflow, WorkflowState
from tests.support.child import wait_until
from tests.support.continuation_app import HELD_QUEUE, QUEUES, runs
from tests.support.delegations import waits_for_deadline
from tests.support.ledger import Entry
from tests.support.survival import Scene, accepted_by, queue_key

PREFIX = "delegation:"


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """What a fault entitles the product to; by default to nothing."""

    agent_tasks: int = 1  #: per delegation: more than one only for ``on_ambiguous_send = "resend"``
    unwanted: int = 0  #: agent tasks that nobody may know of: a send whose outcome is unknown
    unacked: bool = False  #: messages a killed worker held, which the broker gives back after its visibility timeout
    configs_left: int = 0  #: at an agent task nobody knows of, or an agent that is gone
    replies_again: bool = False  #: an agent that keeps no history cannot say whether it has a reply


@dataclass(kw_only=True)
class Rest:
    """Everything as it is at rest."""

    delegations: list[Delegation]
    workflows: list[Workflow]
    histories: dict[str, list[dict[str, Any]]]
    agent_tasks: list[Entry] = field(default_factory=list)
    calls: list[Entry] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)


def check_at_rest(scene: Scene, allowed: Allowed = Allowed(), timeout_s: float = 20.0) -> Rest:
    """Wait until nothing is left to do, then check every invariant; returns what was seen."""
    wait_until_at_rest(scene, timeout_s, unacked=allowed.unacked)
    rest = look(scene)
    assert not (problems := list(_problems(scene, rest, allowed))), "\n".join(problems)
    return rest


def wait_until_at_rest(scene: Scene, timeout_s: float = 20.0, *, unacked: bool = False) -> None:
    """Due index empty, queues empty, every message acknowledged (unless ``unacked``), every delegation RELEASED."""
    try:
        wait_until(lambda: not _unfinished(scene, unacked), timeout_s, what="rest", every_s=0.05)
    except TimeoutError:
        left = _unfinished(scene, unacked)
        raise AssertionError(f"not at rest after {timeout_s} s: {left}\n{scene.logs()}") from None


def look(scene: Scene) -> Rest:
    store = scene.records
    ids = [key.removeprefix(store.key("d", "")) for key in _keys(scene, store.key("d", "*"))]
    workflows = [key.removeprefix(store.key("w", "")) for key in _keys(scene, store.key("w", "*"))]
    rest = Rest(
        delegations=store.load_many(ids),
        workflows=[store.load_workflow(workflow_id) for workflow_id in workflows],
        histories={delegation_id: store.history(delegation_id) for delegation_id in ids},
        runs=runs(),
    )
    for agent in scene.scripted:
        rest.agent_tasks += scene.ledger(agent, "task")
        rest.calls += scene.ledger(agent, "call")
    return rest


def _unfinished(scene: Scene, unacked: bool) -> dict[str, Any]:
    client = scene.records.client
    entries: Any = client.zrange(scene.records.key("due"), 0, -1, withscores=True)
    now = scene.records.now()
    due = [(member, at) for member, at in entries if not waits_for_deadline(member, at - now)]
    queued = {queue: length for queue in (*QUEUES, HELD_QUEUE) if (length := scene.queued(queue))}
    rest = look(scene)
    open_ones = {it.id: it.phase.value for it in rest.delegations if it.phase is not Phase.RELEASED}
    missing = sorted((_releases_expected(rest) | _notes_expected(rest)) - {run["task_id"] for run in rest.runs})
    untold = _keys(scene, scene.records.key("t", "*"))
    held = [] if unacked else _keys(scene, queue_key("unacked"))
    left = {"due": due, "queued": queued, "held": held, "not released": open_ones, "never ran": missing}
    left |= {"untold": untold, "inbox": scene.records.inbox()}
    return {name: value for name, value in left.items() if value}


def _problems(scene: Scene, rest: Rest, allowed: Allowed) -> Iterator[str]:
    yield from _one_end_each(rest)
    yield from _one_agent_task_each(rest, allowed)
    yield from _one_message_for_each_turn(rest)
    yield from _replies_accepted_once(scene, rest, allowed)
    yield from _told_of_what_matters(scene, rest)
    yield from _nothing_orphaned(rest, allowed)
    yield from _parents_released_once(scene, rest)
    yield from _one_continuation_each(rest)
    yield from _nothing_left_at_agents(scene, allowed)
    yield from _nothing_left_in_redis(scene)


def _one_end_each(rest: Rest) -> Iterator[str]:
    """I1, I2: one terminal state, reached once, nothing after it, the same in history, record and outcome."""
    for delegation in rest.delegations:
        history = rest.histories[delegation.id]
        ends = [entry for entry in history if entry["phase"] == Phase.SETTLED.value]
        if delegation.outcome is None or len(ends) != 1 or history[-1] is not ends[0]:
            yield f"I1: {delegation.id} ended {len(ends)} times: {history}"
        elif not (ends[0]["state"] == delegation.outcome.state == delegation.progress.state):
            yield f"I1: {delegation.id} says {delegation.outcome.state}, its history {ends[0]['state']}"
        times = [entry["at"] for entry in history]
        if times != sorted(times):
            yield f"I2: the history of {delegation.id} goes back in time: {times}"


def _one_agent_task_each(rest: Rest, allowed: Allowed) -> Iterator[str]:
    """I7: one agent task per delegation."""
    made = Counter(entry["context_id"] for entry in rest.agent_tasks)
    known = {delegation.id for delegation in rest.delegations}
    for context_id, count in made.items():
        if count > allowed.agent_tasks:
            yield f"I7: {count} agent tasks for {context_id}"
        if context_id not in known:
            yield f"I7: an agent task in a context that is nobody's: {context_id}"


def _one_message_for_each_turn(rest: Rest) -> Iterator[str]:
    """I7: every send of a brief under the delegation's one messageId, every reply under its own, numbers in order."""
    by_task = {it.progress.agent_task_id: it for it in rest.delegations if it.progress.agent_task_id}
    last_sent: dict[str, int] = {}
    for call in rest.calls:
        if call["method"] not in ("SendMessage", "SendStreamingMessage"):
            continue
        said, delegation = call["message_id"], by_task.get(call["task_id"])
        if not call["task_id"]:
            if said != f"{call['context_id']}:goal":
                yield f"I7: {call['context_id']} was sent as {said}"
            continue
        if delegation is None or not re.fullmatch(rf"{re.escape(delegation.id)}:reply:[1-9]\d*", said):
            yield f"I7: the agent task {call['task_id']} was sent {said}"
            continue
        number = int(said.rpartition(":")[2])
        if number > delegation.replies or number not in (last := last_sent.get(delegation.id, 0), last + 1):
            yield f"I7: {said} of {delegation.replies} left after {last}"
        last_sent[delegation.id] = number


def _replies_accepted_once(scene: Scene, rest: Rest, allowed: Allowed) -> Iterator[str]:
    """I7: what an agent took of a delegation is its brief and then its replies, each once, in order."""
    begun = {entry["task_id"] for entry in rest.agent_tasks}
    for name, agent in scene.scripted.items():
        tasks = {task["id"]: task for task in agent.tasks()} if agent.is_alive else {}
        for delegation in rest.delegations:
            task = tasks.get(str(delegation.progress.agent_task_id))
            if task is None or delegation.agent != name or task["id"] not in begun:
                continue
            taken = accepted_by(task)
            if allowed.replies_again:
                taken = list(dict.fromkeys(taken))
            numbers = [int(each.rpartition(":")[2]) for each in taken if each.startswith(f"{delegation.id}:reply:")]
            if numbers != sorted(set(numbers)) or (taken and len(numbers) + 1 != len(taken)):
                yield f"I7: the agent task of {delegation.id} took {taken}"


def _told_of_what_matters(scene: Scene, rest: Rest) -> Iterator[str]:
    """A parent's notes: one for each end and each question of its children, numbered, none more."""
    for workflow in rest.workflows:
        mine = [it for it in rest.delegations if it.workflow_id == workflow.id]
        expected = sum(map(_notes_of, mine))
        expected += sum(each.state.is_ended for each in rest.workflows if each.parent_id == workflow.id)
        if workflow.notes != expected:
            yield f"notes: {workflow.id} was told {workflow.notes} times, {expected} things happened"
        lines: Any = scene.records.client.lrange(scene.records.key("n", workflow.id), 0, -1)
        numbers = [int(line.split(" ")[1]) for line in lines]
        if numbers != sorted(set(numbers)):
            yield f"notes: {workflow.id} has the notes {numbers}"
        told = {run["task_id"]: run["kwargs"]["note"] for run in rest.runs if run["kind"] == "note"}
        mine_told = {task_id: number for task_id, number in told.items() if task_id.startswith(f"{workflow.id}.")}
        if mine_told != {f"{workflow.id}.note.{number}": number for number in mine_told.values()}:
            yield f"notes: {workflow.id} was told as {mine_told}"


def _notes_of(delegation: Delegation) -> int:
    """Its end, and its questions; the one that ended a conversation is told as the end."""
    asked = delegation.progress.question.number if delegation.progress.question else 0
    ended_by_it = delegation.outcome is not None and (delegation.outcome.reason or "").startswith("conversation.")
    return asked - ended_by_it + (delegation.outcome is not None)


def _notes_expected(rest: Rest) -> set[str]:
    """Ids under which notes must be told, for workflows that want it."""
    told = [it for it in rest.workflows if it.on_note is not None]
    return {f"{it.id}.note.{number}" for it in told for number in range(1, it.notes + 1)}


def _nothing_orphaned(rest: Rest, allowed: Allowed) -> Iterator[str]:
    """I8: every agent task is some record's, or was cancelled."""
    adopted = {delegation.progress.agent_task_id for delegation in rest.delegations}
    cancelled = {call["task_id"] for call in rest.calls if call["method"] == "CancelTask"}
    orphans = {entry["task_id"] for entry in rest.agent_tasks} - adopted - cancelled
    if len(orphans) > allowed.unwanted:
        yield f"I8: agent tasks nobody knows and nobody cancelled: {sorted(orphans)}"


def _parents_released_once(scene: Scene, rest: Rest) -> Iterator[str]:
    """I3 – I6: released once a round, after the last child, with a counter that agrees with the children."""
    children: dict[str, list[Delegation]] = {}
    for delegation in rest.delegations:
        if delegation.workflow_id:
            children.setdefault(delegation.workflow_id, []).append(delegation)
    went_on = {
        (run["kwargs"]["workflow_id"], run["kwargs"]["round"]): run["at"]
        for run in rest.runs
        if run["kind"] == "continuation"
    }
    for workflow in rest.workflows:
        mine = children.get(workflow.id, [])
        open_ones = sum(not child.phase.is_settled for child in mine)
        open_ones += sum(not each.state.is_ended for each in rest.workflows if each.parent_id == workflow.id)
        if workflow.unresolved != open_ones:
            yield f"I6: {workflow.id} counts {workflow.unresolved} unresolved, {open_ones} of {len(mine)} are"
        if workflow.state in (WorkflowState.JOINING, WorkflowState.CANCELING) and not open_ones:
            yield f"I5: {workflow.id} is {workflow.state} and waits for nobody"
        # A join that is over before all have ended leaves the late ones behind.
        ends = [((workflow.id, it.round), rest.histories[it.id][-1]["at"]) for it in mine if not it.is_late]
        if any(at > went_on.get(of_round, at) for of_round, at in ends):
            yield f"I4: {workflow.id} went on before its last child had ended"
    rounds = sum(workflow.round for workflow in rest.workflows)
    if scene.counters().get("released", 0) != rounds:
        yield f"I3: {scene.counters().get('released', 0)} releases in {rounds} rounds"


def _releases_expected(rest: Rest) -> set[str]:
    """Ids of the continuations that must run, for workflows that were joined with one and released."""
    return {
        f"{workflow.id}.release.{number}"
        for workflow in rest.workflows
        if workflow.continuation is not None
        for number in range(1, workflow.round + 1)
    }


def _one_continuation_each(rest: Rest) -> Iterator[str]:
    """I3: continuations, links, errbacks and bodies each run under one id, told the same each time."""
    told: dict[str, set[str]] = {}
    for run in rest.runs:
        told.setdefault(run["task_id"], set()).add(json.dumps([run["args"], run["kwargs"]], sort_keys=True))
    for task_id, versions in told.items():
        if len(versions) > 1:
            yield f"I3: {task_id} ran with different arguments: {versions}"
    for run in rest.runs:
        if run["kind"] == "continuation" and run["task_id"] != run["kwargs"]["release_id"]:
            yield f"I3: the release {run['kwargs']['release_id']} ran as {run['task_id']}"
    ids: dict[str, set[str]] = {}
    for run in rest.runs:
        ids.setdefault(json.dumps([run["kind"], run["args"], run["kwargs"]], sort_keys=True), set()).add(run["task_id"])
    yield from (f"I3: ran under {len(under)} ids: {what}" for what, under in ids.items() if len(under) > 1)


def _nothing_left_at_agents(scene: Scene, allowed: Allowed) -> Iterator[str]:
    """I9: no push config of ours at any agent."""
    for name, agent in scene.scripted.items():
        if not agent.is_alive:
            continue
        mine = {entry["task_id"] for entry in scene.ledger(name, "task")}
        left = [task["id"] for task in agent.tasks() if task["id"] in mine and task["push_configs"]]
        if len(left) > allowed.configs_left:
            yield f"I9: push configs left at {name}, of the agent tasks {left}"


def _nothing_left_in_redis(scene: Scene) -> Iterator[str]:
    """I10: no key outside the prefix, nothing waiting, ended records and results on their way out."""
    client, key = scene.records.client, scene.records.key
    if strangers := [name for name in _keys(scene, "*") if not name.startswith(PREFIX)]:
        yield f"I10: keys outside the prefix: {strangers}"
    for kind in ("calls:*", "waiting:*", "u:*", "t:*", "inbox", "follows", "follow_owners"):
        if left := [name for name in _keys(scene, key(kind)) if client.exists(name)]:
            yield f"I10: not empty: {left}"
    lone = [key("d", root) for root, is_workflow in scene.records.list_roots(1000) if not is_workflow]
    for name in (*lone, *_keys(scene, f"{PREFIX}celery:celery-task-meta-*")):
        if client.ttl(name) < 0:
            yield f"I10: kept for ever: {name}"
    if parked := scene.records.metrics()["parked"]:
        yield f"I10: {parked} counted as parked"


def _keys(scene: Scene, pattern: str) -> list[str]:
    with scene.valkey.client() as client:
        return sorted(set(client.scan_iter(match=pattern, count=1000)))


def all_completed(rest: Rest) -> bool:
    return all(it.outcome is not None and it.outcome.state is TaskState.COMPLETED for it in rest.delegations)
