"""`delegation delegate`, `list` and `show`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import click

from delegation.errors import AgentTaskFailed, InvalidArguments, UnknownDelegation, UnknownWorkflow
from delegation.opening import GOAL_LIMIT
from delegation.state import Delegation
from delegation.store import Store
from delegation.texts import printable
from workers.canvas import open_delegation, publish_start
from workers.carrier import carrying_app
from workers.cli_absence import AbsenceTeller
from workers.cli_question import how_to_answer, question_line
from workers.cli_show import (
    delegations_table,
    exit_code_of,
    history_table,
    make_console,
    print_delegation,
    print_json,
    print_table,
)
from workers.descriptions import describe, is_asking
from workers.finding import find_delegation
from workers.handles import DelegationHandle, changes
from workers.printable import one_line
from workers.runtime import runtime

#: Records a list reads at once.
_BATCH = 100


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
@click.option("--json", "as_json", is_flag=True, help="The delegation as one object instead; with --wait as it ended.")
def delegate(
    agent: str, goal: str, criteria: tuple[str, ...], wait: bool, as_json: bool, **arguments: str | None
) -> int:
    """Give a piece of work to AGENT and print the delegation's id. GOAL - reads the goal from stdin."""
    given: dict[str, Any] = {name: value for name, value in arguments.items() if value}
    given |= {
        "agent": agent,
        "goal": read_text(sys.stdin.buffer, "goal") if goal == "-" else goal,
        "acceptance_criteria": list(criteria),
    }
    delegation, opened = open_delegation(given, options={})
    if not opened.existing:
        publish_start(carrying_app(), delegation, family={})
    if not as_json:
        click.echo(delegation.id)
    elif not wait:
        print_json(DelegationHandle(delegation.id).describe())
    if not wait:
        return 0
    try:
        ended = _wait_for(delegation.id)
    except KeyboardInterrupt:
        return leave_it_running(delegation.id)
    if as_json:
        print_json(describe(ended))
    return tell_outcome(ended, with_text=not as_json)


@click.command("list")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--agent", default=None, help="Those given to one agent.")
@click.option("--open", "only_open", is_flag=True, help="Those that have not ended.")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def list_delegations(limit: int, agent: str | None, only_open: bool, as_json: bool) -> None:
    """Delegations, newest first; those of one workflow together."""
    store = runtime().store
    wanted = (each for each in _all(store) if agent in (None, each.agent) and not (only_open and each.outcome))
    shown = list(islice(wanted, limit))
    if as_json:
        print_json([describe(each) for each in shown])
    elif shown:
        print_table(make_console(), delegations_table(shown, store.now()))
    else:
        click.echo("no delegations", err=True)


@click.command()
@click.argument("delegation_id", metavar="ID")
@click.option("--history", "only_history", is_flag=True, help="Its story alone.")
@click.option("--artifacts", "only_artifacts", is_flag=True, help="What the agent produced, as it sent it: one array.")
@click.option("--json", "as_json", is_flag=True, help="One object; with --history one array.")
def show(delegation_id: str, only_history: bool, only_artifacts: bool, as_json: bool) -> None:
    """One delegation: its state, what it asks, its story, its outcome. ID may also be the Celery id of its call."""
    if only_history and only_artifacts:
        raise InvalidArguments("--history and --artifacts: give one of them")
    store = runtime().store
    delegation = load(store, delegation_id)
    handle = DelegationHandle(delegation.id)
    if only_artifacts:
        print_json(handle.artifacts())
        return
    history = handle.history()
    if as_json:
        print_json(history if only_history else describe(delegation))
    elif only_history:
        print_table(make_console(), history_table(history))
    else:
        print_delegation(make_console(), delegation, history, store.now())


def load(store: Store, delegation_id: str, instead: str = "workflow show ID") -> Delegation:
    """By its id or a call's. Raises UnknownDelegation; InvalidArguments when the id is a workflow's, naming the command
    for those."""
    try:
        return find_delegation(store, delegation_id)
    except UnknownDelegation as error:
        try:
            store.load_workflow(delegation_id)
        except UnknownWorkflow:
            raise error from None
        command = f"delegation {instead}".replace("ID", delegation_id)
        raise InvalidArguments(f"{delegation_id} is a workflow; use `{command}`") from None


def _all(store: Store) -> Iterator[Delegation]:
    """Every delegation, as far as they are asked for: of the newest root first."""
    ids = _ids(store)
    while batch := list(islice(ids, _BATCH)):
        yield from store.load_many(batch)


def _ids(store: Store) -> Iterator[str]:
    seen: set[str] = set()
    for root, is_workflow in store.all_roots(_BATCH):
        if root in seen:
            continue
        seen.add(root)
        if not is_workflow:
            yield root
            continue
        with contextlib.suppress(UnknownWorkflow):  # its retention has passed since it was listed
            children = store.load_workflow(root).children
            yield from (f"{root}.{number}" for number in range(1, children + 1))


def read_text(stream: BinaryIO, name: str) -> str:
    """At most what an agent may be told; the check that it is not more is the library's. Raises InvalidArguments."""
    text = stream.read(4 * GOAL_LIMIT + 1)
    if len(text) > 4 * GOAL_LIMIT:
        raise InvalidArguments(f"{name}: a string of 0 to {GOAL_LIMIT} characters")
    return text.decode("utf-8")


def leave_it_running(delegation_id: str) -> int:
    """Ctrl-C ends the waiting and nothing else; the exit code."""
    click.echo(f"delegation: still running; delegation watch {delegation_id}", err=True)
    return 130


def _wait_for(delegation_id: str) -> Delegation:
    """It has ended."""
    store = runtime().store
    asked: tuple[int, int] | None = None
    absence = AbsenceTeller()
    for _ in changes(store, delegation_id.partition(".")[0], None):
        delegation = store.load(delegation_id).delegation
        if delegation.outcome is not None:
            return delegation
        absence.look(delegation)
        question = delegation.progress.question
        if question is not None and is_asking(delegation) and asked != (question.number, question.turn):
            asked = (question.number, question.turn)  # refused, a reply leaves the same one open again
            tell_question(delegation, "still waiting; ")
    raise AssertionError("without a timeout this waits for ever")


def tell_question(delegation: Delegation, news: str = "") -> None:
    """On stderr, in one line: what it asks, and how to answer."""
    asks = f"{delegation.id} is {delegation.state.value}: {question_line(delegation, 500)}"
    click.echo(f"delegation: {asks}; {news}{how_to_answer(delegation)}", err=True)


def tell_outcome(delegation: Delegation, *, with_text: bool = True) -> int:
    """Its text on stdout, on stderr why it failed; the exit code."""
    outcome = delegation.outcome
    assert outcome is not None
    if outcome.text and with_text:
        click.echo(printable(outcome.text))
    code = exit_code_of(delegation)
    if code:
        failed = AgentTaskFailed(delegation.id, delegation.agent, outcome.state.value, outcome.reason)
        click.echo(f"delegation: {one_line(str(failed))}", err=True)
    return code
