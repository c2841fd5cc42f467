"""`delegation workflow open | show | join | complete`."""

from __future__ import annotations

import json
from typing import Any

import click

from delegation.errors import InvalidArguments
from workers.carrier import carrying_app
from workers.cli_show import make_console, print_json, print_table
from workers.cli_watch import looker
from workers.handles import Workflow
from workers.runtime import runtime


@click.group()
def workflow() -> None:
    """Open, show, join and complete workflows: parents of delegations."""


@workflow.command("open")
@click.option("--name", default="", help="For people.")
@click.option("--deadline", default=None, help="A duration such as PT2H, or an ISO 8601 time with its zone.")
def open_workflow(name: str, deadline: str | None) -> None:
    """Open a workflow and print its id."""
    click.echo(Workflow.open(name=name, deadline=deadline).id)


@workflow.command("show")
@click.argument("workflow_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def show_workflow(workflow_id: str, as_json: bool) -> None:
    """A workflow and its children."""
    if as_json:
        print_json(Workflow(workflow_id).describe())
    else:
        _print_tree(workflow_id)


@workflow.command("join")
@click.argument("workflow_id", metavar="ID")
@click.option("--then", "task_name", default=None, metavar="TASK", help="Name of the Celery task to run then.")
@click.option("--queue", default=None, help="The queue to send it to.")
def join_workflow(workflow_id: str, task_name: str | None, queue: str | None) -> None:
    """Resume when every child is resolved: run TASK then, or wait for it here when none is named.

    TASK is called with workflow_id, release_id and round.
    """
    if task_name is None and queue is not None:
        raise InvalidArguments("--queue: belongs to --then, which names the task to send there")
    handle = Workflow(workflow_id)
    if task_name is not None:
        options = {"queue": queue} if queue else {}
        handle.join(then=carrying_app().signature(task_name, **options))
        return
    handle.join()
    handle.wait()
    _print_tree(workflow_id)


@workflow.command("complete")
@click.argument("workflow_id", metavar="ID")
@click.option("--result", default=None, help="JSON, kept with the workflow.")
def complete_workflow(workflow_id: str, result: str | None) -> None:
    """End a workflow; refused while children are unresolved."""
    Workflow(workflow_id).complete(_read_json(result) if result is not None else None)


def _print_tree(workflow_id: str) -> None:
    store = runtime().store
    store.load_workflow(workflow_id)  # an id of a delegation is no workflow's
    print_table(make_console(), looker(store, workflow_id)().table())


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArguments("--result: must be JSON; a text needs its quotes: '\"done\"'") from None
