"""`delegation agents`. Speaks A2A, so it is the slow one."""

from __future__ import annotations

import click

from delegation.errors import StoreUnavailable
from workers.cli_show import agents_table, make_console, print_json, print_table
from workers.composition import make_roster
from workers.doctor import redis_address
from workers.runtime import runtime


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One array.")
def agents(as_json: bool) -> None:
    """Who work may be delegated to, and who was refused, and why."""
    context = runtime()
    roster = make_roster(context.settings, context.store)
    try:
        rows = roster.describe()
    except StoreUnavailable as error:
        cause = error.__cause__ or error
        raise StoreUnavailable(f"{redis_address(context.store)}: Redis does not answer: {cause}") from None
    finally:
        roster.close()
    if as_json:
        print_json(rows)
    elif rows:
        print_table(make_console(), agents_table(rows))
    else:
        click.echo("no agents; add an [[agents]] block to delegation.toml", err=True)
