"""The demo's own Celery task: what its workflow goes on with when every delegation has ended."""

from __future__ import annotations

from typing import Any

import structlog
from celery import shared_task

from workers import Workflow

log = structlog.get_logger("demo")


@shared_task(name="examples.combine_answers")
def combine_answers(*, workflow_id: str, release_id: str, round: int) -> str:
    """Put the agents' answers together, and end the workflow with them."""
    workflow = Workflow.get(workflow_id)
    answer = "\n".join(_line(child.describe()) for child in workflow.children())
    log.info("demo.continuation_ran", workflow_id=workflow_id, release_id=release_id, round=round)
    workflow.complete(answer)
    return answer


def _line(child: dict[str, Any]) -> str:
    outcome = child["outcome"]
    text = " ".join(outcome["text"].split())
    return text if outcome["state"] == "COMPLETED" else f"{outcome['state']}: {text}"
