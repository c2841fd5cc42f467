"""Put a task together from the events of one stream. Pure.

The rules are A2A's (spec sections 3.2.3, 4.2.1 and 4.2.2): a task replaces what was known, a status update its
status, an artifact update appends to an artifact or replaces it. Two are ours: terminal is final, and what may have
gaps says so (``is_whole``), so that the agent is asked for the task itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delegation.agent_task import AgentMessage, AgentTask, TaskState
from delegation.answers import read_status, read_task, read_task_id, read_text
from delegation.errors import AnswerTooLarge, CallAmbiguous
from delegation.events import StreamEvent


class StreamedTask:
    """What one stream has told so far. Give it every event in its order."""

    def __init__(self) -> None:
        self.events = 0
        self.message: AgentMessage | None = None
        self._task: dict[str, Any] | None = None  # as a Task's JSON, without artifacts
        self._state: TaskState | None = None
        self._state_in_update = False
        self._artifacts: dict[str, dict[str, Any]] = {}
        self._has_gaps = False

    @property
    def is_known(self) -> bool:
        """Whether the stream has named a task."""
        return self._task is not None

    @property
    def has_begun(self) -> bool:
        """Whether the agent has answered: the task is past SUBMITTED, or it is a message."""
        return self.message is not None or self._state not in (None, TaskState.SUBMITTED)

    @property
    def result(self) -> AgentTask | AgentMessage | None:
        """The task as known so far, read as any task is; a message where there is none; None before either."""
        if self._task is None:
            return self.message
        try:
            task = read_task({**self._task, "artifacts": list(self._artifacts.values())})
        except AnswerTooLarge:
            return replace(read_task(self._task), is_whole=False)
        return replace(task, is_whole=self._is_told and not self._has_gaps)

    def hear(self, event: StreamEvent) -> None:
        """Take one event in. CallAmbiguous when it is about another task, or the first names none we can use."""
        self.events += 1
        if event.kind == "message":
            self.message = event.message
        elif event.kind == "task":
            self._check_task(event)
            self._replace(event)
        elif event.kind in ("status", "artifact"):
            self._update(event)

    def break_off(self) -> None:
        """The stream did not end as it should: whatever comes after is not known."""
        self._has_gaps = True

    def _check_task(self, event: StreamEvent) -> None:
        if self._task is not None and event.task_id not in ("", self._task["id"]):
            raise CallAmbiguous("the stream tells of another task than its first")

    def _replace(self, event: StreamEvent) -> None:
        if self._is_final and event.state is not self._state:
            return
        sent = event.raw.get("artifacts")
        artifacts = [artifact for artifact in sent if isinstance(artifact, dict)] if isinstance(sent, list) else []
        # Some agents leave the artifacts out of later snapshots; what was heard of them is kept, and asked for.
        self._has_gaps = bool(self._artifacts) and not artifacts
        if artifacts:
            self._artifacts = {}
            for position, artifact in enumerate(artifacts):
                self._artifacts[self._free_key(artifact, position)] = _own(artifact)
        self._task = {key: value for key, value in event.raw.items() if key != "artifacts"}
        self._state = event.state
        self._state_in_update = False

    def _update(self, event: StreamEvent) -> None:
        self._check_task(event)
        if self._task is None:
            if not event.task_id:
                self._has_gaps = True
                return
            self._task = {"id": read_task_id(event.task_id)}
        if event.context_id:
            self._task.setdefault("contextId", event.context_id)
        if event.kind == "artifact":
            self._add(event)
        elif not self._is_final:
            self._task["status"] = event.raw.get("status")
            self._state = event.state
            self._state_in_update = True

    def _add(self, event: StreamEvent) -> None:
        artifact = event.raw["artifact"]
        known = self._artifacts.get(event.artifact_id)
        if not event.appends or known is None:
            self._has_gaps = self._has_gaps or event.appends
            self._artifacts[event.artifact_id] = _own(artifact)
            return
        parts = known["parts"]
        parts += _parts(artifact)
        known |= {key: value for key, value in artifact.items() if value} | {"parts": parts}

    def _free_key(self, artifact: dict[str, Any], position: int) -> str:
        """Its id, for updates to find it by; one that has none, or another's, is kept all the same."""
        artifact_id = read_text(artifact.get("artifactId"))
        return artifact_id if artifact_id and artifact_id not in self._artifacts else f"\0{position}"

    @property
    def _is_told(self) -> bool:
        """Whether all that belongs to the state was said: an update may leave the artifacts of an end, or the words of
        a question, to the task."""
        if self._task is None or self._state is None or not self._state_in_update:
            return True
        if self._state.is_interrupted:
            return bool(read_status(self._task["status"]).parts)
        return bool(self._artifacts) or not self._is_final

    @property
    def _is_final(self) -> bool:
        return self._state is not None and self._state.is_terminal


def _own(artifact: dict[str, Any]) -> dict[str, Any]:
    """A copy that grows: its list of parts is ours."""
    return {**artifact, "parts": _parts(artifact)}


def _parts(artifact: dict[str, Any]) -> list[Any]:
    parts = artifact.get("parts")
    return list(parts) if isinstance(parts, list) else []
