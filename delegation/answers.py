"""Read what an agent said, from the raw JSON of its answer. Pure, and tolerant of everything but a missing task.

The SDK's typed objects lose what these rules need: the spelling of an unknown state, integers in data, every good
part beside a malformed one, and the whole answer where a timestamp has no zone. So the JSON is read here instead.
Nothing raises but `CallAmbiguous` (and `AnswerTooLarge`, one of its kind): the call may have had its effect.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise
from types import MappingProxyType
from typing import Any

from delegation.agent_task import AgentMessage, AgentTask, AgentTaskId, Artifact, ContextId, TaskState, read_state
from delegation.errors import AnswerTooLarge, CallAmbiguous
from delegation.texts import clean

#: Ids that may stand in a path unescaped, as the SDK's HTTP+JSON client puts them there: no slash, no dot segments.
PATH_SAFE_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}")
_READABLE_ID = re.compile(r"[\x21-\x7e]{1,256}")
MAX_DEPTH = 64
#: Values and keys of one answer. Parsed, each takes some 100 bytes, however few it was sent in: 8 MiB of `[],` would
#: be 230 MB. A table of 10,000 rows and ten columns has 110,000; a text is one, however long.
MAX_VALUES = 125_000
MAX_ID = 1024
LONGEST_MESSAGE_ID = 256
MAX_ARTIFACTS = 1_000
MAX_PARTS = 10_000

_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_CONTENTS = ("text", "raw", "url", "data")
_TIMESTAMP = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d{1,18}))?)? ?(?:([Zz])|([+-])(\d\d):?(\d\d)?)?"
)
#: What becomes an object, in JSON without escapes: a string, a container, a number or word.
_VALUE = re.compile(rb'"[^"]*"?|[\[{]|[^\s"\[\]{},:]+')
# Not JSON, but some write them; protobuf's JSON spells these numbers as strings, and a string can be stored.
_DECODER = json.JSONDecoder(parse_constant=str)
_NOTHING_SAID: Mapping[str, Any] = MappingProxyType({})


def load_json(body: bytes) -> Any:
    """The JSON value in `body`; CallAmbiguous when it is none (bad UTF-8, a 5,000-digit integer), or nested too deeply.

    What is kept is read again by other parsers, Redis's own among them: none of them must meet its limit.
    AnswerTooLarge where it holds more than MAX_VALUES, before any of them takes memory.
    """
    if count_values(body, MAX_VALUES) > MAX_VALUES:
        raise AnswerTooLarge(f"the answer holds more than {MAX_VALUES} values")
    try:
        value = _DECODER.decode(body.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CallAmbiguous(f"the answer is not JSON ({type(error).__name__})") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _is_deeper_than(value, MAX_DEPTH):
        raise CallAmbiguous(f"the answer is nested more than {MAX_DEPTH} deep")
    return value


def count_values(body: bytes, limit: int) -> int:
    """The number of values and keys in `body`: exact above `limit`, as far as one above; below, perhaps too high."""
    separators = 1 + sum(map(body.count, (b",", b":", b"[", b"{")))
    if separators <= limit:
        return separators
    # Most of them may stand in texts. Without escapes, a quote begins or ends a string.
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    return sum(1 for _ in islice(_VALUE.finditer(plain), limit + 1))


def _is_deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            child
            for owner in level
            if isinstance(owner, dict | list)
            for child in (owner.values() if isinstance(owner, dict) else owner)
            if isinstance(child, dict | list)
        ]
        if not level:
            return False
    return True


def one_line(text: object, limit: int = 200, secrets: tuple[str, ...] = ()) -> str:
    """Text of an agent, fit for one line of ours: clean (texts.clean), without URL queries and our secrets."""
    return clean(text, limit, secrets=secrets, with_queries=False)


def read_task(raw: object) -> AgentTask:
    """A `Task` (spec section 4.1.1). CallAmbiguous without an id that we can use."""
    if not isinstance(raw, dict):
        raise CallAmbiguous(f"the agent's task is {_kind(raw)}, not an object")
    said_last = _last_agent_message(raw.get("history"))
    status = read_status(raw.get("status"), said_last=said_last)
    return AgentTask(
        id=read_task_id(raw.get("id")),
        context_id=read_context_id(raw.get("contextId")),
        state=status.state,
        raw_state=status.raw_state,
        status_text=status.text,
        status_parts=status.parts,
        status_at=status.at,
        status_message_id=status.message_id,
        artifacts=_read_artifacts(raw.get("artifacts")),
        last_agent_text=_read_parts(said_last.get("parts"))[1],
        history_message_ids=frozenset(history_message_ids(raw)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskStatus:
    """A2A's `TaskStatus` (spec section 4.1.2); ``raw_state`` keeps the spelling of a state that is none of A2A's."""

    state: TaskState | None
    raw_state: str
    text: str
    parts: tuple[dict[str, Any], ...]
    at: str
    message_id: str


def read_status(raw: object, *, said_last: Mapping[str, Any] = _NOTHING_SAID) -> TaskStatus:
    """A status: of a task, or of an update to one.

    An agent may wait for us without a message in its status and ask in the history alone (fasta2a's workers can do no
    other): then its last message there, ``said_last``, is the question.
    """
    status = _object(raw)
    state = read_state(status.get("state"))
    message: Mapping[str, Any] = _object(status.get("message"))
    if not message and state is not None and state.is_interrupted:
        message = said_last
    parts, text = _read_parts(message.get("parts"))
    return TaskStatus(
        state=state,
        raw_state=read_text(status.get("state"))[:80],
        text=text,
        parts=parts,
        at=read_timestamp(status.get("timestamp")),
        message_id=read_text(message.get("messageId"))[:LONGEST_MESSAGE_ID],
    )


def read_send_answer(raw: object) -> AgentTask | AgentMessage:
    """The result of SendMessage: one of `task` and `message`, or either of them bare."""
    if not isinstance(raw, dict):
        raise CallAmbiguous(f"the answer to the message is {_kind(raw)}, not an object")
    task, message = raw.get("task"), raw.get("message")
    if task is not None and message is None:
        return read_task(task)
    if message is not None and task is None:
        return read_message(message)
    if task is None and "id" in raw and "status" in raw:
        return read_task(raw)
    if task is None and "messageId" in raw and "parts" in raw:
        return read_message(raw)
    members = one_line(", ".join(map(str, list(raw)[:8])), 100)
    raise CallAmbiguous(f"the answer to the message is neither a task nor a message (members: {members or 'none'})")


def find_tasks(raw: object) -> Iterator[dict[str, Any]]:
    """The tasks of a ListTasks result that are objects at all; CallAmbiguous when it is no such result."""
    tasks = raw.get("tasks", []) if isinstance(raw, dict) else None
    if not isinstance(tasks, list):
        raise CallAmbiguous("the list of tasks is not a list")
    return (task for task in tasks if isinstance(task, dict))


def history_message_ids(task: dict[str, Any]) -> set[str]:
    """Ids of the messages in the task's history; empty when the agent keeps, or sends, none."""
    history = task.get("history")
    messages = history if isinstance(history, list) else []
    return {message["messageId"] for message in messages if isinstance(_object(message).get("messageId"), str)}


def read_timestamp(value: object) -> str:
    """RFC 3339 in UTC with microseconds where `value` can be read as a time, else as the agent wrote it.

    A time without a zone is taken for UTC (fasta2a and older Java agents write those); a number for seconds, or
    milliseconds, since 1970. So the texts of readable times sort as the times do.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _read_epoch(value)
    if not isinstance(value, str):
        return ""
    found = _TIMESTAMP.fullmatch(value.strip())
    if not found:
        return read_text(value)[:64]
    try:
        return _format_time(_as_time(found))
    except (ValueError, OverflowError):
        return read_text(value)[:64]


def _as_time(found: re.Match[str]) -> datetime:
    year, month, day, hour, minute, second, fraction, _, sign, zone_hours, zone_minutes = found.groups()
    offset = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0)) * (-1 if sign == "-" else 1)
    microsecond = int((fraction or "0")[:6].ljust(6, "0"))
    return datetime(
        int(year), int(month), int(day), int(hour), int(minute), int(second or 0), microsecond, tzinfo=timezone(offset)
    ).astimezone(UTC)


def _read_epoch(value: float) -> str:
    try:
        seconds = value / 1000 if abs(value) >= 1e11 else value  # 1e11 s is the year 5138
        return _format_time(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))
    except (ValueError, OverflowError):
        return str(value)[:64]


def _format_time(time: datetime) -> str:
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def read_task_id(value: object) -> AgentTaskId:
    """An id that we can send back; CallAmbiguous for any other."""
    if not isinstance(value, str) or not _READABLE_ID.fullmatch(value):
        shown = f" {one_line(value, 40)!r}" if isinstance(value, str) else ""
        raise CallAmbiguous(f"the agent's task has no usable id{shown}")
    return AgentTaskId(value)


def read_context_id(value: object) -> ContextId:
    """Empty when it is none, or longer than anything that is sent back with every reply should be."""
    text = read_text(value)
    return ContextId(text if len(text) <= MAX_ID else "")


def read_message(raw: object) -> AgentMessage:
    """A `Message` (spec section 4.1.4); CallAmbiguous when it is not even an object."""
    if not isinstance(raw, dict):
        raise CallAmbiguous(f"the agent's message is {_kind(raw)}, not an object")
    parts, text = _read_parts(raw.get("parts"))
    return AgentMessage(text=text, context_id=read_context_id(raw.get("contextId")), parts=parts)


def _last_agent_message(history: object) -> Mapping[str, Any]:
    for message in reversed(history if isinstance(history, list) else []):
        role = _object(message).get("role")
        if isinstance(role, str) and role.upper().removeprefix("ROLE_") == "AGENT":
            return _object(message)
    return _NOTHING_SAID


def _read_artifacts(raw: object) -> tuple[Artifact, ...]:
    artifacts = [artifact for artifact in raw if isinstance(artifact, dict)] if isinstance(raw, list) else []
    if len(artifacts) > MAX_ARTIFACTS:
        raise AnswerTooLarge(f"the task has more than {MAX_ARTIFACTS} artifacts")
    return tuple(map(_read_artifact, artifacts))


def _read_artifact(raw: dict[str, Any]) -> Artifact:
    parts, text = _read_parts(raw.get("parts"))
    if _is_in_pieces(parts):
        text = "".join(_texts(parts))
    media_types = (read_text(part.get("mediaType")) for part in parts)
    return Artifact(
        id=read_text(raw.get("artifactId")),
        name=read_text(raw.get("name")),
        description=read_text(raw.get("description")),
        media_type=next(filter(None, media_types), ""),
        text=text,
        size=_size(raw),
        parts=parts,
    )


def _size(raw: dict[str, Any]) -> int:
    try:
        return len(json.dumps(raw, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError):
        return 0


def _read_parts(raw: object) -> tuple[tuple[dict[str, Any], ...], str]:
    """Parts in order, and the texts among them joined by newlines. A malformed one is `{"invalid_part": index}`."""
    sent = raw if isinstance(raw, list) else []
    if len(sent) > MAX_PARTS:
        raise AnswerTooLarge(f"more than {MAX_PARTS} parts")
    parts = tuple(_read_part(part, index) for index, part in enumerate(sent))
    return parts, "\n".join(_texts(parts))


def _texts(parts: tuple[dict[str, Any], ...]) -> list[str]:
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _is_in_pieces(parts: tuple[dict[str, Any], ...]) -> bool:
    """Whether an artifact's texts are one text cut anywhere, as agents leave it that streamed it word by word.

    Nothing says so; but nobody begins or ends a paragraph with a space.
    """
    return any(a[-1:].isspace() or b[:1].isspace() for a, b in pairwise(_texts(parts)))


def _read_part(raw: object, index: int) -> dict[str, Any]:
    """A part as the agent sent it, if it holds exactly one content of the right kind (spec section 4.1.6).

    Version 0.3's kinds are kept too (`file`); its text and data parts look like today's.
    """
    invalid: dict[str, Any] = {"invalid_part": index}
    if not isinstance(raw, dict):
        return invalid
    contents = [name for name in (*_CONTENTS, "file") if raw.get(name) is not None]
    if not contents and "data" in raw:
        contents = ["data"]  # null is a JSON value like any other
    if len(contents) != 1 or not _is_content(contents[0], raw[contents[0]]):
        return invalid
    try:
        part: dict[str, Any] = _storable(raw, MAX_DEPTH)
    except RecursionError:
        return invalid
    return part


def _is_content(name: str, value: object) -> bool:
    if name == "data":
        return True
    if name == "file":
        return isinstance(value, dict)
    return isinstance(value, str) and (name != "raw" or _BASE64.fullmatch(value) is not None)


def _storable(value: Any, depth: int) -> Any:
    """`value` as JSON that every reader of ours takes: no lone surrogate, no infinity, at most `depth` levels."""
    if isinstance(value, str):
        return read_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if not isinstance(value, dict | list):
        return value
    if depth == 0:
        raise RecursionError
    if isinstance(value, list):
        return [_storable(item, depth - 1) for item in value]
    return {read_text(key): _storable(item, depth - 1) for key, item in value.items()}


def read_text(value: object) -> str:
    """A string that can be encoded: JSON escapes allow lone surrogates, UTF-8 does not."""
    if not isinstance(value, str):
        return ""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode("utf-8")
    return value  # itself: 8 MiB with one emoji in it take 32 MB


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _kind(value: object) -> str:
    return {list: "a list", str: "a string", type(None): "null"}.get(type(value), "a number or truth value")
