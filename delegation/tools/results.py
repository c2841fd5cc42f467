"""What a tool call gives back, and how an agent's words become that. Pure, and tolerant: nothing here raises.

The texts are those of the toolnexus seed (SPEC section 7A), the same in every dialect; states are told as A2A 0.3
spells them (`completed`, `input-required`). Whatever an agent said is made fit to be read (`texts.printable`), and no
secret that we sent is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from delegation.agent_task import read_state
from delegation.texts import printable
from delegation.tools.descriptor import Dialect

#: Longest error text of an agent that is repeated; of a longer one, as much as this.
ERROR_CHARS = 2000
CODE_CHARS = 40
COMPLETED = "completed"
CANCELED = "canceled"
SUBMITTED = "submitted"
TERMINAL_STATES = frozenset({"completed", "failed", "canceled"})
TASK_STATES = TERMINAL_STATES | {"submitted", "working"}
#: Where the seed polls on until its time is up: nothing more will come unless somebody answers.
STUCK_STATES = frozenset({"rejected", "input-required", "auth-required"})

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolResult:
    """``metadata``: agent, taskId, state, polls, ms; empty where no agent was called."""

    output: str
    is_error: bool
    metadata: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One answer of an agent: the result, or the text and the JSON-RPC code of what went wrong."""

    result: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    code: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """The agent's task as last heard of."""

    task_id: str = ""
    state: str = SUBMITTED
    task: Mapping[str, Any] = field(default_factory=dict)
    is_message: bool = False  #: it answered without a task

    def is_over(self, *, strict_seed: bool) -> bool:
        return self.state in TERMINAL_STATES or (self.state in STUCK_STATES and not strict_seed)


def hear(before: Heard, result: Mapping[str, Any], dialect: Dialect) -> Heard:
    """The task in a result. What it leaves out, its id or its state, is as before.

    A message in the place of a task is a completed answer, but for the toolnexus dialect, which has none.
    """
    if dialect is not Dialect.TOOLNEXUS:
        message = _message_in(result)
        if message is not None:
            return Heard(state=COMPLETED, task=message, is_message=True)
        result = _object(result.get("task")) if "status" not in result and "task" in result else result
    state = _read_state(_object(result.get("status")).get("state"), dialect)
    return Heard(task_id=_text(result.get("id")) or before.task_id, state=state or before.state, task=result)


def completed_text(heard: Heard, dialect: Dialect) -> str:
    """The texts of all artifacts; where there are none, the last words of the agent's in the history."""
    if heard.is_message:
        return "\n".join(_texts(heard.task, dialect))
    artifacts = [text for artifact in _objects(heard.task.get("artifacts")) for text in _texts(artifact, dialect)]
    if artifacts:
        return "\n".join(artifacts)
    history = [message for message in _objects(heard.task.get("history")) if _is_agents(message)]
    said = ("\n".join(_texts(message, dialect)) for message in reversed(history))
    return next(filter(None, said), "")


def ended_otherwise_text(task_id: str, state: str, heard: Heard, dialect: Dialect) -> str:
    """Of a task that failed, was canceled or rejected, or waits for somebody."""
    detail = "\n".join(_texts(_object(_object(heard.task.get("status")).get("message")), dialect))
    return f"A2A task {task_id} {state}" + (f": {detail}" if detail else "")


def timed_out_text(task_id: str, timeout_ms: float, state: str) -> str:
    return f"A2A task {task_id} timed out after {timeout_ms}ms (state={state})"


def canceled_text(task_id: str) -> str:
    return f"A2A task {task_id} {CANCELED}"


def http_error_text(status: int, body: bytes, secrets: Iterable[str]) -> str:
    return f"HTTP {status}: {shown(body.decode('utf-8', 'replace'), secrets, ERROR_CHARS)}"


def read_rpc(value: object, secrets: Iterable[str]) -> Answer:
    """The result or the error of a JSON-RPC answer.

    As in the seed its id is not compared: there is one answer on a connection, to the one request.
    """
    if not isinstance(value, dict):
        return INVALID
    error = value.get("error")
    if error is None:
        result = value.get("result")
        return Answer(result=result if isinstance(result, dict) else _NOTHING)
    if not isinstance(error, dict):
        return INVALID
    code, message = error.get("code"), error.get("message")
    text = f"JSON-RPC error {_code_text(code, secrets)}"
    if isinstance(message, str) and message:
        text = shown(message, secrets, ERROR_CHARS)
    return Answer(error=text, code=code if isinstance(code, int) else None)


INVALID = Answer(error="invalid JSON-RPC response")


def shown(text: str, secrets: Iterable[str], limit: int | None = None) -> str:
    """An agent's words as they may be repeated."""
    secrets = tuple(secrets)
    text = _hide(printable(_hide(text, secrets)[: limit and limit * 4]), secrets)
    return text if limit is None or len(text) <= limit else text[: limit - 1] + "…"


def _hide(text: str, secrets: Iterable[str]) -> str:
    for secret in secrets:  # the longest first
        text = text.replace(secret, "***")
    return text


def _message_in(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    wrapped = result.get("message")
    if isinstance(wrapped, dict) and "task" not in result and "status" not in result:
        return wrapped
    is_bare = result.get("kind") == "message" or ("messageId" in result and "parts" in result)
    return result if is_bare and "status" not in result else None


def _read_state(raw: object, dialect: Dialect) -> str:
    """In the toolnexus dialect exactly as sent: anything but its five is no state that it knows."""
    spelled = _text(raw)
    known = read_state(spelled) if dialect is not Dialect.TOOLNEXUS else None
    return known.value.lower().replace("_", "-") if known else spelled


def _texts(owner: Mapping[str, Any], dialect: Dialect) -> list[str]:
    """Of a message or an artifact. In 1.0 a part that has a text is one; before, its kind says so."""
    parts = [part for part in _objects(owner.get("parts")) if isinstance(part.get("text"), str)]
    return [part["text"] for part in parts if dialect is Dialect.V1_0 or part.get("kind") == "text"]


def _is_agents(message: Mapping[str, Any]) -> bool:
    return message.get("role") in ("agent", "ROLE_AGENT")


def _code_text(code: object, secrets: Iterable[str]) -> str:
    return shown(str(code), secrets, CODE_CHARS) if isinstance(code, int | str) else ""


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _NOTHING


def _objects(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
