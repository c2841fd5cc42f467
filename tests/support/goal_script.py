"""The little script inside a goal's text that tells the scripted agent how this one piece of work goes.

{"states": [["SUBMITTED", 0], ["WORKING", 0.1], ["COMPLETED", 0.5]], "artifact": "ok", "push": true}
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELED", "REJECTED"})
INTERRUPTED = frozenset({"INPUT_REQUIRED", "AUTH_REQUIRED"})
_KNOWN_STATES = TERMINAL | INTERRUPTED | {"SUBMITTED", "WORKING", "UNSPECIFIED"}


class GoalScriptError(ValueError):
    """The text holds a script with a key that means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalScript:
    """How one agent task goes. Times are seconds after the message that carried the script."""

    states: tuple[tuple[Any, ...], ...] = (("SUBMITTED", 0), ("WORKING", 0.02), ("COMPLETED", 0.05))
    #: ``[state, at]``, ``[state, at, status text]`` or ``[state, at, status text, part]`` (a further part of the status
    #: message as A2A spells it, e.g. ``{"data": …}``); all at 0 are passed before the answer to SendMessage
    chunks: tuple[tuple[Any, ...], ...] = ()
    #: ``[text, at]``: pieces of one artifact "chunks", which is appended to on the way (unless the task has ended)
    message: str | None = None  #: answer with this direct Message and start no task
    artifact: Any = "ok"  #: text, list of texts or None; there from COMPLETED on
    id: str | None = None  #: the agent task's id instead of a fresh one
    turns: tuple[dict[str, Any], ...] = ()  #: the scripts of further messages that bring none of their own, in order
    reply_delay: float = 0.0  #: the task runs, the answer to SendMessage waits

    push: bool = True  #: whether to push at all (where a config was given)
    push_states: tuple[str, ...] | None = None  #: only these states; default: every state after the answered one
    push_drop: tuple[str, ...] = ()  #: these are recorded as dropped instead
    push_times: int = 1  #: every push that many times
    push_delay: Any = 0.0  #: seconds, or {state: seconds}; delayed pushes may overtake each other
    push_order: str = "kept"  #: "reverse": all are held until the end, then sent last one first
    push_before_reply: Any = False  #: true or a state's name: that push is answered before SendMessage is
    push_lie: Any = None  #: every push claims this state; an object or text is sent as the body itself
    push_headers: str = "both"  #: "both", "token", "bearer" or "none"

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GoalScript:
        unknown = set(value) - _NAMES
        if unknown:
            raise GoalScriptError(f"unknown keys in the goal's script: {', '.join(sorted(unknown))}")
        plain = dict(value)
        for name in ("states", "chunks", "turns", "push_states", "push_drop"):
            if isinstance(plain.get(name), list):
                plain[name] = tuple(tuple(item) if isinstance(item, list) else item for item in plain[name])
        script = cls(**plain)
        if any(len(step) > 3 and not set(step[3]) & _PART_CONTENTS for step in script.states):
            raise GoalScriptError("the fourth of a state is a part: it has text, data, url or raw")
        return script

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def steps(self) -> tuple[tuple[Any, ...], ...]:
        """States and chunks in the order they happen: a state's entry as it is, a chunk as ``(None, at, text)``."""
        if not self.chunks:
            return self.states
        chunks = [(None, at, text) for text, at in self.chunks]
        return tuple(sorted((*self.states, *chunks), key=lambda step: (float(step[1]), _rank(step[0]))))

    def next_turn(self) -> GoalScript | None:
        """What a further message without a script sets off; None when that was not said."""
        if not self.turns:
            return None
        first, *rest = self.turns
        return GoalScript.from_json({"turns": rest, **first})

    def pushes(self, state: str) -> bool:
        return self.push and (self.push_states is None or state in self.push_states)

    def push_delay_s(self, state: str) -> float:
        if isinstance(self.push_delay, dict):
            return float(self.push_delay.get(state, 0.0))
        return float(self.push_delay)


_PART_CONTENTS = frozenset({"text", "data", "url", "raw"})


def _rank(state: str | None) -> int:
    """At the same second work begins, chunks come, and then it ends or asks."""
    if state is None:
        return 1
    return 2 if state in TERMINAL or state in INTERRUPTED else 0


_NAMES = {field.name for field in fields(GoalScript)}


def script_in(text: str, default: GoalScript) -> GoalScript:
    """The first script in the text, else the default. Raises GoalScriptError for a misspelt one."""
    for value in _objects_in(text):
        if _NAMES & set(value):
            return GoalScript.from_json(value)
    return default


def wire_state(state: str) -> str:
    """``WORKING`` as ``TASK_STATE_WORKING``; a state A2A does not know stays as it was spelled."""
    return f"TASK_STATE_{state}" if state in _KNOWN_STATES else state


def _objects_in(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            yield value
        at = text.find("{", end)
