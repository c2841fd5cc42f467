"""Cancel a workflow's children, delegations and workflows, as it wants them: one by one, looked at page by page."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

from celery import Celery

from delegation.errors import UnknownDelegation, UnknownWorkflow, WorkflowConflict
from delegation.state import Delegation
from delegation.store_workflows import PAGE
from delegation.workflow import Workflow, WorkflowState
from workers.runtime import runtime
from workers.talk import REASON_LIMIT, cancel_delegation


def cancels_of(app: Celery, parent: Workflow) -> Iterator[Callable[[], None]]:
    """What is left to do: nothing for those that have ended, were told before, or belong to a later round than the join
    which is over."""
    store = runtime().store
    reason = parent.cancel_reason[:REASON_LIMIT]
    unresolved = store.unresolved_children(parent.id)
    while page := list(islice(unresolved, PAGE)):
        for delegation in store.load_many([one for one in page if "." in one]):
            if delegation.cancel_until is None and _is_meant(parent, delegation.round):
                yield partial(_cancel_delegation, app, delegation, reason)
        for one in page:
            if "." not in one:
                yield partial(_cancel_workflow, parent, one, reason)


def _cancel_delegation(app: Celery, delegation: Delegation, reason: str) -> None:
    with contextlib.suppress(UnknownDelegation):
        cancel_delegation(app, delegation, reason)


def _cancel_workflow(parent: Workflow, workflow_id: str, reason: str) -> None:
    """One that is being cancelled already, or has just ended, is left alone."""
    store = runtime().store
    with contextlib.suppress(UnknownWorkflow, WorkflowConflict):
        if _is_meant(parent, store.load_workflow(workflow_id).in_round):
            store.end_workflow(workflow_id, WorkflowState.CANCELED, {"reason": reason}, reason=reason)


def _is_meant(parent: Workflow, in_round: int) -> bool:
    return parent.cancel_round is None or in_round <= parent.cancel_round
