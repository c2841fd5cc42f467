"""Tools as providers of language models want them described. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from delegation.errors import InvalidArguments
from delegation.tools.agent_tool import Tool

#: Words of JSON Schema that Gemini's `parameters` (an OpenAPI subset) refuses.
_NOT_GEMINI = frozenset({"additionalProperties", "title", "$schema", "$defs"})


def openai_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For `tools` of OpenAI's chat completions."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in tools
    ]


def anthropic_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For `tools` of Anthropic's messages."""
    return [{"name": tool.name, "description": tool.description, "input_schema": tool.input_schema} for tool in tools]


def gemini_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For `tools` of Gemini: one entry that holds every function; none without tools."""
    declared = [
        {"name": tool.name, "description": tool.description, "parameters": _for_gemini(tool.input_schema)}
        for tool in tools
    ]
    return [{"functionDeclarations": declared}] if declared else []


def mcp_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """As an MCP server lists its tools."""
    return [{"name": tool.name, "description": tool.description, "inputSchema": tool.input_schema} for tool in tools]


PROVIDERS: Mapping[str, Callable[[Iterable[Tool]], list[dict[str, Any]]]] = MappingProxyType(
    {"openai": openai_schemas, "anthropic": anthropic_schemas, "gemini": gemini_schemas, "mcp": mcp_schemas}
)


def schemas_for(provider: str, tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """Raises InvalidArguments for a provider that is none of :data:`PROVIDERS`."""
    if provider not in PROVIDERS:
        raise InvalidArguments(f"provider: one of {', '.join(PROVIDERS)}")
    return PROVIDERS[provider](tools)


def _for_gemini(schema: Any, *, are_names: bool = False) -> Any:
    """Below `properties` keys are names of the tool's arguments, whatever they are."""
    if isinstance(schema, list):
        return [_for_gemini(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if are_names or key not in _NOT_GEMINI}
    return {key: _for_gemini(value, are_names=key == "properties" and not are_names) for key, value in kept.items()}
