"""What may happen to a delegation: pure functions from a loaded record and an event to a :class:`Change`.

In the order things happen: :func:`choose_start`, the answers to a send, :func:`transition` for an answer to GetTask,
the failures of calls, the ends of our own making, and :func:`choose_steps` for a due entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from delegation.agent_task import AgentMessage, AgentTask, Artifact, TaskState
from delegation.errors import AgentBusy, AgentError
from delegation.state import Brief, Cause, Change, Delegation, HistoryEntry, Outcome, Phase, Progress, Reason, Rules
from delegation.watch import backoff_s, next_look_at


class StartAction(StrEnum):
    """What a start step has to do."""

    SEND = "send"
    LOOK_UP = "look_up"  #: a send may have gone through: ask the agent before sending again
    NOTHING = "nothing"


class Step(StrEnum):
    """A step that a due entry leads to; the values are our Celery tasks' names."""

    START = "delegation.start_agent_task"
    WAKE = "delegation.wake"
    FINALIZE = "delegation.finalize"
    EXPIRE = "delegation.expire"
    CLEAN_UP = "delegation.clean_up"
    RELEASE = "delegation.release"


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When and by which numbers a decision is made. ``rand`` in [0, 1) spreads the next looks."""

    now: float
    rules: Rules
    rand: float = 0.5


# ---------------------------------------------------------------- starting


def choose_start(delegation: Delegation, moment: Moment) -> StartAction:
    """Send, or first find out whether an earlier send went through (docs/design.md §5, the send)."""
    if delegation.phase not in (Phase.OPENED, Phase.STARTING) or is_leased(delegation, moment.now):
        return StartAction.NOTHING
    return StartAction.SEND if delegation.progress.intent_at is None else StartAction.LOOK_UP


def is_leased(delegation: Delegation, now: float) -> bool:
    """Another step is at work on this delegation."""
    return (delegation.timers.lease_until or 0.0) > now


def is_poisoned(delegation: Delegation, rules: Rules) -> bool:
    """Too many steps in a row began and never ended: whatever kills them is in this delegation."""
    return delegation.progress.attempts >= rules.attempts


def look_up_came_back_empty(delegation: Delegation, moment: Moment) -> Change:
    """The agent does not list our message. Once may be too early; the second time, late enough, it was not delivered.

    Late enough is a lease and a call deadline after the intent: by then nobody can still be delivering it.
    """
    progress = delegation.progress
    assert progress.intent_at is not None
    sure_at = progress.intent_at + moment.rules.lease_s + moment.rules.call_deadline_s
    lookups = progress.empty_lookups + 1
    if lookups >= 2 and moment.now >= sure_at:
        return forget_intent(delegation, moment)
    progress = replace(progress, empty_lookups=lookups, failures=0, failing_since=None, attempts=0)
    return Change(after=_look_again(replace(delegation, progress=progress), max(sure_at, moment.now + 1.0)))


def forget_intent(delegation: Delegation, moment: Moment) -> Change:
    """Not delivered (or free to be delivered again): the next start step sends it, with the same messageId."""
    progress = replace(delegation.progress, intent_at=None, empty_lookups=0, attempts=0)
    return Change(after=_look_again(replace(delegation, progress=progress), moment.now), counts=("sends_repeated",))


def adopted(delegation: Delegation, task: AgentTask, moment: Moment) -> Change:
    """The agent lists a task with our message: it is ours. A list may leave out artifacts, so it is fetched next."""
    progress = replace(
        delegation.progress,
        agent_task_id=task.id,
        context_id=task.context_id or None,
        intent_at=None,
        empty_lookups=0,
        failures=0,
        failing_since=None,
        attempts=0,
        updated_at=moment.now,
    )
    after = _look_again(replace(delegation, phase=Phase.WATCHING, progress=progress), moment.now)
    story = (HistoryEntry(cause=Cause.SENT, state=progress.state, text="found in the agent's list of tasks"),)
    return Change(after=after, history=story, counts=("sends_reconciled",))


def answered_directly(delegation: Delegation, message: AgentMessage, moment: Moment) -> Change:
    """A Message instead of a Task: COMPLETED with that text, nothing to watch, nothing to cancel."""
    progress = replace(
        delegation.progress,
        state=TaskState.COMPLETED,
        context_id=message.context_id or None,
        intent_at=None,
        push_config=False,
        attempts=0,
        updated_at=moment.now,
    )
    after = replace(delegation, progress=progress)
    artifacts: tuple[Artifact, ...] = ()
    if not all("text" in part for part in message.parts):  # more than its text says
        artifacts = (Artifact(id="message", name="message", text=message.text, parts=message.parts),)
    return settle(after, TaskState.COMPLETED, cause=Cause.SENT, moment=moment, text=message.text, artifacts=artifacts)


# ---------------------------------------------------------------- hearing


def transition(delegation: Delegation, task: AgentTask, *, cause: Cause, moment: Moment) -> Change:
    """What an agent's answer makes of a delegation. Terminal is final: a settled one does not change (law 6)."""
    if delegation.phase.is_settled:
        return Change(after=delegation)
    before = delegation.progress
    progress = _heard(before, task, moment)
    after = replace(delegation, phase=Phase.WATCHING, progress=progress)
    if progress.state.is_terminal:
        text = task.text if progress.state is TaskState.COMPLETED else task.status_text or task.last_agent_text
        return settle(after, progress.state, cause=cause, moment=moment, text=text, artifacts=task.artifacts)
    story = () if cause is not Cause.SENT and not _is_news(before, progress) else (_entry(cause, progress),)
    if progress.unknown_state and progress.unknown_state != before.unknown_state:
        story = (HistoryEntry(cause=cause, state=progress.state, text=f"unknown_state {progress.unknown_state}"),)
    return Change(after=_schedule(after, moment), history=story)


def _heard(before: Progress, task: AgentTask, moment: Moment) -> Progress:
    """An unknown state keeps the last known one: it is not terminal, so watching and the deadline go on."""
    state = task.state or before.state
    progress = replace(
        before,
        state=state,
        unknown_state="" if task.state else repr(task.raw_state[:60]),
        status_text=_cut(task.status_text, moment.rules.status_text_chars),
        status_parts=task.status_parts if state.is_interrupted else (),
        status_at=task.status_at,
        agent_task_id=before.agent_task_id or task.id,
        context_id=task.context_id or before.context_id,
        intent_at=None,
        empty_lookups=0,
        failures=0,
        failing_since=None,
        lost_since=None,
        lost_count=0,
        attempts=0,
    )
    if _is_news(before, progress):
        return replace(progress, polls=0, updated_at=moment.now)
    return replace(progress, polls=before.polls + 1)


def _is_news(before: Progress, after: Progress) -> bool:
    keys = ("state", "unknown_state", "status_text", "status_at", "agent_task_id")
    return any(getattr(before, key) != getattr(after, key) for key in keys)


def is_behind(claimed: TaskState | None, state: TaskState) -> bool:
    """The answer does not (yet) show what the push claimed; a replica may lag, or the push lied."""
    return claimed is not None and claimed is not TaskState.SUBMITTED and claimed is not state and not state.is_terminal


def _schedule(delegation: Delegation, moment: Moment) -> Delegation:
    """Set the next looks after an answer: soon while it is behind the last claim, else by the watch."""
    progress, rules = delegation.progress, moment.rules
    again = is_behind(delegation.claimed, progress.state) and progress.refetches < len(rules.refetch_s)
    refetch_at = moment.now + rules.refetch_s[progress.refetches] if again else None
    progress = replace(progress, refetches=progress.refetches + 1 if again else 0)
    delegation = replace(delegation, progress=progress, claimed=delegation.claimed if again else None)
    poll_at = next_look_at(delegation, now=moment.now, rules=rules, rand=moment.rand)
    timers = replace(delegation.timers, poll_at=poll_at, refetch_at=refetch_at, publish_at=None)
    return replace(delegation, timers=timers)


# ---------------------------------------------------------------- failing calls


def postpone(delegation: Delegation, error: AgentError, *, cause: Cause, moment: Moment) -> Change:
    """A call failed and may be made again: back off, longer each time, or as long as the agent asked us to."""
    before = delegation.progress
    since = before.failing_since if before.failing_since is not None else moment.now
    progress = replace(before, failures=before.failures + 1, failing_since=since, attempts=0)
    wait = backoff_s(progress.failures, moment.rules, moment.rand)
    if isinstance(error, AgentBusy) and error.retry_after_s is not None:
        wait = max(wait, min(error.retry_after_s, moment.rules.retry_after_max_s))
    after = _look_again(replace(delegation, progress=progress), moment.now + wait)
    story = (HistoryEntry(cause=cause, state=before.state, text=f"{error.code}: {error.detail}"),)
    return Change(after=after, history=story if before.failures == 0 else ())


def not_started(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """The message certainly did not arrive: try again later, FAILED when the agent stays away too long."""
    progress = replace(delegation.progress, intent_at=None, empty_lookups=0)
    change = postpone(replace(delegation, progress=progress), error, cause=Cause.SENT, moment=moment)
    since = change.after.progress.failing_since
    if since is not None and moment.now - since >= moment.rules.unavailable_after_s:
        return fail(change.after, Reason.AGENT_UNAVAILABLE, error.detail, cause=Cause.SENT, moment=moment)
    return change


def task_not_found(delegation: Delegation, *, cause: Cause, moment: Moment) -> Change:
    """-32001: one may be another replica; several over a minute mean the agent has lost the agent task."""
    before, rules = delegation.progress, moment.rules
    since = before.lost_since if before.lost_since is not None else moment.now
    progress = replace(before, lost_since=since, lost_count=before.lost_count + 1, attempts=0)
    after = replace(delegation, progress=progress)
    if progress.lost_count >= rules.lost_answers and moment.now - since >= rules.lost_after_s:
        return fail(after, Reason.AGENT_TASK_LOST, "the agent no longer knows this task", cause=cause, moment=moment)
    wait = rules.lost_after_s / (rules.lost_answers - 1)
    story = (HistoryEntry(cause=cause, state=before.state, text="agent task not found"),)
    return Change(after=_look_again(after, moment.now + wait), history=story)


def _look_again(delegation: Delegation, at: float) -> Delegation:
    timers = replace(delegation.timers, poll_at=at, refetch_at=None, publish_at=None)
    return replace(delegation, timers=timers)


# ---------------------------------------------------------------- ends


def settle(
    delegation: Delegation,
    state: TaskState,
    *,
    cause: Cause,
    moment: Moment,
    text: str = "",
    reason: Reason | None = None,
    artifacts: tuple[Artifact, ...] = (),
) -> Change:
    """The end of a delegation: its outcome, and what is left to remove at the agent."""
    short = _cut_bytes(text, moment.rules.message_text_bytes)
    progress = delegation.progress
    outcome = Outcome(
        delegation_id=delegation.id,
        agent=delegation.agent,
        state=state,
        text=short,
        truncated=short != text,
        artifacts=tuple(
            {"id": a.id, "name": a.name, "media_type": a.media_type, "size": a.size} for a in artifacts[:100]
        ),
        reason=reason.value if reason else None,
        agent_task_id=progress.agent_task_id,
        context_id=progress.context_id,
    )
    content = tuple({"id": a.id, "name": a.name, "parts": list(a.parts)} for a in artifacts)
    unknown = progress.agent_task_id is None and progress.intent_at is not None  # it may have the task all the same
    leftovers = unknown or (progress.agent_task_id and (progress.push_config or progress.abandoned))
    after = replace(
        delegation,
        progress=replace(progress, state=state, attempts=0, failures=0, updated_at=moment.now),
        claimed=None,
        outcome=outcome,
    )
    after = replace(after, timers=replace(after.timers, cleanup_at=moment.now if leftovers else None))
    story = (HistoryEntry(cause=cause, state=state, text=_cut(reason.value if reason else text, 200)),)
    if outcome.truncated and text != "\n".join(a.text for a in artifacts if a.text):
        content = (*content, {"id": "text", "name": "", "parts": [{"text": text}]})
    counts = (f"settled:{state.value}:{cause.value}",)
    return Change(after=after, outcome=outcome, content=content, history=story, counts=counts)


def fail(delegation: Delegation, reason: Reason, detail: str, *, cause: Cause, moment: Moment) -> Change:
    """FAILED by our own verdict; ``detail`` is ours, one line."""
    return settle(delegation, TaskState.FAILED, cause=cause, moment=moment, text=_cut(detail, 500), reason=reason)


def expire(delegation: Delegation, moment: Moment) -> Change:
    """The deadline has passed: FAILED, and what may still run at the agent is cancelled, best effort."""
    abandoned = replace(delegation, progress=replace(delegation.progress, abandoned=True))
    return fail(abandoned, Reason.DEADLINE_EXCEEDED, "the deadline passed", cause=Cause.DEADLINE, moment=moment)


def left_for_later(delegation: Delegation, moment: Moment) -> Change:
    """Cleaning up at the agent failed: again later, and given up after a day (its token is dead anyway)."""
    progress = replace(delegation.progress, failures=delegation.progress.failures + 1, attempts=0)
    wait = backoff_s(progress.failures, moment.rules, moment.rand)
    give_up_at = progress.updated_at + moment.rules.cleanup_for_s
    at = moment.now + wait if moment.now < give_up_at else None
    return Change(after=replace(delegation, progress=progress, timers=replace(delegation.timers, cleanup_at=at)))


def cleaned_up(delegation: Delegation) -> Change:
    """Nothing of ours is left at the agent."""
    progress = replace(delegation.progress, push_config=False, abandoned=False)
    return Change(after=replace(delegation, progress=progress, timers=replace(delegation.timers, cleanup_at=None)))


# ---------------------------------------------------------------- due entries


def choose_steps(phase: Phase, timers: Mapping[str, float], now: float) -> tuple[Step, ...]:
    """The steps a due delegation needs now. ``timers`` holds the set ones by name.

    An unsettled one that is due is looked at even when no timer says so: it may have been called up because a
    call slot of its agent became free.
    """

    def passed(name: str) -> bool:
        return name in timers and timers[name] <= now

    leased = timers.get("lease_until", 0.0) > now
    if phase.is_settled:
        finalize = (Step.FINALIZE,) if passed("publish_at") else ()
        return (*finalize, Step.CLEAN_UP) if passed("cleanup_at") and not leased else finalize
    if passed("deadline_at"):
        return (Step.EXPIRE,)
    if leased:
        return ()
    return (Step.START,) if phase in (Phase.OPENED, Phase.STARTING) else (Step.WAKE,)


# ---------------------------------------------------------------- texts


def read_inputs(brief: Brief) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """What earlier links piped in, as further parts: str → text, an outcome → its text, other JSON → data."""
    texts: list[str] = []
    data: list[Any] = []
    for value in brief.inputs:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict) and {"delegation_id", "state", "text"} <= value.keys():
            texts.append(str(value["text"]))
        elif value is not None:
            data.append(value)
    return tuple(texts), tuple(data)


def _entry(cause: Cause, progress: Progress) -> HistoryEntry:
    return HistoryEntry(cause=cause, state=progress.state, text=_cut(progress.status_text, 200))


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _cut_bytes(text: str, limit: int) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return text if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
