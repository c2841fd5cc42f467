"""How a delegation is laid out in its Redis hash: small fields that scripts read, JSON for what only we read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from delegation.agent_task import AgentTaskId, ContextId, TaskState, read_state
from delegation.state import (
    Brief,
    CancelAnswer,
    Delegation,
    DelegationId,
    Outcome,
    Phase,
    Progress,
    Question,
    Timers,
    Watch,
    WorkflowId,
)

_TIMERS = tuple(field.name for field in fields(Timers))
_PROGRESS_DEFAULTS = Progress()
_PROGRESS_NAMES = tuple(field.name for field in fields(Progress))
_PROGRESS_TYPES: Mapping[str, Any] = {
    "state": TaskState,
    "watch": Watch,
    "agent_task_id": AgentTaskId,
    "context_id": ContextId,
    "status_parts": tuple,
    "artifact_names": tuple,
    "question": lambda raw: Question(**{**raw, "state": TaskState(raw["state"])}),
    "cancel_answer": CancelAnswer,
}


def dump_json(value: object) -> str:
    """Compact, and ASCII: lone surrogates in an agent's text must not break the write."""
    return json.dumps(value, separators=(",", ":"))


def encode_opened(delegation: Delegation) -> dict[str, str]:
    """The fields written once, when the delegation is opened."""
    fixed = {
        "agent": delegation.agent,
        "call_id": delegation.call_id,
        "participant_id": delegation.participant_id,
        "workflow_id": delegation.workflow_id,
        "on_failure": delegation.on_failure,
        "idempotency": delegation.idempotency,
        "step": delegation.step,
    }
    brief = {field.name: getattr(delegation.brief, field.name) for field in fields(Brief)}
    encoded = {"fixed": dump_json(_without_empty(fixed)), "brief": dump_json(_without_empty(brief))}
    if delegation.canvas:
        encoded["canvas"] = dump_json(delegation.canvas)
    return encoded


def encode_change(before: Delegation, after: Delegation) -> dict[str, str]:
    """The fields that differ; an empty string removes the field."""
    changed: dict[str, str] = {}
    for name in _TIMERS:
        if name not in ("lease_until", "deadline_at") and getattr(before.timers, name) != getattr(after.timers, name):
            changed[name] = _number(getattr(after.timers, name))
    if before.phase != after.phase:
        changed["phase"] = after.phase.value
    if before.progress != after.progress:
        changed["progress"] = dump_json(_encode_progress(after.progress))
    if before.push_digest != after.push_digest:
        changed["digest"] = after.push_digest
    if before.fetched_at != after.fetched_at:
        changed["fetched_at"] = _number(after.fetched_at)
    if before.claimed != after.claimed:
        changed["claimed"] = after.claimed.value if after.claimed else ""
    if before.heard != after.heard:
        changed["heard"] = after.heard
    if before.outcome != after.outcome and after.outcome:
        changed["outcome"] = dump_json(after.outcome.to_dict())
    return changed


def decode(delegation_id: str, raw: Mapping[str, str]) -> Delegation:
    """The delegation in a record's hash. Raises KeyError or ValueError on a record that is not ours."""
    fixed = json.loads(raw["fixed"])
    workflow_id = fixed.get("workflow_id")
    return Delegation(
        id=DelegationId(delegation_id),
        agent=fixed["agent"],
        brief=_decode_brief(json.loads(raw["brief"])),
        call_id=fixed["call_id"],
        participant_id=fixed["participant_id"],
        created_at=float(raw["created_at"]),
        workflow_id=WorkflowId(workflow_id) if workflow_id else None,
        on_failure=fixed["on_failure"],
        idempotency=fixed.get("idempotency", ""),
        step=fixed.get("step", ""),
        canvas=json.loads(raw["canvas"]) if "canvas" in raw else {},
        version=int(raw["version"]),
        phase=Phase(raw["phase"]),
        parked=raw.get("parked") == "1",
        wakes=int(raw.get("wakes", 0)),
        fence=int(raw.get("fence", 0)),
        heard=raw.get("heard", ""),
        claimed=read_state(raw.get("claimed")),
        fetched_at=float(raw["fetched_at"]) if "fetched_at" in raw else None,
        replies=int(raw.get("replies", 0)),
        followed=raw.get("followed") == "1",
        cancel_until=float(raw["cancel_until"]) if "cancel_until" in raw else None,
        cancel_reason=raw.get("cancel_reason", ""),
        push_digest=raw.get("digest", ""),
        timers=Timers(**{name: float(raw[name]) for name in _TIMERS if name in raw}),
        progress=_decode_progress(json.loads(raw["progress"])) if "progress" in raw else Progress(),
        outcome=Outcome.from_dict(json.loads(raw["outcome"])) if "outcome" in raw else None,
    )


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


def _encode_progress(progress: Progress) -> dict[str, Any]:
    values = ((name, getattr(progress, name)) for name in _PROGRESS_NAMES)
    changed = ((name, value) for name, value in values if value != getattr(_PROGRESS_DEFAULTS, name))
    return {
        name: asdict(value) if is_dataclass(value) and not isinstance(value, type) else value for name, value in changed
    }


def _decode_progress(raw: dict[str, Any]) -> Progress:
    known = {name: value for name, value in raw.items() if name in _PROGRESS_NAMES}
    return Progress(**{k: _PROGRESS_TYPES[k](v) if k in _PROGRESS_TYPES else v for k, v in known.items()})


def _decode_brief(raw: dict[str, Any]) -> Brief:
    return Brief(
        goal=raw.get("goal", ""),
        name=raw.get("name", ""),
        description=raw.get("description", ""),
        acceptance_criteria=tuple(raw.get("acceptance_criteria", ())),
        inputs=tuple(raw.get("inputs", ())),
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
