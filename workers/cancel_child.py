"""Cancel one child of a workflow, a delegation or a workflow itself, as its parent wants it."""

from __future__ import annotations

import contextlib

from celery import Celery

from delegation.errors import UnknownDelegation, UnknownWorkflow, WorkflowConflict
from delegation.workflow import Workflow, WorkflowState
from workers.runtime import runtime
from workers.talk import REASON_LIMIT, cancel_delegation


def cancel_child(app: Celery, parent: Workflow, child_id: str) -> None:
    """Unless it has ended, or belongs to a later round than the join that is over."""
    reason = parent.cancel_reason[:REASON_LIMIT]
    with contextlib.suppress(UnknownDelegation, UnknownWorkflow, WorkflowConflict):
        if "." in child_id:
            delegation = runtime().store.load(child_id).delegation
            if _is_meant(parent, delegation.round):
                cancel_delegation(app, delegation, reason)
        elif _is_meant(parent, runtime().store.load_workflow(child_id).in_round):
            runtime().store.end_workflow(child_id, WorkflowState.CANCELED, {"reason": reason}, reason=reason)


def _is_meant(parent: Workflow, in_round: int) -> bool:
    return parent.cancel_round is None or in_round <= parent.cancel_round
