"""Replies that leave, arrive, are lost or refused: what is decided about each, without a store or an agent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.decide import transition
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentRefused,
    AgentTaskNotFound,
    AgentUnreachable,
    AnswerTooLarge,
    CallAmbiguous,
    CircuitOpen,
)
from delegation.questions import begin_turn
from delegation.state import Cause, Change, Delegation, Phase, Watch
from delegation.turns import (
    Fate,
    fate_of_reply,
    may_send_reply,
    nothing_to_send,
    reply_not_found,
    reply_not_sent,
    reply_out_of_date,
    reply_overtaken,
    reply_refused,
    reply_to_unknown,
    reply_unclear,
)
from tests.support.delegations import NOW, a_delegation, a_task, at

ASKS, WORKS = TaskState.INPUT_REQUIRED, TaskState.WORKING
#: A lease and a call: by then nobody can still deliver what left at NOW.
SURE_S = 75.0


def asked(replies: int = 0, **changes: Any) -> Delegation:
    """A question is open, and so many replies wait for it."""
    before = a_delegation(replies=replies, **changes)
    return transition(before, a_question(), cause=Cause.POLL, moment=at()).after


def a_question(**changes: Any) -> Any:
    return a_task(ASKS, **{"status_text": "Which day?", "status_at": "t1", **changes})


def sending(replies: int = 1, **changes: Any) -> Delegation:
    """The first reply left at NOW; its answer is not known."""
    before = asked(replies, **changes)
    return replace(before, progress=begin_turn(before, {"text": "Monday"}, NOW))


def hear(delegation: Delegation, task: Any, cause: Cause = Cause.POLL, **moment: Any) -> Change:
    return transition(delegation, task, cause=cause, moment=at(**moment))


# ---------------------------------------------------------------- when it is our turn


def test_a_reply_that_waits_is_due_with_the_question() -> None:
    """Also one that was given before anything was asked; without one, nothing is to send."""
    assert asked(replies=1).timers.reply_at == NOW
    assert asked().timers.reply_at is None


@pytest.mark.parametrize(
    ("delegation", "may"),
    [
        (asked(replies=1), True),
        (asked(), False),
        (a_delegation(replies=1, progress={"state": WORKS}), False),
        (sending(replies=2), False),
        (asked(replies=1, timers={"cancel_at": NOW + 60}), False),
        (replace(asked(replies=1), phase=Phase.SETTLED), False),
        (a_delegation(replies=1, progress={"state": ASKS}), False),
    ],
    ids=[
        "asked",
        "no reply",
        "working",
        "one under way",
        "being cancelled",
        "ended",
        "no whole answer has told it yet",
    ],
)
def test_when_a_reply_may_be_sent(delegation: Delegation, may: bool) -> None:
    """To a question that is open, one by one, and not to an agent that is told to stop."""
    assert may_send_reply(delegation) is may


def test_the_next_reply_waits_for_the_next_question() -> None:
    """The answer to the first shows that the agent works, then the old question again, then a new one."""
    sent = hear(sending(replies=2), a_task(WORKS), Cause.REPLY).after
    assert sent.timers.reply_at is None
    lagging = hear(sent, a_question()).after
    assert (lagging.timers.reply_at, lagging.waits_for_agent) == (None, True)
    assert hear(lagging, a_question(status_text="Which hotel?", status_at="t2")).after.timers.reply_at == NOW


def test_a_stream_with_gaps_asks_for_a_look_first() -> None:
    """What it showed of a question is not the whole of it: nothing is sent, nothing told, and the agent is asked."""
    change = hear(a_delegation(replies=1), a_question(is_whole=False), Cause.SENT)
    assert (change.after.progress.question, change.note) == (None, "")
    assert not may_send_reply(change.after)
    assert change.after.timers.poll_at == NOW
    whole = hear(change.after, a_question())
    assert whole.note
    assert whole.after.timers.reply_at == NOW


@pytest.mark.parametrize("state", [state for state in TaskState if state.is_terminal])
def test_a_stream_with_gaps_ends_nothing(state: TaskState) -> None:
    """Artifacts may be missing: the state before is kept, and GetTask tells."""
    change = hear(a_delegation(), a_task(state, is_whole=False), Cause.SENT)
    assert change.outcome is None
    assert change.after.state is TaskState.SUBMITTED
    assert change.after.timers.poll_at == NOW


def test_when_it_is_not_our_turn_a_look_stays_planned() -> None:
    """The reply waits for the next question; whoever has no look planned is looked at now, but for one left alone."""
    waiting = a_delegation(replies=1, progress={"state": WORKS}, timers={"poll_at": NOW + 9, "reply_at": NOW})
    kept = nothing_to_send(waiting, at()).after.timers
    assert (kept.reply_at, kept.poll_at) == (None, NOW + 9)
    for_slot = replace(waiting, timers=replace(waiting.timers, poll_at=None, refetch_at=NOW + 45))
    assert nothing_to_send(for_slot, at()).after.timers.poll_at is None
    died = replace(waiting, timers=replace(waiting.timers, poll_at=None))
    assert nothing_to_send(died, at()).after.timers.poll_at == NOW
    off = asked(progress={"watch": Watch.OFF}, timers={"reply_at": NOW})
    assert nothing_to_send(off, at()).after.timers.poll_at is None


# ---------------------------------------------------------------- what became of it


@pytest.mark.parametrize(
    "error", [AgentUnreachable("no route"), AgentBusy("429", 30.0), CircuitOpen("away", 20.0)], ids=repr
)
def test_a_reply_that_did_not_leave_is_taken_back(error: AgentError) -> None:
    """The next attempt has the same number and messageId, counts no round, and comes after the back-off."""
    before, change = asked(1), reply_not_sent(sending(), error, at())
    assert change.after.progress.turn == 0
    assert change.after.progress.turn_intent_at is None
    assert change.after.waits_for_agent is False
    assert change.after.timers.reply_at == change.after.timers.poll_at
    assert (change.after.timers.reply_at or 0) > NOW
    again = begin_turn(change.after, {"text": "Monday"}, NOW)
    assert replace(change.after, progress=again).reply_message_id == sending().reply_message_id
    assert again.same_turns == 1
    assert change.after.progress.question == before.progress.question


def test_a_repeated_exchange_is_counted_once_however_often_it_failed_to_leave() -> None:
    """The third of the same is still the third after two failures."""
    progress = replace(asked(1).progress, same_turns=2, turn_key=sending().progress.turn_key)
    delegation = replace(asked(1), progress=progress)
    for _ in range(3):
        sent = replace(delegation, progress=begin_turn(delegation, {"text": "Monday"}, NOW))
        assert sent.progress.same_turns == 3
        delegation = reply_not_sent(sent, AgentUnreachable(""), at()).after


def test_a_lost_answer_keeps_the_turn_and_asks_the_agent() -> None:
    """It may have arrived: nothing is sent before that is known."""
    change = reply_unclear(sending(), CallAmbiguous("HTTP 502"), at())
    assert (change.after.progress.turn, change.after.progress.turn_intent_at) == (1, NOW)
    assert not may_send_reply(change.after)
    assert change.after.timers.reply_at == NOW + 2
    assert [entry.text for entry in change.history] == ["agent.protocol: HTTP 502"]


def test_a_refused_reply_is_told_and_its_question_open_again() -> None:
    """It is used up; the agent is asked at once how it is."""
    change = reply_refused(sending(), AgentRefused("it has ended"), at())
    assert [entry.text for entry in change.history] == ["reply 1 refused: it has ended"]
    assert (change.after.progress.turn, change.after.progress.turn_intent_at) == (1, None)
    assert change.after.waits_for_reply
    assert (change.after.timers.poll_at, change.after.timers.reply_at) == (NOW, None)
    assert change.reached


def test_after_a_refused_reply_the_next_one_goes_out() -> None:
    """What waits behind it answers the question that is still open."""
    refused = reply_refused(sending(replies=2), AgentRefused("no"), at()).after
    assert hear(refused, a_question()).after.timers.reply_at == NOW


@pytest.mark.parametrize("is_unclear", [False, True])
def test_an_agent_that_does_not_know_its_task_is_asked_again_later(is_unclear: bool) -> None:
    """Another replica may know it: half a minute later, not in a hot loop, and lost after three over a minute."""
    delegation = replace(sending(), timers=replace(sending().timers, reply_at=NOW - 1))
    for seconds in (0, 30):
        change = reply_to_unknown(delegation, at(NOW + seconds), is_unclear=is_unclear)
        assert change.outcome is None
        assert change.after.timers.reply_at == change.after.timers.poll_at == NOW + seconds + 30
        assert (change.after.progress.turn_intent_at is None) is (not is_unclear)
        delegation = replace(change.after, progress=replace(change.after.progress, turn=1))
    lost = reply_to_unknown(delegation, at(NOW + 60), is_unclear=is_unclear)
    assert lost.outcome is not None
    assert lost.outcome.reason == "agent_task.lost"
    assert lost.reached


# ---------------------------------------------------------------- finding out whether it arrived


@pytest.mark.parametrize(
    ("task", "fate"),
    [
        (a_question(history_message_ids=frozenset({"d1:goal", "d1:reply:1"})), Fate.ARRIVED),
        (a_question(history_message_ids=frozenset({"d1:goal"})), Fate.MISSING),
        (a_question(), Fate.MISSING),
        (a_question(status_text="Which hotel?", status_at="t2"), Fate.ARRIVED),
        (a_question(status_at="t2"), Fate.ARRIVED),
        (a_question(status_at="t2", history_message_ids=frozenset({"d1:goal"})), Fate.MISSING),
        (a_question(status_text="Other?", history_message_ids=frozenset({"d1:goal"})), Fate.OVERTAKEN),
        (a_task(WORKS), Fate.ARRIVED),
        (a_task(WORKS, history_message_ids=frozenset({"d1:goal"})), Fate.OVERTAKEN),
        (a_task(TaskState.COMPLETED), Fate.ARRIVED),
        (a_task(None, raw_state="PAUSED"), Fate.MISSING),
        (a_task(None, raw_state="PAUSED", history_message_ids=frozenset({"d1:reply:1"})), Fate.ARRIVED),
    ],
    ids=[
        "in its history",
        "only the brief",
        "no history",
        "asks",
        "asks again",
        "asks again, history without it",
        "asks else, history without it",
        "works",
        "works, history without it",
        "ended",
        "odd",
        "odd, kept",
    ],
)
def test_whether_a_reply_arrived(task: Any, fate: Fate) -> None:
    """The agent's history tells, where it holds what we said before; else whether it has moved on."""
    assert fate_of_reply(sending(), task) is fate


def test_a_replica_that_is_behind_tells_nothing_of_a_reply() -> None:
    """Its status is older than the question."""
    shown = a_question(status_at="2026-01-01T00:00:01.000000Z")
    open_ = transition(a_delegation(replies=1), shown, cause=Cause.POLL, moment=at()).after
    asked = replace(open_, progress=begin_turn(open_, {"text": "Monday"}, NOW))
    behind = a_task(WORKS, status_at="2026-01-01T00:00:00.000000Z")
    assert fate_of_reply(asked, behind) is Fate.MISSING
    assert transition(asked, behind, cause=Cause.POLL, moment=at()).after.progress.turn_intent_at is not None


def test_a_reply_that_the_agent_went_on_without_is_used_up() -> None:
    """Sent now it would answer another question; the history says so."""
    change = reply_overtaken(sending(), a_task(WORKS), at())
    assert change.after.progress.turn_intent_at is None
    assert change.history[0].text == "reply 1 did not arrive, and the agent went on without it"


def test_a_reply_meant_for_another_question_is_not_sent() -> None:
    """Used up; the open question goes on waiting, and the next reply is looked at."""
    asked = sending()
    before = replace(asked, replies=2, progress=replace(asked.progress, turn=0, turn_intent_at=None))
    change = reply_out_of_date(before, at())
    assert (change.after.progress.turn, change.after.waits_for_agent) == (1, False)
    assert change.after.timers.reply_at == NOW


def test_a_look_that_shows_the_old_question_leaves_it_open_whether_a_reply_arrived() -> None:
    """Polls go on beside the search, and do not disturb it."""
    unclear = reply_unclear(sending(), CallAmbiguous(""), at()).after
    searched = replace(unclear, progress=replace(unclear.progress, empty_lookups=1))
    after = hear(searched, a_question()).after
    assert (after.progress.turn_intent_at, after.progress.empty_lookups) == (NOW, 1)
    assert after.timers.reply_at == searched.timers.reply_at


@pytest.mark.parametrize("task", [a_task(WORKS), a_question(status_text="Which hotel?", status_at="t2")])
def test_a_look_that_shows_the_agent_moved_leaves_it_to_the_search_whether_the_reply_arrived(task: Any) -> None:
    """And the search knows what it answered: it is not sent once more, in answer to the next question."""
    looked = hear(reply_unclear(sending(), CallAmbiguous(""), at()).after, task).after
    assert looked.progress.turn_intent_at == NOW
    assert fate_of_reply(looked, task) is Fate.ARRIVED


def test_a_reply_that_is_not_found_twice_late_enough_is_sent_again() -> None:
    """Sure after a lease and a call from the intent; under the same messageId."""
    unclear = reply_unclear(sending(), CallAmbiguous(""), at()).after
    first = reply_not_found(unclear, a_question(), at(NOW + 3))
    assert (first.after.progress.turn_intent_at, first.after.timers.reply_at) == (NOW, NOW + SURE_S)
    early = reply_not_found(first.after, a_question(), at(NOW + SURE_S - 1))
    assert (early.after.progress.turn_intent_at, early.after.timers.reply_at) == (NOW, NOW + SURE_S)
    late = reply_not_found(early.after, a_question(), at(NOW + SURE_S))
    assert (late.after.progress.turn, late.after.progress.turn_intent_at) == (0, None)
    assert late.counts == ("sends_repeated",)
    assert late.after.timers.reply_at == NOW + SURE_S
    assert may_send_reply(late.after)


def test_one_late_search_is_not_enough() -> None:
    """A replica may lag; a second one follows in a second."""
    unclear = reply_unclear(sending(), CallAmbiguous(""), at()).after
    first = reply_not_found(unclear, a_question(), at(NOW + 500))
    assert (first.after.progress.turn_intent_at, first.after.timers.reply_at) == (NOW, NOW + 501)


def test_an_unknown_state_is_no_search_that_found_nothing() -> None:
    """'PAUSED' shows neither the old question nor our reply: asked again, as long as it takes."""
    unclear = reply_unclear(sending(), CallAmbiguous(""), at()).after
    for seconds in (3, 80, 200):
        change = reply_not_found(unclear, a_task(None, raw_state="PAUSED"), at(NOW + seconds))
        unclear = change.after
        assert (unclear.progress.turn_intent_at, unclear.progress.empty_lookups) == (NOW, 0)
        assert (unclear.timers.reply_at or 0) > NOW + seconds


# ---------------------------------------------------------------- while the agent reads a reply


@pytest.mark.parametrize("watch", Watch)
def test_it_is_looked_at_until_the_agent_has_moved(watch: Watch) -> None:
    """With ``off`` as well; once it asks again, that one is left alone."""
    sent = hear(sending(progress={"watch": watch}), a_question(), Cause.REPLY).after
    assert sent.waits_for_agent
    assert sent.timers.poll_at is not None
    asks = hear(sent, a_question(status_text="Which hotel?", status_at="t2")).after
    assert (asks.timers.poll_at is None) is (watch is Watch.OFF)


# ---------------------------------------------------------------- what a call says of the agent


@pytest.mark.parametrize(
    ("error", "reached"),
    [
        (AgentUnreachable(""), False),
        (CallAmbiguous(""), False),
        (AnswerTooLarge(""), True),
        (AgentRefused(""), True),
        (AgentTaskNotFound(""), True),
        (AgentBusy("", 1.0), None),
        (CircuitOpen("", 1.0), None),
    ],
    ids=repr,
)
def test_whether_the_agent_answered(error: AgentError, reached: bool | None) -> None:
    """A refusal is an answer, "later" says nothing either way, and what was not tried neither."""
    assert reply_unclear(sending(), error, at()).reached is reached
