"""The task extension: a brief as a data part, for agents whose card advertises it. Pure.

tiny-harness peers take a delegated task from this envelope. They refuse keys they do not know, and take the
participants from it alone: without ourselves as reporter, each later call of ours would be answered "not found".
"""

from __future__ import annotations

from delegation.agent_task import DataPart
from delegation.state import Brief

TASK_EXTENSION = "https://madarauchiha-314.github.io/tiny-harness/a2a/ext/task/v1"
ENVELOPE_MEDIA_TYPE = "application/vnd.tiny-harness.event+json"
LONGEST_NAME = 80


def task_envelope(brief: Brief, participant_id: str) -> DataPart:
    """The brief as an event envelope of kind `task`, reported by `participant_id`.

    Nothing of ours beside the brief: no parent, no model. The schema's other fields (`type`, `parent_tasks`,
    `sub_tasks`, `plan`) have defaults and say nothing here, so they are left out.
    """
    payload = {
        "name": brief.name or _first_line(brief.goal),
        "goal": brief.goal,
        "description": brief.description,
        "acceptance_criteria": [{"text": criterion, "met": False} for criterion in brief.acceptance_criteria],
        "participants": [{"id": participant_id, "kind": "agent", "role": "reporter", "display_name": ""}],
    }
    return DataPart(value={"kind": "task", "payload": payload}, media_type=ENVELOPE_MEDIA_TYPE)


def _first_line(goal: str) -> str:
    line = next(iter(goal.strip().splitlines()), "")
    return line if len(line) <= LONGEST_NAME else line[: LONGEST_NAME - 1] + "…"
