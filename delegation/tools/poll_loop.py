"""One tool call: one message, then GetTask until there is an answer, in exactly the order of the seed. Decides only.

The toolnexus seed (SPEC section 7A) leaves three things open, or differs: `rejected`, `input-required` and
`auth-required` end the call at once with the agent's words, where the seed polls until its time is up (``strict_seed``
restores that); an abort while a request is under way counts at once, unless the answer has ended the task; and the
agent is told of an abort where its dialect has a way to and its task is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from delegation.texts import clean
from delegation.tools.descriptor import Dialect
from delegation.tools.failures import raise_time_limit
from delegation.tools.results import (
    CANCELED,
    COMPLETED,
    Answer,
    Heard,
    ToolResult,
    canceled_text,
    completed_text,
    ended_otherwise_text,
    hear,
    shown,
    timed_out_text,
)

#: How soon an abort ends a wait.
GLANCE_S = 0.02
#: Of an agent's task id and state, as much as is shown: GetTask is sent the whole id.
SHOWN_CHARS = 200


class Line(Protocol):
    """A way to one agent for one call (dialects.py). Raises nothing."""

    @property
    def dialect(self) -> Dialect: ...
    def send(self, text: str) -> Answer: ...
    def get(self, task_id: str) -> Answer: ...
    def cancel(self, task_id: str) -> None: ...


class Abort:
    """Whether the caller still wants the answer, asked of a predicate, an Event, or something with ``aborted``.

    One that raises is taken to have given up: the call must not raise, and must not go on unwatched.
    """

    def __init__(self, given: Any = None) -> None:
        self._given = given
        self.is_possible = given is not None

    def __call__(self) -> bool:
        given = self._given
        if given is None:
            return False
        try:
            if callable(given):
                return bool(given())
            ask = getattr(given, "is_set", None)
            return bool(ask()) if callable(ask) else bool(getattr(given, "aborted", given))
        except Exception as error:  # noqa: BLE001  the caller's own code
            raise_time_limit(error)
            return True


@dataclass(kw_only=True, slots=True)
class Call:
    """One call of a tool, and how far it has come."""

    line: Line
    agent: str
    timeout_ms: float
    poll_every_ms: float
    strict_seed: bool = False
    abort: Abort = field(default_factory=Abort)
    secrets: tuple[str, ...] = field(default=(), repr=False)
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    polls: int = 0
    heard: Heard = field(default_factory=Heard)
    started_at: float = 0.0

    def run(self, text: str) -> ToolResult:
        """Send the message and wait for its end."""
        self.started_at = self.clock()
        answer = self.line.send(text)
        while True:
            if answer.error is not None:
                return self._aborted() if self.abort() else self._failed(answer.error)
            self.heard = hear(self.heard, answer.result, self.line.dialect)
            ended = self._ended()
            if ended is not None:
                return ended
            self._wait()
            if self.abort():
                return self._aborted()
            answer = self.line.get(self.heard.task_id)
            self.polls += answer.error is None

    def _ended(self) -> ToolResult | None:
        """The order matters: an end that was told goes before an abort, and both before the time limit."""
        if self.heard.is_over(strict_seed=self.strict_seed):
            return self._over()
        if self.abort():
            return self._aborted()
        if self._elapsed_ms() >= self.timeout_ms:
            return self._failed(timed_out_text(self._task_id(), self.timeout_ms, self._state()))
        return None

    def _over(self) -> ToolResult:
        dialect = self.line.dialect
        if self.heard.state == COMPLETED:
            return self._result(completed_text(self.heard, dialect), is_error=False)
        return self._failed(ended_otherwise_text(self._task_id(), self._state(), self.heard, dialect))

    def _aborted(self) -> ToolResult:
        if self.heard.task_id:
            self.line.cancel(self.heard.task_id)
        return self._result(canceled_text(self._task_id()), is_error=True, state=CANCELED)

    def _failed(self, text: str) -> ToolResult:
        return self._result(text, is_error=True)

    def _result(self, output: str, *, is_error: bool, state: str | None = None) -> ToolResult:
        metadata = {
            "agent": self.agent,
            "taskId": self._task_id(),
            "state": state or self._state(),
            "polls": self.polls,
            "ms": int(self._elapsed_ms()),
        }
        return ToolResult(output=shown(output, self.secrets), is_error=is_error, metadata=metadata)

    def _task_id(self) -> str:
        return clean(self.heard.task_id, SHOWN_CHARS, secrets=self.secrets)

    def _state(self) -> str:
        return clean(self.heard.state, SHOWN_CHARS, secrets=self.secrets)

    def _elapsed_ms(self) -> float:
        return (self.clock() - self.started_at) * 1000

    def _wait(self) -> None:
        left = self.poll_every_ms / 1000
        if not self.abort.is_possible:
            self.sleep(left)
            return
        until = self.clock() + left
        while left > 0 and not self.abort():
            self.sleep(min(GLANCE_S, left))
            left = until - self.clock()
