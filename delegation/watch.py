"""Choose how we hear back from an agent, and when to look next. Pure."""

from __future__ import annotations

from typing import Protocol

from delegation.state import Delegation, Rules, Watch

#: Looks without news grow the interval by this factor.
GROWTH = 1.5
#: An interval is spread over ± this share, so that delegations opened together do not look together.
JITTER = 0.2


class CanHear(Protocol):
    """What a card says about hearing back."""

    @property
    def can_push(self) -> bool: ...


def choose(updates: str, card: CanHear, *, base_url: str | None) -> Watch:
    """The watch for a new delegation (docs/design.md §7).

    A push needs an address of ours, and an agent that offers pushes; without either we poll. ``follow`` is read
    as ``poll`` until a follower exists. ``off`` polls only while the agent is working.
    """
    if updates == "off":
        return Watch.OFF
    if updates in ("auto", "push") and card.can_push and base_url:
        return Watch.PUSH
    return Watch.POLL


def next_look_at(delegation: Delegation, *, now: float, rules: Rules, rand: float) -> float | None:
    """When to ask again if nothing wakes us first, in seconds of Redis time; None for never. ``rand`` is in [0, 1)."""
    progress = delegation.progress
    if progress.watch is Watch.OFF and progress.state.is_interrupted:
        return None
    if progress.watch is Watch.PUSH:
        age = now - delegation.created_at
        interval = min(rules.recheck_max_s, max(rules.recheck_first_s, age / 10))
    else:
        interval = min(rules.poll_max_s, rules.poll_first_s * GROWTH ** min(progress.polls, 32))
    return now + spread(interval, rand)


def backoff_s(failures: int, rules: Rules, rand: float) -> float:
    """How long to leave an agent alone after ``failures`` failed calls in a row, seconds."""
    return spread(min(rules.retry_max_s, rules.retry_first_s * 2.0 ** min(max(failures - 1, 0), 32)), rand)


def spread(interval: float, rand: float) -> float:
    return interval * (1 - JITTER + 2 * JITTER * rand)
