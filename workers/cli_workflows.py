"""`delegation workflow open | list | show | join | complete | cancel | fail | notes`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

import click
from celery.canvas import Signature

from delegation.errors import InvalidArguments, UnknownDelegation, UnknownWorkflow, WorkflowConflict
from delegation.join_policy import NAMES, JoinPolicy
from delegation.store import Store
from delegation.workflow import Workflow as WorkflowRecord
from delegation.workflow import WorkflowState
from workers.carrier import carrying_app
from workers.cli_delegations import leave_it_running
from workers.cli_group import NearestGroup, nearest
from workers.cli_show import make_console, notes_table, print_json, print_table, receipts_table, workflows_table
from workers.cli_talk import NOT_CANCELLED
from workers.cli_watch import looker
from workers.descriptions import summarize_workflow
from workers.finding import find_delegation
from workers.handles import Workflow
from workers.printable import one_line
from workers.runtime import runtime


@click.group(cls=NearestGroup)
def workflow() -> None:
    """Open, list, show, join, cancel and complete workflows, the parents of delegations; read their notes."""


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
    _warn_of_unknown(on_note, "--on-note")


@workflow.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--open", "only_open", is_flag=True, help="Those that have not ended.")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def list_workflows(limit: int, only_open: bool, as_json: bool) -> None:
    """Workflows, newest first, with how many of their children are unresolved."""
    store = runtime().store
    wanted = (each for each in _all(store) if not (only_open and each.state.is_ended))
    shown = [(each, store.count_children(each)) for each in islice(wanted, limit)]
    if as_json:
        print_json([summarize_workflow(each, children) for each, children in shown])
    elif shown:
        print_table(make_console(), workflows_table(shown, store.now()))
    else:
        click.echo("no workflows", err=True)


@workflow.command("show")
@click.argument("workflow_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One object.")
def show_workflow(workflow_id: str, as_json: bool) -> None:
    """A workflow and its children."""
    handle = _find(workflow_id, "show ID")
    if as_json:
        print_json(handle.describe())
    else:
        _print_tree(handle.id)


@workflow.command("join")
@click.argument("workflow_id", metavar="ID")
@click.option("--then", "task_name", default=None, metavar="TASK", help="Name of the Celery task to run then.")
@click.option("--queue", default=None, help="The queue to send it to.")
@click.option("--policy", default="all", show_default=True, help="all, any, first_success, fail_fast or quorum=N.")
def join_workflow(workflow_id: str, task_name: str | None, queue: str | None, policy: str) -> int:
    """Resume when the policy says so: run TASK then, or wait for it here when none is named.

    all: every child of this round has ended. any: one has. first_success: one is COMPLETED. fail_fast: one ended
    otherwise. quorum=N: N are COMPLETED, or cannot be any more. The children that have not ended then are cancelled.

    TASK is called with workflow_id, release_id and round. Where a join that names no task waits already, this one waits
    with it. Ctrl-C ends the waiting, not the join.
    """
    then, wanted = _signature(task_name, queue, "--then"), read_policy(policy)
    handle = _find(workflow_id, "watch ID")
    try:
        handle.join(then=then, policy=wanted.as_json)
    except WorkflowConflict as error:
        _go_along(handle.id, then, wanted, error)
    if then is not None:
        _warn_of_unknown(then, "--then")
        return 0
    try:
        handle.wait()
    except KeyboardInterrupt:
        return leave_it_running(handle.id)
    _print_tree(handle.id)
    return 0


@workflow.command("complete")
@click.argument("workflow_id", metavar="ID")
@click.option("--result", default=None, help="JSON, kept with the workflow.")
def complete_workflow(workflow_id: str, result: str | None) -> None:
    """End a workflow; refused while children are unresolved."""
    _find(workflow_id, "show ID").complete(_read_json(result) if result is not None else None)


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
    handle = _find(workflow_id, "cancel ID")
    handle.cancel(reason)
    if wait:
        try:
            handle.wait()
        except KeyboardInterrupt:
            return leave_it_running(handle.id)
    children = _receipts(handle.describe())
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
    _find(workflow_id, "cancel ID").fail(reason)


@workflow.command("notes")
@click.argument("workflow_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def notes_of_workflow(workflow_id: str, as_json: bool) -> None:
    """Take a workflow's notes out and print them.

    They tell what happened to its children: ends, and new questions, oldest first. This DRAINS them: each is printed
    once and kept no longer, so nobody else who reads notes will see these.
    """
    notes = _find(workflow_id, "show ID --history").notes()
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


def _warn_of_unknown(named: Signature | None, option: str) -> None:
    """Another app's worker may well have it; more often it is a slip of the pen, and nothing would ever run."""
    if named is None:
        return
    app, why = carrying_app(), ""
    try:
        app.loader.import_default_modules()  # as its worker does when it starts
    except Exception as error:  # noqa: BLE001  the seam to modules of theirs: importing them may raise anything
        why = f" (its modules cannot be imported here: {type(error).__name__}: {error})"
    if named.task in app.tasks:
        return
    known = [name for name in app.tasks if not name.startswith("celery.")]
    says = f"the app {app.main!r} knows no task {named.task!r}{why}; a worker that does must consume its queue"
    click.echo(f"delegation: warning: {option}: {one_line(says + nearest(str(named.task), known))}", err=True)


def _find(workflow_id: str, instead: str) -> Workflow:
    """Raises UnknownWorkflow; InvalidArguments when the id is a delegation's, naming the command for those."""
    try:
        return Workflow.get(workflow_id)
    except UnknownWorkflow as error:
        try:
            delegation_id = find_delegation(runtime().store, workflow_id).id
        except UnknownDelegation:
            raise error from None
        command = f"delegation {instead}".replace("ID", delegation_id)
        raise InvalidArguments(f"{workflow_id} is a delegation, not a workflow; use `{command}`") from None


def read_policy(text: str) -> JoinPolicy:
    """Raises InvalidArguments."""
    name, _, count = text.partition("=")
    if name == "quorum" and count.isascii() and count.isdigit():
        return JoinPolicy.read({"quorum": int(count)})
    if text in NAMES:
        return JoinPolicy.read(text)
    raise InvalidArguments(f"--policy: one of {', '.join(NAMES)}, quorum=N; not {text[:40]!r}")


def _go_along(workflow_id: str, then: Signature | None, wanted: JoinPolicy, conflict: WorkflowConflict) -> None:
    """A join that waits is no obstacle for one who only waits as well. Raises the conflict where it is one."""
    record = runtime().store.load_workflow(workflow_id)
    if record.state is not WorkflowState.JOINING:
        raise conflict
    if wanted != record.policy:
        raise WorkflowConflict(f"{conflict}, with the policy {record.policy.kept}") from None
    if then is None and record.continuation is None:
        return
    waiting = f", to run {record.continuation.get('task')} then" if record.continuation else ""
    raise WorkflowConflict(f"{conflict}{waiting}; `delegation watch {workflow_id}` follows it") from None


def _all(store: Store) -> Iterator[WorkflowRecord]:
    """Every workflow, as far as they are asked for, the newest first."""
    seen: set[str] = set()
    for root, is_workflow in store.all_roots():
        if is_workflow and root not in seen:
            seen.add(root)
            with contextlib.suppress(UnknownWorkflow):  # it has expired meanwhile
                yield store.load_workflow(root)


def _receipts(described: dict[str, Any]) -> list[dict[str, Any]]:
    """``id agent state cancel`` of each child; a child workflow has no agent."""
    names = ("id", "agent", "state", "cancel")
    children = [{name: each[name] for name in names} for each in described["children"]]
    nested = described["workflows"]
    return [*children, *({**{n: each.get(n) for n in names}, "id": each["workflow_id"]} for each in nested)]


def _print_tree(workflow_id: str) -> None:
    print_table(make_console(), looker(runtime().store, workflow_id)().table())


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise InvalidArguments("--result: must be JSON; a text needs its quotes: '\"done\"'") from None
