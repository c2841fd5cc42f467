"""What a workflow's release and its notes run: checked when it is stored, published when it is time, once or again."""

from __future__ import annotations

from typing import Any

import structlog
from celery import Celery, signature, states
from celery.canvas import Signature
from kombu.exceptions import OperationalError

from delegation.errors import InvalidArguments
from delegation.failpoints import failpoint
from delegation.store_workflows import UntoldNote
from workers.results import state_of
from workers.runtime import runtime

log = structlog.get_logger("delegation")


def publish_release(app: Celery, workflow_id: str, *, again: bool = False) -> None:
    """Run a released workflow's continuation, under the release's one fixed Celery id.

    ``again`` marks a repeat by the due index: then it is first asked whether that id runs or ran.
    """
    store = runtime().store
    workflow = store.load_workflow(workflow_id)
    if workflow.continuation is None or workflow.release_id is None or not workflow.is_publishing:
        return
    then = signature(workflow.continuation, app=app)
    ignores = _ignores_result(app, then)
    if again and not ignores and state_of(app, workflow.release_id) != states.PENDING:
        store.continuation_seen(workflow_id, workflow.release_id)
        return
    if again and workflow.publishes >= store.rules.attempts:
        store.continuation_poisoned(workflow_id, workflow.release_id)
        log.error("workflow.continuation_poisoned", workflow_id=workflow_id, celery_task=then.task)
        return
    news = {"workflow_id": workflow_id, "release_id": workflow.release_id, "round": workflow.round}
    then["kwargs"] = {**then.kwargs, **news}  # also into an immutable signature
    try:
        then.apply_async(task_id=workflow.release_id, add_to_parent=False)
    except OperationalError as error:
        log.warning("workflow.continuation_not_sent", workflow_id=workflow_id, error=type(error).__name__)
        return  # the due index has it
    except TypeError:
        # Its parameters changed since it was stored. Counted like a message that was lost, so that it ends as poisoned.
        log.error("workflow.continuation_refused", workflow_id=workflow_id, celery_task=then.task)  # noqa: TRY400
    if ignores:
        store.continuation_seen(workflow_id, workflow.release_id)
    else:
        store.continuation_published(workflow_id, workflow.release_id)


def publish_notes(app: Celery, workflow_id: str, *, again: bool = False) -> None:
    """Tell of each note by the workflow's ``on_note``, in order, each under one fixed Celery id, ids only.

    ``again`` marks a repeat by the due index: those told before are told once more unless their id runs or ran.
    """
    store = runtime().store
    signed = store.load_workflow(workflow_id).on_note
    while signed and (untold := store.take_untold_notes(workflow_id, again=again)).notes:
        is_last_try = again and untold.in_vain >= store.rules.attempts
        done = []
        for note in untold.notes:
            on_note = signature(signed, app=app)
            task_id, was_told = f"{workflow_id}.note.{note.number}", note.number <= untold.last_told
            if was_told and (is_last_try or state_of(app, task_id) != states.PENDING):
                done.append(note)
                if is_last_try:
                    log.error("workflow.note_poisoned", workflow_id=workflow_id, celery_task=on_note.task)
                continue
            if not _tell(on_note, workflow_id, note, task_id):
                return  # the due index has it
            if _ignores_result(app, on_note):
                done.append(note)
        failpoint("tell.middle")
        if store.notes_told(workflow_id, untold.notes[-1].number, done, again=again) == 0 or again:
            return


def _tell(on_note: Any, workflow_id: str, note: UntoldNote, task_id: str) -> bool:
    """False when the broker is away."""
    told = {"workflow_id": workflow_id, "delegation_id": note.delegation_id, "note": note.number}
    on_note["kwargs"] = {**on_note.kwargs, **told}
    try:
        on_note.apply_async(task_id=task_id, add_to_parent=False)
    except OperationalError as error:
        log.warning("workflow.note_not_told", workflow_id=workflow_id, error=type(error).__name__)
        return False
    except TypeError:
        log.error("workflow.note_refused", workflow_id=workflow_id, celery_task=on_note.task)  # noqa: TRY400
    return True


def check_on_note(app: Celery, on_note: Any) -> None:
    """One task that takes what it is told. Raises InvalidArguments."""
    _check(app, on_note, "on_note", {"workflow_id": "", "delegation_id": "", "note": 0})


def check_continuation(app: Celery, then: Any) -> None:
    """One task that takes what a release tells it, as far as this process can know. Raises InvalidArguments.

    A canvas has no single id that could be seen to run.
    """
    _check(app, then, "then", {"workflow_id": "", "release_id": "", "round": 0})


def _check(app: Celery, given: Any, argument: str, told: dict[str, Any]) -> None:
    if not isinstance(given, Signature) or given.get("subtask_type"):
        raise InvalidArguments(f"{argument}: the signature of one task, which may start a canvas of its own")
    registered: Any = app.tasks.get(str(given.task))
    if registered is None or not registered.typing:
        return
    try:
        registered.__header__(*given.args, **{**given.kwargs, **told})
    except TypeError as error:
        names = list(told)
        also = f"{', '.join(names[:-1])} and {names[-1]}"
        raise InvalidArguments(f"{argument}: {error}; it is called with {also} as well") from None


def _ignores_result(app: Celery, then: Any) -> bool:
    """Nobody will ever know whether such a continuation ran; publishing it once, acknowledged, has to do."""
    if "ignore_result" in then.options:
        return bool(then.options["ignore_result"])
    registered = app.tasks.get(then.task)
    return bool(registered.ignore_result) if registered is not None else bool(app.conf.task_ignore_result)
