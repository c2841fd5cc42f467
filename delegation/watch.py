"""Choose how we hear back from an agent, and when to look next. Pure."""

from __future__ import annotations

from typing import Protocol

from delegation.state import Delegation, Phase, Rules, Watch

#: Looks without news grow the interval by this factor.
GROWTH = 1.5
#: An interval is spread over ± this share, so that delegations opened together do not look together.
JITTER = 0.2


class CanHear(Protocol):
    """What a card says about hearing back."""

    @property
    def can_push(self) -> bool: ...
    @property
    def can_stream(self) -> bool: ...


def choose(updates: str, card: CanHear, *, base_url: str | None) -> Watch:
    """The watch for a new delegation (docs/design.md §7).

    A push needs an address of ours, and an agent that offers pushes; a follow needs streams; whoever has neither is
    polled. ``off`` looks only while the agent is working.
    """
    if updates == "off":
        return Watch.OFF
    if updates in ("auto", "push") and card.can_push and base_url:
        return Watch.PUSH
    return Watch.POLL if updates == "poll" else next_best(can_follow=card.can_stream)


def next_best(*, can_follow: bool) -> Watch:
    """What is left where the agent does not push, or refused to."""
    return Watch.FOLLOW if can_follow else Watch.POLL


def wants_follow(delegation: Delegation) -> bool:
    """Whether a follower should hold a stream for it."""
    progress = delegation.progress
    if delegation.phase is not Phase.WATCHING or not progress.can_follow:
        return False
    return progress.watch is Watch.FOLLOW or (progress.watch is Watch.OFF and not is_left_alone(delegation))


def is_left_alone(delegation: Delegation) -> bool:
    """With ``off`` an agent that waits for us is not asked anything; once we replied it is, until it has moved."""
    is_off = delegation.progress.watch is Watch.OFF
    return is_off and delegation.state.is_interrupted and not delegation.waits_for_agent


def next_look_at(delegation: Delegation, *, now: float, rules: Rules, rand: float) -> float | None:
    """When to ask again if nothing wakes us first, in seconds of Redis time; None for never. ``rand`` is in [0, 1)."""
    is_canceling = delegation.timers.cancel_at is not None  # asked to stop, it is about to say so
    if is_left_alone(delegation) and not is_canceling:
        return None
    if is_canceling:
        interval = rules.poll_first_s
    elif delegation.progress.watch is Watch.PUSH or (delegation.followed and wants_follow(delegation)):
        interval = recheck_s(now - delegation.created_at, rules)
    else:
        interval = min(rules.poll_max_s, rules.poll_first_s * GROWTH ** min(delegation.progress.polls, 32))
    return now + spread(interval, rand)


def recheck_s(age_s: float, rules: Rules) -> float:
    """The gap between looks of our own behind a push or a stream: a tenth of the delegation's age, within bounds."""
    return min(rules.recheck_max_s, max(rules.recheck_first_s, age_s / 10))


def backoff_s(failures: int, rules: Rules, rand: float) -> float:
    """How long to leave an agent alone after ``failures`` failed calls in a row, seconds."""
    return spread(min(rules.retry_max_s, rules.retry_first_s * 2.0 ** min(max(failures - 1, 0), 32)), rand)


def spread(interval: float, rand: float) -> float:
    return interval * (1 - JITTER + 2 * JITTER * rand)
