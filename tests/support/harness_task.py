"""A task of the harness agent: what its envelope may say, the log it keeps, the script in its goal."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import AsyncGenerator
from typing import Any, Literal

import httpx
from a2a.helpers import get_message_text, new_text_artifact, new_text_part
from a2a.server.events import Event
from a2a.types import (
    Message,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict
from pydantic import BaseModel, ConfigDict, ValidationError

OWN_ID = "tiny-harness"
TASK_METADATA = "io.github.madarauchiha-314.tiny-harness/task"
ENVELOPE = "application/vnd.tiny-harness.event+json"
INTERRUPTED = (TaskState.TASK_STATE_INPUT_REQUIRED, TaskState.TASK_STATE_AUTH_REQUIRED)
TERMINAL = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
)
_STEP = re.compile(r"\b(ask|login|work|fail|say): ?(.*)")


# ------------------------------------------------------------------ the envelope


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Envelope(Strict):
    kind: Literal["task", "status_update", "artifact_update"]
    payload: dict[str, Any]


class Criterion(Strict):
    text: str
    met: bool = False


class Participant(Strict):
    id: str
    kind: Literal["human", "agent"]
    role: Literal["assignee", "reporter", "watcher", "admin"]
    display_name: str = ""


class AgentRef(Strict):
    kind: Literal["agent"]
    id: str
    version: str


class TaskRef(Strict):
    task_id: str
    agent: AgentRef | None = None


class PlanStep(Strict):
    id: str
    name: str
    description: str = ""
    depends_on: list[str] = []
    output: str | None = None
    linked_tasks: list[TaskRef] = []
    state: Literal["pending", "active", "done", "failed"] = "pending"


class Plan(Strict):
    steps: list[PlanStep]


class TaskExtension(Strict):
    name: str
    goal: str
    type: str | None = None
    description: str = ""
    acceptance_criteria: list[Criterion] = []
    participants: list[Participant] = []
    parent_tasks: list[TaskRef] = []
    sub_tasks: list[TaskRef] = []
    plan: Plan | None = None


def read_extension(message: Message) -> TaskExtension | None:
    """The first envelope's task; None without an envelope. Raises InvalidParamsError."""
    found = next((part for part in message.parts if part.media_type == ENVELOPE), None)
    if found is None:
        return None
    try:
        envelope = Envelope.model_validate(MessageToDict(found.data) if found.HasField("data") else None)
    except ValidationError as problem:
        raise InvalidParamsError(f"invalid event envelope: {problem}") from None
    if envelope.kind != "task":
        return None
    try:
        return TaskExtension.model_validate(envelope.payload)
    except ValidationError as problem:
        raise InvalidParamsError(f"invalid task extension: {problem}") from None


# ------------------------------------------------------------------ tasks


class HarnessTask:
    """One task: its log, its inbox and the script it follows."""

    def __init__(self, message: Message, extension: TaskExtension, pushes: httpx.AsyncClient) -> None:
        self.id = str(uuid.uuid4())
        self.context_id = message.context_id or str(uuid.uuid4())
        self.extension = extension
        self.log: list[TaskStatusUpdateEvent | TaskArtifactUpdateEvent] = []
        self.inbox: asyncio.Queue[Message] = asyncio.Queue()
        self.history: list[Message] = []
        self.push_configs: dict[str, TaskPushNotificationConfig] = {}
        self.running: asyncio.Task[None] | None = None
        self._status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
        self._artifacts: list[Any] = []
        self._answers: list[str] = []
        self._changed = asyncio.Event()
        self._pushes = pushes

    @property
    def state(self) -> TaskState:
        return self._status.state

    def knows(self, participant_id: str) -> bool:
        return participant_id in {each.id for each in self.extension.participants}

    def to_task(self, history_length: int | None = None) -> Task:
        history = self.history if history_length is None else self.history[len(self.history) - history_length :]
        task = Task(id=self.id, context_id=self.context_id, status=self._status, history=history)
        task.artifacts.extend(self._artifacts)
        task.metadata.update({TASK_METADATA: self.extension.model_dump()})
        return task

    def take(self, message: Message) -> int:
        """Into the history; into the inbox as well when it is not the one that began the task.

        Returns where in the log the turn that it causes begins; a message that is there already causes none.
        """
        if any(message.message_id == known.message_id for known in self.history):
            return len(self.log) - 1
        kept = Message()
        kept.CopyFrom(message)
        kept.task_id, kept.context_id = self.id, self.context_id
        if self.history:
            self.inbox.put_nowait(kept)
        self.history.append(kept)
        return len(self.log)

    def keep(self, config: TaskPushNotificationConfig) -> TaskPushNotificationConfig:
        kept = TaskPushNotificationConfig()
        kept.CopyFrom(config)
        kept.id, kept.task_id = config.id or self.id, self.id
        self.push_configs[kept.id] = kept
        return kept

    async def run(self) -> None:
        await self.move(TaskState.TASK_STATE_WORKING)
        for verb, text in steps_in(self.extension.goal):
            if verb == "work":
                await asyncio.sleep(float(text))
            elif verb == "fail":
                return await self.move(TaskState.TASK_STATE_FAILED, text)
            elif verb == "say":
                return await self._complete(text)
            else:
                await self._wait_for_answer(verb, text)
        await self._complete("done")
        return None

    async def move(self, state: TaskState, text: str = "") -> None:
        self._status = TaskStatus(state=state)
        self._status.timestamp.GetCurrentTime()
        if text:
            said = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_AGENT, parts=[new_text_part(text)])
            said.task_id, said.context_id = self.id, self.context_id
            self._status.message.CopyFrom(said)
            self.history.append(said)
        await self._record(TaskStatusUpdateEvent(task_id=self.id, context_id=self.context_id, status=self._status))

    async def entries(self, start: int, *, turn: int) -> AsyncGenerator[Event]:
        """The log from ``start``, going on with what comes, to an entry at ``turn`` or later that ends a turn."""
        position = start
        while True:
            while position < len(self.log):
                entry = self.log[position]
                position += 1
                yield entry
                if position > turn and isinstance(entry, TaskStatusUpdateEvent) and _ends_turn(entry.status.state):
                    return
            await self._changed.wait()

    async def _wait_for_answer(self, verb: str, text: str) -> None:
        asks = TaskState.TASK_STATE_INPUT_REQUIRED if verb == "ask" else TaskState.TASK_STATE_AUTH_REQUIRED
        await self.move(asks, text)
        self._answers.append(get_message_text(await self.inbox.get()))
        await self.move(TaskState.TASK_STATE_WORKING)

    async def _complete(self, text: str) -> None:
        said = f"{text}: {', '.join(self._answers)}" if self._answers else text
        artifact = new_text_artifact(name="result", text=said)
        self._artifacts.append(artifact)
        update = TaskArtifactUpdateEvent(
            task_id=self.id, context_id=self.context_id, artifact=artifact, last_chunk=True
        )
        await self._record(update)
        await self.move(TaskState.TASK_STATE_COMPLETED, said)

    async def _record(self, entry: TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> None:
        entry.metadata.update({"sequence": len(self.log) + 1})
        self.log.append(entry)
        self._changed.set()
        self._changed = asyncio.Event()
        # As the SDK's server does, a receiver that takes its time holds up the task.
        for config in list(self.push_configs.values()):
            with contextlib.suppress(httpx.HTTPError):
                body = MessageToDict(to_stream_response(entry))
                headers = {"X-A2A-Notification-Token": config.token} if config.token else {}
                await self._pushes.post(config.url, json=body, headers=headers)


def steps_in(text: str) -> list[tuple[str, str]]:
    """The longest line with steps in it: a brief's text may repeat the goal, shortened, as a title."""
    found = [match for line in text.splitlines() if (match := _STEP.search(line))]
    if not found:
        return []
    steps = max((match.group() for match in found), key=len).split("|")
    return [(match[1], match[2].strip()) for step in steps if (match := _STEP.search(step))]


def _ends_turn(state: TaskState) -> bool:
    return state in INTERRUPTED or state in TERMINAL
