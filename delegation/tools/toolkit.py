"""Tools under their names: plain callables and the skills of remote agents, in one set that is asked by name.

The order is callables, agents given in code, agents of the config; the first to have a name keeps it, with a warning
(the toolnexus seed's own port lets the last win, its six others the first). Cards are fetched side by side, so that
dead agents cost the time of one.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import structlog
from pydantic import PydanticUserError, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from delegation.errors import InvalidArguments
from delegation.redaction import redact_text, text_of
from delegation.texts import clean
from delegation.tools.agent_tool import RemoteAgent, Tool
from delegation.tools.descriptor import parse_agents_config
from delegation.tools.failures import raise_time_limit
from delegation.tools.remote_agent import remote_agent
from delegation.tools.results import ToolResult
from delegation.tools.schemas import NAME, schemas_for

#: Cards fetched at a time.
FETCH_THREADS = 8
ERROR_CHARS = 500

log = structlog.get_logger("delegation")


class LocalTool:
    """A plain callable as a tool: its name, its docstring, and a schema of its arguments.

    Raises InvalidArguments for one whose arguments no JSON object can be (``*args``), and for one whose name no model
    can be told (a lambda's).
    """

    source = "local"

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        if not NAME.fullmatch(self.name):
            raise InvalidArguments(f"tools: {clean(self.name, 100)} is no name for a tool: {NAME.pattern}")
        self.description = inspect.getdoc(function) or ""
        self._function = function
        try:
            adapter: TypeAdapter[Any] = TypeAdapter(cast("Any", function))
            self._schema = adapter.json_schema()
        except (PydanticUserError, PydanticSchemaGenerationError):
            raise InvalidArguments(f"tools: the arguments of {self.name} cannot be described") from None
        if self._schema.get("type") != "object":
            raise InvalidArguments(f"tools: {self.name} takes arguments without names, which no model can give")

    @property
    def input_schema(self) -> dict[str, Any]:
        return self._schema

    def execute(
        self,
        args: Mapping[str, Any] | None = None,
        *,
        abort: Any = None,  # noqa: ARG002  a callable cannot be interrupted
        timeout: float | None = None,  # noqa: ARG002
    ) -> ToolResult:
        """What the callable returns, as text; what it raises is an error result."""
        try:
            return ToolResult(output=str(self._function(**(args or {}))), is_error=False, metadata={})
        except Exception as error:  # noqa: BLE001  the user's own code, called for a model whose loop goes on
            raise_time_limit(error)
            return _raised(error)


class Toolkit:
    """``agents``: descriptors, or URLs of cards; ``config``: a mapping with an `agents` block, as an MCP config's.

    ``disable_tools`` leaves out tools by their final names. Threads may share it. Raises InvalidArguments for a
    callable that cannot be described, and for a config that is no mapping (a path, say); what agents do never raises.
    """

    def __init__(
        self,
        *,
        tools: Iterable[Callable[..., Any] | Tool] = (),
        agents: Iterable[Mapping[str, Any] | str] = (),
        config: Mapping[str, Any] | None = None,
        disable_tools: Iterable[str] = (),
    ) -> None:
        self._disabled = frozenset(disable_tools)
        self._tools: dict[str, Tool] = {}
        self._lock = threading.Lock()
        self._add(map(_as_tool, tools))
        if config is not None and not isinstance(config, Mapping):
            raise InvalidArguments("config: a mapping; read the file first")
        block = config.get("agents") if config is not None else None
        described = [*map(_as_descriptor, agents), *parse_agents_config(block)]
        if described:
            with ThreadPoolExecutor(max_workers=FETCH_THREADS, thread_name_prefix="cards") as threads:
                for descriptor, agent in zip(described, threads.map(_make, described), strict=True):
                    self._take_in(descriptor, agent)

    @property
    def tools(self) -> list[Tool]:
        with self._lock:
            return list(self._tools.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def execute(
        self,
        name: str,
        args: Mapping[str, Any] | str | None = None,
        *,
        abort: Any = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """``args`` as a mapping, or as the JSON that a provider hands over. Raises nothing: an unknown name, and
        arguments that are no object, are error results like any other failure."""
        tool = self._find(name)
        if tool is None:
            return ToolResult(output=f"unknown tool: {clean(text_of(name), 100)}", is_error=True, metadata={})
        try:
            given = json.loads(args or "{}") if isinstance(args, str) else args
            if given is not None and not isinstance(given, Mapping):
                raise InvalidArguments("arguments: must be a JSON object")
            return tool.execute(given, abort=abort, timeout=timeout)
        except Exception as error:  # noqa: BLE001  a tool of the user's own
            raise_time_limit(error)
            return _raised(error)

    def _find(self, name: object) -> Tool | None:
        """A model may give anything for a name."""
        return self._tools.get(name) if isinstance(name, str) else None

    def add_agent(self, agent: Mapping[str, Any] | str | RemoteAgent, **options: Any) -> RemoteAgent:
        """Take in one more agent while others are at work: a descriptor, the URL of a card, or an agent that is there.

        Never raises. A name that is taken stays whose it was.
        """
        descriptor = {} if isinstance(agent, RemoteAgent) else {**_as_descriptor(agent), **options}
        made = agent if isinstance(agent, RemoteAgent) else _make(descriptor)
        self._take_in(descriptor, made)
        return made

    def schemas(self, provider: str) -> list[dict[str, Any]]:
        """All tools for "openai", "anthropic", "gemini" or "mcp". Raises InvalidArguments for another."""
        return schemas_for(provider, self.tools)

    def _take_in(self, descriptor: Mapping[str, Any], agent: RemoteAgent) -> None:
        if agent.error is not None:
            card = redact_text(str(descriptor.get("card")).partition("?")[0])
            log.warning("tools.agent_failed", card=card, error=redact_text(clean(agent.error, ERROR_CHARS)))
        self._add(agent.tools)

    def _add(self, tools: Iterable[Tool]) -> None:
        taken: list[Tool] = []
        for tool in tools:
            if tool.name in self._disabled:
                continue
            with self._lock:
                kept = self._tools.setdefault(tool.name, tool)
            if kept is not tool:
                taken.append(kept)
        if taken:  # one warning, however many a card has
            first = taken[0]
            log.warning("tools.name_taken", name=first.name[:100], kept=first.source, further=len(taken) - 1)


def _raised(error: Exception) -> ToolResult:
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  as above
        said = "an error that cannot be shown"
    return ToolResult(output=f"{type(error).__name__}: {said}", is_error=True, metadata={})


def _as_tool(given: Callable[..., Any] | Tool) -> Tool:
    return cast("Tool", given) if hasattr(given, "execute") else LocalTool(given)


def _as_descriptor(agent: Mapping[str, Any] | str) -> dict[str, Any]:
    return dict(agent) if isinstance(agent, Mapping) else {"card": agent}


def _make(descriptor: Mapping[str, Any]) -> RemoteAgent:
    return remote_agent(**{str(key): value for key, value in descriptor.items()})
