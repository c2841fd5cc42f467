"""What becomes of a reply: sent, not sent, perhaps sent, refused. Pure, like ``decide.py``."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from delegation.agent_task import AgentTask
from delegation.decide import look_again, postpone, task_not_found, transition
from delegation.endings import cut
from delegation.errors import AgentError, AgentRefused
from delegation.questions import has_moved, is_behind_question, is_our_turn, reopen, repeats_words
from delegation.state import Cause, Change, Delegation, HistoryEntry, Moment, Phase
from delegation.watch import is_left_alone


def may_send_reply(delegation: Delegation) -> bool:
    """A reply waits, and the agent waits for one. Replies leave one by one, each after the answer to the last."""
    return delegation.phase is Phase.WATCHING and is_our_turn(delegation)


def nothing_to_send(delegation: Delegation, moment: Moment) -> Change:
    """It is not our turn: the next question will send what waits.

    Nobody may be looking any more: who waited for a call slot had no other look planned, and may have died at that.
    """
    timers = replace(delegation.timers, reply_at=None)
    if timers.poll_at is None and timers.refetch_at is None and not is_left_alone(delegation):
        timers = replace(timers, poll_at=moment.now)
    return Change(after=replace(delegation, timers=timers))


def reply_not_sent(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """The reply certainly did not arrive: it waits, and is tried again under the same messageId."""
    change = postpone(_turn_taken_back(delegation), error, cause=Cause.REPLY, moment=moment)
    return _with_reply_at(change, change.after.timers.poll_at)


def reply_unclear(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """The reply may have arrived; the agent is asked before anything is sent again."""
    change = postpone(delegation, error, cause=Cause.REPLY, moment=moment)
    return _with_reply_at(change, change.after.timers.poll_at)


def reply_refused(delegation: Delegation, error: AgentError, moment: Moment) -> Change:
    """The agent refused the reply, perhaps because it is over: asked at once how it is, its question open again."""
    progress = replace(reopen(delegation.progress), failures=0, failing_since=None, attempts=0, resends=0)
    after = look_again(replace(delegation, progress=progress), moment.now)
    text = cut(f"reply {progress.turn} refused: {error.detail}", 200)
    story = (HistoryEntry(cause=Cause.REPLY, state=progress.state, text=text),)
    return _with_reply_at(Change(after=after, history=story, reached=True), None)


def reply_not_found(delegation: Delegation, task: AgentTask, moment: Moment) -> Change:
    """The agent shows the old question and not our reply. The second time, late enough, it was not delivered.

    What a lost answer to a send needs the agent's list for, its history answers here; an agent that keeps none and
    still asks is told again, under the same messageId.
    """
    progress = delegation.progress
    assert progress.turn_intent_at is not None
    sure_at = progress.turn_intent_at + moment.rules.lease_s + moment.rules.call_deadline_s
    if task.state is None:  # it shows neither the question nor anything else that we know: not an answer to this
        change = transition(delegation, task, cause=Cause.SWEEP, moment=moment)
        return _with_reply_at(change, change.after.timers.poll_at)
    if progress.empty_lookups >= 1 and moment.now >= sure_at:
        if progress.resends >= moment.rules.attempts:
            return reply_refused(delegation, AgentRefused("answered none of its sends, and took none"), moment)
        resent = replace(delegation, progress=replace(progress, resends=progress.resends + 1))
        change = Change(after=_turn_taken_back(resent), counts=("sends_repeated",), reached=True)
        return _with_reply_at(change, moment.now)
    change = transition(delegation, task, cause=Cause.SWEEP, moment=moment)
    lookups = replace(change.after.progress, empty_lookups=progress.empty_lookups + 1)
    return _with_reply_at(replace(change, after=replace(change.after, progress=lookups)), max(sure_at, moment.now + 1))


def reply_to_unknown(delegation: Delegation, moment: Moment, *, is_unclear: bool = False) -> Change:
    """The agent does not know the agent task (now): the reply waits while that is found out. ``is_unclear``: this call
    only asked what became of it."""
    waiting = delegation if is_unclear else _turn_taken_back(delegation)
    change = task_not_found(waiting, cause=Cause.REPLY, moment=moment)
    return change if change.outcome else _with_reply_at(change, change.after.timers.poll_at)


class Fate(StrEnum):
    """What became of a reply whose answer was lost."""

    ARRIVED = "arrived"
    MISSING = "missing"  #: the agent still asks: perhaps not delivered, perhaps not yet
    OVERTAKEN = "overtaken"  #: it did not arrive, and the agent went on without it


def fate_of_reply(delegation: Delegation, task: AgentTask) -> Fate:
    """By the agent's history, where it keeps what we say; else by whether it has moved on."""
    progress, ours = delegation.progress, f"{delegation.id}:"
    if delegation.reply_message_id in task.history_message_ids or (task.state and task.state.is_terminal):
        return Fate.ARRIVED
    question = progress.question
    asked_since = question is not None and question.turn >= progress.turn  # heard meanwhile: it is too late for this
    is_behind = question is not None and is_behind_question(question, task)
    if not asked_since and (task.state is None or is_behind):
        return Fate.MISSING
    if any(message_id.startswith(ours) for message_id in task.history_message_ids):
        return Fate.MISSING if repeats_words(progress, task) else Fate.OVERTAKEN
    return Fate.ARRIVED if asked_since or has_moved(progress, task) else Fate.MISSING


def reply_overtaken(delegation: Delegation, task: AgentTask, moment: Moment) -> Change:
    """The question it answers is gone; sent now, it would answer another."""
    change = transition(delegation, task, cause=Cause.REPLY, moment=moment)
    text = f"reply {delegation.progress.turn} did not arrive, and the agent went on without it"
    entry = HistoryEntry(cause=Cause.REPLY, state=delegation.progress.state, text=text)
    return replace(change, history=(entry, *change.history))


def reply_out_of_date(delegation: Delegation, moment: Moment) -> Change:
    """Meant for a question that is no longer open: used up, and the open one waits for another."""
    progress = reopen(replace(delegation.progress, turn=delegation.progress.turn + 1))
    text = f"reply {progress.turn} was meant for another question, and is not sent"
    entry = HistoryEntry(cause=Cause.REPLY, state=progress.state, text=text)
    after = replace(delegation, progress=progress)
    reply_at = moment.now if after.has_reply_waiting else None
    return _with_reply_at(Change(after=after, history=(entry,)), reply_at)


def _turn_taken_back(delegation: Delegation) -> Delegation:
    progress = delegation.progress
    progress = replace(
        progress,
        turn=progress.turn - 1,
        turn_intent_at=None,
        same_turns=max(0, progress.same_turns - 1),
        empty_lookups=0,
        attempts=0,
    )
    return replace(delegation, progress=progress)


def _with_reply_at(change: Change, at: float | None) -> Change:
    return replace(change, after=replace(change.after, timers=replace(change.after.timers, reply_at=at)))
