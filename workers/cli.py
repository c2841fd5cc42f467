"""The `delegation` command: finds the subcommand's module, and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from kombu.exceptions import OperationalError

from delegation.errors import (
    DelegationEnded,
    DelegationError,
    StoreUnavailable,
    UnknownDelegation,
    UnknownWorkflow,
    UnresolvedChildren,
)
from workers.children import ProcessFailed
from workers.cli_group import NearestGroup
from workers.logs import configure_logging
from workers.printable import one_line

#: Command → where it is, and what it is for. A module is imported when its command is called: most never need A2A.
COMMANDS = {
    "agents": ("workers.cli_agents:agents", "Who work may be delegated to, and who was refused; accept a card."),
    "delegate": ("workers.cli_delegations:delegate", "Give a piece of work to an agent; prints the delegation's id."),
    "list": ("workers.cli_delegations:list_delegations", "Delegations, newest first."),
    "show": ("workers.cli_delegations:show", "One delegation: its state, its story, its outcome."),
    "watch": ("workers.cli_watch:watch", "Follow a delegation or a workflow until it ends."),
    "inbox": ("workers.cli_talk:inbox", "Delegations that wait for somebody's reply, the oldest question first."),
    "reply": ("workers.cli_talk:reply", "Answer an agent's question."),
    "cancel": ("workers.cli_talk:cancel", "Have a delegation cancelled; prints the receipt."),
    "redrive": ("workers.cli_redrive:redrive", "Do a delegation again that failed; prints the new one's id."),
    "workflow": (
        "workers.cli_workflows:workflow",
        "Open, list, show, join, cancel and complete workflows; read their notes.",
    ),
    "doctor": ("workers.cli_doctor:doctor", "Check that everything a delegation needs is there."),
    "demo": ("workers.cli_processes:demo", "The main job on this machine, with sample agents, in half a minute."),
    "follower": ("workers.cli_processes:follower", "Hold the streams of delegations that are followed."),
    "up": ("workers.cli_processes:up", "Run every process of this project until Ctrl-C."),
}

#: What to do about it, where the error itself does not say.
_ADVICE: dict[type[DelegationError], str] = {
    StoreUnavailable: "is it running, and redis.url right? `delegation doctor` checks",
    UnknownDelegation: "`delegation list` shows those that are kept",
    UnknownWorkflow: "`delegation workflow list` shows those that are kept",
    DelegationEnded: "`delegation show` tells more",
    UnresolvedChildren: "wait for them with `delegation workflow join`",
}


class LazyGroup(NearestGroup):
    """Knows its commands by name; help alone imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """A reader that goes away ends the command as a shell's own would end: by SIGPIPE, without a word.

        It is no end of a delegation (1), and none can be told from it (0). Click would make it 1.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            _leave_output()
            return 128 + signal.SIGPIPE

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="celery-a2a-delegation", message="%(version)s")
def cli() -> None:
    """Durable delegation to A2A agents.

    The configuration is ./delegation.toml, or the file that DELEGATION_CONFIG names.
    """
    configure_logging("WARNING")


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """The exit code; whatever a user or an agent can cause ends in one line on stderr."""
    sys.path.append(str(Path.cwd()))  # where a project's own Celery app is
    try:
        code: Any = cli.main(list(arguments), prog_name="delegation", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return 2
    except click.ClickException as error:
        return _complain(error.format_message(), 2)
    except DelegationError as error:
        return _complain_of(error)
    except OperationalError as error:
        return _complain(f"the broker does not answer: {error}; `delegation doctor` checks", 3)
    except UnicodeError:
        return _complain("arguments and input must be UTF-8", 2)
    except (KeyboardInterrupt, click.Abort):
        return 130
    return code if isinstance(code, int) else 0


def _complain_of(error: DelegationError) -> int:
    if isinstance(error, ProcessFailed) and error.output:
        click.echo("\n".join(f"  {one_line(line)}" for line in error.output.splitlines()), err=True)
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), None)
    return _complain(f"{str(error).rstrip('.')}; {advice}" if advice else str(error), error.exit_code)


def _complain(text: str, code: int) -> int:
    click.echo(f"delegation: {one_line(text)}", err=True)
    return code


def _leave_output() -> None:
    """Whoever read has gone; the interpreter must not try to flush to it on its way out."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


if __name__ == "__main__":
    main()
