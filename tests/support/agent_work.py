"""The scripted agent's tasks: created by messages, moved on by timers, kept in memory, pushed about."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.support.goal_script import INTERRUPTED, TERMINAL, GoalScript, wire_state
from tests.support.ledger import Ledger
from tests.support.pushes import PushSender


@dataclass(slots=True)
class Work:
    """One agent task, and what is still to happen to it."""

    id: str
    context_id: str
    text: str
    script: GoalScript
    begun_at: float  #: when the latest message came
    state: str = "SUBMITTED"
    status_text: str = ""
    status_at: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    artifacts: list[dict[str, Any]] = field(default_factory=list)
    push_configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    steps_done: int = 0
    is_under_way: bool = False  #: past the states at second 0, which SendMessage's answer tells and no push has to
    changed: asyncio.Event = field(default_factory=asyncio.Event)

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
        if self.status_text:
            parts = [{"text": self.status_text}]
            message_id = f"{self.id}-{self.steps_done}"
            status["message"] = {"messageId": message_id, "role": "ROLE_AGENT", "parts": parts}
        if self.status_at:
            status["timestamp"] = self.status_at
        return status

    def to_memory(self) -> dict[str, Any]:
        names = ("id", "context_id", "text", "begun_at", "state", "status_text", "status_at", "history", "artifacts")
        kept = {name: getattr(self, name) for name in (*names, "push_configs", "steps_done", "is_under_way")}
        return {**kept, "script": self.script.to_json()}

    @classmethod
    def from_memory(cls, kept: dict[str, Any]) -> Work:
        return cls(**{**kept, "script": GoalScript.from_json(kept["script"])})


class Works:
    """All agent tasks of one scripted agent."""

    def __init__(self, ledger: Ledger, pushes: PushSender) -> None:
        self.by_id: dict[str, Work] = {}
        self.by_message_id: dict[str, Work] = {}
        self._ledger = ledger
        self._pushes = pushes

    def begin(self, message: dict[str, Any], text: str, script: GoalScript, push_config: dict[str, Any] | None) -> Work:
        """A new agent task for this message, with its states at second 0 already passed."""
        work = Work(
            id=script.id or str(uuid.uuid4()),
            context_id=message.get("contextId") or str(uuid.uuid4()),
            text=text,
            script=script,
            begun_at=time.time(),
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
        self.keep_push_config(work, push_config)
        self._hear(work, message)

    def move(self, work: Work, state: str, text: str = "", artifact: Any = None) -> None:
        """Put a task into a state, with everything that hangs on it; a terminal task stays where it is."""
        if work.is_terminal:
            return
        work.state, work.status_text = state, text
        work.status_at = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        if state == "COMPLETED":
            work.artifacts += _artifacts(work.script.artifact if artifact is None else artifact)
        self._ledger.add("state", task_id=work.id, state=state)
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

    def adopt(self, wire: Any, message: dict[str, Any], text: str, push_config: dict[str, Any] | None) -> None:
        """Remember a task that exists only in a scripted reply, so that it can be pushed about and asked for."""
        if not isinstance(wire, dict) or not wire.get("id") or wire["id"] in self.by_id:
            return
        state = str((wire.get("status") or {}).get("state", "")).removeprefix("TASK_STATE_")
        work = Work(
            id=str(wire["id"]),
            context_id=str(wire.get("contextId", "")),
            text=text,
            script=GoalScript(states=()),
            begun_at=time.time(),
            state=state,
            history=[message],
            artifacts=list(wire.get("artifacts") or []),
            is_under_way=True,
        )
        self.by_id[work.id] = work
        self._ledger.add(
            "task", task_id=work.id, context_id=work.context_id, message_id=message.get("messageId"), scripted=True
        )
        self.keep_push_config(work, push_config)

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
        self.by_message_id[message.get("messageId", "")] = work
        self._schedule(work)
        work.is_under_way = True

    def _schedule(self, work: Work) -> None:
        """Pass the steps that are due; each later one gets a timer."""
        loop, elapsed = asyncio.get_running_loop(), time.time() - work.begun_at
        for index, step in enumerate(work.script.states[work.steps_done :], start=work.steps_done):
            wait_s = float(step[1]) - elapsed
            if float(step[1]) == 0 or wait_s <= 0:
                self._pass_step(work, work.begun_at, index)
            else:
                loop.call_later(wait_s, self._pass_step, work, work.begun_at, index)

    def _pass_step(self, work: Work, begun_at: float, index: int) -> None:
        if work.begun_at != begun_at:
            return  # a further message has replaced this script
        work.steps_done = index + 1
        state, _at, *text = work.script.states[index]
        self.move(work, str(state), str(text[0]) if text else "")


def _artifacts(content: Any) -> list[dict[str, Any]]:
    if content is None:
        return []
    texts = content if isinstance(content, list) else [content]
    return [
        {"artifactId": f"a{number}", "name": "result", "parts": [{"text": str(text)}]}
        for number, text in enumerate(texts, start=1)
    ]
