"""The tools by which a language model gives out sub-tasks of its workflow, and a call of one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from celery.exceptions import SoftTimeLimitExceeded

from delegation.errors import (
    AgentError,
    AgentPaused,
    AgentRefused,
    DelegationError,
    UnknownAgent,
    UnknownDelegation,
    UnsupportedExtensionError,
)
from delegation.state import Delegation
from delegation.texts import NAME_CHARS, clean
from workers.descriptions import describe_question, is_asking
from workers.handles import DelegationHandle, Workflow
from workers.runtime import runtime
from workers.subtask_results import (
    ToolResult,
    failed,
    failed_with,
    notes_section,
    refused_agent,
    spawned,
    subtask_list,
    unknown_agent,
)
from workers.subtask_schemas import TOOLS, CancelArguments, ListArguments, ReplyArguments, SpawnArguments

#: Shown by list_subtasks.
MOST_LISTED = 50
#: Looked at for it: so many of the latest, and those that ask.
MOST_LOADED = 500

log = structlog.get_logger("delegation")


def agents_section() -> str:
    """The agents that work may be given to, for a model's context: the same text until their cards change.

    Ask before each turn: it is cheap. It is data, never a system message. Raises StoreUnavailable, ConfigurationError.
    """
    section: str = runtime().roster.render()
    return section


def subtask_tools(workflow: Workflow | str) -> SubtaskTools:
    """The tools of one workflow (or its id). Nothing is asked of anybody yet."""
    return SubtaskTools(workflow.id if isinstance(workflow, Workflow) else workflow)


class SubtaskTools:
    """Definitions in each provider's shape, and :meth:`call` for what the model then wants."""

    def __init__(self, workflow_id: str) -> None:
        self._workflow = Workflow(workflow_id)
        self._calls: Mapping[str, Callable[[Any, str | None], ToolResult]] = {
            "spawn_subtask": self._spawn,
            "reply_subtask": self._reply,
            "cancel_subtask": self._cancel,
            "list_subtasks": self._list,
        }

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in TOOLS)

    def openai(self) -> list[dict[str, Any]]:
        """`tools` of OpenAI's Chat Completions API."""
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
            }
            for tool in TOOLS
        ]

    def anthropic(self) -> list[dict[str, Any]]:
        """`tools` of Anthropic's Messages API."""
        return [{"name": tool.name, "description": tool.description, "input_schema": tool.schema} for tool in TOOLS]

    def mcp(self) -> list[dict[str, Any]]:
        """`tools` of an MCP server's `tools/list`."""
        return [{"name": tool.name, "description": tool.description, "inputSchema": tool.schema} for tool in TOOLS]

    def notes(self) -> str:
        """What happened to the sub-tasks since the last call, for the model to read; empty if nothing did.

        Each note is told once (`Workflow.notes`). Raises StoreUnavailable, UnknownWorkflow.
        """
        return notes_section(self._workflow.notes())

    def call(
        self, name: str, arguments: Mapping[str, Any] | str | None = None, *, call_id: str | None = None
    ) -> ToolResult:
        """Do what a model asked for. `arguments` is a mapping, or the JSON that the model sent.

        Whatever goes wrong is a result to show the model; nothing is raised. With `call_id`, the provider's id of the
        call, a repeat of the same call is answered with the same child; without, each spawn makes another.
        """
        try:
            return self._call(name, arguments, call_id)
        except SoftTimeLimitExceeded:
            raise  # Celery ends the task that the loop runs in; it is told once
        except DelegationError as error:
            return failed_with(error)
        except Exception as error:  # noqa: BLE001  the seam to a model's loop: its text may be anybody's
            log.warning("subtasks.call_failed", workflow_id=self._workflow.id, error=type(error).__name__)
            return failed("tool.failed", f"{type(error).__name__}; it may have been done all the same: list_subtasks")

    def _call(self, name: object, arguments: object, call_id: str | None) -> ToolResult:
        tool = next((tool for tool in TOOLS if tool.name == name), None)
        if tool is None:
            return failed("tool.unknown", f"unknown tool; tools: {', '.join(self.names)}")
        return self._calls[tool.name](tool.read(arguments), call_id or None)

    def _spawn(self, wanted: SpawnArguments, call_id: str | None) -> ToolResult:
        if (refusal := _why_not(wanted.agent)) is not None:
            return refusal
        given = wanted.model_dump(exclude={"agent", "goal"})
        handle = self._workflow.delegate(wanted.agent, wanted.goal, **given, idempotency_key=call_id)
        return spawned(handle.id, wanted.name, wanted.agent)

    def _reply(self, wanted: ReplyArguments, call_id: str | None) -> ToolResult:
        child = self._child(wanted.id)
        question = describe_question(child)
        if question is None and child.outcome is None:
            message = f"sub-task {child.id} asks nothing now; you are told when it does"
            return failed("delegation.not_asking", message)
        number = question["number"] if question else None
        DelegationHandle.of(child).reply(wanted.text, question=number, key=call_id)
        return ToolResult(text=f"reply to sub-task {child.id} is on its way", data={"id": child.id})

    def _cancel(self, wanted: CancelArguments, _call_id: str | None) -> ToolResult:
        child = self._child(wanted.id)
        receipt = DelegationHandle.of(child).cancel(wanted.reason) or "already ended"
        return ToolResult(text=f"cancel of sub-task {child.id}: {receipt}", data={"id": child.id, "cancel": receipt})

    def _list(self, _wanted: ListArguments, _call_id: str | None) -> ToolResult:
        """Those that ask come first where there is no room for all, then the unresolved, then the latest."""
        store = runtime().store
        record = store.load_workflow(self._workflow.id)
        latest = range(max(1, record.children + 1 - MOST_LOADED), record.children + 1)
        asking = {number for each in store.inbox() if (number := _number_of(each, record.id)) is not None}
        numbers = sorted(asking.union(latest))
        children = store.load_many([f"{record.id}.{number}" for number in numbers])
        ranked = sorted(enumerate(children), key=lambda each: (_rank(each[1]), -each[0]))[:MOST_LISTED]
        shown = [child for _, child in sorted(ranked, key=lambda each: each[0])]
        return subtask_list(shown, record.children - len(numbers) + len(children) - len(shown))

    def _child(self, child_id: str) -> Delegation:
        """One of this workflow's own. Raises UnknownDelegation."""
        if _number_of(child_id, self._workflow.id) is not None:
            child = runtime().store.load(child_id).delegation
            if child.workflow_id == self._workflow.id:
                return child
        echoed = clean(ascii(child_id[:NAME_CHARS]), NAME_CHARS)
        raise UnknownDelegation(f"unknown sub-task {echoed}; list_subtasks shows yours")


def _why_not(agent_id: str) -> ToolResult | None:
    """Why no work is given to an agent: there is no such, or it was refused. One that is merely away takes its time."""
    roster = runtime().roster
    try:
        roster.card(agent_id)
    except UnknownAgent:
        return unknown_agent(agent_id, (each.id for each in roster.listed()))
    except (AgentRefused, UnsupportedExtensionError, AgentPaused) as error:
        return refused_agent(agent_id, error.code, roster.listed())
    except AgentError:
        return None
    return None


def _number_of(delegation_id: str, workflow_id: str) -> int | None:
    """A child's number, as its id is spelled; None for what is no id of a child of that workflow."""
    prefix, _, number = delegation_id.rpartition(".")
    is_one = prefix == workflow_id and re.fullmatch(r"[1-9][0-9]{0,8}", number)
    return int(number) if is_one else None


def _rank(child: Delegation) -> int:
    return 0 if is_asking(child) else 1 if child.outcome is None else 2
