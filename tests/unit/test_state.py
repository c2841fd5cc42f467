"""What a delegation is: words, order, and what the agent is told."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from delegation.agent_task import TaskState, read_state
from delegation.state import Brief, Outcome, Phase, Rules
from delegation.workflow import WorkflowState
from tests.support.delegations import a_delegation, a_task, an_artifact


def test_phases_go_forward_and_the_last_two_are_settled() -> None:
    """Terminal, outcome and parent are recorded from SETTLED on."""
    assert [phase.value for phase in Phase] == ["OPENED", "STARTING", "WATCHING", "SETTLED", "RELEASED"]
    assert [phase.is_settled for phase in Phase] == [False, False, False, True, True]


def test_states_are_a2as() -> None:
    """Four are terminal, two are interrupted (spec section 4.1.3), and none is both."""
    assert {state.value for state in TaskState if state.is_terminal} == {"COMPLETED", "FAILED", "CANCELED", "REJECTED"}
    assert {state.value for state in TaskState if state.is_interrupted} == {"INPUT_REQUIRED", "AUTH_REQUIRED"}
    assert len(TaskState) == 8


@pytest.mark.parametrize(
    ("spelling", "state"),
    [
        ("TASK_STATE_WORKING", TaskState.WORKING),
        ("working", TaskState.WORKING),
        ("input-required", TaskState.INPUT_REQUIRED),
        (" Cancelled ", TaskState.CANCELED),
        ("TASK_STATE_UNSPECIFIED", None),
        ("done", None),
        ("", None),
        (3, None),
        (None, None),
    ],
)
def test_states_are_read_tolerantly(spelling: object, state: TaskState | None) -> None:
    """Prefix, case, hyphens and British English; anything else is unknown, never a guess."""
    assert read_state(spelling) is state


def test_a_workflow_ends_in_three_ways() -> None:
    """The others take delegations or wait for them."""
    assert {state.value for state in WorkflowState if state.is_ended} == {"COMPLETED", "FAILED", "CANCELED"}


def test_a_goal_alone_is_sent_as_it_is() -> None:
    """No heading is put before what the caller wrote."""
    assert Brief(goal="Find a flight").text == "Find a flight"


def test_a_brief_is_told_in_plain_text() -> None:
    """Name, goal, description and criteria, in an order any agent can read."""
    brief = Brief(goal="Find a flight", name="Trip", description="Cheap", acceptance_criteria=("direct", "under 200"))
    assert brief.text == ("Trip\nGoal: Find a flight\nDescription: Cheap\nAcceptance criteria:\n- direct\n- under 200")
    assert Brief(goal="Go", acceptance_criteria=("fast",)).text == "Goal: Go\nAcceptance criteria:\n- fast"


def test_ids_at_the_agent_are_the_delegations_own() -> None:
    """messageId, contextId and push config id follow from the id alone, so every attempt has the same."""
    delegation = a_delegation()
    assert delegation.message_id == "d1:goal"
    assert delegation.own_context_id == "d1"
    assert delegation.push_config_id == "delegation-d1"


def test_the_outcome_decides_the_state() -> None:
    """The deadline may say FAILED while the last answer was WORKING."""
    working = a_delegation(progress={"state": TaskState.WORKING})
    outcome = Outcome(delegation_id="d1", agent="flights", state=TaskState.FAILED)
    assert working.state is TaskState.WORKING
    assert replace(working, outcome=outcome).state is TaskState.FAILED


def test_values_do_not_change() -> None:
    """What was decided on cannot move under the decision."""
    with pytest.raises(FrozenInstanceError):
        a_delegation().version = 4  # type: ignore[misc]


def test_a_lease_outlives_the_call_it_is_for() -> None:
    """An answer that comes at the last moment can still be written."""
    assert Rules().lease_s == 45
    assert Rules(call_deadline_s=5, lease_margin_s=1).lease_s == 6


def test_what_an_agent_produced_is_its_artifacts_text() -> None:
    """Empty artifacts say nothing; then the status message speaks, then the last message of the history."""
    task = a_task(status_text="status", last_agent_text="history")
    assert task.text == "status"
    assert replace(task, artifacts=(an_artifact(""),)).text == "status"
    assert replace(task, artifacts=(an_artifact("a"), an_artifact(""), an_artifact("b"))).text == "a\nb"
    assert replace(task, status_text="").text == "history"
