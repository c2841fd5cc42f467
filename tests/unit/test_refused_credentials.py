"""Credentials that an agent refuses, or that we lack: nothing is used up, given up or cleaned up by it."""

from __future__ import annotations

from typing import Any

import pytest

from delegation.agent_task import AgentTaskId, TaskState
from delegation.agents import withdraw
from delegation.decide import AUTH_RETRY_MAX_S, not_started, postpone
from delegation.endings import cancel_failed, was_reached
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentPaused,
    AgentRefused,
    AgentUnreachable,
    AuthenticationRefused,
    CredentialUnavailable,
)
from delegation.state import CancelAnswer, Cause, Phase, Reason
from delegation.turns import reply_not_sent
from tests.support.delegations import NOW, a_delegation, at

REFUSED = AuthenticationRefused("GetTask: HTTP 401: authentication")
MISSING = CredentialUnavailable("env:TOKEN is empty or not set")


def test_a_refused_look_is_put_off_for_one_to_five_minutes() -> None:
    """Longer each time, the state kept, watched on; told once in the history."""
    delegation = a_delegation(progress={"state": TaskState.WORKING})
    gaps = []
    for number in range(8):
        change = postpone(delegation, REFUSED, cause=Cause.POLL, moment=at(unavailable_after_s=1))
        assert (change.after.phase, change.after.state, change.outcome) == (Phase.WATCHING, TaskState.WORKING, None)
        assert bool(change.history) is (number == 0)
        assert change.reached is True
        gaps.append((change.after.timers.poll_at or 0) - NOW)
        delegation = change.after
    assert gaps[0] == 60
    assert gaps == sorted(gaps)
    assert gaps[-1] == AUTH_RETRY_MAX_S
    assert "authentication" in postpone(a_delegation(), REFUSED, cause=Cause.POLL, moment=at()).history[0].text


@pytest.mark.parametrize("error", [REFUSED, MISSING])
def test_a_reply_that_did_not_leave_waits(error: AgentError) -> None:
    """Its turn is taken back, and it is due again with the next look."""
    delegation = a_delegation(progress={"turn": 1, "turn_intent_at": NOW, "same_turns": 1})
    change = reply_not_sent(delegation, error, at())
    assert (change.after.progress.turn, change.after.progress.turn_intent_at) == (0, None)
    assert change.after.timers.reply_at == change.after.timers.poll_at
    assert (change.after.timers.reply_at or 0) > NOW


@pytest.mark.parametrize("error", [REFUSED, MISSING])
def test_a_cancel_is_tried_again_until_its_deadline(error: AgentError) -> None:
    """Not "refused": the agent has not said that it cannot."""
    delegation = a_delegation(cancel_until=NOW + 60, timers={"cancel_at": NOW})
    change = cancel_failed(delegation, error, at())
    assert NOW < (change.after.timers.cancel_at or 0) <= NOW + 60
    assert change.after.progress.cancel_answer is CancelAnswer.NONE
    assert change.outcome is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MISSING, Reason.AUTH_FAILED),
        (AgentUnreachable("away"), Reason.AGENT_UNAVAILABLE),
        (AgentBusy("429"), Reason.AGENT_UNAVAILABLE),
    ],
)
def test_a_start_without_credentials_fails_in_time_for_that_reason(error: AgentError, reason: Reason) -> None:
    """Tried again until `unavailable_after`; the reason tells our credential from the agent's absence."""
    waiting = not_started(a_delegation(Phase.OPENED), error, at(unavailable_after_s=900))
    assert (waiting.outcome, waiting.after.phase) == (None, Phase.OPENED)
    given_up = not_started(waiting.after, error, at(NOW + 901, unavailable_after_s=900))
    assert given_up.outcome is not None
    assert (given_up.outcome.state, given_up.outcome.reason) == (TaskState.FAILED, reason)
    assert error.detail in given_up.outcome.text


def test_a_start_that_waits_for_an_operator_has_no_such_limit() -> None:
    """Until the card is accepted, or the deadline."""
    error = AgentPaused("its card has changed", 30.0)
    waiting = not_started(a_delegation(Phase.OPENED), error, at(unavailable_after_s=900))
    assert not_started(waiting.after, error, at(NOW + 10_000, unavailable_after_s=900)).outcome is None


@pytest.mark.parametrize(("error", "reached"), [(REFUSED, True), (MISSING, None), (AgentUnreachable("away"), False)])
def test_only_an_agent_that_did_not_answer_counts_as_away(error: AgentError, reached: bool | None) -> None:
    """The breaker opens for none of ours."""
    assert was_reached(error) is reached


class Refusing:
    """An agent whose every call ends alike."""

    def __init__(self, error: AgentError) -> None:
        self.error = error
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*_: object, **__: object) -> None:
            self.asked.append(name)
            raise self.error

        return call


@pytest.mark.parametrize("error", [REFUSED, MISSING])
@pytest.mark.parametrize("task_id", [None, "t1"])
def test_what_could_not_be_taken_back_is_not_cleaned_up(error: AgentError, task_id: str | None) -> None:
    """A refusal of the agent's own is as good as done; of our credentials it is not, and the clean-up comes again."""
    progress = {"agent_task_id": task_id and AgentTaskId(task_id), "push_config": True, "abandoned": True}
    delegation = a_delegation(Phase.SETTLED, progress=progress)
    with pytest.raises(type(error)):
        withdraw(Refusing(error), delegation, call_s=1.0)
    done = Refusing(AgentRefused("no"))
    withdraw(done, delegation, call_s=1.0)
    assert done.asked


def test_a_refusal_of_our_credentials_is_counted() -> None:
    """Each of them; other failures are not."""
    delegation = a_delegation()
    for _ in range(2):
        change = postpone(delegation, REFUSED, cause=Cause.POLL, moment=at())
        assert change.counts == ("credentials_refused",)
        delegation = change.after
    assert postpone(delegation, MISSING, cause=Cause.POLL, moment=at()).counts == ()
