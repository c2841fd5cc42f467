"""THE QUEUE: decides when a step runs, never what it does.

``web → workers → delegation``: this room knows Celery and the library; it imports no web. What users need is here.
"""

import importlib
from typing import TYPE_CHECKING, Any

from workers.canvas import delegate
from workers.handles import DelegationHandle, Workflow
from workers.install import install
from workers.subtasks import agents_section, subtask_tools
from workers.talk import reply

if TYPE_CHECKING:
    from workers.durable_tools import durable_agent

__all__ = [
    "DelegationHandle",
    "Workflow",
    "agents_section",
    "delegate",
    "durable_agent",
    "install",
    "reply",
    "subtask_tools",
]


def __getattr__(name: str) -> Any:
    if name == "durable_agent":  # with its first use: it takes an HTTP client along, which a caller has no use for
        return importlib.import_module("workers.durable_tools").durable_agent
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
