"""Read an event stream: bytes into events, an event into what the agent says with it. Pure.

The bytes are split by the rules of the WHATWG's event streams (HTML standard, section 9.2.6), the events read as
A2A's `StreamResponse` (spec section 3.2.3) with the tolerance of `answers.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from delegation.agent_task import AgentMessage, AgentTask, TaskState
from delegation.answers import read_context_id, read_message, read_status, read_task, read_text
from delegation.errors import AnswerTooLarge, CallAmbiguous
from delegation.replies import Question, read_error_event, read_event_result

#: Nothing else ends a line, U+2028 and its like least of all: they may stand in the JSON (case C051).
_LINE_END = re.compile(rb"\r\n|\r|\n")
_MARK = b"\xef\xbb\xbf"
#: Members of a StreamResponse, and by what each is known when it comes bare.
_MEMBERS = {
    "task": ("id", "status"),
    "message": ("messageId", "parts"),
    "statusUpdate": ("taskId", "status"),
    "artifactUpdate": ("taskId", "artifact"),
}


class ErrorData(bytes):
    """The data of an `event: error`: never news, whatever it holds."""

    __slots__ = ()


class EventSplitter:
    """The events in a stream of bytes that come in any pieces; in linear time, holding one event at most.

    Comments, ids, `retry` and names other than `error` are nothing. An event is over `max_bytes` when its data and
    the line at hand are longer together.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._head: bytes | None = b""  # None once it is known whether the stream begins with a byte order mark
        self._line = bytearray()
        self._data = bytearray()
        self._is_error = False
        self._after_cr = False
        self._is_over = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that `chunk` completes.

        Raises AnswerTooLarge; where the same chunk held complete events as well, only when called again.
        """
        self._check_size()
        events: list[bytes] = []
        begin = 0
        chunk = self._without_mark(chunk)
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        for end in _LINE_END.finditer(chunk):
            self._take(chunk[begin : end.start()])
            begin = end.end()
            if self._is_over:
                break
            events += self._end_line()
        else:
            self._take(chunk[begin:])
        self._after_cr = self._after_cr or chunk.endswith(b"\r")
        if not events:
            self._check_size()
        return events

    def finish(self) -> bool:
        """The stream has ended: whether it was cut within an event. That event is none."""
        self._check_size()
        return bool(self._data) or (bool(self._line) and not self._line.startswith(b":"))

    def _without_mark(self, chunk: bytes) -> bytes:
        if self._head is None:
            return chunk
        head = self._head + chunk
        if len(head) < len(_MARK) and _MARK.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_MARK)

    def _take(self, piece: bytes) -> None:
        self._line += piece
        self._is_over = self._is_over or len(self._line) + len(self._data) > self._max_bytes

    def _end_line(self) -> list[bytes]:
        line = bytes(self._line)
        self._line.clear()
        if line:
            self._read_field(line)
            return []
        data = bytes(self._data[:-1])
        complete = [ErrorData(data) if self._is_error else data] if self._data else []
        self._data.clear()
        self._is_error = False
        return complete

    def _read_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data += value.removeprefix(b" ") + b"\n"
        elif name == b"event":
            self._is_error = value.removeprefix(b" ") == b"error"

    def _check_size(self) -> None:
        if self._is_over:
            raise AnswerTooLarge(f"an event is larger than {self._max_bytes} bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamEvent:
    """One event, as far as it can be understood. ``raw`` is its payload as sent: the task, the update, the message."""

    kind: Literal["task", "status", "artifact", "message", "other"]
    task: AgentTask | None = None
    message: AgentMessage | None = None
    task_id: str = ""  #: as the agent wrote it, unchecked in an update
    context_id: str = ""
    state: TaskState | None = None  #: of the task or the status update; None in other events, or when unknown
    raw_state: str = ""
    status_text: str = ""
    status_at: str = ""
    status_message_id: str = ""
    artifact_id: str = ""
    artifact_name: str = ""
    appends: bool = False  #: the artifact's parts follow those sent before; else they replace them
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedRequest:
    """A request for an event stream, built and not sent, and the question that its events are read by."""

    method: str
    url: str = field(repr=False)  #: it and the headers may hold the operator's secrets
    headers: list[tuple[bytes, bytes]] = field(repr=False)
    content: bytes = field(repr=False)
    question: Question


def read_event(question: Question, payload: bytes) -> StreamEvent:
    """What one event says. Raises the agent's own error, if it is one, and CallAmbiguous when it cannot be read."""
    if isinstance(payload, ErrorData):
        raise read_error_event(question, payload)
    if not payload.strip():
        return StreamEvent(kind="other")
    return read_stream_response(read_event_result(question, payload))


def read_stream_response(raw: object) -> StreamEvent:
    """A `StreamResponse`: one of its four payloads, or any of them bare. Unknown ones are `other`."""
    if not isinstance(raw, dict):
        raise CallAmbiguous("the event is not an object")
    found = [name for name in _MEMBERS if raw.get(name) is not None]
    if len(found) > 1:
        raise CallAmbiguous(f"the event is more than one thing: {', '.join(found)}")
    payload = raw[found[0]] if found else raw
    found = found or [name for name, members in _MEMBERS.items() if all(member in raw for member in members)]
    if not found:
        return StreamEvent(kind="other", raw=raw)
    if not isinstance(payload, dict):
        raise CallAmbiguous(f"the event's {found[0]} is not an object")
    return _READERS[found[0]](payload)


def _read_task_event(raw: dict[str, Any]) -> StreamEvent:
    task = read_task(raw)
    return StreamEvent(
        kind="task",
        task=task,
        task_id=task.id,
        context_id=task.context_id,
        state=task.state,
        raw_state=task.raw_state,
        status_text=task.status_text,
        status_at=task.status_at,
        status_message_id=task.status_message_id,
        raw=raw,
    )


def _read_message_event(raw: dict[str, Any]) -> StreamEvent:
    message = read_message(raw)
    return StreamEvent(
        kind="message",
        message=message,
        task_id=read_text(raw.get("taskId")),
        context_id=message.context_id,
        raw=raw,
    )


def _read_status_event(raw: dict[str, Any]) -> StreamEvent:
    status = read_status(raw.get("status"))
    return StreamEvent(
        kind="status",
        task_id=read_text(raw.get("taskId")),
        context_id=read_context_id(raw.get("contextId")),
        state=status.state,
        raw_state=status.raw_state,
        status_text=status.text,
        status_at=status.at,
        status_message_id=status.message_id,
        raw=raw,
    )


def _read_artifact_event(raw: dict[str, Any]) -> StreamEvent:
    artifact = raw.get("artifact")
    if not isinstance(artifact, dict):
        raise CallAmbiguous("the event's artifact is not an object")
    return StreamEvent(
        kind="artifact",
        task_id=read_text(raw.get("taskId")),
        context_id=read_context_id(raw.get("contextId")),
        artifact_id=read_text(artifact.get("artifactId")),
        artifact_name=read_text(artifact.get("name")),
        appends=raw.get("append") is True,
        raw=raw,
    )


_READERS = {
    "task": _read_task_event,
    "message": _read_message_event,
    "statusUpdate": _read_status_event,
    "artifactUpdate": _read_artifact_event,
}
