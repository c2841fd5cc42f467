"""What may happen to a delegation, decided without a store, a clock or an agent."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.decide import (
    MOVED_AFTER,
    StartAction,
    adopted,
    choose_start,
    forget_intent,
    is_behind,
    is_leased,
    is_poisoned,
    look_up_came_back_empty,
    not_started,
    postpone,
    read_inputs,
    task_not_found,
    transition,
)
from delegation.endings import fail
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentPaused,
    AgentUnreachable,
    AuthenticationRefused,
    CallAmbiguous,
    CircuitOpen,
    CredentialUnavailable,
    NotTried,
)
from delegation.state import Brief, Cause, Phase, Reason, Rules, Watch
from tests.support.delegations import NOW, a_delegation, a_task, an_artifact, at

UNSETTLED = [Phase.OPENED, Phase.STARTING, Phase.WATCHING]
INTERRUPTED = {TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED}
TERMINAL = {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED}


# ---------------------------------------------------------------- transition


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("phase", UNSETTLED)
def test_an_answer_is_applied_in_every_phase_before_the_end(phase: Phase, state: TaskState) -> None:
    """A terminal state is the end with an outcome, any other is watched further; nothing depends on the phase."""
    change = transition(a_delegation(phase), a_task(state), cause=Cause.POLL, moment=at())
    assert change.after.state is state
    assert change.after.progress.agent_task_id == "t1"
    assert change.after.progress.intent_at is None
    assert (change.outcome is not None) == (state in TERMINAL)
    if change.outcome:
        assert change.outcome.state is state
        assert change.outcome.reason is None
        assert change.counts == (f"settled:{state}:poll",)
    else:
        assert change.after.phase is Phase.WATCHING
        assert (change.after.timers.poll_at or 0) > NOW


@pytest.mark.parametrize("state", [*TaskState, None])
@pytest.mark.parametrize("phase", [Phase.SETTLED, Phase.RELEASED])
def test_terminal_is_final(phase: Phase, state: TaskState | None) -> None:
    """Whatever arrives after the end changes nothing, tells nothing and counts nothing (law 6)."""
    ended = a_delegation(phase)
    change = transition(ended, a_task(state), cause=Cause.PUSH, moment=at())
    assert change.after is ended
    assert (change.outcome, change.history, change.counts) == (None, (), ())


@pytest.mark.parametrize("phase", UNSETTLED)
def test_an_unknown_state_keeps_the_last_known_one(phase: Phase) -> None:
    """It is not terminal: watching and the deadline go on, and the spelling is in the history."""
    before = a_delegation(phase, progress={"state": TaskState.WORKING})
    change = transition(before, a_task(None, raw_state="TASK_STATE_PAUSED"), cause=Cause.POLL, moment=at())
    assert change.outcome is None
    assert change.after.state is TaskState.WORKING
    assert [entry.text for entry in change.history] == ["unknown_state 'TASK_STATE_PAUSED'"]
    assert (change.after.timers.poll_at or 0) > NOW


def test_news_begins_the_polls_anew_and_is_told() -> None:
    """A new state, text or timestamp resets the growing interval, stamps the record and is a line of history."""
    before = a_delegation(progress={"state": TaskState.SUBMITTED, "polls": 7})
    change = transition(before, a_task(status_text="on it"), cause=Cause.POLL, moment=at(NOW + 5))
    assert change.after.progress.polls == 0
    assert change.after.progress.updated_at == NOW + 5
    assert [(e.cause, e.state, e.text) for e in change.history] == [(Cause.POLL, TaskState.WORKING, "on it")]


def test_no_news_only_makes_the_next_look_later() -> None:
    """The same answer once more is no line of history and leaves the time of the last change."""
    before = a_delegation(progress={"state": TaskState.WORKING, "polls": 2, "updated_at": NOW - 9})
    change = transition(before, a_task(), cause=Cause.POLL, moment=at())
    assert change.after.progress.polls == 3
    assert change.after.progress.updated_at == NOW - 9
    assert change.history == ()


def test_the_first_answer_is_told_even_when_it_says_nothing_new() -> None:
    """That the message was sent is part of the story."""
    change = transition(a_delegation(), a_task(TaskState.SUBMITTED), cause=Cause.SENT, moment=at())
    assert len(change.history) == 1


def test_an_answer_ends_every_count_of_failures() -> None:
    """Failures, lost answers and unfinished attempts are counted in a row."""
    failing = {"failures": 4, "failing_since": NOW - 9, "lost_since": NOW - 9, "lost_count": 2, "attempts": 3}
    change = transition(a_delegation(progress=failing), a_task(), cause=Cause.POLL, moment=at())
    progress = change.after.progress
    assert (progress.failures, progress.failing_since, progress.lost_since) == (0, None, None)
    assert (progress.lost_count, progress.attempts) == (0, 0)


@pytest.mark.parametrize("state", sorted(INTERRUPTED))
def test_a_question_is_kept_in_parts_until_it_is_answered(state: TaskState) -> None:
    """The parts of a status message are kept while the agent waits for somebody, and only then."""
    parts = ({"text": "which day?"}, {"data": {"days": [1, 2]}})
    asked = transition(a_delegation(), a_task(state, status_parts=parts), cause=Cause.PUSH, moment=at()).after
    assert asked.progress.status_parts == parts
    answered = transition(asked, a_task(status_parts=parts), cause=Cause.PUSH, moment=at()).after
    assert answered.progress.status_parts == ()


def test_nothing_looks_at_an_interrupted_one_that_is_not_watched() -> None:
    """``off`` polls while the agent works and leaves a question alone; only the deadline stays."""
    off = a_delegation(progress={"watch": Watch.OFF})
    assert transition(off, a_task(), cause=Cause.POLL, moment=at()).after.timers.poll_at is not None
    asked = transition(off, a_task(TaskState.INPUT_REQUIRED), cause=Cause.POLL, moment=at()).after
    assert asked.timers.poll_at is None
    assert asked.timers.deadline_at is not None


def test_the_first_agent_task_id_stays() -> None:
    """No later answer can move a delegation to another agent task."""
    change = transition(a_delegation(), a_task(id="other"), cause=Cause.POLL, moment=at())
    assert change.after.progress.agent_task_id == "t1"


def test_a_minimal_task_completes_with_an_empty_text() -> None:
    """C094: no artifact, no history, no message and no timestamp is still an end."""
    change = transition(a_delegation(), a_task(TaskState.COMPLETED), cause=Cause.POLL, moment=at())
    assert change.outcome is not None
    assert (change.outcome.text, change.outcome.artifacts, change.outcome.truncated) == ("", (), False)
    assert change.content == ()


def test_a_failure_tells_why_and_keeps_what_there_is() -> None:
    """C027: the text of a failed one is the status message; a partial artifact is kept and is not the result."""
    task = a_task(TaskState.FAILED, status_text="quota used up", artifacts=(an_artifact("partial"),))
    change = transition(a_delegation(), task, cause=Cause.PUSH, moment=at())
    assert change.outcome is not None
    assert change.outcome.text == "quota used up"
    assert [artifact["id"] for artifact in change.outcome.artifacts] == ["a1"]
    assert change.content == ({"id": "a1", "name": "a1", "parts": [{"text": "partial"}]},)


def test_the_result_is_the_artifacts_text_before_anything_else() -> None:
    """Artifacts, else the status message, else the last thing the agent said."""

    def text(**changes: Any) -> str:
        outcome = transition(
            a_delegation(), a_task(TaskState.COMPLETED, **changes), cause=Cause.POLL, moment=at()
        ).outcome
        assert outcome is not None
        return outcome.text

    everything = {"artifacts": (an_artifact("one"), an_artifact("two")), "status_text": "s", "last_agent_text": "h"}
    assert text(**everything) == "one\ntwo"
    assert text(status_text="s", last_agent_text="h") == "s"
    assert text(last_agent_text="h") == "h"


def test_what_is_left_at_the_agent_is_removed_soon_after_the_end() -> None:
    """A push config is cleaned up from now on; where there is none, or no agent task, nothing is left to do."""
    done = a_task(TaskState.COMPLETED)
    with_config = a_delegation(progress={"push_config": True})
    assert transition(with_config, done, cause=Cause.POLL, moment=at()).after.timers.cleanup_at == NOW
    assert transition(a_delegation(), done, cause=Cause.POLL, moment=at()).after.timers.cleanup_at is None
    assert fail(a_delegation(Phase.OPENED), Reason.AGENT_REFUSED, "", cause=Cause.SENT, moment=at()).after.timers == (
        a_delegation(Phase.OPENED).timers
    )


# ---------------------------------------------------------------- claims


@pytest.mark.parametrize("claimed", TaskState)
@pytest.mark.parametrize("state", TaskState)
def test_which_answer_is_behind_its_claim(claimed: TaskState, state: TaskState) -> None:
    """Any other state than the claimed one, unless it is terminal; SUBMITTED claims nothing."""
    behind = claimed is not TaskState.SUBMITTED and claimed is not state and state not in TERMINAL
    assert is_behind(claimed, state) is behind
    assert not is_behind(None, state)


def test_an_answer_behind_its_claim_is_asked_for_again_after_1_2_and_4_seconds() -> None:
    """Then the claim is dropped as a lie, and the usual looks go on."""
    looked, gaps = a_delegation(claimed=TaskState.COMPLETED, progress={"state": TaskState.WORKING}), []
    for _ in range(4):
        looked = transition(looked, a_task(), cause=Cause.PUSH, moment=at()).after
        gaps.append(looked.timers.refetch_at and looked.timers.refetch_at - NOW)
    assert gaps == [1.0, 2.0, 4.0, None]
    assert looked.claimed is None
    assert looked.progress.refetches == 0


def test_an_answer_that_shows_the_claim_ends_the_ladder() -> None:
    """The claim is fulfilled; the next one begins with one second again."""
    before = a_delegation(claimed=TaskState.WORKING, progress={"refetches": 2})
    after = transition(before, a_task(), cause=Cause.PUSH, moment=at()).after
    assert (after.claimed, after.progress.refetches, after.timers.refetch_at) == (None, 0, None)


def test_a_terminal_answer_ends_the_ladder_whatever_was_claimed() -> None:
    """The end needs no second look."""
    before = a_delegation(claimed=TaskState.WORKING, timers={"refetch_at": NOW + 1})
    change = transition(before, a_task(TaskState.FAILED), cause=Cause.PUSH, moment=at())
    assert change.outcome is not None
    assert change.after.claimed is None


def test_a_submitted_claim_asks_for_nothing() -> None:
    """Whatever the answer is, it is not older than the very first state."""
    after = transition(a_delegation(claimed=TaskState.SUBMITTED), a_task(), cause=Cause.PUSH, moment=at()).after
    assert (after.claimed, after.timers.refetch_at) == (None, None)


# ---------------------------------------------------------------- failing calls


def test_failing_calls_back_off_up_to_a_cap() -> None:
    """2, 4, 8 … 60 s in the middle of their spread; counted from the first failure, which alone is told."""
    failing, waits, told = a_delegation(), [], []
    for _ in range(8):
        change = postpone(failing, CallAmbiguous("HTTP 500"), cause=Cause.POLL, moment=at())
        failing = change.after
        waits.append((failing.timers.poll_at or 0) - NOW)
        told.append(len(change.history))
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    assert told == [1, *[0] * 7]
    assert (failing.progress.failures, failing.progress.failing_since) == (8, NOW)
    assert failing.timers.refetch_at is None


@pytest.mark.parametrize(
    ("retry_after_s", "wait_s"),
    [
        (30.0, 30.0),
        (0.0, 2.0),
        (-5.0, 2.0),
        (999_999.0, 300.0),
        (float("inf"), 300.0),
        (float("nan"), 2.0),
        (None, 2.0),
    ],
)
def test_retry_after_is_honoured_within_reason(retry_after_s: float | None, wait_s: float) -> None:
    """Never sooner than our own back-off, never later than five minutes, whatever the agent writes."""
    change = postpone(a_delegation(), AgentBusy("429", retry_after_s), cause=Cause.POLL, moment=at())
    assert change.after.timers.poll_at == NOW + wait_s


def test_a_postponed_step_was_no_crash() -> None:
    """Attempts count steps that began and never ended."""
    change = postpone(a_delegation(progress={"attempts": 4}), CallAmbiguous(""), cause=Cause.POLL, moment=at())
    assert change.after.progress.attempts == 0


def test_an_agent_that_stays_away_before_the_start_ends_the_delegation() -> None:
    """Unreachable for 15 minutes from the first failure: FAILED, agent.unavailable; not a second earlier."""
    waiting = not_started(a_delegation(Phase.STARTING, progress={"intent_at": NOW}), AgentUnreachable("no route"), at())
    assert waiting.outcome is None
    assert waiting.after.progress.intent_at is None
    early = not_started(waiting.after, AgentUnreachable("no route"), at(NOW + 899))
    assert early.outcome is None
    late = not_started(early.after, AgentUnreachable("no route"), at(NOW + 900))
    assert late.outcome is not None
    assert (late.outcome.state, late.outcome.reason) == (TaskState.FAILED, "agent.unavailable")


def test_a_watched_one_waits_for_its_agent_until_the_deadline() -> None:
    """Once the agent task exists, an unreachable agent is only waited for."""
    before = a_delegation(progress={"failures": 500, "failing_since": NOW - 80_000})
    assert postpone(before, AgentUnreachable(""), cause=Cause.POLL, moment=at()).outcome is None


def test_three_lost_answers_over_a_minute_are_a_lost_agent_task() -> None:
    """0, 30 and 60 s: only the third, late enough, is believed."""
    change = task_not_found(a_delegation(), cause=Cause.POLL, moment=at())
    for seconds in (30, 59.9, 60):
        assert change.outcome is None
        change = task_not_found(change.after, cause=Cause.POLL, moment=at(NOW + seconds))
    assert change.outcome is not None
    assert change.outcome.reason == "agent_task.lost"


def test_two_lost_answers_are_never_enough() -> None:
    """However far apart they are."""
    first = task_not_found(a_delegation(), cause=Cause.POLL, moment=at())
    assert first.after.timers.poll_at == NOW + 30
    assert task_not_found(first.after, cause=Cause.POLL, moment=at(NOW + 5000)).outcome is None


def test_an_answer_in_between_finds_the_agent_task_again() -> None:
    """Another replica may not know it yet; three in a row are needed."""
    lost = task_not_found(a_delegation(), cause=Cause.POLL, moment=at()).after
    lost = task_not_found(lost, cause=Cause.POLL, moment=at(NOW + 30)).after
    found = transition(lost, a_task(), cause=Cause.POLL, moment=at(NOW + 50)).after
    assert task_not_found(found, cause=Cause.POLL, moment=at(NOW + 80)).outcome is None


# ---------------------------------------------------------------- ambiguous sends


def test_a_start_step_sends_once_and_looks_afterwards() -> None:
    """With an intent on record a send may have left: then the agent is asked first."""
    assert choose_start(a_delegation(Phase.OPENED), at()) is StartAction.SEND
    assert choose_start(a_delegation(Phase.STARTING), at()) is StartAction.SEND
    intended = a_delegation(Phase.STARTING, progress={"intent_at": NOW})
    assert choose_start(intended, at()) is StartAction.LOOK_UP
    leased = replace(intended, timers=replace(intended.timers, lease_until=NOW + 1))
    assert choose_start(leased, at()) is StartAction.NOTHING
    assert choose_start(leased, at(NOW + 1)) is StartAction.LOOK_UP
    for phase in (Phase.WATCHING, Phase.SETTLED, Phase.RELEASED):
        assert choose_start(a_delegation(phase), at()) is StartAction.NOTHING


def test_an_empty_list_is_believed_the_second_time_and_late_enough() -> None:
    """Sure after a lease and a call deadline (75 s) from the intent: by then nobody can still deliver it."""
    intended = a_delegation(Phase.STARTING, progress={"intent_at": NOW})
    first = look_up_came_back_empty(intended, at(NOW + 3))
    assert first.after.progress.intent_at == NOW
    assert first.after.timers.poll_at == NOW + 75
    early = look_up_came_back_empty(first.after, at(NOW + 74.9))
    assert early.after.progress.intent_at == NOW
    assert early.after.timers.poll_at == NOW + 75.9
    late = look_up_came_back_empty(early.after, at(NOW + 75.9))
    assert late.after.progress.intent_at is None
    assert late.after.timers.poll_at == NOW + 75.9
    assert late.counts == ("sends_repeated",)


def test_one_late_look_is_not_enough() -> None:
    """A list may lag behind; a second look follows in a second."""
    intended = a_delegation(Phase.STARTING, progress={"intent_at": NOW})
    first = look_up_came_back_empty(intended, at(NOW + 500))
    assert first.after.progress.intent_at == NOW
    assert first.after.timers.poll_at == NOW + 501


def test_an_empty_list_is_an_answer() -> None:
    """The agent is there: what failed before it was not "in a row" with what fails after it."""
    intended = a_delegation(Phase.STARTING, progress={"intent_at": NOW, "failures": 3, "failing_since": NOW})
    progress = look_up_came_back_empty(intended, at(NOW + 3)).after.progress
    assert (progress.failures, progress.failing_since) == (0, None)


def test_a_forgotten_intent_keeps_the_message_id() -> None:
    """What is sent again is the same message."""
    intended = a_delegation(Phase.STARTING, progress={"intent_at": NOW, "empty_lookups": 2})
    forgotten = forget_intent(intended, at()).after
    assert forgotten.message_id == intended.message_id
    assert forgotten.progress.empty_lookups == 0
    assert choose_start(forgotten, at()) is StartAction.SEND


def test_a_task_found_in_the_list_is_adopted_and_fetched() -> None:
    """Its id is ours before anything else happens; a list may leave out what it made."""
    intended = a_delegation(Phase.STARTING, progress={"intent_at": NOW - 9, "failures": 2, "failing_since": NOW - 9})
    change = adopted(intended, a_task(TaskState.COMPLETED), at())
    assert change.outcome is None
    assert change.after.phase is Phase.WATCHING
    assert (change.after.progress.agent_task_id, change.after.progress.intent_at) == ("t1", None)
    assert change.after.timers.poll_at == NOW


# ---------------------------------------------------------------- steps that crash


def test_many_steps_that_never_ended_are_poison() -> None:
    """Five in a row; a crash may be chance, five are in the delegation."""
    assert not is_poisoned(a_delegation(progress={"attempts": 4}), Rules())
    assert is_poisoned(a_delegation(progress={"attempts": 5}), Rules())


def test_a_lease_ends_at_its_time() -> None:
    """At that very time somebody else may begin."""
    assert not is_leased(a_delegation(), NOW)
    assert is_leased(a_delegation(timers={"lease_until": NOW + 0.001}), NOW)
    assert not is_leased(a_delegation(timers={"lease_until": NOW}), NOW)


# ---------------------------------------------------------------- texts


def test_what_earlier_links_pipe_in_becomes_further_parts() -> None:
    """A string is text, an outcome is its text, other JSON is data, and null says nothing."""
    outcome = {"delegation_id": "d0", "state": "COMPLETED", "text": "Lisbon", "agent": "cities"}
    brief = Brief(goal="g", inputs=("hello", outcome, {"days": 3}, [1], 0, None))
    assert read_inputs(brief) == (("hello", "Lisbon"), ({"days": 3}, [1], 0))


def test_the_spread_keeps_back_off_within_a_fifth() -> None:
    """Delegations that failed together do not come back together."""
    waits = [
        (postpone(a_delegation(), CallAmbiguous(""), cause=Cause.POLL, moment=at(rand=rand)).after.timers.poll_at or 0)
        for rand in (0.0, 0.25, 0.5, 0.75, 0.999)
    ]
    assert NOW + 1.6 <= waits[0] < waits[-1] <= NOW + 2.4
    assert all(one < other for one, other in pairwise(waits))


GONE = AgentUnreachable("no connection")


@pytest.mark.parametrize(
    "error",
    [
        CallAmbiguous("HTTP 500"),
        AgentBusy("HTTP 429"),
        AuthenticationRefused("HTTP 401"),
        NotTried("the lease ran out before the call"),
        CredentialUnavailable("env:X is not set"),
        CircuitOpen("open"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_work_under_way_keeps_its_interface_whatever_its_calls_come_to(error: AgentError) -> None:
    """Only where nobody listens any more may the card name another place; a timeout or a crash is no such proof."""
    before = a_delegation(progress={"interface": "JSONRPC 1.0 http://a/rpc", "failures": 50})
    after = postpone(before, error, cause=Cause.POLL, moment=at(NOW)).after
    assert after.progress.interface == before.progress.interface


def test_an_interface_that_nobody_serves_any_more_is_looked_up_on_the_card() -> None:
    """After a few refused connections in a row, not after one."""
    delegation = a_delegation(progress={"interface": "JSONRPC 1.0 http://a/rpc"})
    kept = []
    for _ in range(MOVED_AFTER):
        delegation = postpone(delegation, GONE, cause=Cause.POLL, moment=at(NOW)).after
        kept.append(bool(delegation.progress.interface))
    assert kept == [True] * (MOVED_AFTER - 1) + [False]


@pytest.mark.parametrize("unclear", ["intent_at", "turn_intent_at"])
def test_whoever_may_have_been_told_something_is_asked_about_it(unclear: str) -> None:
    """A look-up elsewhere would come back empty, and the same would be sent twice (law 7)."""
    before = a_delegation(progress={"interface": "JSONRPC 1.0 http://a/rpc", "failures": 50, unclear: NOW})
    after = postpone(before, GONE, cause=Cause.SENT, moment=at(NOW)).after
    assert after.progress.interface == before.progress.interface


def test_a_pause_is_not_held_against_the_agent() -> None:
    """However long an operator took to accept the card, the agent has its whole patience after it, and before it."""
    patience_s = at(NOW).rules.unavailable_after_s
    paused = a_delegation(
        Phase.OPENED, progress={"failures": 9, "failing_since": NOW - 2 * patience_s, "failing_code": AgentPaused.code}
    )
    still = not_started(paused, AgentPaused("moved", 30.0), at(NOW))
    assert (still.outcome, still.after.progress.failing_since) == (None, NOW - 2 * patience_s)
    away = not_started(paused, GONE, at(NOW))
    assert (away.outcome, away.after.progress.failing_since) == (None, NOW)
    begins = a_delegation(Phase.OPENED, progress={"failures": 9, "failing_since": NOW - 5, "failing_code": GONE.code})
    assert not_started(begins, AgentPaused("moved", 30.0), at(NOW)).after.progress.failing_since == NOW
