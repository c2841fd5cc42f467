"""`delegation delegate`, `list` and `show`."""

from __future__ import annotations

import sys
from typing import Any

import click

from delegation.errors import AgentTaskFailed, InvalidArguments, UnknownDelegation, UnknownWorkflow
from delegation.opening import GOAL_LIMIT
from delegation.state import Delegation
from delegation.store import Store
from workers.canvas import open_delegation, publish_start
from workers.carrier import carrying_app
from workers.cli_show import (
    delegations_table,
    exit_code_of,
    history_table,
    make_console,
    print_delegation,
    print_json,
    print_table,
)
from workers.handles import DelegationHandle, changes, describe
from workers.printable import many_lines, one_line
from workers.runtime import runtime

#: Children shown of the workflows in a list.
_BATCH = 500


@click.command()
@click.argument("agent")
@click.argument("goal")
@click.option("--name", default="", help="A short name of the work, told to the agent.")
@click.option("--description", default="", help="Whatever else the agent should know.")
@click.option("--criterion", "criteria", multiple=True, help="What an answer must satisfy; may be given repeatedly.")
@click.option("--workflow", default=None, metavar="ID", help="The workflow this is a part of.")
@click.option("--deadline", default=None, help="A duration such as PT10M, or an ISO 8601 time with its zone.")
@click.option("--idempotency-key", default=None, metavar="KEY", help="The same key gives the same delegation.")
@click.option("--wait", is_flag=True, help="Wait for the outcome, also over questions, and print its text.")
def delegate(agent: str, goal: str, criteria: tuple[str, ...], wait: bool, **arguments: str | None) -> int:
    """Give a piece of work to AGENT and print the delegation's id. GOAL - reads the goal from stdin."""
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value}
    given |= {"agent": agent, "goal": _read_goal() if goal == "-" else goal, "acceptance_criteria": list(criteria)}
    delegation, opened = open_delegation(given, options={})
    if not opened.existing:
        publish_start(carrying_app(), delegation, family={})
    click.echo(delegation.id)
    return _wait_for(delegation.id) if wait else 0


@click.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--agent", default=None, help="Those given to one agent.")
@click.option("--open", "only_open", is_flag=True, help="Those that have not ended.")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def list_delegations(limit: int, agent: str | None, only_open: bool, as_json: bool) -> None:
    """Delegations, newest first; those of one workflow together."""
    store = runtime().store
    found = [each for each in _all(store, limit) if agent in (None, each.agent)]
    shown = [each for each in found if not (only_open and each.outcome)][:limit]
    if as_json:
        print_json([describe(each) for each in shown])
    elif shown:
        print_table(make_console(), delegations_table(shown, store.now()))
    else:
        click.echo("no delegations", err=True)


@click.command()
@click.argument("delegation_id", metavar="ID")
@click.option("--history", "only_history", is_flag=True, help="Its story alone.")
@click.option("--json", "as_json", is_flag=True, help="One object; with --history one array.")
def show(delegation_id: str, only_history: bool, as_json: bool) -> None:
    """One delegation: its state, its story, its outcome."""
    store = runtime().store
    delegation = load(store, delegation_id)
    history = DelegationHandle(delegation_id).history()
    if as_json:
        print_json(history if only_history else describe(delegation))
    elif only_history:
        print_table(make_console(), history_table(history))
    else:
        print_delegation(make_console(), delegation, history, store.now())


def load(store: Store, delegation_id: str) -> Delegation:
    """Raises UnknownDelegation, which says so when the id is a workflow's."""
    try:
        return store.load(delegation_id).delegation
    except UnknownDelegation as error:
        try:
            store.load_workflow(delegation_id)
        except UnknownWorkflow:
            raise error from None
        raise InvalidArguments(f"{delegation_id} is a workflow; use `delegation workflow show`") from None


def _all(store: Store, limit: int) -> list[Delegation]:
    """Of the newest workflows and lone delegations."""
    ids: list[str] = []
    for root, is_workflow in store.list_roots(limit):
        count = store.load_workflow(root).children if is_workflow else 0
        ids += [f"{root}.{number}" for number in range(1, count + 1)] if is_workflow else [root]
    return [each for start in range(0, len(ids), _BATCH) for each in store.load_many(ids[start : start + _BATCH])]


def _read_goal() -> str:
    """At most what a goal may hold; the check that it is not more is the library's."""
    text = sys.stdin.buffer.read(4 * GOAL_LIMIT + 1)
    if len(text) > 4 * GOAL_LIMIT:
        raise InvalidArguments(f"goal: a string of 0 to {GOAL_LIMIT} characters")
    return text.decode("utf-8")


def _wait_for(delegation_id: str) -> int:
    store = runtime().store
    asked = ""
    for _ in changes(store, delegation_id.partition(".")[0], None):
        delegation = store.load(delegation_id).delegation
        if delegation.outcome is not None:
            return _tell_outcome(delegation)
        question = _question(delegation)
        if question and question != asked:
            click.echo(f"delegation: {delegation_id} is {one_line(question, 500)}; still waiting", err=True)
        asked = question
    raise AssertionError("without a timeout this waits for ever")


def _question(delegation: Delegation) -> str:
    """What the agent asks us, empty when it asks nothing."""
    if not delegation.state.is_interrupted:
        return ""
    return f"{delegation.state.value}: {delegation.progress.status_text}"


def _tell_outcome(delegation: Delegation) -> int:
    outcome = delegation.outcome
    assert outcome is not None
    if outcome.text:
        click.echo(many_lines(outcome.text))
    code = exit_code_of(delegation)
    if code:
        failed = AgentTaskFailed(delegation.id, delegation.agent, outcome.state.value, outcome.reason)
        click.echo(f"delegation: {one_line(str(failed))}", err=True)
    return code
