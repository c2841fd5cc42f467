"""What an agent asks: whether a question is a new one, and when a conversation goes round in circles. Pure.

The same question is heard many times: at every look, after a re-subscription, from a replica that lags, in the answer
to the very reply. Only a new one is told to a parent and opens a round.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from delegation.agent_task import AgentTask, TaskState
from delegation.state import Delegation, Progress, Question, Reason, Rules

#: An agent that puts its question in other words at every look is heard so often before somebody replies, and no more.
MOST_IN_TURN = 20


def hear_question(before: Progress, task: AgentTask, state: TaskState, now: float) -> Question | None:
    """The question that is open after this answer: the known one, or a new one with the next number."""
    last = before.question
    if not state.is_interrupted:
        return last
    heard = replace(
        _shown(task, state),
        number=last.number + 1 if last else 1,
        asked_at=now,
        turn=before.turn,
        in_turn=last.in_turn + 1 if last and last.turn == before.turn else 1,
        before=f"{last.digest} {last.said_at}" if last else "",
    )
    if last is not None and heard.said_at and last.before == f"{heard.digest} {heard.said_at}":
        return last
    if last is None or heard.in_turn > MOST_IN_TURN:
        return last or heard
    return last if _is_same(last, heard, was_shown=before.state is state) else heard


def _shown(task: AgentTask, state: TaskState) -> Question:
    digest = _digest(task.status_text, task.status_parts)
    return Question(number=0, state=state, digest=digest, said_at=task.status_at, message_id=task.status_message_id)


def _is_same(last: Question, heard: Question, *, was_shown: bool) -> bool:
    """Whether what is heard is still what was asked. ``was_shown``: no other state was heard in between.

    After a reply, the same words may be the old status or the question asked once more: the timestamp tells, else the
    message id. Before one they may change (a counter, a clock) without being asked anew.
    """
    if last.state is not heard.state:
        return False
    has_same_time = bool(heard.said_at) and heard.said_at == last.said_at
    if heard.turn == last.turn and heard.message_id and heard.message_id == last.message_id:
        return True
    if was_shown and heard.turn == last.turn and has_same_time:
        return True
    if last.digest != heard.digest:
        return False
    if was_shown and heard.turn == last.turn:
        return True
    if heard.said_at and last.said_at:
        return has_same_time
    if heard.message_id and last.message_id:
        return heard.message_id == last.message_id
    return was_shown


def is_new(before: Progress, after: Progress) -> bool:
    """A question that was not heard before."""
    return after.question is not None and (before.question is None or after.question.number > before.question.number)


def is_our_turn(delegation: Delegation) -> bool:
    """Nothing is said to an agent that is being told to stop, nor to a question that no whole answer has told yet."""
    progress, is_canceling = delegation.progress, delegation.timers.cancel_at is not None
    has_one = delegation.has_reply_waiting and progress.turn_intent_at is None and not is_canceling
    is_asked = delegation.state.is_interrupted and progress.question is not None
    return has_one and is_asked and not delegation.waits_for_agent


def has_moved(progress: Progress, task: AgentTask) -> bool:
    """The agent no longer shows the question that the present reply answers, and is not merely behind."""
    question = progress.question
    if task.state is None or question is None or is_behind_question(question, task):
        return False
    if question.turn >= progress.turn or task.state is not question.state:
        return True  # it asked something else since, or is doing something else
    return not _is_same(question, replace(_shown(task, task.state), turn=progress.turn), was_shown=True)


def repeats_words(progress: Progress, task: AgentTask) -> bool:
    """It shows the same state and the same words as the question, whatever their time and id."""
    question = progress.question
    if question is None or task.state is not question.state or question.turn >= progress.turn:
        return False
    return question.digest == _digest(task.status_text, task.status_parts)


def is_behind_question(question: Question, task: AgentTask) -> bool:
    """The status is older than the question, by the agent's own clock: a replica that lags (answers.read_timestamp
    writes the times it could read so that they sort)."""
    times = (task.status_at, question.said_at)
    return all(time.endswith("Z") for time in times) and task.status_at < question.said_at


def begin_turn(delegation: Delegation, reply: dict[str, Any], now: float) -> Progress:
    """The next reply is about to leave: the intent, and how often this very exchange was had in a row."""
    progress = delegation.progress
    asked = progress.question.digest if progress.question else ""
    key = _digest(asked, [reply.get("text", ""), reply.get("data")])
    again = progress.same_turns + 1 if key == progress.turn_key else 1
    return replace(progress, turn=progress.turn + 1, turn_intent_at=now, turn_key=key, same_turns=again)


def reopen(progress: Progress) -> Progress:
    """The agent refused the reply: its question is open again."""
    question = replace(progress.question, turn=progress.turn) if progress.question else None
    return replace(progress, question=question, turn_intent_at=None)


def why_no_further_round(before: Progress, after: Progress, rules: Rules) -> tuple[Reason, str] | None:
    """The reason to end a conversation at this new question; None to go on."""
    if not is_new(before, after):
        return None
    if after.turn >= rules.rounds:
        return Reason.TOO_MANY_ROUNDS, f"the agent asks again after {after.turn} replies"
    repeats = before.question is not None and after.question is not None
    if repeats and before.question.digest == after.question.digest and after.same_turns >= rules.same_turns:  # type: ignore[union-attr]
        return Reason.REPEATS, f"the same question got the same reply {after.same_turns} times in a row"
    return None


def _digest(*said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
