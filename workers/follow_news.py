"""What on a stream makes a wake: pure, on frozen values.

An agent may replay its whole log after the first snapshot, so a state is news only if it is later than what is known.
A wrong wake costs one GetTask, a missed one would cost the news; what is skipped although it differs is kept in doubt
and looked at a little later.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from delegation.agent_task import AgentTask, TaskState
from delegation.events import StreamEvent
from delegation.state import Progress

#: Texts are compared this far: the record keeps long ones shortened.
_COMPARED_CHARS = 1000
#: Artifacts of one stream that are told apart.
_MOST_ARTIFACTS = 1000
#: As answers.read_timestamp writes a time that it could read.
_READABLE_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
_EARLIEST = "2000"
#: Clocks may be hours wrong; later than this is no time but a mistake, and would hide all that comes after it.
_AHEAD = timedelta(days=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Status:
    """One status of an agent task. ``at`` sorts as time does, and is empty where there is none to be trusted."""

    state: str  #: TaskState, or the agent's own spelling in quotes
    at: str = ""
    text: str = ""
    message_id: str = ""

    @property
    def claimed(self) -> str:
        """The state, if it is one that A2A knows."""
        return self.state if self.state in TaskState.__members__ else ""

    @property
    def is_terminal(self) -> bool:
        return bool(self.claimed) and TaskState(self.state).is_terminal

    def says_the_same(self, other: Status) -> bool:
        """State and message are equal, whenever they were said."""
        if self.state != other.state:
            return False
        if self.message_id and other.message_id:
            return self.message_id == other.message_id
        return self.text[:_COMPARED_CHARS] == other.text[:_COMPARED_CHARS]


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """What is known while one stream is read: the record at first, then what the stream told beyond it."""

    base: Status
    skipped: Status | None = None  #: the last status taken for a replayed one, if none was accepted since
    has_snapshot: bool = False
    has_unreadable: bool = False  #: the last event was not readable
    artifact_ids: frozenset[str] = field(default=frozenset())

    @property
    def is_in_doubt(self) -> bool:
        """The last word differs from what is known, though by its time it is older. A replay ends with what is known,
        so this is a replay that is not over, or an agent whose clock went back."""
        return self.skipped is not None and not self.skipped.says_the_same(self.base)


@dataclass(frozen=True, kw_only=True, slots=True)
class News:
    """Wake. ``claimed``: the state that was heard, or nothing; it is compared with the agent's answer, not applied."""

    claimed: str = ""


def begin_hearing(progress: Progress, now: datetime) -> Heard:
    """Before the first event of a stream, with the record as it is."""
    question = progress.question
    base = Status(
        state=progress.unknown_state or progress.state.value,
        at=_trusted(progress.status_at, now),
        text=progress.status_text,
        message_id=question.message_id if question is not None and question.state is progress.state else "",
    )
    return Heard(base=base)


def hear(heard: Heard, event: StreamEvent, now: datetime) -> tuple[Heard, News | None]:
    """The next event of a stream."""
    heard = replace(heard, has_unreadable=False)
    if event.kind == "task" and event.task is not None:
        return _hear_task(heard, event.task, now)
    if event.kind == "status":
        return _hear_status(heard, _status_of(event, now))
    if event.kind == "artifact":
        return _hear_artifact(heard, event.artifact_id)
    return heard, News() if event.kind == "message" else None


def hear_unreadable(heard: Heard) -> tuple[Heard, News | None]:
    """An event that cannot be read may be anything; a row of them is one wake."""
    return replace(heard, has_unreadable=True), None if heard.has_unreadable else News()


def _hear_task(heard: Heard, task: AgentTask, now: datetime) -> tuple[Heard, News | None]:
    status = Status(
        state=_state_of(task.state, task.raw_state),
        at=_trusted(task.status_at, now),
        text=task.status_text,
        message_id=task.status_message_id,
    )
    known = heard.artifact_ids | {artifact.id for artifact in task.artifacts[:_MOST_ARTIFACTS]}
    heard = replace(heard, artifact_ids=known)
    if heard.has_snapshot:
        return _hear_status(heard, status)
    is_news = status.at != heard.base.at if status.at and heard.base.at else False
    is_news = is_news or not status.says_the_same(heard.base)
    heard = replace(heard, base=status, skipped=None, has_snapshot=True)
    return heard, News(claimed=status.claimed) if is_news else None


def _hear_status(heard: Heard, status: Status) -> tuple[Heard, News | None]:
    if not status.is_terminal and _is_replayed(status, heard.base):
        return replace(heard, skipped=status), None
    return replace(heard, base=status, skipped=None), News(claimed=status.claimed)


def _is_replayed(status: Status, base: Status) -> bool:
    if status.at and base.at:
        return status.at <= base.at
    return status.says_the_same(base)


def _hear_artifact(heard: Heard, artifact_id: str) -> tuple[Heard, News | None]:
    """The first chunk of each; those of a long one are not told one by one."""
    if artifact_id in heard.artifact_ids or len(heard.artifact_ids) >= _MOST_ARTIFACTS:
        return heard, None
    return replace(heard, artifact_ids=heard.artifact_ids | {artifact_id}), News()


def _status_of(event: StreamEvent, now: datetime) -> Status:
    return Status(
        state=_state_of(event.state, event.raw_state),
        at=_trusted(event.status_at, now),
        text=event.status_text,
        message_id=event.status_message_id,
    )


def _state_of(state: TaskState | None, raw_state: str) -> str:
    """As the record keeps it (decide.py)."""
    return state.value if state else repr(raw_state[:60])


def _trusted(at: str, now: datetime) -> str:
    if not _READABLE_TIME.fullmatch(at):
        return ""
    latest = (now.astimezone(UTC) + _AHEAD).isoformat(timespec="microseconds").replace("+00:00", "Z")
    return at if _EARLIEST <= at <= latest else ""
