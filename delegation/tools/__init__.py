"""Remote agents as plain tools: a card in, one tool per skill out, one wait in the caller's thread, nothing raised.

It needs neither Celery nor Redis. Of this package dialects.py alone knows a2a, and is loaded with the first agent.
"""

from __future__ import annotations

from delegation.tools.agent_tool import AgentTool, RemoteAgent
from delegation.tools.descriptor import DEFAULT_POLL_EVERY_MS, DEFAULT_TIMEOUT_MS, Dialect, parse_agents_config
from delegation.tools.remote_agent import agent_tools, remote_agent
from delegation.tools.results import TASK_STATES, TERMINAL_STATES, ToolResult
from delegation.tools.schemas import anthropic_schemas, gemini_schemas, mcp_schemas, openai_schemas
from delegation.tools.toolkit import LocalTool, Toolkit

__all__ = [
    "DEFAULT_POLL_EVERY_MS",
    "DEFAULT_TIMEOUT_MS",
    "TASK_STATES",
    "TERMINAL_STATES",
    "AgentTool",
    "Dialect",
    "LocalTool",
    "RemoteAgent",
    "ToolResult",
    "Toolkit",
    "agent_tools",
    "anthropic_schemas",
    "gemini_schemas",
    "mcp_schemas",
    "openai_schemas",
    "parse_agents_config",
    "remote_agent",
]
