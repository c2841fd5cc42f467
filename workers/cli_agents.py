"""`delegation agents`, and accepting a card that has changed. Speaks A2A, so it is the slow one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from delegation.card_changes import short
from delegation.errors import StoreUnavailable
from delegation.roster import Review, Roster
from workers.cli_group import NearestGroup
from workers.cli_show import make_console, plain_table, print_json, print_table
from workers.composition import make_roster
from workers.doctor import redis_address
from workers.printable import one_line
from workers.runtime import runtime

_REASON_LIMIT = 200


@click.group(cls=NearestGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One array.")
@click.option("--prompt", "as_prompt", is_flag=True, help="The section that a model is shown.")
@click.pass_context
def agents(context: click.Context, as_json: bool, as_prompt: bool) -> None:
    """Who work may be delegated to, and who was refused, and why."""
    if context.invoked_subcommand is not None:
        return
    if as_json and as_prompt:
        raise click.UsageError("--json and --prompt: one of them")
    with _roster() as roster:
        if as_prompt:
            click.echo(roster.render())
            return
        rows = roster.describe()
    if as_json:
        print_json(rows)
    elif rows:
        print_table(make_console(), agents_table(rows))
    else:
        click.echo("no agents; add an [[agents]] block to delegation.toml", err=True)


@agents.command()
@click.argument("agent_id", metavar="ID")
@click.option(
    "--fingerprint", metavar="F", help="Accept this card alone, as `agents --json` shows it (or its beginning)."
)
def accept(agent_id: str, fingerprint: str | None) -> int:
    """Accept the card that an agent has now, so that new work is given to it again.

    Prints what changed. The exit code is 0 also when there is nothing to accept, 1 when the card is another one than
    was looked at.
    """
    with _roster() as roster:
        review = roster.review(agent_id)
        digest = review.found.fingerprint
        if not review.found.is_paused:
            click.echo(f"{agent_id}: nothing to accept: card {short(digest)} is in use")
            return 0
        for line in _lines(review):
            click.echo(line)
        if (fingerprint and not digest.startswith(fingerprint.lower())) or not roster.accept(review):
            click.echo(
                f"{agent_id}: not accepted: its card is another one now; look at it, then accept again", err=True
            )
            return 1
    click.echo(f"{agent_id}: accepted card {short(digest)}")
    return 0


def agents_table(agents: Sequence[dict[str, Any]]) -> Table:
    table = plain_table("ID", "NAME", "VERSION", "ACCEPTED", "WATCH", "AUTH", "SIGNED", "SKILLS OR REASON")
    for agent in agents:
        skills = ", ".join(one_line(str(skill["name"]), 40) for skill in agent["skills"])
        said = skills if agent["accepted"] else one_line(str(agent["reason"]), _REASON_LIMIT)
        table.add_row(
            agent["id"],
            one_line(agent["name"] or "-", 40),
            one_line(agent["version"] or "-", 16),
            _accepted(agent),
            agent["watch"] or "-",
            agent["auth"] or "-",
            agent["signed"] or "-",
            Text(said),
        )
    return table


def _accepted(agent: Mapping[str, Any]) -> Text:
    if agent["paused"]:
        return Text("paused", style="yellow")
    return Text("yes", style="green") if agent["accepted"] else Text("no", style="red")


def _lines(review: Review) -> Iterator[str]:
    before = short(review.accepted.fingerprint) if review.accepted else "none"
    yield f"{review.agent.id}: card {before} → {short(review.found.fingerprint)}"
    yield from (f"  {one_line(reason, 300)}" for reason in review.changes.reasons)
    if review.changes.members:
        yield f"  changed: {', '.join(review.changes.members)}"


@contextmanager
def _roster() -> Iterator[Roster]:
    context = runtime()
    roster = make_roster(context.settings, context.store)
    try:
        yield roster
    except StoreUnavailable as error:
        cause = error.__cause__ or error
        raise StoreUnavailable(f"{redis_address(context.store)}: Redis does not answer: {cause}") from None
    finally:
        roster.close()
