"""The scripted agent's streams about one of its own tasks: a snapshot, maybe its past, then what happens to it."""

from __future__ import annotations

from typing import Any

from tests.support.agent_work import Work
from tests.support.goal_script import INTERRUPTED, TERMINAL, wire_state
from tests.support.streams import Event, EventStream, Streams


class TaskStream(EventStream):
    """Follows a task to a terminal state, and no further than an interrupted one where it ``ends_when_interrupted``."""

    def __init__(
        self, streams: Streams, work: Work, *, ends_when_interrupted: bool, method: str, rpc_id: Any, keepalive_s: float
    ) -> None:
        super().__init__(streams, method=method, rpc_id=rpc_id, task_id=work.id, keepalive_s=keepalive_s)
        self._work = work
        self._ends_when_interrupted = ends_when_interrupted

    def closed(self) -> None:
        if self._tell in self._work.followers:
            self._work.followers.remove(self._tell)

    def _follow(self) -> None:
        if self.is_open:
            self._work.followers.append(self._tell)

    def _tell(self, event: Event) -> None:
        self.send(event)
        told = event.get("statusUpdate") or event.get("task")
        if told is not None:
            self._end_at(str((told.get("status") or {}).get("state", "")).removeprefix("TASK_STATE_"))

    def _end_at(self, state: str) -> None:
        if state in TERMINAL or (self._ends_when_interrupted and state in INTERRUPTED):
            self.finish()


class TurnStream(TaskStream):
    """SendStreamingMessage: the task as the message found it, a new one SUBMITTED, then all that the message causes."""

    def __init__(self, streams: Streams, work: Work, **facts: Any) -> None:
        super().__init__(streams, work, ends_when_interrupted=True, **facts)
        self._snapshot, self._next = work.turn_snapshot, work.turn_start

    def begin(self) -> None:
        self.send({"task": self._with_first_status()})
        for event in self._work.events[self._next :]:
            if self.is_open:
                self._tell(event)
        self._follow()

    def _with_first_status(self) -> Event:
        """A script that begins with SUBMITTED has told so in the snapshot, as a2a-sdk does."""
        first = self._work.events[self._next : self._next + 1]
        status = (first[0].get("statusUpdate") or {}).get("status") if first else None
        states = {self._snapshot["status"]["state"], status["state"] if status else ""}
        if status is None or states != {wire_state("SUBMITTED")}:
            return self._snapshot
        self._next += 1
        return {**self._snapshot, "status": status}


class SubscriptionStream(TaskStream):
    """SubscribeToTask: the task as it is, where wanted every status it ever had, then what happens from now on."""

    def __init__(self, streams: Streams, work: Work, *, replays: bool = False, **facts: Any) -> None:
        super().__init__(streams, work, **facts)
        self._replays = replays

    def begin(self) -> None:
        self.send({"task": self._work.to_wire()})
        if self._replays:
            for event in self._work.events:
                if "statusUpdate" in event:
                    self.send(event)
        # Only the newest state counts here: one that was passed long ago ends nothing.
        self._end_at(self._work.state)
        self._follow()
