"""Which steps a due entry leads to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from delegation.state import Phase


class Step(StrEnum):
    """A step of a delegation; the values are our Celery tasks' names."""

    START = "delegation.start_agent_task"
    WAKE = "delegation.wake"
    SEND_REPLY = "delegation.send_reply"
    CANCEL = "delegation.cancel"
    FINALIZE = "delegation.finalize"
    EXPIRE = "delegation.expire"
    CLEAN_UP = "delegation.clean_up"


class WorkflowStep(StrEnum):
    """A step of a workflow, by the timer that leads to it."""

    RELEASE = "delegation.release"
    TELL = "delegation.tell"
    CANCEL_CHILDREN = "delegation.cancel_children"
    EXPIRE = "delegation.expire_workflow"
    RETIRE = "delegation.retire_workflow"


_TIMER_OF_STEP: Mapping[str, WorkflowStep] = {
    "publish_at": WorkflowStep.RELEASE,
    "note_at": WorkflowStep.TELL,
    "cancel_at": WorkflowStep.CANCEL_CHILDREN,
    "expire_at": WorkflowStep.EXPIRE,
    "cleanup_at": WorkflowStep.RETIRE,
}


def choose_steps(phase: Phase, timers: Mapping[str, float], now: float) -> tuple[Step, ...]:
    """The steps a due delegation needs now. ``timers`` holds the set ones by name.

    An unsettled one that is due is looked at even when no timer says so: it may have been called up because a
    call slot of its agent became free.
    """

    def passed(name: str) -> bool:
        return name in timers and timers[name] <= now

    leased = timers.get("lease_until", 0.0) > now
    if phase.is_settled:
        finalize = (Step.FINALIZE,) if passed("publish_at") else ()
        return (*finalize, Step.CLEAN_UP) if passed("cleanup_at") and not leased else finalize
    if passed("deadline_at"):
        return (Step.EXPIRE,)
    if leased:
        return ()
    called_up = not any(passed(name) for name in timers)
    if passed("cancel_at") or (called_up and "cancel_at" in timers):
        return (Step.CANCEL,)
    if phase in (Phase.OPENED, Phase.STARTING):
        return (Step.START,)
    if passed("reply_at") or (called_up and "reply_at" in timers):
        return (Step.SEND_REPLY,)
    return (Step.WAKE,)


def choose_workflow_steps(timers: Mapping[str, float], now: float) -> tuple[WorkflowStep, ...]:
    """The steps a due workflow needs now."""
    return tuple(step for name, step in _TIMER_OF_STEP.items() if timers.get(name, now + 1) <= now)
