"""The brief as a peer with the task extension takes it."""

from __future__ import annotations

import pytest

from delegation.agent_task import DataPart
from delegation.state import Brief
from delegation.task_extension import TASK_EXTENSION, task_envelope


def test_the_envelope_holds_the_brief_and_us_as_its_reporter() -> None:
    """No field beside: peers refuse unknown keys, and no parent or model is anybody's business."""
    brief = Brief(goal="Sum it", name="Sums", description="all rows", acceptance_criteria=("exact", "today"))
    assert task_envelope(brief, "delegation") == DataPart(
        media_type="application/vnd.tiny-harness.event+json",
        value={
            "kind": "task",
            "payload": {
                "name": "Sums",
                "goal": "Sum it",
                "description": "all rows",
                "acceptance_criteria": [{"text": "exact", "met": False}, {"text": "today", "met": False}],
                "participants": [{"id": "delegation", "kind": "agent", "role": "reporter", "display_name": ""}],
            },
        },
    )
    assert TASK_EXTENSION.endswith("/a2a/ext/task/v1")


@pytest.mark.parametrize(
    ("goal", "name"),
    [
        ("Sum it\nby noon", "Sum it"),
        ("\n  Sum it  \n", "Sum it"),
        ("x" * 80, "x" * 80),
        ("x" * 81, "x" * 79 + "…"),
        ("", ""),
    ],
)
def test_a_brief_without_a_name_is_named_after_its_goal(goal: str, name: str) -> None:
    """The name is required there; the first line says most."""
    assert task_envelope(Brief(goal=goal), "us").value["payload"]["name"] == name


def test_what_was_piped_in_is_not_repeated() -> None:
    """Results of earlier links travel as parts of their own."""
    assert "inputs" not in str(task_envelope(Brief(goal="g", inputs=({"inputs": 1},)), "us").value)
