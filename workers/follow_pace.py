"""When to subscribe again, and whether to look meanwhile: pure.

An agent that ends its streams at once must not be asked in a loop (a2aproject/a2a-js#540), and one that is away must
not be met by all its followers in the same second when it is back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

#: Streams that end at once make the gap grow by this factor, up to that many intervals.
GROWTH = 1.5
MOST_INTERVALS = 4.0
#: A gap is made longer by at most this share, never shorter.
JITTER = 0.2
#: -32004 says that the agent task has ended, which GetTask then tells, or that there are no streams at all.
PATIENCE_WITH_REFUSALS = 3
_AT_ONCE_S = 1.0


class Ending(StrEnum):
    """How a stream ended, or why there was none."""

    ENDED = "ended"  #: by the agent, in order
    SILENT = "silent"  #: by us: not even a comment for too long
    FAILED = "failed"  #: the connection broke, or an error
    REFUSED = "refused"  #: -32004
    NOT_TRIED = "not_tried"  #: for reasons on our side
    NOT_OFFERED = "not_offered"


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The end of one attempt to follow."""

    ending: Ending
    lived_s: float = 0.0
    was_open: bool = False  #: the agent did send a stream
    told_news: bool = False
    reason: str = ""  #: an error's code, for the log
    retry_after_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Tries:
    """What earlier ends left behind."""

    short: int = 0  #: streams in a row that ended early and told nothing
    refusals: int = 0  #: -32004 in a row


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """What follows an end. ``gap_s`` is None when the delegation cannot be followed."""

    tries: Tries
    wake: bool
    gap_s: float | None


def choose_next(tries: Tries, end: End, *, interval_s: float, rand: float) -> Next:
    """``interval_s`` is the agent's follow_interval, ``rand`` is in [0, 1)."""
    gap_s = max(interval_s * (1 + JITTER * rand), end.retry_after_s)
    if end.was_open:
        tries = replace(tries, refusals=0)
    if end.ending is Ending.NOT_OFFERED:
        return Next(tries=tries, wake=False, gap_s=None)
    if end.ending is Ending.REFUSED:
        tries = replace(tries, refusals=tries.refusals + 1)
        is_enough = tries.refusals > PATIENCE_WITH_REFUSALS
        return Next(tries=tries, wake=not is_enough, gap_s=None if is_enough else gap_s)
    if end.ending is Ending.NOT_TRIED:
        return Next(tries=tries, wake=False, gap_s=gap_s)
    if end.ending is Ending.SILENT and end.lived_s >= interval_s:
        return Next(tries=replace(tries, short=0), wake=True, gap_s=_AT_ONCE_S * rand)
    if end.ending is Ending.ENDED:
        is_short = end.lived_s < interval_s and not end.told_news
        tries = replace(tries, short=tries.short + 1 if is_short else 0)
        growth = min(MOST_INTERVALS, GROWTH ** min(max(tries.short - 1, 0), 32))
        return Next(tries=tries, wake=False, gap_s=gap_s * growth)
    return Next(tries=tries, wake=end.retry_after_s == 0, gap_s=gap_s)  # whoever says "later" is not asked at once
