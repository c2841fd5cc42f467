"""What an agent says: its task, its message, its artifacts, as frozen values free of wire types."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

AgentTaskId = NewType("AgentTaskId", str)
ContextId = NewType("ContextId", str)


class TaskState(StrEnum):
    """A2A's TaskState without its prefix (spec section 4.1.3)."""

    SUBMITTED = "SUBMITTED"
    WORKING = "WORKING"
    INPUT_REQUIRED = "INPUT_REQUIRED"
    AUTH_REQUIRED = "AUTH_REQUIRED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    REJECTED = "REJECTED"

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_interrupted(self) -> bool:
        return self in INTERRUPTED


TERMINAL = frozenset({TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED})
INTERRUPTED = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})


def read_state(spelling: object) -> TaskState | None:
    """The state an agent spelled, tolerant of prefix, case, hyphens and British English; None when unknown."""
    if not isinstance(spelling, str):
        return None
    name = spelling.strip().upper().replace("-", "_").removeprefix("TASK_STATE_")
    if name == "CANCELLED":
        name = "CANCELED"
    return TaskState.__members__.get(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Artifact:
    """One artifact: its texts joined by newlines, and its parts as sent (never fetched, a name is never a path)."""

    id: str
    name: str
    description: str = ""
    media_type: str = ""
    text: str = ""
    size: int = 0  #: bytes of the artifact's JSON
    parts: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentTask:
    """A2A `Task`, read tolerantly: unknown state is None with the spelling kept in ``raw_state``."""

    id: AgentTaskId
    context_id: ContextId
    state: TaskState | None
    raw_state: str = ""
    status_text: str = ""
    status_parts: tuple[dict[str, Any], ...] = ()  #: parts of status.message in order (a question's text and data)
    status_at: str = ""  #: RFC 3339 UTC where readable, else as the agent wrote it
    artifacts: tuple[Artifact, ...] = ()
    last_agent_text: str = ""  #: last ROLE_AGENT message of the history
    status_message_id: str = ""  #: messageId of status.message
    history_message_ids: frozenset[str] = frozenset()  #: of the history as far as the agent sent it
    is_whole: bool = True  #: False: put together from a stream that left gaps; only a GetTask tells the artifacts

    @property
    def text(self) -> str:
        """What the agent produced: artifacts' text, else the status message, else its last message."""
        return "\n".join(a.text for a in self.artifacts if a.text) or self.status_text or self.last_agent_text


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentMessage:
    """A direct `Message` answer: the agent made no task."""

    text: str
    context_id: ContextId
    parts: tuple[dict[str, Any], ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPart:
    """A JSON value to send, as the caller gave it."""

    value: Any
    media_type: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingMessage:
    """One message to an agent. The same ``message_id`` on every attempt of one turn."""

    message_id: str
    context_id: ContextId
    text: str
    data: tuple[DataPart, ...] = ()  #: further data parts
    extra_texts: tuple[str, ...] = ()  #: further text parts
    agent_task_id: AgentTaskId | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def texts(self) -> tuple[str, ...]:
        """The text parts, in order; what is said in data alone has none."""
        return tuple(text for text in (self.text, *self.extra_texts) if text)


@dataclass(frozen=True, kw_only=True, slots=True)
class PushConfig:
    """Where and how the agent may push. ``token`` is the clear secret; it lives only while the call is made."""

    id: str
    url: str
    token: str = field(repr=False)
