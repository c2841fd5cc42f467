"""`delegation up`, `delegation demo` and `delegation follower`."""

from __future__ import annotations

import os

import click

from workers.demo import run_demo
from workers.follower import run_follower
from workers.logs import configure_logging
from workers.up import run_up


@click.command()
def up() -> None:
    """Run every process of this project until Ctrl-C: worker, web, Flower, and Valkey where no Redis is configured."""
    run_up()


@click.command()
def follower() -> None:
    """Hold the streams of delegations that are followed, until SIGTERM or Ctrl-C.

    Run one or more beside the workers: they share the streams, and take over what another one held when it is gone.
    """
    configure_logging()
    run_follower()


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C. (Also KEEP=1.)")
def demo(keep: bool) -> None:
    """The main job on this machine, with sample agents: six delegations, one workflow, one continuation."""
    run_demo(keep=keep or os.environ.get("KEEP") in ("1", "yes", "true"))
