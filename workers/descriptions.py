"""The public shapes of a delegation and a workflow; names are stable (docs/command_line.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from delegation.endings import receipt
from delegation.state import Delegation
from delegation.times import rfc3339
from delegation.workflow import Workflow, WorkflowState

#: A workflow in one of these has its unresolved children cancelled.
CANCELLED = (WorkflowState.FAILED, WorkflowState.CANCELING, WorkflowState.CANCELED)


def describe(delegation: Delegation) -> dict[str, Any]:
    """A delegation, as `delegation show --json` prints it."""
    progress, outcome = delegation.progress, delegation.outcome
    return {
        "id": delegation.id,
        "workflow_id": delegation.workflow_id,
        "agent": delegation.agent,
        "name": delegation.brief.name,
        "goal": delegation.brief.goal,
        "step": delegation.step or None,
        "phase": delegation.phase.value,
        "state": delegation.state.value,
        "watch": progress.watch.value if progress.watch else None,
        "agent_task_id": progress.agent_task_id,
        "context_id": progress.context_id,
        "status_text": progress.status_text,
        "unavailable": describe_absence(delegation),
        "question": describe_question(delegation),
        "artifact_names": list(progress.artifact_names),
        "replies": {"sent": progress.turn, "waiting": max(0, delegation.replies - progress.turn)},
        "cancel": receipt(delegation),
        "cancel_reason": delegation.cancel_reason or None,
        "reason": outcome.reason if outcome else None,
        "outcome": outcome.to_dict() if outcome else None,
        "created_at": rfc3339(delegation.created_at),
        "updated_at": rfc3339(progress.updated_at or delegation.created_at),
        "deadline_at": rfc3339(delegation.timers.deadline_at),
    }


def describe_question(delegation: Delegation) -> dict[str, Any] | None:
    """What the agent asks and nobody has answered; None while it asks nothing. ``parts`` are as it sent them."""
    progress, question = delegation.progress, delegation.progress.question
    if question is None or not delegation.waits_for_reply or delegation.outcome is not None:
        return None
    return {
        "number": question.number,
        "state": delegation.state.value,
        "text": progress.status_text,
        "parts": list(progress.status_parts),
        "asked_at": rfc3339(question.asked_at),
    }


def describe_absence(delegation: Delegation) -> dict[str, Any] | None:
    """Since when calls to its agent fail, how many did, and the code of the last failure (errors.py); None while none
    does, or nobody waits for the agent."""
    since, progress = away_since(delegation), delegation.progress
    if since is None:
        return None
    return {"since": rfc3339(since), "tries": progress.failures, "code": progress.failing_code}


def away_since(delegation: Delegation) -> float | None:
    """As :func:`describe_absence`: Redis time."""
    progress = delegation.progress
    if delegation.outcome is not None or not progress.failures or is_asking(delegation):
        return None
    return progress.failing_since or progress.updated_at


def is_asking(delegation: Delegation) -> bool:
    """Somebody's reply, or authorization, is wanted: it is in the inbox."""
    return delegation.outcome is None and delegation.progress.question is not None and delegation.waits_for_reply


def describe_workflow(workflow: Workflow, children: Sequence[Delegation]) -> dict[str, Any]:
    """A workflow, as `delegation workflow show --json` prints it."""
    return {
        "id": workflow.id,
        "name": workflow.name,
        "state": workflow.state.value,
        "round": workflow.round,
        "unresolved": workflow.unresolved,
        "children": [{**describe(child), "cancel": receipt_in(workflow, child)} for child in children],
        "created_at": rfc3339(workflow.created_at),
        "deadline_at": rfc3339(workflow.deadline_at),
        "reason": (workflow.result or {}).get("reason") if workflow.state in CANCELLED else None,
        "result": workflow.result if workflow.state is WorkflowState.COMPLETED else None,
        "continuation": describe_continuation(workflow),
    }


def summarize_workflow(workflow: Workflow, children: int) -> dict[str, Any]:
    """A line of `delegation workflow list --json`."""
    return {
        "id": workflow.id,
        "name": workflow.name,
        "state": workflow.state.value,
        "unresolved": workflow.unresolved,
        "child_count": children,
        "created_at": rfc3339(workflow.created_at),
        "deadline_at": rfc3339(workflow.deadline_at),
    }


def describe_continuation(workflow: Workflow) -> dict[str, Any] | None:
    """What a release runs, and what became of that: ``waiting`` for the release, or for the broker; ``published`` and
    not seen to run yet; ``seen`` (or nobody will ever know: it keeps no result); ``given up``, never seen. None without
    any."""
    if workflow.continuation is None:
        return None
    task = str(workflow.continuation.get("task"))
    if workflow.release_id is None:  # the numbers are those of the round before
        return {"task": task, "publishes": 0, "state": "waiting"}
    if workflow.is_poisoned:
        state = "given up"
    elif workflow.is_publishing:
        state = "published" if workflow.publishes else "waiting"
    else:
        state = "seen"
    return {"task": task, "publishes": workflow.publishes, "state": state}


def receipt_in(workflow: Workflow, child: Delegation) -> str | None:
    """A child's receipt. The wish to cancel it is the workflow's: kept from the moment that one is cancelled or fails,
    before the child's own record says so."""
    told = receipt(child)
    if told is not None or workflow.state not in CANCELLED:
        return told
    return "already ended" if child.outcome is not None else "pending"
