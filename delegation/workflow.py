"""What a workflow is: a parent blocked by the number of its unresolved children. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from delegation.join_policy import ALL, JoinPolicy
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
    policy: JoinPolicy = ALL  #: of the join that waits, or of the last one
    is_satisfied: bool | None = None  #: what was joined for has come; None before the release
    release_id: str | None = None
    is_publishing: bool = False  #: the release's continuation has not been seen to run yet
    publishes: int = 0  #: how often the release's continuation was published
    is_poisoned: bool = False  #: it was published often and never seen
    result: Any = None
    on_note: dict[str, Any] | None = None  #: the signature that tells of each note
    cancel_reason: str = ""  #: told to the children it has cancelled
    cancel_round: int | None = None  #: those opened up to this round are cancelled by a join; None: all, if any
    cancels: int = 0  #: how often it had children cancelled
    line: tuple[WorkflowId, ...] = ()  #: its parent, that one's parent and so on
    in_round: int = 0  #: the round of its parent that it was opened in
    is_late: bool = False  #: it ended when that round was over
    notes: int = 0  #: notes so far

    @property
    def parent_id(self) -> WorkflowId | None:
        return self.line[0] if self.line else None
