"""`delegation watch`: a delegation or a workflow as it changes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from delegation.errors import UnknownWorkflow
from delegation.state import Delegation, Phase
from delegation.store import Store
from delegation.workflow import Workflow as WorkflowRecord
from delegation.workflow import WorkflowState
from workers.cli_delegations import known_id
from workers.cli_show import (
    continuation_news,
    delegations_table,
    exit_code_of,
    fitted,
    has_ended,
    make_console,
    plain_line,
    print_table,
    workflow_table,
)
from workers.handles import Workflow, describe
from workers.runtime import runtime

#: A live view counts seconds; so it looks this often when nothing else happens.
_TICK_S = 0.25


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What is watched, as it is now."""

    workflow: WorkflowRecord | None
    delegations: Sequence[Delegation]
    now: float

    @property
    def has_ended(self) -> bool:
        if self.workflow is not None:
            return has_ended(self.workflow)
        return self.delegations[0].outcome is not None

    @property
    def waits_for_a_join(self) -> bool:
        is_open = self.workflow is not None and self.workflow.state is WorkflowState.OPEN
        return is_open and bool(self.delegations) and all(each.outcome for each in self.delegations)

    def table(self) -> Table:
        if self.workflow is None:
            return delegations_table(self.delegations, self.now)
        return workflow_table(self.workflow, self.delegations, self.now)


@click.command()
@click.argument("watched_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One object a line, each time it changes.")
def watch(watched_id: str, as_json: bool) -> int:
    """Follow a delegation until it ends, or a workflow until it is released or ends.

    ID may also be the Celery id of a delegation's call. The exit code is 1 when a delegation ends otherwise than
    COMPLETED.
    """
    store = runtime().store
    watched_id = known_id(store, watched_id)
    look = looker(store, watched_id)
    view = look()
    views = _telling_of_no_join(watch_views(store, watched_id, look))
    console = make_console()
    if as_json:
        view = _print_json(watched_id, views)
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
        store.load(watched_id)
        return lambda: View(workflow=None, delegations=[store.load(watched_id).delegation], now=store.now())
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
            live.update(fitted(last.table()), refresh=True)
    assert last is not None
    print_table(console, last.table())
    return last


def print_changes(views: Iterator[View]) -> View:
    """A line for each change. Returns the last view."""
    told: dict[str, object] = {}
    last: View | None = None
    for last in views:
        for each in last.delegations:
            if told.get(each.id) != (news := _news(each)):
                told[each.id] = news
                click.echo(plain_line(each))
    assert last is not None
    record = last.workflow
    if record is not None and (record.is_poisoned or record.publishes > 1) and (says := continuation_news(record)):
        click.echo(says)  # the first publication is no news
    return last


def _news(each: Delegation) -> object:
    """What is a change worth a line: not another attempt to reach an agent that is away."""
    progress = each.progress
    return each.state, progress.watch, progress.status_text, progress.failing_since, each.phase is Phase.OPENED


def _telling_of_no_join(views: Iterator[View]) -> Iterator[View]:
    """Such a workflow would be watched for ever; said once."""
    is_told = False
    for view in views:
        if not is_told and view.workflow is not None and view.waits_for_a_join:
            is_told = True
            advice = f"delegation workflow join {view.workflow.id}"
            click.echo(f"delegation: all children have ended; nobody has joined: {advice}", err=True)
        yield view


def _print_json(watched_id: str, views: Iterator[View]) -> View:
    told: Any = None
    last: View | None = None
    for last in views:
        seen = describe(last.delegations[0]) if last.workflow is None else Workflow(watched_id).describe()
        if seen != told:
            click.echo(json.dumps(seen, ensure_ascii=False))
            told = seen
    assert last is not None
    return last


def _look_at_workflow(store: Store, workflow_id: str) -> View:
    record = store.load_workflow(workflow_id)
    children = store.load_many([f"{workflow_id}.{number}" for number in range(1, record.children + 1)])
    return View(workflow=record, delegations=children, now=store.now())
