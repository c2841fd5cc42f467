"""What a workflow waits for, in half a line, and its child workflows as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.text import Text

from delegation.workflow import Workflow, WorkflowState
from workers.printable import one_line


def join_news(workflow: Workflow) -> str:
    """The policy of a join, and whether it was satisfied; empty for the usual one."""
    if workflow.policy.name == "all":
        return ""
    says = f"join {workflow.policy.kept}"
    if workflow.state is WorkflowState.JOINING:
        return says
    if workflow.is_satisfied is None:
        return ""
    return f"{says}: {'satisfied' if workflow.is_satisfied else 'not satisfied'}"


def nested_rows(nested: Sequence[Workflow]) -> Iterator[tuple[Text, Text, str]]:
    """Name, state and news of each child workflow."""
    for each in nested:
        name = Text("┊  ", style="dim") + Text(one_line(each.name, 28) or each.id)
        yield name, Text(each.state.value), f"workflow {each.id}, {each.unresolved} unresolved"
