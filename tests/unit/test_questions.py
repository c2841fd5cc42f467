"""Which question is a new one, and when a conversation goes round in circles."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import AgentTask, TaskState
from delegation.decide import transition
from delegation.questions import MOST_IN_TURN, begin_turn, hear_question, is_new, reopen, why_no_further_round
from delegation.state import Cause, Change, Delegation, Phase, Progress, Reason, Rules
from tests.support.delegations import NOW, a_delegation, a_task, at

ASKS, AUTH, WORKS = TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED, TaskState.WORKING
EARLY, LATE = "2026-05-01T10:00:00Z", "2026-05-01T11:00:00Z"


def a_question(
    words: str = "Which day?", *, state: TaskState = ASKS, said_at: str = "", message_id: str = ""
) -> AgentTask:
    parts = ({"text": words},)
    return a_task(state, status_text=words, status_parts=parts, status_at=said_at, status_message_id=message_id)


def asked(task: AgentTask | None = None, before: Delegation | None = None) -> Delegation:
    """One that has just heard a question."""
    return transition(before or a_delegation(), task or a_question(), cause=Cause.POLL, moment=at()).after


def replied(delegation: Delegation, text: str = "Monday") -> Delegation:
    """The next reply has left; its answer is not known."""
    given = replace(delegation, replies=delegation.progress.turn + 1)
    return replace(given, progress=begin_turn(given, {"text": text}, NOW))


def hear(delegation: Delegation, task: AgentTask, cause: Cause = Cause.POLL) -> Change:
    return transition(delegation, task, cause=cause, moment=at())


# ---------------------------------------------------------------- new, or heard before


@dataclass(frozen=True)
class Again:
    """What is heard after a question, and what lies in between."""

    has_replied: bool  #: a reply left
    has_moved: bool  #: another state was heard
    same_state: bool
    same_words: bool
    times: tuple[str, str]
    ids: tuple[str, str]


PAIRS = [("", ""), ("a", "a"), ("a", "b"), ("a", ""), ("", "a")]
FLAGS = list(itertools.product([False, True], repeat=4))
ALL = [Again(*flags, times, ids) for flags in FLAGS for times in PAIRS for ids in PAIRS]


def should_be_new(again: Again) -> bool:
    """The rule, in the order in which it is told (questions.py)."""
    both_times, both_ids = all(again.times), all(again.ids)
    same_time, same_id = again.times[0] == again.times[1], again.ids[0] == again.ids[1]
    if not again.same_state:
        return True
    if not again.has_replied and both_ids and same_id:  # the agent itself says that it is the same message
        return False
    if not again.has_replied and not again.has_moved:  # it is only shown once more
        return not (again.same_words or (both_times and same_time))
    if not again.same_words:
        return True
    if both_times:
        return not same_time
    return not same_id if both_ids else again.has_moved


@pytest.mark.parametrize("again", ALL, ids=str)
def test_what_is_heard_again_is_new_or_not(again: Again) -> None:
    """Every combination of state, words, timestamp and message id, and of what lies between: a reply, another state."""
    first = a_question("Which day?", said_at=again.times[0], message_id=again.ids[0])
    delegation = asked(first)
    if again.has_replied:
        delegation = replied(delegation)
    if again.has_moved:
        delegation = hear(delegation, a_task(WORKS)).after
    words, state = "Which day?" if again.same_words else "Which hotel?", ASKS if again.same_state else AUTH
    heard = hear(delegation, a_question(words, state=state, said_at=again.times[1], message_id=again.ids[1]))
    assert is_new(delegation.progress, heard.after.progress) is should_be_new(again)
    assert bool(heard.note) is should_be_new(again)


def test_the_first_question_is_new_and_says_since_when() -> None:
    """It has number 1, and the time at which we heard it."""
    question = hear_question(Progress(), a_question(said_at=EARLY, message_id="m1"), ASKS, NOW)
    assert question is not None
    assert (question.number, question.state, question.turn, question.asked_at) == (1, ASKS, 0, NOW)
    assert (question.said_at, question.message_id) == (EARLY, "m1")
    assert is_new(Progress(), replace(Progress(), question=question))


def test_an_answer_to_a_reply_that_shows_the_old_question_is_not_a_new_one() -> None:
    """The same status with the same timestamp: no second note, not open for a reply, looked at until it moves."""
    old = a_question(said_at=EARLY, message_id="m1")
    change = hear(replied(asked(old)), old, Cause.REPLY)
    assert change.note == ""
    assert change.after.waits_for_agent
    assert not change.after.waits_for_reply
    assert change.after.progress.turn_intent_at is None
    assert change.after.timers.poll_at is not None


def test_the_same_words_asked_once_more_after_a_reply_are_a_new_question() -> None:
    """The status is a later one: the agent did not like the answer."""
    change = hear(replied(asked(a_question(said_at=EARLY))), a_question(said_at=LATE), Cause.REPLY)
    assert change.note
    assert change.after.waits_for_reply
    assert change.after.progress.question is not None
    assert (change.after.progress.question.number, change.after.progress.question.turn) == (2, 1)


def test_an_agent_that_stamps_every_look_asks_once() -> None:
    """Its status has the time of the look; without a reply the same words are the same question."""
    delegation, notes = a_delegation(), []
    for minute in range(10):
        change = hear(delegation, a_question(said_at=f"2026-05-01T10:{minute:02}:00Z", message_id=f"m{minute}"))
        delegation = change.after
        notes.append(change.note)
    assert [bool(note) for note in notes] == [True, *[False] * 9]


def test_a_counter_in_the_words_is_no_new_question() -> None:
    """'Waiting for 3 minutes': the same status, by its timestamp, before any reply."""
    delegation = asked(a_question("Waiting for 1 minute", said_at=EARLY))
    assert hear(delegation, a_question("Waiting for 2 minutes", said_at=EARLY)).note == ""


def test_a_replica_that_lags_brings_back_no_question() -> None:
    """Answered, gone on, and shown once more as it was: known by its timestamp, and it is the agent's turn."""
    old = a_question(said_at=EARLY)
    working = hear(replied(asked(old)), a_task(WORKS, status_at=LATE), Cause.REPLY).after
    change = hear(working, old)
    assert change.note == ""
    assert change.after.waits_for_agent
    assert not change.after.waits_for_reply
    again = hear(change.after, a_task(WORKS, status_at=LATE))
    assert again.note == ""


def test_a_state_we_do_not_know_asks_nothing() -> None:
    """'PAUSED: one moment' while a question is open is not another question, nor an answer to the reply."""
    waiting = replied(asked())
    change = hear(waiting, replace(a_question("one moment"), state=None, raw_state="PAUSED"))
    assert change.note == ""
    assert change.after.progress.question == waiting.progress.question
    assert change.after.progress.turn_intent_at == NOW


def test_authorization_is_asked_for_separately() -> None:
    """The same words as AUTH_REQUIRED are another question than as INPUT_REQUIRED."""
    change = hear(asked(a_question("Go on?", said_at=EARLY)), a_question("Go on?", state=AUTH, said_at=EARLY))
    assert '"state":"AUTH_REQUIRED"' in change.note


def test_a_question_is_kept_while_the_agent_works() -> None:
    """It is known again when a replica that lags shows it."""
    delegation = asked(a_question(said_at=EARLY))
    assert hear(delegation, a_task(WORKS)).after.progress.question == delegation.progress.question


def test_data_parts_make_a_question_another_one() -> None:
    """The words may be the same, and what is asked for not."""
    one = replace(a_question(), status_parts=({"data": {"days": [1]}},))
    other = replace(a_question(), status_parts=({"data": {"days": [2]}},))
    assert hear(asked(one), other).note


# ---------------------------------------------------------------- turns of a conversation


def test_whose_turn_it_is() -> None:
    """Ours from the question to the reply, the agent's until it has moved, ours again with the next question."""
    delegation = asked(a_question("1?"))
    assert (delegation.waits_for_reply, delegation.waits_for_agent) == (True, False)
    given = replace(delegation, replies=1)
    assert (given.waits_for_reply, given.has_reply_waiting) == (False, True)
    sent = replied(delegation)
    assert (sent.waits_for_reply, sent.waits_for_agent) == (False, True)
    assert sent.reply_message_id == "d1:reply:1"
    next_one = hear(sent, a_question("2?"), Cause.REPLY).after
    assert (next_one.waits_for_reply, next_one.waits_for_agent) == (True, False)


def test_a_refused_reply_leaves_its_question_open() -> None:
    """It is the same question still, so it is told once, and the next reply has a number of its own."""
    sent = replied(asked())
    open_again = replace(sent, progress=reopen(sent.progress))
    assert (open_again.waits_for_reply, open_again.waits_for_agent) == (True, False)
    assert open_again.progress.question is not None
    assert open_again.progress.question.number == 1
    assert hear(open_again, a_question()).note == ""
    assert replied(open_again).reply_message_id == "d1:reply:2"


def test_nothing_is_reopened_that_was_never_asked() -> None:
    """A reply may be sent where no question was heard."""
    assert reopen(Progress(turn=1, turn_intent_at=NOW)) == Progress(turn=1)


@pytest.mark.parametrize(
    ("questions", "replies", "same_turns"),
    [
        (["a", "a", "a"], ["x", "x", "x"], [1, 2, 3]),
        (["a", "a", "a"], ["x", "y", "y"], [1, 1, 2]),
        (["a", "b", "a"], ["x", "x", "x"], [1, 1, 1]),
        (["a", "a"], ["x", "x "], [1, 1]),
    ],
)
def test_the_same_exchange_is_counted_in_a_row(questions: list[str], replies: list[str], same_turns: list[int]) -> None:
    """The same question and the same reply; anything else begins anew."""
    delegation, counted = a_delegation(), []
    for turn, (words, text) in enumerate(zip(questions, replies, strict=True)):
        delegation = replied(asked(a_question(words, said_at=f"t{turn}"), delegation), text)
        counted.append(delegation.progress.same_turns)
    assert counted == same_turns


def test_data_and_text_are_both_part_of_an_exchange() -> None:
    """The same text with other data is another reply."""
    first = begin_turn(asked(), {"text": "x", "data": 1}, NOW)
    again = begin_turn(replace(asked(), progress=replace(first, turn_intent_at=None)), {"text": "x", "data": 2}, NOW)
    assert (first.same_turns, again.same_turns) == (1, 1)


def converse(rules: Rules, questions: list[str], replies: list[str]) -> tuple[Delegation, Change, int]:
    """A question, a reply, the next question at once … until it ends or there is nothing more to say."""
    delegation, moment = a_delegation(), replace(at(), rules=rules)
    change = Change(after=delegation)
    for turn, words in enumerate(questions):
        task = a_question(words, said_at=f"t{turn}")
        change = transition(delegation, task, cause=Cause.REPLY if turn else Cause.POLL, moment=moment)
        delegation = change.after
        if change.outcome or turn >= len(replies):
            return delegation, change, turn
        delegation = replied(delegation, replies[turn])
    return delegation, change, len(questions)


def test_a_conversation_that_is_too_long_ends() -> None:
    """The question after the last permitted reply ends it FAILED; what the agent still does is cancelled."""
    numbers = [str(n) for n in range(30)]
    delegation, change, turns = converse(Rules(rounds=20), numbers, numbers)
    assert change.outcome is not None
    assert (change.outcome.state, change.outcome.reason) == (TaskState.FAILED, "conversation.too_long")
    assert turns == 20
    assert delegation.progress.abandoned
    assert '"state":"FAILED"' in change.note
    assert change.reached


def test_a_conversation_that_repeats_itself_ends() -> None:
    """The same question after the same reply, three times in a row."""
    _, change, turns = converse(Rules(same_turns=3), ["Which day?"] * 9, ["Monday"] * 9)
    assert change.outcome is not None
    assert change.outcome.reason == "conversation.repeats"
    assert turns == 3


def test_another_question_after_the_same_exchanges_goes_on() -> None:
    """Three times the same and then another question: the agent has moved."""
    _, change, _ = converse(Rules(same_turns=3), ["a", "a", "a", "b"], ["x"] * 3)
    assert change.outcome is None
    assert change.note


def test_a_round_begins_with_a_new_question_only() -> None:
    """At the limit a question that is merely shown again ends nothing."""
    sent = replied(asked(a_question(said_at=EARLY)))
    late = replace(sent.progress, turn=20)
    assert why_no_further_round(late, late, Rules(rounds=20)) is None
    change = hear(replace(sent, progress=late), a_question(said_at=EARLY), Cause.REPLY)
    assert change.outcome is None


@given(rounds=st.integers(1, 6), same=st.integers(1, 4), words=st.lists(st.sampled_from("ab"), min_size=9, max_size=9))
def test_every_conversation_ends(rounds: int, same: int, words: list[str]) -> None:
    """Whatever an agent asks and users say, there are no more replies than rounds."""
    delegation, change, turns = converse(Rules(rounds=rounds, same_turns=same), words, words[::-1])
    assert change.outcome is not None
    assert change.outcome.reason in (Reason.TOO_MANY_ROUNDS, Reason.REPEATS)
    assert turns <= rounds
    assert delegation.progress.turn == turns


# ---------------------------------------------------------------- any sequence

looks = st.lists(st.sampled_from(["look", "look", "next", "reply", "lag", "odd"]), max_size=25)


@given(events=looks, has_times=st.booleans())
def test_each_question_is_told_once_in_any_sequence(events: list[str], has_times: bool) -> None:
    """Looks, questions that follow each other, replies, replicas that lag behind, words that we do not know.

    Its questions differ in words, perhaps in time too; a replica that lags shows the present question's own status.
    """
    delegation, number, notes = a_delegation(), 1, list[str]()

    def shown(question: int) -> AgentTask:
        return a_question(f"Question {question}?", said_at=f"t{question:02}" if has_times else "")

    told = set()
    for event in ["look", *events]:
        before = delegation
        if event == "reply" and delegation.waits_for_reply:
            delegation = replied(delegation, f"answer {number}")
        elif event == "lag":
            delegation = (change := hear(delegation, a_task(WORKS))).after
            assert change.note == ""
            if has_times:  # without them what comes back cannot be told from what is asked anew
                notes.append(hear(delegation, shown(number)).note)
                delegation = hear(delegation, shown(number)).after
            else:
                delegation = replace(delegation, progress=before.progress)
        elif event == "odd":
            change = hear(delegation, replace(shown(number), state=None, raw_state="PAUSED"))
            delegation = change.after
            notes.append(change.note)
        else:
            number += event == "next"
            change = hear(delegation, shown(number))
            delegation = change.after
            notes.append(change.note)
            told.add(number)
    assert len([note for note in notes if note]) == len(told)


@given(ends=st.lists(st.sampled_from(TaskState), min_size=1, max_size=12))
def test_nothing_is_told_after_the_end(ends: list[TaskState]) -> None:
    """The first terminal state is the last word, whatever an agent says later."""
    delegation, outcomes = a_delegation(), []
    for state in ends:
        change = hear(delegation, a_question(f"{state}?", state=state))
        assert not (delegation.phase.is_settled and (change.note or change.outcome))
        delegation = replace(change.after, phase=Phase.SETTLED) if change.outcome else change.after
        outcomes += [change.outcome] if change.outcome else []
    first = [state for state in ends if state.is_terminal][:1]
    assert [outcome.state for outcome in outcomes] == first


def test_an_agent_that_rephrases_for_ever_is_heard_twenty_times() -> None:
    """Other words and another time at every look; a reply opens the next twenty."""
    progress = a_delegation(progress={"state": TaskState.INPUT_REQUIRED}).progress
    numbers = set()
    for look in range(100):
        task = a_task(TaskState.INPUT_REQUIRED, status_text=f"still {look}?", status_at=f"2026-01-01T00:00:{look:02d}Z")
        progress = replace(progress, question=hear_question(progress, task, TaskState.INPUT_REQUIRED, NOW))
        assert progress.question is not None
        numbers.add(progress.question.number)
    assert numbers == set(range(1, MOST_IN_TURN + 1))
    again = a_task(TaskState.INPUT_REQUIRED, status_text="and now?", status_at="2026-01-02T00:00:00Z")
    question = hear_question(replace(progress, turn=1), again, TaskState.INPUT_REQUIRED, NOW)
    assert question is not None
    assert question.number == MOST_IN_TURN + 1


def test_a_replica_that_shows_the_question_before_asks_nothing_new() -> None:
    """It lags by one: neither that question nor, afterwards, the present one again is new."""
    first = a_question("Which day?", said_at="2026-01-01T00:00:01.000000Z")
    second = a_question("Which hotel?", said_at="2026-01-01T00:00:02.000000Z")
    now = hear(replied(asked(first)), second).after
    behind = hear(now, first)
    again = hear(behind.after, second)
    assert [each.note for each in (behind, again)] == ["", ""]
    assert again.after.progress.question == now.progress.question
