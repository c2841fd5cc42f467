"""What a caller holds: a tool, whoever does its work, and an agent with its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from delegation.errors import InvalidArguments
from delegation.redaction import text_of
from delegation.tools.descriptor import read_ms
from delegation.tools.poll_loop import Abort
from delegation.tools.results import SUBMITTED, ToolResult

SOURCE = "a2a"
#: Exactly this, for every skill.
TASK_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"task": {"type": "string"}},
    "required": ["task"],
}


class Tool(Protocol):
    """A tool of a toolkit. ``execute`` raises nothing: what goes wrong is a result."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...
    def execute(
        self, args: Mapping[str, Any] | None = None, *, abort: Any = None, timeout: float | None = None
    ) -> ToolResult: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTool:
    """One skill of a remote agent.

    All tools of an agent ask it the same way: the skill is not named to it (toolnexus seed).
    """

    name: str
    description: str
    agent: str
    default_timeout_ms: float
    run: Callable[[str, Abort, float], ToolResult] = field(repr=False)
    source: str = SOURCE

    @property
    def input_schema(self) -> dict[str, Any]:
        return {**TASK_SCHEMA, "properties": {"task": {"type": "string"}}, "required": ["task"]}

    def execute(
        self, args: Mapping[str, Any] | None = None, *, abort: Any = None, timeout: float | None = None
    ) -> ToolResult:
        """Give the agent ``args["task"]`` and wait for its end.

        ``abort``: a predicate, or an Event, that ends the call with "canceled" once it is true; a call begun with it
        true still sends its one message. ``timeout``: milliseconds, in the place of the agent's own.
        """
        try:
            timeout_ms = self.default_timeout_ms if timeout is None else read_ms("timeout", timeout)
        except InvalidArguments as error:
            return failed_call(self.agent, error.detail)
        task = task_text(args)
        if not _is_unicode(task):
            return failed_call(self.agent, "task: holds half a character (a lone surrogate), which cannot be sent")
        return self.run(task, Abort(abort), timeout_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteAgent:
    """A remote agent as tools. Without a card there are none, and ``error`` says why."""

    card: dict[str, Any] | None = None
    endpoint: str | None = None
    tools: list[AgentTool] = field(default_factory=list)
    error: str | None = None


def failed_call(agent: str, text: str) -> ToolResult:
    """Of a call that sent nothing."""
    metadata = {"agent": agent, "taskId": "", "state": SUBMITTED, "polls": 0, "ms": 0}
    return ToolResult(output=text, is_error=True, metadata=metadata)


def task_text(args: Mapping[str, Any] | None) -> str:
    """Models leave out what is required, and send numbers for texts; what else they send is ignored."""
    task = args.get("task") if isinstance(args, Mapping) else None
    return "" if task is None else text_of(task)


def _is_unicode(text: str) -> bool:
    return text.encode("utf-8", "replace").decode() == text
