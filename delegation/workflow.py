"""What a workflow is: a parent blocked by the number of its unresolved children. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from delegation.state import WorkflowId


class WorkflowState(StrEnum):
    """OPEN and RELEASED take delegations; JOINING waits for the last child, and so does CANCELING, for CANCELED; the
    others are the end."""

    OPEN = "OPEN"
    JOINING = "JOINING"
    RELEASED = "RELEASED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"

    @property
    def is_ended(self) -> bool:
        return self in (WorkflowState.COMPLETED, WorkflowState.FAILED, WorkflowState.CANCELED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workflow:
    """A workflow's record. ``round`` counts releases; times are seconds of Redis time."""

    id: WorkflowId
    name: str
    state: WorkflowState
    round: int
    children: int  #: highest child number given out; not every number need be in use
    unresolved: int
    created_at: float
    deadline_at: float | None = None
    continuation: dict[str, Any] | None = None  #: the signature a release runs
    release_id: str | None = None
    is_publishing: bool = False  #: the release's continuation has not been seen to run yet
    publishes: int = 0  #: how often the release's continuation was published
    is_poisoned: bool = False  #: it was published often and never seen
    result: Any = None
    on_note: dict[str, Any] | None = None  #: the signature that tells of each note
    cancel_reason: str = ""  #: told to the children of a workflow that failed or was cancelled
    notes: int = 0  #: notes so far
