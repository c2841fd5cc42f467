"""`delegation workflow open | show | join | complete | cancel | fail | notes`."""

from __future__ import annotations

import json
from typing import Any

import click
from celery.canvas import Signature

from delegation.errors import InvalidArguments
from workers.carrier import carrying_app
from workers.cli_delegations import leave_it_running
from workers.cli_show import make_console, notes_table, print_json, print_table, receipts_table
from workers.cli_talk import NOT_CANCELLED
from workers.cli_watch import looker
from workers.handles import Workflow
from workers.runtime import runtime


@click.group()
def workflow() -> None:
    """Open, show, join, cancel and complete workflows, the parents of delegations; read their notes."""


@workflow.command("open")
@click.option("--name", default="", help="For people.")
@click.option("--deadline", default=None, help="A duration such as PT2H, or an ISO 8601 time with its zone.")
@click.option("--on-note", "task_name", default=None, metavar="TASK", help="Name of the Celery task told of each note.")
@click.option("--queue", default=None, help="The queue to send it to.")
def open_workflow(name: str, deadline: str | None, task_name: str | None, queue: str | None) -> None:
    """Open a workflow and print its id.

    TASK is called with workflow_id, delegation_id and the note's number, for each end and each new question of a child.
    """
    on_note = _signature(task_name, queue, "--on-note")
    click.echo(Workflow.open(name=name, deadline=deadline, on_note=on_note).id)


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
    then = _signature(task_name, queue, "--then")
    handle = Workflow(workflow_id)
    if then is not None:
        handle.join(then=then)
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


@workflow.command("cancel")
@click.argument("workflow_id", metavar="ID")
@click.option("--reason", default="", help="Kept with the workflow and in its children's histories.")
@click.option("--wait", is_flag=True, help="Wait until the last child has ended.")
@click.option("--json", "as_json", is_flag=True, help="One array of: id agent state cancel.")
def cancel_workflow(workflow_id: str, reason: str, wait: bool, as_json: bool) -> int:
    """Cancel a workflow and its children, and print what became of each (as `delegation cancel` does).

    It is CANCELING until its last child has ended, then CANCELED. The exit code is 1 when a child is `refused` or
    `unreachable`.
    """
    handle = Workflow(workflow_id)
    handle.cancel(reason)
    if wait:
        try:
            handle.wait()
        except KeyboardInterrupt:
            return leave_it_running(workflow_id)
    receipts = handle.receipts()
    named = [{name: each[name] for name in ("id", "agent", "state")} for each in handle.describe()["children"]]
    children = [{**each, "cancel": receipts.get(each["id"])} for each in named]
    if as_json:
        print_json(children)
    elif children:
        print_table(make_console(), receipts_table(children))
    else:
        click.echo("no children", err=True)
    return 1 if any(each["cancel"] in NOT_CANCELLED for each in children) else 0


@workflow.command("fail")
@click.argument("workflow_id", metavar="ID")
@click.option("--reason", default="", help="Kept with the workflow and in its children's histories.")
def fail_workflow(workflow_id: str, reason: str) -> None:
    """End a workflow FAILED; its children are cancelled."""
    Workflow(workflow_id).fail(reason)


@workflow.command("notes")
@click.argument("workflow_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def notes_of_workflow(workflow_id: str, as_json: bool) -> None:
    """Take a workflow's notes out and print them.

    They tell what happened to its children: ends, and new questions, oldest first. This DRAINS them: each is printed
    once and kept no longer, so nobody else who reads notes will see these.
    """
    notes = Workflow(workflow_id).notes()
    if as_json:
        print_json(notes)
    elif notes:
        print_table(make_console(), notes_table(notes))
    else:
        click.echo("no notes", err=True)


def _signature(task_name: str | None, queue: str | None, option: str) -> Signature | None:
    """The task that an option names. Raises InvalidArguments."""
    if task_name is None:
        if queue is not None:
            raise InvalidArguments(f"--queue: belongs to {option}, which names the task to send there")
        return None
    return carrying_app().signature(task_name, **({"queue": queue} if queue else {}))


def _print_tree(workflow_id: str) -> None:
    store = runtime().store
    store.load_workflow(workflow_id)  # an id of a delegation is no workflow's
    print_table(make_console(), looker(store, workflow_id)().table())


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArguments("--result: must be JSON; a text needs its quotes: '\"done\"'") from None
