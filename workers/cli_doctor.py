"""`delegation doctor`."""

from __future__ import annotations

import click
from rich.text import Text

from workers.cli_show import make_console, print_json
from workers.doctor import Finding, Verdict, examine

_STYLES = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.FAILED: "red"}


@click.command()
@click.option("--no-agents", is_flag=True, help="Do not ask the agents.")
@click.option("--json", "as_json", is_flag=True, help="One array.")
def doctor(no_agents: bool, as_json: bool) -> int:
    """Check that everything a delegation needs is there.

    The exit code is 0 when all of it works (warnings included), 2 for a wrong configuration, 3 when Redis, the broker
    or web does not answer, 1 for everything else.
    """
    findings = []
    for finding in examine(ask_agents=not no_agents):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if as_json:
        print_json([{"check": each.name, "verdict": each.verdict.value, "text": each.text} for each in findings])
    return _exit_code(findings)


def _print(finding: Finding) -> None:
    line = Text(f"{finding.name:<16} ")
    line.append(f"{finding.verdict.value:<8}", style=_STYLES[finding.verdict])
    line.append(f" {finding.text}")
    make_console().print(line, soft_wrap=True)


def _exit_code(findings: list[Finding]) -> int:
    """What keeps the rest from working comes first: the configuration, then what does not answer."""
    codes = {each.exit_code for each in findings}
    return next((code for code in (2, 3, 1) if code in codes), 0)
