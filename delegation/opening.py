"""Turn a caller's arguments into a delegation that can be opened, or say in one line what is wrong with them."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypedDict

from pydantic import TypeAdapter, ValidationError

from delegation.errors import InvalidArguments
from delegation.state import Brief, Delegation, DelegationId, WorkflowId

GOAL_LIMIT = 256 * 1024  #: characters; what an agent is told must fit a request
STEP_LIMIT = 256  #: characters
_DURATION = TypeAdapter(timedelta)
_CELERY_ID = re.compile(r"[\x21-\x7e]{1,256}")


class DelegateArguments(TypedDict, total=False):
    """The keyword arguments of ``delegate`` (docs/design.md §9)."""

    agent: str
    goal: str
    name: str
    description: str
    acceptance_criteria: Sequence[str]
    deadline: timedelta | datetime | str | None
    idempotency_key: str | None
    workflow: str | None
    on_failure: str
    step: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Deadline:
    """Relative (seconds from now by Redis time) or absolute (Unix time); both None means the default."""

    after_s: float | None = None
    at: float | None = None


def new_workflow_id() -> WorkflowId:
    """32 hex digits, 128 random bits; begins with no dash, so a command line never takes it for an option."""
    return WorkflowId(secrets.token_hex(16))


def child_workflow_id(parent: WorkflowId, idempotency_key: str | None) -> WorkflowId:
    """A new id, or the one that always goes with this key. Raises InvalidArguments."""
    if idempotency_key is None:
        return new_workflow_id()
    _check_string("idempotency_key", idempotency_key, least=1, most=256)
    return WorkflowId(hashlib.sha256(json.dumps([parent, idempotency_key]).encode()).hexdigest()[:32])


def read_deadline(value: timedelta | datetime | str | float | None) -> Deadline:
    """A timedelta, an aware datetime, or an ISO 8601 duration or date. Raises InvalidArguments."""
    if value is None:
        return Deadline()
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArguments("deadline: a datetime needs a time zone")
        return Deadline(at=value.timestamp())
    if isinstance(value, str) and not value.startswith(("P", "-P", "+P")):
        return read_deadline(_read_datetime(value))
    try:
        duration = _DURATION.validate_python(value)
    except ValidationError:
        raise InvalidArguments("deadline: give a duration such as PT10M, a timedelta or an aware datetime") from None
    if duration <= timedelta(0):
        raise InvalidArguments("deadline: must be in the future")
    return Deadline(after_s=duration.total_seconds())


def _read_datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArguments("deadline: give a duration such as PT10M, a timedelta or an aware datetime") from None


def make_delegation(
    arguments: Mapping[str, Any],
    *,
    inputs: Sequence[Any] = (),
    call_id: str | None,
    participant_id: str,
    canvas: Mapping[str, Any],
    number: int | None = None,
    ancestor: DelegationId | None = None,
) -> Delegation:
    """The record of a new delegation, not yet stored. ``number`` is its number under ``arguments["workflow"]``.

    Raises InvalidArguments naming the argument.
    """
    check_arguments(arguments)
    workflow = arguments.get("workflow")
    delegation_id = DelegationId(f"{workflow}.{number}" if workflow else new_workflow_id())
    if call_id is not None and not _CELERY_ID.fullmatch(call_id):
        raise InvalidArguments("task_id: 1 to 256 printable characters without spaces")
    _check_inputs(inputs)
    return Delegation(
        id=delegation_id,
        agent=arguments["agent"],
        brief=Brief(
            goal=arguments["goal"],
            name=arguments.get("name") or "",
            description=arguments.get("description") or "",
            acceptance_criteria=tuple(arguments.get("acceptance_criteria") or ()),
            inputs=tuple(inputs),
        ),
        call_id=call_id or f"{delegation_id}.delegate",
        participant_id=participant_id,
        created_at=0.0,
        workflow_id=WorkflowId(workflow) if workflow else None,
        on_failure=arguments.get("on_failure") or "raise",
        step=arguments.get("step") or "",
        idempotency=_scope_digest(arguments, ancestor),
        ancestor=ancestor,
        canvas=dict(canvas),
    )


def arguments_digest(delegation: Delegation) -> str:
    """Two uses of one idempotency key must agree in this."""
    brief = delegation.brief
    said = [delegation.agent, brief.goal, brief.name, brief.description, brief.acceptance_criteria, brief.inputs]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _scope_digest(arguments: Mapping[str, Any], ancestor: DelegationId | None) -> str:
    """One that is redriven has a scope of its own, which no key that a user gives can reach."""
    key = arguments.get("idempotency_key")
    if not key:
        return ""
    scope = [arguments["agent"], arguments.get("workflow"), key, *([ancestor] if ancestor else ())]
    return hashlib.sha256(json.dumps(scope).encode()).hexdigest()


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises InvalidArguments naming the first argument that cannot be used."""
    unknown = sorted(arguments.keys() - DelegateArguments.__annotations__.keys())
    if unknown:
        raise InvalidArguments(f"{unknown[0]}: unknown argument; known: {', '.join(DelegateArguments.__annotations__)}")
    for name in ("agent", "goal"):
        if not isinstance(arguments.get(name), str):
            raise InvalidArguments(f"{name}: required, a string, by name (positional arguments are piped-in results)")
    if not arguments["goal"].strip():
        raise InvalidArguments("goal: must not be empty")
    for name in ("goal", "name", "description"):
        _check_string(name, arguments.get(name) or "", most=GOAL_LIMIT)
    _check_string("step", arguments.get("step") or "", most=STEP_LIMIT)
    for name in ("idempotency_key", "workflow"):
        if arguments.get(name) is not None:
            _check_string(name, arguments[name], least=1, most=256)
    criteria = arguments.get("acceptance_criteria") or ()
    if not isinstance(criteria, list | tuple) or not all(isinstance(criterion, str) for criterion in criteria):
        raise InvalidArguments("acceptance_criteria: a list of strings")
    _check_string("acceptance_criteria", "\n".join(criteria), most=GOAL_LIMIT)
    if (arguments.get("on_failure") or "raise") not in ("raise", "return"):
        raise InvalidArguments('on_failure: "raise" or "return"')


def _check_inputs(inputs: Sequence[Any]) -> None:
    """Celery's JSON carries dates and bytes from link to link; what an agent can be told is plain JSON."""
    try:
        json.dumps(inputs, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidArguments("inputs: what earlier links pipe in must be plain JSON") from None


def _check_string(name: str, value: Any, *, least: int = 0, most: int) -> None:
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise InvalidArguments(f"{name}: a string of {least} to {most} characters")
