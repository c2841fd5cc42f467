"""How a delegation ends: by the agent's word, our verdict, a cancel; and what is kept, and left to remove."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import AgentMessage, AgentTaskId, Artifact, ContextId, TaskState
from delegation.decide import transition
from delegation.endings import (
    MOST_NAMED,
    answered_directly,
    cancel_accepted,
    cancel_failed,
    cancel_refused,
    cancel_unconfirmed,
    cancel_unsent,
    cleaned_up,
    expire,
    fail,
    left_for_later,
    receipt,
    settle,
)
from delegation.errors import AgentBusy, AgentError, AgentRefused, AgentTaskNotFound, AgentUnreachable, CallAmbiguous
from delegation.record import dump_json, encode_change
from delegation.state import CancelAnswer, Cause, Change, Delegation, Phase, Reason, Watch
from tests.support.delegations import NOW, a_delegation, a_task, an_artifact, at


def test_a_direct_message_is_the_result() -> None:
    """A Message instead of a Task: COMPLETED with its text, nothing to watch and nothing to remove."""
    sent = a_delegation(Phase.STARTING, progress={"intent_at": NOW, "push_config": True})
    change = answered_directly(sent, AgentMessage(text="Paris", context_id=ContextId("x9")), at())
    assert change.outcome is not None
    assert (change.outcome.state, change.outcome.text) == (TaskState.COMPLETED, "Paris")
    assert (change.outcome.agent_task_id, change.outcome.context_id) == (None, "x9")
    assert change.after.timers.cleanup_at is None


def test_the_deadline_ends_it_and_abandons_the_agent_task() -> None:
    """FAILED, deadline.exceeded; what may still run at the agent is cancelled from now on."""
    change = expire(a_delegation(), at())
    assert change.outcome is not None
    assert (change.outcome.state, change.outcome.reason) == (TaskState.FAILED, "deadline.exceeded")
    assert change.after.progress.abandoned
    assert change.after.timers.cleanup_at == NOW
    assert expire(a_delegation(Phase.OPENED), at()).after.timers.cleanup_at is None


@pytest.mark.parametrize("char", ["a", "é", "€", "🛫"])
def test_a_long_text_is_cut_between_characters_and_kept_whole_beside_the_record(char: str) -> None:
    """64 KiB travel in messages, marked truncated; the whole text is in the content."""
    text = "x" + char * 40_000
    cut = settle(a_delegation(), TaskState.COMPLETED, cause=Cause.POLL, moment=at(), text=text)
    assert cut.outcome is not None
    assert cut.outcome.truncated == (len(text.encode()) > 65536)
    assert len(cut.outcome.text.encode()) <= 65536
    assert text.startswith(cut.outcome.text)
    assert len(cut.outcome.text.encode()) > 65532 or not cut.outcome.truncated
    assert [part["text"] for kept in cut.content for part in kept["parts"]] == ([text] if cut.outcome.truncated else [])


def test_a_text_of_exactly_the_limit_is_whole() -> None:
    """The limit itself still fits."""
    change = settle(a_delegation(), TaskState.COMPLETED, cause=Cause.POLL, moment=at(), text="x" * 65536)
    assert change.outcome is not None
    assert not change.outcome.truncated


def test_a_long_reason_beside_artifacts_is_kept_whole_too() -> None:
    """The artifacts do not hold a failed one's text, so it is kept beside them."""
    task = a_task(TaskState.FAILED, status_text="x" * 70_000, artifacts=(an_artifact("partial"),))
    change = transition(a_delegation(), task, cause=Cause.POLL, moment=at())
    assert [kept["parts"][0]["text"] for kept in change.content] == ["partial", "x" * 70_000]


def test_a_long_result_is_not_kept_twice() -> None:
    """Where the text is the artifacts' own, their parts hold the whole of it."""
    task = a_task(TaskState.COMPLETED, artifacts=(an_artifact("y" * 70_000),))
    change = transition(a_delegation(), task, cause=Cause.POLL, moment=at())
    assert change.outcome is not None
    assert change.outcome.truncated
    assert len(change.content) == 1


@pytest.mark.parametrize("length", [10, 70_000])
def test_lone_surrogates_do_not_break_the_record(length: int) -> None:
    """Agents can write them in JSON; neither cutting nor storing chokes on them."""
    task = a_task(TaskState.FAILED, status_text="\ud800" * length)
    before = a_delegation()
    change = transition(before, task, cause=Cause.POLL, moment=at())
    stored = [*encode_change(before, change.after).values(), dump_json(change.content)]
    stored += [dump_json([entry.text]) for entry in change.history]
    assert all(value.isascii() for value in stored)


def test_cleaning_up_is_tried_again_for_a_day() -> None:
    """With back-off from the end on; then the config stays where it is, its token is dead anyway."""
    ended = a_delegation(Phase.SETTLED, progress={"updated_at": NOW}, timers={"cleanup_at": NOW})
    again = left_for_later(ended, at(NOW + 86_399)).after
    assert again.timers.cleanup_at == NOW + 86_401
    assert left_for_later(again, at(NOW + 86_401)).after.timers.cleanup_at is None


def test_a_clean_agent_needs_no_further_step() -> None:
    """Neither config nor abandoned task, and no timer."""
    after = cleaned_up(a_delegation(Phase.SETTLED, progress={"push_config": True, "abandoned": True})).after
    assert (after.progress.push_config, after.progress.abandoned, after.timers.cleanup_at) == (False, False, None)


# ---------------------------------------------------------------- artifacts


def sized(name: str, size: int) -> Artifact:
    return Artifact(id=name, name=f"{name}.csv", media_type="text/csv", size=size, parts=({"text": name},))


def settled_with(artifacts: tuple[Artifact, ...], limit: int = 100) -> Change:
    task = a_task(TaskState.COMPLETED, artifacts=artifacts)
    return transition(a_delegation(), task, cause=Cause.POLL, moment=at(artifact_bytes=limit))


def test_what_does_not_fit_is_left_out_whole_and_marked() -> None:
    """With its size, and how to ask the agent for it again; what comes after it and fits is kept."""
    change = settled_with((sized("a", 60), sized("b", 41), sized("c", 40)))
    assert [kept["parts"] for kept in change.content] == [[{"text": "a"}], [], [{"text": "c"}]]
    again = {"agent": "flights", "method": "GetTask", "id": "t1"}
    assert change.content[1] == {
        "id": "b",
        "name": "b.csv",
        "parts": [],
        "omitted": True,
        "size": 41,
        "fetch_again": again,
    }
    assert change.outcome is not None
    assert [(each["id"], each.get("omitted", False)) for each in change.outcome.artifacts] == [
        ("a", False),
        ("b", True),
        ("c", False),
    ]


def test_exactly_the_limit_fits() -> None:
    """And one byte more does not."""
    assert "omitted" not in str(settled_with((sized("a", 60), sized("b", 40))).content)
    assert "omitted" in str(settled_with((sized("a", 60), sized("b", 41))).content)


@given(sizes=st.lists(st.integers(0, 200), max_size=12), limit=st.integers(0, 300))
def test_nothing_is_cut_silently(sizes: list[int], limit: int) -> None:
    """Every artifact is there, whole or marked, in order; what is kept is within the limit."""
    artifacts = tuple(sized(f"a{n}", size) for n, size in enumerate(sizes))
    change = settled_with(artifacts, limit)
    assert [kept["id"] for kept in change.content] == [artifact.id for artifact in artifacts]
    kept = [kept for kept in change.content if not kept.get("omitted")]
    assert [each["parts"] for each in kept] == [[{"text": each["id"]}] for each in kept]
    assert sum(sizes[int(each["id"][1:])] for each in kept) <= limit
    assert all(each["size"] == sizes[int(each["id"][1:])] for each in change.content if each.get("omitted"))
    assert change.outcome is not None
    assert [each["size"] for each in change.outcome.artifacts] == sizes


def test_an_outcome_names_a_hundred_artifacts_at_most() -> None:
    """The record has them all."""
    change = settled_with(tuple(sized(str(n), 1) for n in range(MOST_NAMED + 20)), limit=1000)
    assert change.outcome is not None
    assert (len(change.outcome.artifacts), len(change.content)) == (MOST_NAMED, MOST_NAMED + 20)


def test_a_message_with_more_than_text_keeps_its_parts() -> None:
    """Data in a direct answer is an artifact of its own."""
    parts: tuple[dict[str, Any], ...] = ({"text": "here"}, {"data": {"price": 1}})
    message = AgentMessage(text="here", context_id=ContextId("x"), parts=parts)
    change = answered_directly(a_delegation(Phase.STARTING), message, at())
    assert change.content == ({"id": "message", "name": "message", "parts": list(parts)},)
    assert change.outcome is not None
    assert change.outcome.artifacts[0]["size"] == len(json.dumps(parts))


# ---------------------------------------------------------------- cancelling


def wished(phase: Phase = Phase.WATCHING, **changes: Any) -> Delegation:
    """Somebody wants it cancelled, by NOW + 60."""
    timers = {"cancel_at": NOW, **changes.pop("timers", {})}
    return a_delegation(phase, cancel_until=NOW + 60, cancel_reason="too slow", timers=timers, **changes)


def outcome_of(change: Change) -> tuple[str, str | None, str]:
    assert change.outcome is not None
    return change.outcome.state.value, change.outcome.reason, change.outcome.text


def test_what_was_never_sent_is_cancelled_at_once() -> None:
    """CANCELED without a reason of ours; nothing is left at the agent."""
    change = cancel_unsent(wished(Phase.OPENED), at())
    assert outcome_of(change) == ("CANCELED", None, "too slow")
    assert change.after.timers.cleanup_at is None
    assert change.reached is None


def test_an_agent_that_cancels_ends_it() -> None:
    """By its word: CANCELED, and no reason of ours; its own text where it says something about it."""
    change = transition(
        wished(), a_task(TaskState.CANCELED, status_text="as you wish"), cause=Cause.CANCEL, moment=at()
    )
    assert outcome_of(change) == ("CANCELED", None, "as you wish")
    assert change.counts == ("settled:CANCELED:cancel",)


def test_what_it_said_before_is_no_word_about_the_end() -> None:
    """Some servers leave the old status message; a question that is dead must not be told again."""
    asking = wished(progress={"state": TaskState.INPUT_REQUIRED, "status_text": "Which month?"})
    ended = a_task(TaskState.CANCELED, status_text="Which month?")
    assert outcome_of(transition(asking, ended, cause=Cause.CANCEL, moment=at())) == ("CANCELED", None, "too slow")


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED, TaskState.REJECTED])
def test_an_end_that_won_the_race_keeps_its_result(state: TaskState) -> None:
    """The answer to the cancel says how it ended."""
    change = transition(wished(), a_task(state, status_text="done"), cause=Cause.CANCEL, moment=at())
    assert outcome_of(change) == (state.value, None, "done")


def test_an_agent_that_goes_on_is_watched_until_the_cancel_deadline() -> None:
    """Looked at soon, also with ``off`` while it asks; then there is nothing more to say to it."""
    for state in (TaskState.WORKING, TaskState.INPUT_REQUIRED):
        before = wished(progress={"watch": Watch.OFF, "polls": 9}, replies=1)
        change = cancel_accepted(transition(before, a_task(state), cause=Cause.CANCEL, moment=at()), at())
        timers = change.after.timers
        assert (timers.cancel_at, timers.poll_at, timers.reply_at) == (NOW + 60, NOW + 2, None)
        assert change.after.progress.cancel_answer is CancelAnswer.ACCEPTED


def test_an_agent_that_will_not_is_asked_how_it_is_and_watched_on() -> None:
    """At once; its refusal is in the history; replies are possible again."""
    change = cancel_refused(wished(), AgentRefused("not cancelable"), at())
    assert (change.after.timers.cancel_at, change.after.timers.poll_at) == (None, NOW)
    assert [entry.text for entry in change.history] == ["refused: not cancelable"]
    assert change.reached


@pytest.mark.parametrize(
    ("error", "reached"),
    [
        (AgentUnreachable(""), False),
        (CallAmbiguous(""), False),
        (AgentTaskNotFound(""), True),
        (AgentBusy("", 9), None),
    ],
    ids=repr,
)
def test_a_cancel_that_did_not_come_through_is_tried_again_until_its_deadline(
    error: AgentError, reached: bool | None
) -> None:
    """With back-off, and at the cancel deadline for the last time; told once."""
    failing, waits, told = wished(), [], 0
    for _ in range(6):
        change = cancel_failed(failing, error, at())
        failing, told = change.after, told + len(change.history)
        waits.append((failing.timers.cancel_at or 0) - NOW)
        assert change.reached is reached
    assert waits == [2, 4, 8, 16, 32, 60]
    assert told == 1


def test_a_cancel_nobody_confirmed_ends_here() -> None:
    """CANCELED with the truth, and the agent is told once more, later."""
    change = cancel_unconfirmed(wished(), at(NOW + 60))
    assert outcome_of(change)[:2] == ("CANCELED", "cancel.unconfirmed")
    assert change.after.progress.abandoned
    assert change.after.timers.cleanup_at == NOW + 60


def test_a_cancelled_send_that_may_have_arrived_is_cleaned_up() -> None:
    """Nobody knows the agent task: it is looked for and cancelled later."""
    change = cancel_unconfirmed(wished(Phase.STARTING, progress={"intent_at": NOW}), at())
    assert change.after.timers.cleanup_at == NOW


def ended(state: TaskState, reason: Reason | None = None, **changes: Any) -> Delegation:
    before = replace(a_delegation(), **changes)
    change = settle(before, state, cause=Cause.CANCEL, moment=at(), reason=reason)
    return replace(change.after, phase=Phase.SETTLED)


@pytest.mark.parametrize(
    ("delegation", "says"),
    [
        (a_delegation(), None),
        (ended(TaskState.COMPLETED), None),
        (wished(), "pending"),
        (wished(progress={"cancel_answer": CancelAnswer.ACCEPTED}, timers={"cancel_at": NOW + 60}), "pending"),
        (wished(progress={"cancel_answer": CancelAnswer.REFUSED}, timers={"cancel_at": None}), "refused"),
        (wished(progress={"cancel_answer": CancelAnswer.REFUSED}), "pending"),  # once more
        (ended(TaskState.CANCELED, cancel_until=NOW), "cancelled"),
        (ended(TaskState.CANCELED, Reason.CANCEL_UNCONFIRMED, cancel_until=NOW), "unreachable"),
        (ended(TaskState.COMPLETED, cancel_until=NOW), "already ended"),
        (ended(TaskState.FAILED, cancel_until=NOW), "already ended"),
        (ended(TaskState.FAILED, Reason.DEADLINE_EXCEEDED, cancel_until=NOW), "unreachable"),
        (ended(TaskState.FAILED, Reason.AGENT_REFUSED, cancel_until=NOW), "already ended"),
    ],
)
def test_what_became_of_a_wish_to_cancel(delegation: Delegation, says: str | None) -> None:
    """One word for each child of a cancelled workflow."""
    assert receipt(delegation) == says


# ---------------------------------------------------------------- our own verdicts


@pytest.mark.parametrize("reason", Reason)
def test_our_own_verdict_says_so(reason: Reason) -> None:
    """FAILED with its reason and a line of ours; the agent did not say it."""
    change = fail(a_delegation(), reason, "why " * 500, cause=Cause.SWEEP, moment=at())
    assert change.outcome is not None
    assert (change.outcome.state, change.outcome.reason) == (TaskState.FAILED, reason.value)
    assert len(change.outcome.text) <= 500
    assert json.loads(change.note)["source"] == "delegation"


def test_what_is_left_at_the_agent_depends_on_what_may_be_there() -> None:
    """Our push config, an unwanted agent task, or one that nobody heard of; where nothing was sent, nothing."""
    unsent = a_delegation(Phase.OPENED)
    unknown = a_delegation(Phase.STARTING, progress={"intent_at": NOW})
    pushed = a_delegation(progress={"push_config": True, "agent_task_id": AgentTaskId("t1")})
    for delegation, cleans in ((unsent, False), (unknown, True), (pushed, True), (a_delegation(), False)):
        change = fail(delegation, Reason.POISONED, "", cause=Cause.SWEEP, moment=at())
        assert (change.after.timers.cleanup_at is not None) is cleans


@pytest.mark.parametrize("watch", [Watch.OFF, Watch.PUSH, Watch.POLL])
def test_an_accepted_cancel_is_looked_at_until_its_deadline_with_any_watch(watch: Watch) -> None:
    """``off`` and pushes leave an agent alone; not one that is about to confirm."""
    asked = wished(progress={"watch": watch})
    question = a_task(TaskState.INPUT_REQUIRED, status_text="?")
    accepted = cancel_accepted(transition(asked, question, cause=Cause.CANCEL, moment=at()), at())
    again = transition(accepted.after, question, cause=Cause.POLL, moment=at(NOW + 2)).after
    assert again.timers.poll_at is not None
    assert again.timers.poll_at < NOW + 10
