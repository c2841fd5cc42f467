"""Tools as providers of language models want them described; what one cannot be told is left out, with a warning.

A provider refuses the whole request for one name it does not take, so one tool would cost all the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import structlog

from delegation.errors import InvalidArguments
from delegation.tools.agent_tool import Tool

#: What OpenAI and Anthropic take.
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_GEMINI_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.-]{0,63}")
_REFERENCE = "#/$defs/"
#: Words of JSON Schema that Gemini's `parameters` (an OpenAPI subset) refuses.
_NOT_GEMINI = frozenset({"additionalProperties", "title", "$schema", "$defs"})

log = structlog.get_logger("delegation")


def openai_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For `tools` of OpenAI's chat completions."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in _sayable("openai", tools, _has_name)
    ]


def anthropic_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For `tools` of Anthropic's messages."""
    return [
        {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
        for tool in _sayable("anthropic", tools, _has_name)
    ]


def gemini_schemas(tools: Iterable[Tool]) -> list[dict[str, Any]]:
    """For `tools` of Gemini: one entry that holds every function; none without tools.

    References are written out; a schema that refers to itself cannot be told.
    """
    declared = [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": _for_gemini(_inlined_whole(tool.input_schema)),
        }
        for tool in _sayable("gemini", tools, _is_for_gemini)
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


def _sayable(provider: str, tools: Iterable[Tool], is_sayable: Callable[[Tool], bool]) -> list[Tool]:
    tools = list(tools)
    kept = [tool for tool in tools if is_sayable(tool)]
    if len(kept) < len(tools):
        first = next(tool for tool in tools if not is_sayable(tool))
        further = len(tools) - len(kept) - 1
        log.warning("tools.left_out", provider=provider, name=first.name[:100], further=further)
    return kept


def _has_name(tool: Tool) -> bool:
    return NAME.fullmatch(tool.name) is not None


def _is_for_gemini(tool: Tool) -> bool:
    if not _GEMINI_NAME.fullmatch(tool.name):
        return False
    try:
        _inlined_whole(tool.input_schema)
    except (KeyError, RecursionError):
        return False
    return True


def _inlined_whole(schema: Mapping[str, Any]) -> Any:
    told = {key: value for key, value in schema.items() if key != "$defs"}
    return _inlined(told, schema.get("$defs", {}))


def _inlined(schema: Any, definitions: Mapping[str, Any], within: tuple[str, ...] = ()) -> Any:
    """With each `$ref` replaced by what it refers to. Raises KeyError for one that leads nowhere, or round."""
    if isinstance(schema, list):
        return [_inlined(each, definitions, within) for each in schema]
    if not isinstance(schema, dict):
        return schema
    reference = schema.get("$ref")
    if isinstance(reference, str):  # else an argument of that name
        if reference in within or not reference.startswith(_REFERENCE):
            raise KeyError(reference)
        meant = definitions[reference.removeprefix(_REFERENCE)]
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        return _inlined({**meant, **beside}, definitions, (*within, reference))
    return {key: _inlined(value, definitions, within) for key, value in schema.items()}


def _for_gemini(schema: Any, *, are_names: bool = False) -> Any:
    """Below `properties` keys are names of the tool's arguments, whatever they are."""
    if isinstance(schema, list):
        return [_for_gemini(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if are_names or key not in _NOT_GEMINI}
    return {key: _for_gemini(value, are_names=key == "properties" and not are_names) for key, value in kept.items()}
