"""One Celery task per step, in flow order. When a step runs is decided here; what it does, in lifecycle.py."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar

import structlog
from celery import Celery, Task, shared_task, states
from celery.exceptions import Ignore, TaskPredicate

from delegation.agent_task import TaskState
from delegation.errors import (
    AgentTaskFailed,
    CallerError,
    OperatorError,
    StaleWrite,
    StepCrashed,
    StoreUnavailable,
    UnknownDelegation,
    UnknownWorkflow,
)
from delegation.failpoints import failpoint
from delegation.state import Delegation
from delegation.steps import Aftermath
from workers.cancel_children import cancels_of
from workers.canvas import (
    QUIET_STEP,
    STEP,
    adopt_tail,
    has_ended,
    publish_finalize,
    publish_wake,
    waiting_calls,
    watch_id,
)
from workers.events import announce_parked, announce_resumed
from workers.release import publish_notes, publish_release
from workers.runtime import runtime

log = structlog.get_logger("delegation")

R = TypeVar("R")
#: Every id that we ever give a record.
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
#: What Celery may repeat in logs, results and events: our own words.
_SAYABLE = (OperatorError, CallerError, AgentTaskFailed, StaleWrite, TaskPredicate, MemoryError)


def hint(step: Callable[[Task[Any, Any], str], R]) -> Callable[[Task[Any, Any], str], R]:
    """A message is a hint (law 1): without Redis, or for a record that is gone, it is dropped; the due index knows.

    Whoever may write to Redis can forge one: what is no id names no key, and goes no further.
    """

    @functools.wraps(step)
    def run(self: Task[Any, Any], record_id: str) -> R:
        if not _is_id(record_id):
            log.warning("delegation.step_refused", step=self.name)
            raise Ignore
        try:
            return step(self, record_id)
        except (StoreUnavailable, UnknownDelegation, UnknownWorkflow) as error:
            log.warning("delegation.step_dropped", step=self.name, record_id=record_id[:128], code=error.code)
            raise Ignore from error
        except _SAYABLE:
            raise
        except Exception as error:  # noqa: BLE001  what it says may be an agent's words (law 8)
            raise StepCrashed(type(error).__name__).with_traceback(error.__traceback__) from None

    return run


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


@shared_task(bind=True, name="delegation.start_agent_task", **STEP)
@hint
def start_agent_task(self: Task[Any, Any], delegation_id: str) -> str:
    """Send the brief; the agent task id is stored before anything else."""
    follow_up(self.app, runtime().lifecycle.start_agent_task(delegation_id))
    return delegation_id


@shared_task(bind=True, name="delegation.watch", **QUIET_STEP)
@hint
def watch(self: Task[Any, Any], delegation_id: str) -> str:
    """Park the chain: no slot, no message, no timer is held. Falls through when the outcome is known already."""
    if runtime().store.park(delegation_id):
        announce_parked(self)
        self.request.chain = None  # Celery would publish it when the task returns; whoever settles does so instead
    return delegation_id


@shared_task(bind=True, name="delegation.wake", **QUIET_STEP)
@hint
def wake(self: Task[Any, Any], delegation_id: str) -> None:
    """Look at a delegation: GetTask, and apply that answer."""
    follow_up(self.app, runtime().lifecycle.wake(delegation_id))


@shared_task(bind=True, name="delegation.send_reply", **STEP)
@hint
def send_reply(self: Task[Any, Any], delegation_id: str) -> None:
    """Send the next reply that waits for its turn."""
    follow_up(self.app, runtime().lifecycle.send_reply(delegation_id))


@shared_task(bind=True, name="delegation.cancel", **STEP)
@hint
def cancel(self: Task[Any, Any], delegation_id: str) -> None:
    """Tell the agent that nobody wants this any more."""
    follow_up(self.app, runtime().lifecycle.cancel(delegation_id))


@shared_task(bind=True, name="delegation.expire", **STEP)
@hint
def expire(self: Task[Any, Any], delegation_id: str) -> None:
    """The deadline has passed."""
    follow_up(self.app, runtime().lifecycle.expire(delegation_id))


#: The delegation whose canvas this thread lets go on, for the last note of it.
_finalizing: ContextVar[Delegation | None] = ContextVar("finalizing", default=None)


class FinalizeTask(Task[Any, Any]):
    """finalize's due entry goes when its links are published and its result is stored."""

    def after_return(self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:  # noqa: ARG002
        failpoint("finalize.before_finish")
        delegation = _finalizing.get()
        if status != states.SUCCESS and not isinstance(retval, AgentTaskFailed):
            return  # what follows could not be published; the due entry stays, and finalize runs again
        if delegation is not None and delegation.id == args[0]:
            runtime().store.finish(delegation, task_id)


@shared_task(
    bind=True,
    base=FinalizeTask,
    name="delegation.finalize",
    throws=(AgentTaskFailed,),
    track_started=False,  # STARTED would replace a stored failure when the message comes twice, and stay
    resultrepr_maxsize=90,  # id, agent and state; the text is nothing for events and logs (law 8)
    **{**STEP, "ignore_result": False},
)
@hint
def finalize(self: Task[Any, Any], delegation_id: str) -> dict[str, Any]:
    """Return the outcome, or raise AgentTaskFailed; what follows in the user's canvas goes on from here."""
    _finalizing.set(None)
    call_id = str(self.request.id)
    delegation, is_alone = runtime().store.load_to_finalize(delegation_id, call_id)
    tail = waiting_calls(delegation).get(call_id)
    if delegation.outcome is None or tail is None:
        raise Ignore
    if (self.request.delivery_info or {}).get("redelivered") and has_ended(self.app, call_id, tail):
        runtime().store.finish(delegation, call_id)  # only the last note of it is missing
        raise Ignore
    if not is_alone:
        raise Ignore  # the same message is at work elsewhere; should that one die, the due index sends another
    _finalizing.set(delegation)
    if delegation.parked:
        announce_resumed(self, watch_id(delegation.id))
    adopt_tail(self.request, tail)
    failpoint("finalize.before_return")
    outcome = delegation.outcome
    if outcome.state is TaskState.COMPLETED or delegation.on_failure == "return":
        return outcome.to_dict()
    raise AgentTaskFailed(delegation.id, delegation.agent, outcome.state.value, outcome.reason)


@shared_task(bind=True, name="delegation.release", **STEP)
@hint
def release(self: Task[Any, Any], workflow_id: str) -> None:
    """Publish a released workflow's continuation again, unless it runs or ran."""
    publish_release(self.app, workflow_id, again=True)


@shared_task(bind=True, name="delegation.clean_up", **QUIET_STEP)
def clean_up(self: Task[Any, Any], *delegation_ids: str) -> None:
    """Remove what settled delegations left at their agents. What it does not get to comes round again."""
    until = time.monotonic() + runtime().settings.timing.call_deadline.total_seconds()
    for delegation_id in delegation_ids:
        if time.monotonic() < until:
            hint(lambda _, id_: runtime().lifecycle.clean_up(id_))(self, delegation_id)


@shared_task(bind=True, name="delegation.tell", **QUIET_STEP)
@hint
def tell(self: Task[Any, Any], workflow_id: str) -> None:
    """Publish a message for each note that none told of yet, or whose message nobody ran."""
    publish_notes(self.app, workflow_id, again=True)


@shared_task(bind=True, name="delegation.cancel_children", **STEP)
@hint
def cancel_children(self: Task[Any, Any], workflow_id: str) -> None:
    """A workflow failed or is cancelled, or its join is over: so are its children, those that have not ended."""
    store = runtime().store
    workflow = store.load_workflow(workflow_id)
    for cancel_one in cancels_of(self.app, workflow):
        cancel_one()
        failpoint("cancel_children.middle")
    store.drop_timer(workflow_id, "cancel_at", cancels=workflow.cancels)


@shared_task(bind=True, name="delegation.expire_workflow", **STEP)
@hint
def expire_workflow(_: Task[Any, Any], workflow_id: str) -> None:
    """The workflow's deadline has passed."""
    if runtime().store.expire_workflow(workflow_id):
        log.info("workflow.expired", workflow_id=workflow_id)


@shared_task(bind=True, name="delegation.retire_workflow", **QUIET_STEP)
@hint
def retire_workflow(_: Task[Any, Any], workflow_id: str) -> None:
    """Start the retention of an ended workflow and its children."""
    store = runtime().store
    failpoint("purge.middle")
    store.retire_workflow(store.load_workflow(workflow_id))


def follow_up(app: Celery, aftermath: Aftermath | None) -> None:
    """Send at once what the sweeper would send later."""
    if aftermath is None:
        return
    delegation, settlement = aftermath.delegation, aftermath.settlement
    if aftermath.wake_now:
        publish_wake(app, delegation.id, delegation.version)
    if aftermath.has_note and delegation.workflow_id:
        publish_notes(app, delegation.workflow_id)
    if settlement is None or not settlement.settled:
        return
    failpoint("release.after_commit")
    if settlement.release_id and delegation.workflow_id:
        publish_release(app, delegation.workflow_id)
        failpoint("resume.after_enqueue")
    if settlement.was_parked:
        publish_finalize(app, delegation)
