"""`delegation inbox`, `reply` and `cancel`: talk to delegations that are under way."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

import click

from delegation.errors import InvalidArguments
from delegation.state import Delegation
from delegation.store import Store
from delegation.texts import clean
from workers.cli_absence import AbsenceTeller
from workers.cli_delegations import leave_it_running, load, read_text, tell_outcome, tell_question
from workers.cli_question import question_text
from workers.cli_show import exit_code_of, inbox_table, make_console, print_json, print_table
from workers.descriptions import describe, is_asking
from workers.handles import DelegationHandle, changes
from workers.runtime import runtime

#: Of an inbox that is filtered, all is looked at; it is never this long.
_WHOLE_INBOX = 1_000_000
_BATCH = 100
#: Receipts after which the agent may still be at work, and nobody asks it to stop any more.
NOT_CANCELLED = ("refused", "unreachable")


@click.command()
@click.option("--agent", default=None, help="Those given to one agent.")
@click.option("--workflow", "workflow_id", default=None, metavar="ID", help="Those of one workflow.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 10_000), help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def inbox(agent: str | None, workflow_id: str | None, limit: int, as_json: bool) -> None:
    """Delegations that wait for somebody's reply or authorization, the oldest question first."""
    store = runtime().store
    if workflow_id is not None:
        store.load_workflow(workflow_id)
    wanted = (
        each for each in _asking(store) if agent in (None, each.agent) and workflow_id in (None, each.workflow_id)
    )
    shown = list(islice(wanted, limit))
    if as_json:
        print_json([describe(each) for each in shown])
    elif shown:
        print_table(make_console(), inbox_table(shown, store.now()))
    else:
        click.echo("nothing waits for a reply", err=True)


@click.command()
@click.argument("delegation_id", metavar="ID")
@click.argument("text", required=False)
@click.option("--file", type=click.File("rb"), metavar="PATH", help="A file that holds the text; - is stdin.")
@click.option("--data", default=None, metavar="JSON", help="A JSON value, with or without a text.")
@click.option("--question", type=int, metavar="NUMBER", help="In answer to this question, or not at all.")
@click.option("--wait", is_flag=True, help="Wait for the next question, or the outcome, and print its text.")
@click.option("--json", "as_json", is_flag=True, help="The delegation afterwards, as one object, instead.")
def reply(
    delegation_id: str,
    text: str | None,
    file: BinaryIO | None,
    data: str | None,
    question: int | None,
    wait: bool,
    as_json: bool,
) -> int:
    """Answer an agent's question and print the reply's number. TEXT - reads the text from stdin.

    The reply is kept at once. It is sent when the agent waits for one, after any earlier one. ID may also be the
    Celery id of the delegation's call.
    """
    store = runtime().store
    before = load(store, delegation_id, "inbox --workflow ID")
    number = DelegationHandle(before.id).reply(_text_of(text, file), question=question, **_data_of(data))
    if not as_json:
        _tell_kept(before, number)
    try:
        after = _after_reply(store, before.id, number) if wait else store.load(before.id).delegation
    except KeyboardInterrupt:
        return leave_it_running(before.id)
    if as_json:
        print_json(describe(after))
    return _tell_after_reply(after, number, is_quiet=as_json) if wait else 0


@click.command()
@click.argument("delegation_id", metavar="ID")
@click.option("--reason", default="", help="Kept in its history.")
@click.option("--wait", is_flag=True, help="Wait until it has ended.")
@click.option("--json", "as_json", is_flag=True, help="The delegation afterwards, as one object, instead.")
def cancel(delegation_id: str, reason: str, wait: bool, as_json: bool) -> int:
    """Have a delegation cancelled at its agent, and print what became of that.

    `pending` (kept, and asked of the agent until the cancel deadline), `cancelled`, `already ended`, `refused` (by the
    agent: it works on, and is watched) or `unreachable` (CANCELED here; the agent did not confirm). The exit code is 1
    for the last two. A workflow is cancelled by `delegation workflow cancel`.
    """
    store = runtime().store
    handle = DelegationHandle(load(store, delegation_id, "workflow cancel ID").id)
    receipt = handle.cancel(reason)
    if wait:
        try:
            receipt = _wait_for_end(store, handle.id)
        except KeyboardInterrupt:
            return leave_it_running(handle.id)
    if as_json:
        after = handle.describe()
        print_json({**after, "cancel": after["cancel"] or "already ended"})
    else:
        click.echo(receipt or "already ended")
    return 1 if receipt in NOT_CANCELLED else 0


def _asking(store: Store) -> Iterator[Delegation]:
    """The inbox; what was answered since it was read is left out."""
    ids = iter(store.inbox(_WHOLE_INBOX))
    while batch := list(islice(ids, _BATCH)):
        yield from filter(is_asking, store.load_many(batch))


def _text_of(text: str | None, file: BinaryIO | None) -> str | None:
    """A file's text without the newlines at its end, as a shell's ``$(…)`` would give it. Raises InvalidArguments."""
    if text is not None and file is not None:
        raise InvalidArguments("TEXT and --file: give one of them")
    if text == "-":
        file = sys.stdin.buffer
    return text if file is None else read_text(file, "reply").rstrip("\r\n")


def _data_of(data: str | None) -> dict[str, Any]:
    """The keyword for a reply; none without data, since null is data. Raises InvalidArguments."""
    if data is None:
        return {}
    try:
        return {"data": json.loads(data)}
    except (ValueError, RecursionError):
        raise InvalidArguments("--data: must be JSON; a text needs its quotes: '\"yes\"'") from None


def _tell_kept(before: Delegation, number: int) -> None:
    click.echo(number)
    if number <= before.replies:
        what = "was given before; nothing is sent again"
    elif is_asking(before):
        what = "is kept, and being sent"
    else:
        what = "is kept, and sent when the agent asks"
    click.echo(f"delegation: reply {number} to {before.id} {what}", err=True)


def _after_reply(store: Store, delegation_id: str, number: int) -> Delegation:
    """It has ended, or asks again when that reply was sent."""
    absence = AbsenceTeller()
    for _ in changes(store, delegation_id.partition(".")[0], None):
        delegation = store.load(delegation_id).delegation
        if delegation.outcome is not None or (is_asking(delegation) and delegation.progress.turn >= number):
            return delegation
        absence.look(delegation)
    raise AssertionError("without a timeout this waits for ever")


def _tell_after_reply(after: Delegation, number: int, *, is_quiet: bool) -> int:
    """The outcome, or the next question: its text on stdout. The exit code."""
    if after.outcome is not None:
        return exit_code_of(after) if is_quiet else tell_outcome(after)
    told = (str(entry["text"]) for entry in runtime().store.history(after.id))
    in_vain = next((text for text in told if text.startswith(f"reply {number} ")), "")  # refused, or never sent
    if not is_quiet:
        click.echo(question_text(after))
        tell_question(after, f"{clean(in_vain, 200)}; " if in_vain else "")
    return 1 if in_vain else 0


def _wait_for_end(store: Store, delegation_id: str) -> str | None:
    """The last receipt; a refusal is told at once, since it may take long after it."""
    handle, is_told = DelegationHandle(delegation_id), False
    for _ in changes(store, delegation_id.partition(".")[0], None):
        seen = handle.describe()
        if seen["outcome"] is not None:
            return str(seen["cancel"]) if seen["cancel"] else None
        if seen["cancel"] == "refused" and not is_told:
            is_told = True
            click.echo(f"delegation: the agent refused to cancel {delegation_id}; still waiting for its end", err=True)
    raise AssertionError("without a timeout this waits for ever")
