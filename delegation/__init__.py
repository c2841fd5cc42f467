"""The library: it knows A2A and Redis, and imports neither Celery nor Flask.

Records in Redis are the truth, decided by pure functions and written by one script per fact; a message is only a hint.
The laws that comments name by number are those of docs/design.md §3.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
from delegation.log_default import log_to_stderr

if TYPE_CHECKING:
    from delegation.tools import RemoteAgent, Toolkit, ToolResult, agent_tools, parse_agents_config, remote_agent

log_to_stderr()

#: Loaded with their first use: most of what imports the library has no use for an HTTP client.
_TOOLS = ("RemoteAgent", "ToolResult", "Toolkit", "agent_tools", "parse_agents_config", "remote_agent")

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
    "RemoteAgent",
    "StateLost",
    "StoreUnavailable",
    "ToolResult",
    "Toolkit",
    "UnknownAgent",
    "UnknownDelegation",
    "UnknownWorkflow",
    "UnresolvedChildren",
    "UnsupportedExtensionError",
    "WorkflowConflict",
    "WorkflowTooDeep",
    "agent_tools",
    "parse_agents_config",
    "remote_agent",
]


def __getattr__(name: str) -> Any:
    if name in _TOOLS:
        return getattr(importlib.import_module("delegation.tools"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
