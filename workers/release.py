"""What a workflow's release runs: checked when it is stored, published when the last child has ended, once or again."""

from __future__ import annotations

from typing import Any

import structlog
from celery import Celery, signature, states
from celery.canvas import Signature
from kombu.exceptions import OperationalError

from delegation.errors import InvalidArguments
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


def check_continuation(app: Celery, then: Any) -> None:
    """One task that takes what a release tells it, as far as this process can know. Raises InvalidArguments.

    A canvas has no single id that could be seen to run.
    """
    if not isinstance(then, Signature) or then.get("subtask_type"):
        raise InvalidArguments("then: the signature of one task, which may start a canvas of its own")
    registered: Any = app.tasks.get(str(then.task))
    if registered is None or not registered.typing:
        return
    try:
        registered.__header__(*then.args, **{**then.kwargs, "workflow_id": "", "release_id": "", "round": 0})
    except TypeError as error:
        raise InvalidArguments(f"then: {error}; it is called with workflow_id, release_id and round as well") from None


def _ignores_result(app: Celery, then: Any) -> bool:
    """Nobody will ever know whether such a continuation ran; publishing it once, acknowledged, has to do."""
    if "ignore_result" in then.options:
        return bool(then.options["ignore_result"])
    registered = app.tasks.get(then.task)
    return bool(registered.ignore_result) if registered is not None else bool(app.conf.task_ignore_result)
