"""What a parent is told of a child: a terminal state, or a new question, in one line. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from delegation.agent_task import TaskState
from delegation.answers import one_line
from delegation.state import Delegation
from delegation.texts import SUMMARY_CHARS


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """One line for a parent. ``text`` is complete; what stands after its colon is ``source``'s words, never ours."""

    delegation_id: str
    agent: str
    state: str
    text: str
    source: str  #: "agent", or "delegation" where the end was our own verdict

    @property
    def json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def note(delegation: Delegation, state: TaskState, summary: str, *, source: str = "agent") -> str:
    """``Sub-task <id> is <STATE>: <summary>``, the summary clean (texts.py) and at most 500 characters, as JSON."""
    said = one_line(summary, SUMMARY_CHARS)
    text = f"Sub-task {delegation.id} is {state.value}: {said}".rstrip(" ")
    return Note(delegation_id=delegation.id, agent=delegation.agent, state=state.value, text=text, source=source).json
