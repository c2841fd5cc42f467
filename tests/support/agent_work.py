"""The scripted agent's tasks: created by messages, moved on by timers, kept in memory, pushed about."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.support.goal_script import INTERRUPTED, TERMINAL, GoalScript, wire_state
from tests.support.ledger import Ledger
from tests.support.pushes import PushSender

_KEPT = ("id", "context_id", "text", "begun_at", "participant_id", "state", "status_message", "status_at", "statuses")
_KEPT_TOO = ("history", "artifacts", "events", "push_configs", "steps_done", "is_under_way", "is_scripted")


@dataclass(slots=True)
class Work:
    """One agent task, and what is still to happen to it."""

    id: str
    context_id: str
    text: str
    script: GoalScript
    begun_at: float  #: when the latest message came
    participant_id: str = ""  #: who began it
    state: str = "SUBMITTED"
    status_message: dict[str, Any] | None = None
    status_at: str = ""
    statuses: int = 0  #: how many it has had
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    push_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps_done: int = 0
    is_under_way: bool = False  #: past the states at second 0, which SendMessage's answer tells and no push has to
    is_scripted: bool = False  #: it exists only in what rules have answered
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    events: list[dict[str, Any]] = field(default_factory=list)  #: all that has happened, as streams tell it
    followers: list[Callable[[dict[str, Any]], None]] = field(default_factory=list)
    turn_snapshot: dict[str, Any] = field(default_factory=dict)  #: as the latest message found it
    turn_start: int = 0  #: the first event that the latest message caused

    @property
    def is_terminal(self) -> bool:
        return self.state in TERMINAL

    @property
    def is_waiting(self) -> bool:
        return self.state in TERMINAL or self.state in INTERRUPTED

    def to_wire(self, history_length: int | None = None, *, with_artifacts: bool = True) -> dict[str, Any]:
        wire: dict[str, Any] = {"id": self.id, "contextId": self.context_id, "status": self.status_to_wire()}
        if self.artifacts and with_artifacts:
            wire["artifacts"] = self.artifacts
        history = self.history if history_length is None else self.history[len(self.history) - history_length :]
        if history and history_length != 0:
            wire["history"] = history
        return wire

    def status_to_wire(self, state: str | None = None) -> dict[str, Any]:
        status: dict[str, Any] = {"state": wire_state(state or self.state)}
        if self.status_message:
            status["message"] = self.status_message
        if self.status_at:
            status["timestamp"] = self.status_at
        return status

    def to_memory(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in (*_KEPT, *_KEPT_TOO)}
        return {**kept, "script": self.script.to_json()}

    @classmethod
    def from_memory(cls, kept: dict[str, Any]) -> Work:
        return cls(**{**kept, "script": GoalScript.from_json(kept["script"])})

    def happen(self, event: dict[str, Any]) -> None:
        """Remember it and tell those who listen."""
        self.events.append(event)
        for tell in list(self.followers):
            tell(event)

    def status_event(self) -> dict[str, Any]:
        return {"statusUpdate": {"taskId": self.id, "contextId": self.context_id, "status": self.status_to_wire()}}

    def artifact_event(self, artifact: dict[str, Any], *, append: bool, is_last: bool) -> dict[str, Any]:
        update = {"taskId": self.id, "contextId": self.context_id, "artifact": artifact}
        return {"artifactUpdate": {**update, "append": append, "lastChunk": is_last}}

    def take_piece(self, artifact: dict[str, Any], *, append: bool) -> None:
        """A piece of an artifact: added to what is there under its id, or in its place (spec section 4.2.2)."""
        for index, known in enumerate(self.artifacts):
            if known.get("artifactId") == artifact.get("artifactId"):
                parts = [*known.get("parts", []), *artifact.get("parts", [])]
                self.artifacts[index] = {**known, "parts": parts} if append else artifact
                return
        self.artifacts.append(artifact)


def now_stamp(skew_s: float = 0.0) -> str:
    """RFC 3339, in UTC; by a clock that is so many seconds ahead."""
    moment = datetime.fromtimestamp(time.time() + skew_s, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


class Works:
    """All agent tasks of one scripted agent."""

    def __init__(self, ledger: Ledger, pushes: PushSender, stamp: Callable[[], str] = now_stamp) -> None:
        """``stamp`` gives the timestamp of a new status, "" for none."""
        self.by_id: dict[str, Work] = {}
        self.by_message_id: dict[str, Work] = {}
        self._stamp = stamp
        self._ledger = ledger
        self._pushes = pushes

    def begin(
        self,
        message: dict[str, Any],
        text: str,
        script: GoalScript,
        push_config: dict[str, Any] | None,
        participant_id: str = "",
    ) -> Work:
        """A new agent task for this message, with its states at second 0 already passed."""
        work = Work(
            id=script.id or str(uuid.uuid4()),
            context_id=message.get("contextId") or str(uuid.uuid4()),
            text=text,
            script=script,
            begun_at=time.time(),
            participant_id=participant_id,
        )
        self.by_id[work.id] = work
        self._ledger.add("task", task_id=work.id, context_id=work.context_id, message_id=message.get("messageId"))
        self.keep_push_config(work, push_config)
        self._hear(work, message)
        return work

    def go_on(
        self, work: Work, message: dict[str, Any], script: GoalScript, push_config: dict[str, Any] | None
    ) -> None:
        """A further message for a task that is not terminal: its script starts over from this message."""
        work.script, work.begun_at, work.steps_done, work.is_under_way = script, time.time(), 0, False
        if work.status_message:
            work.history.append(work.status_message)
        self.keep_push_config(work, push_config)
        self._hear(work, message)

    def move(
        self, work: Work, state: str, text: str = "", artifact: Any = None, *, part: dict[str, Any] | None = None
    ) -> None:
        """Put a task into a state, with everything that hangs on it; a terminal task stays where it is.

        ``part``: a further part of the status message.
        """
        if work.is_terminal:
            return
        work.statuses += 1
        parts = [*([{"text": text}] if text else []), *([part] if part else [])]
        message_id = f"{work.id}-{work.statuses}"
        work.status_message = {"messageId": message_id, "role": "ROLE_AGENT", "parts": parts} if parts else None
        made = _artifacts(work.script.artifact if artifact is None else artifact) if state == "COMPLETED" else []
        for each in made:
            work.artifacts.append(each)
            work.happen(work.artifact_event(each, append=False, is_last=True))
        work.state, work.status_at = state, self._stamp()
        self._ledger.add("state", task_id=work.id, state=state)
        work.happen(work.status_event())
        if work.is_under_way or work.script.push_states is not None:
            self._pushes.announce(work)
        work.changed.set()
        work.changed = asyncio.Event()

    def keep_push_config(self, work: Work, config: dict[str, Any] | None) -> dict[str, Any] | None:
        """Keep a push config under its id; one without id gets the task's, as a2a-sdk does."""
        if config is None:
            return None
        kept = {**config, "id": config.get("id") or work.id, "taskId": work.id}
        work.push_configs[kept["id"]] = kept
        self._ledger.add("config_created", task_id=work.id, config_id=kept["id"], url=kept.get("url"))
        return kept

    def adopt(
        self,
        wire: Any,
        message: dict[str, Any],
        text: str,
        push_config: dict[str, Any] | None,
        participant_id: str = "",
    ) -> None:
        """Remember a task that exists only in a scripted reply, so that it can be pushed about and asked for."""
        if not isinstance(wire, dict) or not wire.get("id") or wire["id"] in self.by_id:
            return
        work = Work(
            id=str(wire["id"]),
            context_id=str(wire.get("contextId", "")),
            text=text,
            script=GoalScript(states=()),
            begun_at=time.time(),
            participant_id=participant_id,
            state="",
            history=[message],
            artifacts=list(wire.get("artifacts") or []),
            is_under_way=True,
            is_scripted=True,
        )
        _take_status(work, wire.get("status"))
        self.by_id[work.id] = work
        self._ledger.add(
            "task", task_id=work.id, context_id=work.context_id, message_id=message.get("messageId"), scripted=True
        )
        self.keep_push_config(work, push_config)

    def hear(self, event: dict[str, Any]) -> None:
        """What a rule has just told about a task that exists only there is true of it from now on."""
        told = event.get("task") or event.get("statusUpdate") or event.get("artifactUpdate")
        if not isinstance(told, dict):
            return
        work = self.by_id.get(str(told.get("id") or told.get("taskId") or ""))
        if work is None or not work.is_scripted or work.is_terminal:
            return
        if "task" in event:
            work.artifacts = list(told.get("artifacts") or work.artifacts)
        if "artifactUpdate" in event:
            work.take_piece(told.get("artifact") or {}, append=bool(told.get("append")))
        _take_status(work, told.get("status"))
        work.happen(event)

    def restore(self, memory: list[dict[str, Any]]) -> None:
        """Take over another process's tasks; what should have happened meanwhile happens now."""
        for kept in memory:
            work = Work.from_memory(kept)
            self.by_id[work.id] = work
            for message in work.history:
                self.by_message_id[message.get("messageId", "")] = work
            self._schedule(work)

    def _hear(self, work: Work, message: dict[str, Any]) -> None:
        work.history.append({**message, "taskId": work.id, "contextId": work.context_id})
        snapshot = work.to_wire()
        work.turn_snapshot, work.turn_start = {**snapshot, "history": [*work.history]}, len(work.events)
        if work.artifacts:
            work.turn_snapshot["artifacts"] = [*work.artifacts]
        self.by_message_id[message.get("messageId", "")] = work
        self._schedule(work)
        work.is_under_way = True

    def _schedule(self, work: Work) -> None:
        """Pass the steps that are due; each later one gets a timer."""
        loop, elapsed = asyncio.get_running_loop(), time.time() - work.begun_at
        steps = work.script.steps
        for index, step in enumerate(steps[work.steps_done :], start=work.steps_done):
            wait_s = float(step[1]) - elapsed
            if float(step[1]) == 0 or wait_s <= 0:
                self._pass_step(work, work.begun_at, index, step)
            else:
                loop.call_later(wait_s, self._pass_step, work, work.begun_at, index, step)

    def _pass_step(self, work: Work, begun_at: float, index: int, step: tuple[Any, ...]) -> None:
        if work.begun_at != begun_at:
            return  # a further message has replaced this script
        work.steps_done = index + 1
        state, _at, *more = step
        if state is None:
            self._add_chunk(work, str(more[0]), is_last=all(later[0] for later in work.script.steps[index + 1 :]))
        else:
            self.move(work, str(state), str(more[0]) if more else "", part=more[1] if len(more) > 1 else None)

    def _add_chunk(self, work: Work, text: str, *, is_last: bool) -> None:
        if work.is_terminal:
            return
        piece = {"artifactId": "chunks", "name": "chunks", "parts": [{"text": text}]}
        append = any(known.get("artifactId") == "chunks" for known in work.artifacts)
        work.take_piece(piece, append=append)
        work.happen(work.artifact_event(piece, append=append, is_last=is_last))


def _take_status(work: Work, status: Any) -> None:
    """A status as a rule spelled it."""
    if not isinstance(status, dict):
        return
    work.state = str(status.get("state", "")).removeprefix("TASK_STATE_")
    work.status_message, work.status_at = status.get("message"), status.get("timestamp") or ""
    work.changed.set()
    work.changed = asyncio.Event()


def _artifacts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    texts = content if isinstance(content, list) else [content]
    return [
        {"artifactId": f"a{number}", "name": "result", "parts": [{"text": str(text)}]}
        for number, text in enumerate(texts, start=1)
    ]
