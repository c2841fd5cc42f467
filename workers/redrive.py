"""Do a delegation again that ended otherwise than COMPLETED: a new one, which remembers its ancestor."""

from __future__ import annotations

from datetime import datetime, timedelta

from delegation.agent_task import TaskState
from delegation.errors import InvalidArguments
from delegation.state import Delegation
from workers.canvas import open_delegation, publish_start
from workers.carrier import carrying_app


def redrive_delegation(
    ancestor: Delegation,
    *,
    deadline: timedelta | datetime | str | None = None,
    force: bool = False,
    alone: bool = False,
) -> Delegation:
    """The same brief for the same agent in the same workflow, under a new deadline; nothing follows in a canvas.

    However often it is asked for, there is one in its workflow, and one outside it for ``alone``, which is for a
    workflow that takes no more delegations; ``force`` makes another each time. Raises InvalidArguments for one that did
    not fail, WorkflowConflict, UnknownAgent.
    """
    if ancestor.outcome is None or ancestor.outcome.state is TaskState.COMPLETED:
        raise InvalidArguments(f"redrive: delegation {ancestor.id} is {ancestor.state.value}, it did not fail")
    brief = ancestor.brief
    arguments = {
        "agent": ancestor.agent,
        "goal": brief.goal,
        "name": brief.name,
        "description": brief.description,
        "acceptance_criteria": list(brief.acceptance_criteria),
        "on_failure": ancestor.on_failure,
        "step": ancestor.step or None,
        "deadline": deadline,
        "workflow": None if alone else ancestor.workflow_id,
        "idempotency_key": None if force else "redrive",  # in a scope of the ancestor's (opening.py)
    }
    made, opened = open_delegation(arguments, inputs=brief.inputs, options={}, ancestor=ancestor.id)
    if not opened.existing:
        publish_start(carrying_app(), made, family={})
    return made
