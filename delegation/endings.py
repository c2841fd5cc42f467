"""How a delegation ends: by the agent's word, by our own verdict, by a cancel; and what is left to clean up. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from delegation.agent_task import AgentMessage, AgentTask, Artifact, TaskState
from delegation.errors import (
    AgentError,
    AgentRefused,
    AgentUnreachable,
    AnswerTooLarge,
    AuthenticationRefused,
    CallAmbiguous,
    NotTried,
)
from delegation.notes import note
from delegation.state import CancelAnswer, Cause, Change, Delegation, HistoryEntry, Moment, Outcome, Reason
from delegation.watch import backoff_s

#: Artifacts that an outcome names; the record has them all.
MOST_NAMED = 100


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
        size = len(json.dumps(message.parts))
        artifacts = (Artifact(id="message", name="message", text=message.text, size=size, parts=message.parts),)
    return settle(after, TaskState.COMPLETED, cause=Cause.SENT, moment=moment, text=message.text, artifacts=artifacts)


def ended_at_agent(
    delegation: Delegation, task: AgentTask, *, said_before: str, cause: Cause, moment: Moment
) -> Change:
    """The agent says it is over: ``delegation`` carries its state already; ``said_before`` was its last status text."""
    state = delegation.progress.state
    if state is TaskState.COMPLETED:
        text = task.text
    elif state is TaskState.CANCELED:  # what it said before is still there at some agents, and no reason for this
        text = delegation.cancel_reason if task.status_text == said_before else task.status_text
    else:
        text = task.status_text or task.last_agent_text
    return settle(delegation, state, cause=cause, moment=moment, text=text, artifacts=task.artifacts)


def settle(
    delegation: Delegation,
    state: TaskState,
    *,
    cause: Cause,
    moment: Moment,
    text: str = "",
    reason: Reason | None = None,
    artifacts: tuple[Artifact, ...] = (),
    is_ours: bool = False,
) -> Change:
    """The end of a delegation: its outcome, and what is left to remove at the agent. ``is_ours``: so is its text."""
    short = _cut_bytes(text, moment.rules.message_text_bytes)
    progress = delegation.progress
    kept, summaries = _within(artifacts, delegation, moment.rules.artifact_bytes)
    outcome = Outcome(
        delegation_id=delegation.id,
        agent=delegation.agent,
        state=state,
        text=short,
        truncated=short != text,
        artifacts=summaries[:MOST_NAMED],
        reason=reason.value if reason else None,
        agent_task_id=progress.agent_task_id,
        context_id=progress.context_id,
    )
    unknown = progress.agent_task_id is None and progress.intent_at is not None  # it may have the task all the same
    leftovers = unknown or (progress.agent_task_id and (progress.push_config or progress.abandoned))
    after = replace(
        delegation,
        progress=replace(progress, state=state, attempts=0, failures=0, updated_at=moment.now),
        claimed=None,
        outcome=outcome,
    )
    after = replace(after, timers=replace(after.timers, cleanup_at=moment.now if leftovers else None))
    if outcome.truncated and text != "\n".join(a.text for a in artifacts if a.text):
        kept = (*kept, {"id": "text", "name": "", "parts": [{"text": text}]})
    return Change(
        after=after,
        outcome=outcome,
        content=kept,
        history=(HistoryEntry(cause=cause, state=state, text=cut(reason.value if reason else text, 200)),),
        counts=(f"settled:{state.value}:{cause.value}",),
        note=note(delegation, state, text, source="delegation" if is_ours else "agent"),
        reached=None if is_ours else True,
    )


def _within(
    artifacts: tuple[Artifact, ...], delegation: Delegation, limit: int
) -> tuple[tuple[dict[str, Any], ...], tuple[dict[str, Any], ...]]:
    """The artifacts as they are kept, in order, up to ``limit`` bytes in all, and a summary of each.

    What does not fit is not cut: it is left out whole, marked with its size and how to ask for it again.
    """
    kept: list[dict[str, Any]] = []
    summaries: list[dict[str, Any]] = []
    left = limit
    for each in artifacts:
        named: dict[str, Any] = {"id": each.id, "name": each.name}
        summary = {**named, "media_type": each.media_type, "size": each.size}
        if each.size <= left:
            left -= each.size
            kept.append({**named, "parts": list(each.parts)})
        else:
            again = {"agent": delegation.agent, "method": "GetTask", "id": delegation.progress.agent_task_id}
            kept.append({**named, "parts": [], "omitted": True, "size": each.size, "fetch_again": again})
            summary["omitted"] = True
        summaries.append(summary)
    return tuple(kept), tuple(summaries)


def fail(
    delegation: Delegation,
    reason: Reason,
    detail: str,
    *,
    cause: Cause,
    moment: Moment,
    reached: bool | None = None,
) -> Change:
    """FAILED by our own verdict; ``detail`` is ours, one line. ``reached``: whether the agent answered before it."""
    text = cut(detail, 500)
    change = settle(delegation, TaskState.FAILED, cause=cause, moment=moment, text=text, reason=reason, is_ours=True)
    return replace(change, reached=reached)


def was_reached(error: AgentError) -> bool | None:
    """Whether the agent answered the call that failed; None when it was not asked, or said "later"."""
    if isinstance(error, AgentRefused | AuthenticationRefused | AnswerTooLarge):
        return True
    is_no_answer = isinstance(error, AgentUnreachable | CallAmbiguous) and not isinstance(error, NotTried)
    return False if is_no_answer else None


def abandon(delegation: Delegation) -> Delegation:
    """Nobody wants the agent task any more: the clean-up cancels it, best effort."""
    return replace(delegation, progress=replace(delegation.progress, abandoned=True))


def expire(delegation: Delegation, moment: Moment) -> Change:
    """The deadline has passed: FAILED, and what may still run at the agent is cancelled, best effort."""
    detail = "the deadline passed"
    return fail(abandon(delegation), Reason.DEADLINE_EXCEEDED, detail, cause=Cause.DEADLINE, moment=moment)


# ---------------------------------------------------------------- cancelling


def cancel_unsent(delegation: Delegation, moment: Moment) -> Change:
    """Cancelled before anything was sent: over at once."""
    text = delegation.cancel_reason
    return settle(delegation, TaskState.CANCELED, cause=Cause.CANCEL, moment=moment, text=text, is_ours=True)


def cancel_unconfirmed(delegation: Delegation, moment: Moment) -> Change:
    """The cancel deadline passed and the agent has not confirmed: CANCELED here, and it is told once more, later."""
    detail = "the agent did not confirm the cancel in time"
    return settle(
        abandon(delegation),
        TaskState.CANCELED,
        cause=Cause.CANCEL,
        moment=moment,
        text=detail,
        reason=Reason.CANCEL_UNCONFIRMED,
        is_ours=True,
    )


def cancel_accepted(change: Change, moment: Moment) -> Change:
    """The answer to CancelTask says it is still at work: looked at soon and often, until the cancel deadline."""
    after = change.after
    progress = replace(after.progress, cancel_answer=CancelAnswer.ACCEPTED, polls=0)
    soon = moment.now + moment.rules.poll_first_s
    timers = replace(after.timers, cancel_at=after.cancel_until, poll_at=min(after.timers.poll_at or soon, soon))
    return replace(change, after=replace(after, progress=progress, timers=timers))


def cancel_refused(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """The agent cannot cancel it, or it is over: asked at once how it is, and watched on (spec section 3.1.5)."""
    progress = replace(delegation.progress, cancel_answer=CancelAnswer.REFUSED, attempts=0, polls=0)
    timers = replace(delegation.timers, cancel_at=None, poll_at=moment.now, refetch_at=None, publish_at=None)
    entry = HistoryEntry(cause=Cause.CANCEL, state=progress.state, text=cut(f"refused: {error.detail}", 200))
    after = replace(delegation, progress=progress, timers=timers)
    return Change(after=after, history=(entry,), reached=True)


def cancel_failed(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """CancelTask did not come through: again after a while, at the cancel deadline at the latest."""
    before = delegation.progress
    progress = replace(before, failures=before.failures + 1, attempts=0)
    at = moment.now + backoff_s(progress.failures, moment.rules, moment.rand)
    until = delegation.cancel_until or moment.now
    after = replace(delegation, progress=progress, timers=replace(delegation.timers, cancel_at=min(at, until)))
    entry = HistoryEntry(cause=Cause.CANCEL, state=before.state, text=cut(f"{error.code}: {error.detail}", 200))
    return Change(after=after, history=(entry,) if before.failures == 0 else (), reached=was_reached(error))


def receipt(delegation: Delegation) -> str | None:
    """What became of a wish to cancel: ``pending``, ``cancelled``, ``already ended``, ``refused`` (it is watched on) or
    ``unreachable`` (CANCELED here, unconfirmed); None when nobody wished."""
    if delegation.cancel_until is None:
        return None
    if delegation.outcome is None:
        is_refused = delegation.progress.cancel_answer is CancelAnswer.REFUSED and delegation.timers.cancel_at is None
        return "refused" if is_refused else "pending"
    is_refused = delegation.progress.cancel_answer is CancelAnswer.REFUSED
    overtaken = delegation.outcome.reason == Reason.DEADLINE_EXCEEDED and not is_refused
    if overtaken or delegation.outcome.reason == Reason.CANCEL_UNCONFIRMED:
        return "unreachable"  # it may be at work
    return "cancelled" if delegation.outcome.state is TaskState.CANCELED else "already ended"


# ---------------------------------------------------------------- cleaning up


def left_for_later(delegation: Delegation, moment: Moment, *, reached: bool | None = None) -> Change:
    """Cleaning up at the agent failed: again later, and given up after a day (its token is dead anyway)."""
    progress = replace(delegation.progress, failures=delegation.progress.failures + 1, attempts=0)
    wait = backoff_s(progress.failures, moment.rules, moment.rand)
    give_up_at = progress.updated_at + moment.rules.cleanup_for_s
    at = moment.now + wait if moment.now < give_up_at else None
    after = replace(delegation, progress=progress, timers=replace(delegation.timers, cleanup_at=at))
    return Change(after=after, reached=reached)


def cleaned_up(delegation: Delegation) -> Change:
    """Nothing of ours is left at the agent."""
    progress = replace(delegation.progress, push_config=False, abandoned=False)
    after = replace(delegation, progress=progress, timers=replace(delegation.timers, cleanup_at=None))
    return Change(after=after, reached=True)


def cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _cut_bytes(text: str, limit: int) -> str:
    raw = text.encode("utf-8", "surrogatepass")
    return text if len(raw) <= limit else raw[:limit].decode("utf-8", "ignore")
