"""Which steps a due entry leads to, for every phase and timer."""

from __future__ import annotations

import itertools
from dataclasses import fields

import pytest

from delegation.due import Step, WorkflowStep, choose_steps, choose_workflow_steps
from delegation.state import Phase, Timers
from tests.support.delegations import NOW

TIMER_NAMES = tuple(field.name for field in fields(Timers))
UNSETTLED = (Phase.OPENED, Phase.STARTING, Phase.WATCHING)


@pytest.mark.parametrize(
    ("phase", "timers", "steps"),
    [
        (Phase.OPENED, {"publish_at": -1}, (Step.START,)),
        (Phase.OPENED, {"poll_at": -1}, (Step.START,)),
        (Phase.STARTING, {"lease_until": -1}, (Step.START,)),
        (Phase.STARTING, {"lease_until": 5}, ()),
        (Phase.WATCHING, {"poll_at": -1}, (Step.WAKE,)),
        (Phase.WATCHING, {"refetch_at": -1, "poll_at": 99}, (Step.WAKE,)),
        (Phase.WATCHING, {"poll_at": 99}, (Step.WAKE,)),  # called up: a call slot became free
        (Phase.WATCHING, {"lease_until": 5, "poll_at": -1}, ()),
        (Phase.WATCHING, {"lease_until": 5, "deadline_at": 0}, (Step.EXPIRE,)),
        (Phase.OPENED, {"deadline_at": -1, "publish_at": -1}, (Step.EXPIRE,)),
        (Phase.OPENED, {"cancel_at": -1, "publish_at": -1}, (Step.CANCEL,)),
        (Phase.STARTING, {"cancel_at": 9, "poll_at": -1}, (Step.START,)),
        (Phase.STARTING, {"reply_at": -1, "poll_at": 9}, (Step.START,)),
        (Phase.STARTING, {"cancel_at": 9, "poll_at": 9}, (Step.CANCEL,)),  # called up
        (Phase.WATCHING, {"cancel_at": -1, "reply_at": -1, "poll_at": -1}, (Step.CANCEL,)),
        (Phase.WATCHING, {"reply_at": -1, "poll_at": -1}, (Step.SEND_REPLY,)),
        (Phase.WATCHING, {"reply_at": 9, "poll_at": -1}, (Step.WAKE,)),
        (Phase.WATCHING, {"reply_at": 9, "poll_at": 9}, (Step.SEND_REPLY,)),  # called up
        (Phase.WATCHING, {"cancel_at": 9, "reply_at": 9}, (Step.CANCEL,)),  # called up
        (Phase.WATCHING, {"cancel_at": 9, "reply_at": -1}, (Step.SEND_REPLY,)),
        (Phase.WATCHING, {"lease_until": 5, "cancel_at": -1, "reply_at": -1}, ()),
        (Phase.WATCHING, {"lease_until": -1, "cancel_at": -1}, (Step.CANCEL,)),
        (Phase.WATCHING, {"deadline_at": 0, "cancel_at": -1, "reply_at": -1}, (Step.EXPIRE,)),
        (Phase.SETTLED, {"cancel_at": -1, "reply_at": -1, "publish_at": 5}, ()),
        (Phase.SETTLED, {"publish_at": -1}, (Step.FINALIZE,)),
        (Phase.SETTLED, {"publish_at": -1, "cleanup_at": -1}, (Step.FINALIZE, Step.CLEAN_UP)),
        (Phase.SETTLED, {"publish_at": 5, "cleanup_at": -1}, (Step.CLEAN_UP,)),
        (Phase.SETTLED, {"publish_at": -1, "cleanup_at": -1, "lease_until": 5}, (Step.FINALIZE,)),
        (Phase.SETTLED, {"deadline_at": -1, "publish_at": 5}, ()),
        (Phase.RELEASED, {"cleanup_at": -1}, (Step.CLEAN_UP,)),
        (Phase.RELEASED, {"deadline_at": -1}, ()),
    ],
)
def test_which_steps_a_due_entry_needs(phase: Phase, timers: dict[str, float], steps: tuple[Step, ...]) -> None:
    """Seconds from now: what is due decides by phase; a lease holds back all but the deadline and finalize."""
    assert set(timers) <= set(TIMER_NAMES)
    assert choose_steps(phase, {name: NOW + s for name, s in timers.items()}, NOW) == steps


def test_steps_are_named_as_the_celery_tasks() -> None:
    """The values are stable names in queues and dashboards."""
    assert all(step.value.startswith("delegation.") for step in (*Step, *WorkflowStep))


TIMES = {"passed": -1.0, "now": 0.0, "to come": 9.0}
OF_NOTE = ("cancel_at", "reply_at", "poll_at", "lease_until", "deadline_at")


@pytest.mark.parametrize("phase", UNSETTLED)
def test_one_step_at_a_time_by_rank(phase: Phase) -> None:
    """For every combination of timers: expiry, nothing beside a step at work, then cancel, start, reply, look;
    what is called up is served in the same order."""
    for offsets in itertools.product([None, *TIMES.values()], repeat=len(OF_NOTE)):
        at = {name: offset for name, offset in zip(OF_NOTE, offsets, strict=True) if offset is not None}
        is_called_up = all(offset > 0 for offset in at.values())

        def wanted(name: str, at: dict[str, float] = at, is_called_up: bool = is_called_up) -> bool:
            return name in at and (at[name] <= 0 or is_called_up)

        if at.get("deadline_at", 1) <= 0:
            expected: tuple[Step, ...] = (Step.EXPIRE,)
        elif at.get("lease_until", 0) > 0:
            expected = ()
        elif wanted("cancel_at"):
            expected = (Step.CANCEL,)
        elif phase is not Phase.WATCHING:
            expected = (Step.START,)
        else:
            expected = (Step.SEND_REPLY,) if wanted("reply_at") else (Step.WAKE,)
        assert choose_steps(phase, {name: NOW + offset for name, offset in at.items()}, NOW) == expected, at


@pytest.mark.parametrize("phase", [Phase.SETTLED, Phase.RELEASED])
def test_after_the_end_only_what_follows_it_is_left(phase: Phase) -> None:
    """Whatever timers were left behind: no agent is asked, told or cancelled but by the clean-up."""
    for name in set(TIMER_NAMES) - {"publish_at", "cleanup_at"}:
        assert choose_steps(phase, {name: NOW - 1, "publish_at": NOW + 1}, NOW) == ()


@pytest.mark.parametrize(
    ("timer", "step"),
    [
        ("publish_at", WorkflowStep.RELEASE),
        ("note_at", WorkflowStep.TELL),
        ("cancel_at", WorkflowStep.CANCEL_CHILDREN),
        ("expire_at", WorkflowStep.EXPIRE),
        ("cleanup_at", WorkflowStep.RETIRE),
    ],
)
def test_each_timer_of_a_workflow_has_its_step(timer: str, step: WorkflowStep) -> None:
    """When it has passed, and no sooner; its promised deadline alone leads to none."""
    assert choose_workflow_steps({timer: NOW}, NOW) == (step,)
    assert choose_workflow_steps({timer: NOW + 0.001}, NOW) == ()
    assert choose_workflow_steps({"deadline_at": NOW - 9}, NOW) == ()


def test_a_workflow_may_need_several_steps() -> None:
    """A failed one cancels its children and begins its retention at once."""
    steps = choose_workflow_steps({"cleanup_at": NOW, "cancel_at": NOW, "expire_at": NOW + 9}, NOW)
    assert steps == (WorkflowStep.CANCEL_CHILDREN, WorkflowStep.RETIRE)
