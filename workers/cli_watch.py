"""`delegation watch`: a delegation or a workflow as it changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from delegation.agent_task import TaskState
from delegation.errors import UnknownWorkflow
from delegation.state import Delegation, Phase, Watch
from delegation.store import Store
from delegation.workflow import Workflow as WorkflowRecord
from delegation.workflow import WorkflowState
from workers.cli_absence import ANSWERS_AGAIN, absence_kind
from workers.cli_question import how_to_answer, question_line
from workers.cli_show import (
    artifact_names,
    cancel_text,
    continuation_news,
    delegations_table,
    exit_code_of,
    fitted,
    has_ended,
    label,
    make_console,
    plain_columns,
    plain_line,
    plain_workflow_line,
    print_table,
    turn_text,
    words,
    workflow_table,
)
from workers.descriptions import describe, describe_workflow, is_asking
from workers.finding import find_delegation
from workers.printable import json_text
from workers.runtime import runtime

#: A live view counts seconds; so it looks this often when nothing else happens.
_TICK_S = 0.25
#: Questions that a live view shows in full, below its table.
_MOST_QUESTIONS = 3
_QUESTION_CHARS = 500
#: States of a workflow that are worth a line; the others show in its children's.
_TOLD_STATES = (WorkflowState.FAILED, WorkflowState.CANCELING, WorkflowState.CANCELED)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What is watched, as it is now."""

    workflow: WorkflowRecord | None
    delegations: Sequence[Delegation]
    now: float
    nested: Sequence[WorkflowRecord] = ()

    @property
    def id(self) -> str:
        return self.delegations[0].id if self.workflow is None else self.workflow.id

    @property
    def has_ended(self) -> bool:
        if self.workflow is not None:
            return has_ended(self.workflow)
        return self.delegations[0].outcome is not None

    @property
    def waits_for_a_join(self) -> bool:
        workflow = self.workflow
        is_open = workflow is not None and workflow.state is WorkflowState.OPEN and workflow.unresolved == 0
        return is_open and bool(self.delegations) and all(each.outcome for each in self.delegations)

    def table(self) -> Table:
        if self.workflow is None:
            return delegations_table(self.delegations, self.now)
        return workflow_table(self.workflow, self.delegations, self.now, self.nested)


@click.command()
@click.argument("watched_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One object a line, each time it changes.")
def watch(watched_id: str, as_json: bool) -> int:
    """Follow a delegation until it ends, or a workflow until it is released or ends.

    ID may also be the Celery id of a delegation's call. The exit code is 1 when a delegation ends otherwise than
    COMPLETED.
    """
    store = runtime().store
    look = looker(store, watched_id)
    view = look()
    views = _telling_of_no_join(watch_views(store, view.id, look))
    console = make_console()
    if as_json:
        view = _print_json(views)
    elif console.is_terminal:
        view = show_live(console, views)
    else:
        view = print_changes(views)
    return exit_code_of(view.delegations[0]) if view.workflow is None else 0


def looker(store: Store, watched_id: str) -> Callable[[], View]:
    """A function that looks at it. Raises UnknownDelegation for an id that is neither."""
    try:
        store.load_workflow(watched_id)
    except UnknownWorkflow:
        delegation_id = find_delegation(store, watched_id).id
        return lambda: View(workflow=None, delegations=[store.load(delegation_id).delegation], now=store.now())
    return lambda: _look_at_workflow(store, watched_id)


def watch_views(store: Store, watched_id: str, look: Callable[[], View]) -> Iterator[View]:
    """A view now and whenever something may have changed; the last one has ended."""
    with store.listen(watched_id.partition(".")[0]) as next_change:
        while True:
            view = look()
            yield view
            if view.has_ended:
                return
            next_change(_TICK_S)


def show_live(console: Console, views: Iterator[View]) -> View:
    """Draw over and over in place, as much as the screen holds, and in the end the whole. Returns the last view."""
    last: View | None = None
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for last in views:
            live.update(Group(fitted(last.table()), *_questions(last)), refresh=True)
    assert last is not None
    print_table(console, last.table())
    return last


def print_changes(views: Iterator[View]) -> View:
    """A line for each change. Returns the last view."""
    told: dict[str, Seen] = {}
    state: WorkflowState | None = None
    last: View | None = None
    for last in views:
        columns = plain_columns(last.workflow, last.delegations)
        if last.workflow is not None and last.workflow.state is not state:
            state = last.workflow.state
            if state in _TOLD_STATES:
                click.echo(plain_workflow_line(last.workflow, columns))
        for each in last.delegations:
            before, seen = told.get(each.id), see(each)
            if before != seen:
                told[each.id] = seen
                click.echo(plain_line(each, seen.since(before), columns))
    assert last is not None
    record = last.workflow
    if record is not None and (record.is_poisoned or record.publishes > 1) and (says := continuation_news(record)):
        click.echo(says)  # the first publication is no news
    return last


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What is worth a line when it changes: not another attempt to reach an agent that is away."""

    state: TaskState
    watch: Watch | None
    has_ended: bool
    said: object  #: what its words come from
    words: str = field(compare=False)  #: of an agent that is away, with how often it was tried
    absence: str  #: why calls to its agent fail
    answer: str  #: how to answer what it asks
    question: tuple[int, int]  #: a question, and the number of the last reply before it
    turn: str
    artifacts: tuple[str, ...]
    cancel: str

    def since(self, before: Seen | None) -> str:
        """What is new, in one line; what has not changed is not said again."""
        known = before.artifacts if before else ()
        made = artifact_names([name for name in self.artifacts if name not in known])
        is_back = before is not None and before.absence and not (self.absence or self.has_ended)
        is_asked = self.answer and (before is None or self.question != before.question)
        pieces = (
            self.words if is_asked or before is None or self.said != before.said else "",
            ANSWERS_AGAIN if is_back else "",
            self.answer if is_asked else "",
            self.turn if before is None or self.turn != before.turn else "",
            f"artifacts: {made}" if made else "",
            self.cancel if before is None or self.cancel != before.cancel else "",
        )
        return " – ".join(filter(None, pieces))


def see(each: Delegation) -> Seen:
    progress, question = each.progress, each.progress.question
    asks, absence = question is not None and is_asking(each), absence_kind(each)
    return Seen(
        state=each.state,
        watch=progress.watch,
        has_ended=each.outcome is not None,
        said=(progress.status_text, progress.failing_since, absence, each.phase is Phase.OPENED, each.outcome is None),
        words=words(each),
        absence=absence,
        answer=how_to_answer(each) if asks else "",
        question=(question.number, question.turn) if question is not None and asks else (0, 0),
        turn=turn_text(each),
        artifacts=tuple(progress.artifact_names),
        cancel=cancel_text(each),
    )


def _questions(view: View) -> list[Text]:
    """What is asked, with the command that answers: as many as there is room for, the oldest first."""
    asking = [each for each in view.delegations if is_asking(each)]
    asking.sort(key=lambda each: each.progress.question.asked_at if each.progress.question else 0.0)
    texts = []
    for each in asking[:_MOST_QUESTIONS]:
        asks = f"{label(each)} asks: {question_line(each, _QUESTION_CHARS)}"
        texts.append(Text.assemble("\n", (asks, "magenta"), f"\n  {how_to_answer(each)}"))
    if more := len(asking) - len(texts):
        texts.append(Text(f"\n{more} more: delegation inbox", style="dim"))
    return texts


def _telling_of_no_join(views: Iterator[View]) -> Iterator[View]:
    """Such a workflow would be watched for ever; said once."""
    is_told = False
    for view in views:
        if not is_told and view.workflow is not None and view.waits_for_a_join:
            is_told = True
            advice = f"delegation workflow join {view.workflow.id}"
            click.echo(f"delegation: all children have ended; nobody has joined: {advice}", err=True)
        yield view


def _print_json(views: Iterator[View]) -> View:
    told: Any = None
    last: View | None = None
    for last in views:
        workflow = last.workflow
        if workflow is None:
            seen = describe(last.delegations[0])
        else:
            seen = describe_workflow(workflow, last.delegations, last.nested)
        if seen != told:
            click.echo(json_text(seen))
            told = seen
    assert last is not None
    return last


def _look_at_workflow(store: Store, workflow_id: str) -> View:
    record = store.load_workflow(workflow_id)
    children = store.load_many([f"{workflow_id}.{number}" for number in range(1, record.children + 1)])
    return View(workflow=record, delegations=children, now=store.now(), nested=store.child_workflows(workflow_id))
