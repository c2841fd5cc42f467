"""The library: it knows A2A and Redis, and imports neither Celery nor Flask.

Records in Redis are the truth, decided by pure functions and written by one script per fact; a message is only a hint.
The laws that comments name by number are those of docs/design.md §3.
"""

from __future__ import annotations

from delegation.errors import (
    AgentError,
    AgentTaskFailed,
    CallerError,
    ConfigurationError,
    DelegationEnded,
    DelegationError,
    IdempotencyConflict,
    InvalidArguments,
    OperatorError,
    StateLost,
    StoreUnavailable,
    UnknownAgent,
    UnknownDelegation,
    UnknownWorkflow,
    UnresolvedChildren,
    UnsupportedExtensionError,
    WorkflowConflict,
    WorkflowTooDeep,
)

__all__ = [
    "AgentError",
    "AgentTaskFailed",
    "CallerError",
    "ConfigurationError",
    "DelegationEnded",
    "DelegationError",
    "IdempotencyConflict",
    "InvalidArguments",
    "OperatorError",
    "StateLost",
    "StoreUnavailable",
    "UnknownAgent",
    "UnknownDelegation",
    "UnknownWorkflow",
    "UnresolvedChildren",
    "UnsupportedExtensionError",
    "WorkflowConflict",
    "WorkflowTooDeep",
]
