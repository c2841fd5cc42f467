"""An agent that nothing can be had from now: what to call it on a terminal, and when to say so to whoever waits."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from delegation.errors import AgentPaused, AuthenticationRefused, CredentialUnavailable
from delegation.state import Delegation
from workers.descriptions import away_since

_PAUSED = "agent paused for its changed card"
#: By the code of the last failure; all others are "agent unavailable".
_ABSENCES = {
    AuthenticationRefused.code: "agent refuses our credentials",
    CredentialUnavailable.code: "our credentials for the agent cannot be had",
    AgentPaused.code: _PAUSED,
}
_UNAVAILABLE = "agent unavailable"
#: When it ends, whatever it was: an answer is what ends it.
ANSWERS_AGAIN = "the agent answers again"
#: One call that fails is no news to whoever waits; what somebody has to do something about is told at once.
_TRIES = 3


def absence_kind(each: Delegation) -> str:
    """Why calls to its agent fail; empty while they do not, or nobody waits for the agent."""
    return "" if away_since(each) is None else _ABSENCES.get(each.progress.failing_code, _UNAVAILABLE)


def absence_text(each: Delegation) -> str:
    """As :func:`absence_kind`, with since when, and how often it was tried."""
    since, kind = away_since(each), absence_kind(each)
    if since is None:
        return ""
    at, tries = datetime.fromtimestamp(since, UTC).strftime("%H:%M:%S"), each.progress.failures
    return f"{kind} since {at}, tried {'once' if tries == 1 else f'{tries} times'}"


class AbsenceTeller:
    """For one delegation that is waited for: says on stderr when its agent goes away, and when it is back."""

    def __init__(self) -> None:
        self._told = ""

    def look(self, each: Delegation) -> None:
        kind = absence_kind(each)
        if kind == _UNAVAILABLE and each.progress.failures < _TRIES:
            kind = self._told and kind
        if kind == self._told or each.outcome is not None:
            return
        self._told = kind
        advice = f"delegation agents accept {each.agent}" if kind == _PAUSED else "delegation doctor"
        news = f"{absence_text(each)}; still waiting; {advice}" if kind else ANSWERS_AGAIN
        click.echo(f"delegation: {each.id}: {news}", err=True)
