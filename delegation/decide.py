"""What may happen to a delegation: pure functions from a loaded record and an event to a :class:`Change`.

In the order things happen: :func:`choose_start`, looking for a send whose answer was lost, :func:`transition` for what
an agent answers, the failures of calls. What becomes of a reply is in ``turns.py``, how it ends in ``endings.py``, what
a due entry needs in ``due.py``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from enum import StrEnum
from typing import Any

from delegation.agent_task import AgentTask, TaskState
from delegation.answers import one_line
from delegation.endings import abandon, cut, ended_at_agent, fail, was_reached
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentPaused,
    AgentUnreachable,
    AuthenticationRefused,
    CircuitOpen,
    CredentialUnavailable,
    NotTried,
)
from delegation.notes import note
from delegation.questions import hear_question, is_new, is_our_turn, why_no_further_round
from delegation.state import (
    Brief,
    Cause,
    Change,
    Delegation,
    HistoryEntry,
    Moment,
    Phase,
    Progress,
    Reason,
    Rules,
)
from delegation.version_0_3 import without_address
from delegation.watch import backoff_s, next_look_at

#: Of a question's parts that are kept, in bytes of JSON: it is read by people, and written at every look.
QUESTION_BYTES = 65_536
#: Names of artifacts that are shown while the agent works.
MOST_ARTIFACT_NAMES = 20
#: An agent that refuses our credentials is asked again at least this often, so that new ones count soon.
AUTH_RETRY_MAX_S = 300.0
#: Connections in a row that nobody took before the card is asked where the agent is now.
MOVED_AFTER = 3


class StartAction(StrEnum):
    """What a start step has to do."""

    SEND = "send"
    LOOK_UP = "look_up"  #: a send may have gone through: ask the agent before sending again
    CANCEL = "cancel"  #: nothing was sent, and nothing needs to be
    NOTHING = "nothing"


# ---------------------------------------------------------------- starting


def choose_start(delegation: Delegation, moment: Moment) -> StartAction:
    """Send, or first find out whether an earlier send went through (docs/design.md §5, the send)."""
    if delegation.phase not in (Phase.OPENED, Phase.STARTING) or is_leased(delegation, moment.now):
        return StartAction.NOTHING
    if delegation.progress.intent_at is not None:
        return StartAction.LOOK_UP
    return StartAction.SEND if delegation.cancel_until is None else StartAction.CANCEL


def is_leased(delegation: Delegation, now: float) -> bool:
    """Another step is at work on this delegation."""
    return (delegation.timers.lease_until or 0.0) > now


def attempted(delegation: Delegation) -> Delegation:
    """A step begins; the count goes back to 0 when one ends."""
    return replace(delegation, progress=replace(delegation.progress, attempts=delegation.progress.attempts + 1))


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
        if progress.resends >= moment.rules.attempts:
            detail = f"the agent answered none of {progress.resends + 1} sends, and has no task for them"
            return fail(delegation, Reason.OUTCOME_UNKNOWN, detail, cause=Cause.SENT, moment=moment, reached=True)
        return forget_intent(delegation, moment)
    progress = replace(progress, empty_lookups=lookups, failures=0, failing_since=None, attempts=0)
    at = max(sure_at, moment.now + 1.0)
    return Change(after=look_again(replace(delegation, progress=progress), at), reached=True)


def forget_intent(delegation: Delegation, moment: Moment) -> Change:
    """Not delivered (or free to be delivered again): the next start step sends it, with the same messageId."""
    resends = delegation.progress.resends + 1
    progress = replace(delegation.progress, intent_at=None, empty_lookups=0, attempts=0, resends=resends)
    return Change(after=look_again(replace(delegation, progress=progress), moment.now), counts=("sends_repeated",))


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
    after = look_again(replace(delegation, phase=Phase.WATCHING, progress=progress), moment.now)
    story = (HistoryEntry(cause=Cause.SENT, state=progress.state, text="found in the agent's list of tasks"),)
    return Change(after=after, history=story, counts=("sends_reconciled",), reached=True)


def choose_interface(delegation: Delegation, interface: str, older: str) -> str:
    """The card's, or its older one where this delegation was refused in 1.0 before."""
    return older if older and without_address(delegation.progress.interface) else interface


def speak_older(delegation: Delegation, interface: str, refusal: AgentError, moment: Moment) -> Change:
    """-32009: nothing was started. That the older interface is meant is recorded before anything leaves for it (law 7):
    the next start step, due at once, sends the same message there."""
    progress = replace(delegation.progress, interface=interface, intent_at=None, push_config=False, attempts=0)
    after = look_again(replace(delegation, push_digest="", progress=progress), moment.now)
    text = cut(f"A2A 1.0 refused, so 0.3: {refusal.detail}", 200)
    return Change(after=after, history=(HistoryEntry(cause=Cause.SENT, state=progress.state, text=text),), reached=True)


# ---------------------------------------------------------------- hearing


def transition(delegation: Delegation, task: AgentTask, *, cause: Cause, moment: Moment) -> Change:
    """What an agent's answer makes of a delegation. Terminal is final: a settled one does not change (law 6)."""
    if delegation.phase.is_settled:
        return Change(after=delegation)
    before = delegation.progress
    progress = _heard(before, task, moment)
    if before.turn_intent_at is not None and cause is not Cause.REPLY:
        # Whether the reply arrived is asked next (turns.py); until then no other leaves.
        progress = replace(progress, turn_intent_at=before.turn_intent_at, empty_lookups=before.empty_lookups)
    if cause in (Cause.SENT, Cause.REPLY):
        progress = replace(progress, resends=0)
    after = replace(delegation, phase=Phase.WATCHING, progress=progress)
    if progress.state.is_terminal and task.is_whole:
        return ended_at_agent(after, task, said_before=before.status_text, cause=cause, moment=moment)
    if not task.is_whole:  # a stream left gaps, perhaps only the end of it: GetTask tells
        so_far = replace(progress, state=before.state if progress.state.is_terminal else progress.state)
        so_far = replace(so_far, question=before.question)
        after = look_again(replace(after, progress=so_far), moment.now)
        return Change(after=after, history=_story(before, so_far, cause=cause), reached=True)
    if why := why_no_further_round(before, progress, moment.rules):
        return fail(abandon(after), *why, cause=cause, moment=moment, reached=True)
    told = note(after, progress.state, task.status_text) if is_new(before, progress) else ""
    return Change(
        after=_schedule(after, moment), history=_story(before, progress, cause=cause), note=told, reached=True
    )


def _heard(before: Progress, task: AgentTask, moment: Moment) -> Progress:
    """An unknown state keeps the last known one: it is not terminal, so watching and the deadline go on."""
    state = task.state or before.state
    progress = replace(
        before,
        state=state,
        unknown_state="" if task.state else repr(task.raw_state[:60]),
        status_text=cut(task.status_text, moment.rules.status_text_chars),
        status_parts=_shown_parts(task) if state.is_interrupted else (),
        status_at=task.status_at,
        artifact_names=_names(task) if task.artifacts else before.artifact_names,
        question=hear_question(before, task, state, moment.now) if task.state else before.question,
        agent_task_id=before.agent_task_id or task.id,
        context_id=task.context_id or before.context_id,
        intent_at=None,
        turn_intent_at=None,
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


def _shown_parts(task: AgentTask) -> tuple[dict[str, Any], ...]:
    """The question's parts, up to so many bytes in all; one that does not fit is left out whole and marked."""
    kept: list[dict[str, Any]] = []
    left = QUESTION_BYTES
    for part in task.status_parts:
        size = len(json.dumps(part))
        fits = size <= left
        left -= size if fits else 0
        kept.append(part if fits else {"omitted": True, "size": size})
    return tuple(kept)


def _names(task: AgentTask) -> tuple[str, ...]:
    names = (one_line(artifact.name or artifact.id, 80) for artifact in task.artifacts[:MOST_ARTIFACT_NAMES])
    return tuple(filter(None, names))


def _is_news(before: Progress, after: Progress) -> bool:
    keys = ("state", "unknown_state", "status_text", "status_at", "agent_task_id", "artifact_names", "question")
    return any(getattr(before, key) != getattr(after, key) for key in keys)


def _story(before: Progress, after: Progress, *, cause: Cause) -> tuple[HistoryEntry, ...]:
    """What the history keeps of an answer: nothing when it brought no news, unless the call was more than a look."""
    if after.unknown_state and after.unknown_state != before.unknown_state:
        return (HistoryEntry(cause=cause, state=after.state, text=f"unknown_state {after.unknown_state}"),)
    if cause in (Cause.SENT, Cause.REPLY, Cause.CANCEL) or _is_news(before, after):
        new = [name for name in after.artifact_names if name not in before.artifact_names]
        artifacts = f"artifacts: {', '.join(new)}" if new else ""
        text = cut(" – ".join(filter(None, (after.status_text, artifacts))), 200)
        return (HistoryEntry(cause=cause, state=after.state, text=text),)
    return ()


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
    reply_at = moment.now if is_our_turn(delegation) else None
    if progress.turn_intent_at is not None:
        reply_at = delegation.timers.reply_at or moment.now
    timers = replace(delegation.timers, poll_at=poll_at, refetch_at=refetch_at, publish_at=None, reply_at=reply_at)
    return replace(delegation, timers=timers)


# ---------------------------------------------------------------- failing calls


def postpone(delegation: Delegation, error: AgentError, *, cause: Cause, moment: Moment) -> Change:
    """A call failed and may be made again: back off, longer each time, or as long as the agent asked us to."""
    before = delegation.progress
    since = before.failing_since
    # A pause says nothing against the agent, however long it was.
    if since is None or (before.failing_code != error.code and AgentPaused.code in (before.failing_code, error.code)):
        since = moment.now
    failures = before.failures + 1
    progress = replace(before, failures=failures, failing_since=since, failing_code=error.code, attempts=0)
    if _has_moved(progress, error):  # to another place perhaps, though not to another version for this one
        progress = replace(progress, interface=without_address(progress.interface))
    wait = backoff_s(progress.failures, moment.rules, moment.rand)
    if isinstance(error, AgentBusy | CircuitOpen) and error.retry_after_s is not None:
        wait = max(wait, min(error.retry_after_s, moment.rules.retry_after_max_s))
    if isinstance(error, AuthenticationRefused):  # nothing gets better before somebody has changed a credential
        wait = min(max(wait, moment.rules.recheck_first_s) * progress.failures, AUTH_RETRY_MAX_S)
    after = look_again(replace(delegation, progress=progress), moment.now + wait)
    story = (HistoryEntry(cause=cause, state=before.state, text=f"{error.code}: {error.detail}"),)
    counts, reached = refused_credentials(error), was_reached(error)
    if before.failures:
        return Change(after=after, counts=counts, reached=reached)
    return Change(after=after, history=story, counts=counts, begins_to_fail=error.code, reached=reached)


def refused_credentials(error: AgentError) -> tuple[str, ...]:
    """The counter of calls that an agent answered 401 or 403."""
    return ("credentials_refused",) if isinstance(error, AuthenticationRefused) else ()


def _has_moved(progress: Progress, error: AgentError) -> bool:
    """Nobody listens where it was sent: the card accepted last may name another place.

    Not while something may have arrived there unanswered: whoever is asked next must be whoever was told.
    """
    is_gone = isinstance(error, AgentUnreachable) and not isinstance(error, NotTried)
    is_unclear = progress.intent_at is not None or progress.turn_intent_at is not None
    return is_gone and progress.failures >= MOVED_AFTER and not is_unclear


def not_started(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """The message certainly did not arrive: try again later, FAILED when the agent stays away too long."""
    progress = replace(delegation.progress, intent_at=None, empty_lookups=0)
    cause = Cause.HELD if isinstance(error, AgentPaused | NotTried) else Cause.SENT
    change = postpone(replace(delegation, progress=progress), error, cause=cause, moment=moment)
    since = change.after.progress.failing_since
    if isinstance(error, AgentPaused):  # until an operator accepts its card, or the deadline
        return change
    if since is not None and moment.now - since >= moment.rules.unavailable_after_s:
        is_ours = isinstance(error, CredentialUnavailable)
        reason, reached = Reason.AUTH_FAILED if is_ours else Reason.AGENT_UNAVAILABLE, change.reached
        return fail(change.after, reason, error.detail, cause=cause, moment=moment, reached=reached)
    return change


def task_not_found(delegation: Delegation, *, cause: Cause, moment: Moment) -> Change:
    """-32001: one may be another replica; several over a minute mean the agent has lost the agent task."""
    before, rules = delegation.progress, moment.rules
    since = before.lost_since if before.lost_since is not None else moment.now
    progress = replace(before, lost_since=since, lost_count=before.lost_count + 1, attempts=0)
    after = replace(delegation, progress=progress)
    if progress.lost_count >= rules.lost_answers and moment.now - since >= rules.lost_after_s:
        detail = "the agent no longer knows this task"
        return fail(after, Reason.AGENT_TASK_LOST, detail, cause=cause, moment=moment, reached=True)
    wait = rules.lost_after_s / (rules.lost_answers - 1)
    story = (HistoryEntry(cause=cause, state=before.state, text="agent task not found"),)
    return Change(after=look_again(after, moment.now + wait), history=story, reached=True)


def look_again(delegation: Delegation, at: float) -> Delegation:
    timers = replace(delegation.timers, poll_at=at, refetch_at=None, publish_at=None)
    return replace(delegation, timers=timers)


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
