"""`delegation redrive`."""

from __future__ import annotations

import click

from workers.cli_delegations import load
from workers.cli_show import print_json
from workers.handles import DelegationHandle
from workers.runtime import runtime


@click.command()
@click.argument("delegation_id", metavar="ID")
@click.option("--deadline", default=None, help="A duration such as PT10M, or an ISO 8601 time with its zone.")
@click.option("--force", is_flag=True, help="One more, where it was redriven before.")
@click.option("--alone", is_flag=True, help="Outside its workflow, which may take no more delegations.")
@click.option("--json", "as_json", is_flag=True, help="The new delegation as one object instead.")
def redrive(delegation_id: str, deadline: str | None, force: bool, alone: bool, as_json: bool) -> None:
    """Do a delegation again that ended otherwise than COMPLETED, and print the new one's id.

    It has the same brief, agent and workflow, a new deadline, and remembers its ancestor. A second redrive of the same
    delegation prints the same id.
    """
    delegation = load(runtime().store, delegation_id)
    made = DelegationHandle.of(delegation).redrive(deadline=deadline, force=force, alone=alone)
    if as_json:
        print_json(made.describe())
    else:
        click.echo(made.id)
