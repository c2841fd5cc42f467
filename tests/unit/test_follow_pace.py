"""When a delegation is subscribed again, and whether it is looked at meanwhile."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.follow_pace import End, Ending, Tries, choose_next

INTERVAL_S = 30.0


def gaps(*ends: End, interval_s: float = INTERVAL_S) -> list[float | None]:
    """Without jitter."""
    tries, found = Tries(), []
    for end in ends:
        chosen = choose_next(tries, end, interval_s=interval_s, rand=0.0)
        tries = chosen.tries
        found.append(chosen.gap_s)
    return found


def ended(lived_s: float = 0.1, *, news: bool = False) -> End:
    return End(ending=Ending.ENDED, lived_s=lived_s, was_open=True, told_news=news)


def test_a_stream_that_ends_unchanged_is_opened_again_after_the_interval() -> None:
    """And nobody looks: the next snapshot tells."""
    chosen = choose_next(Tries(), ended(), interval_s=INTERVAL_S, rand=0.0)
    assert (chosen.gap_s, chosen.wake) == (INTERVAL_S, False)


def test_streams_that_end_at_once_again_and_again_are_opened_ever_more_rarely() -> None:
    """Up to four intervals."""
    assert gaps(*[ended()] * 6) == pytest.approx([30, 45, 67.5, 101.25, 120, 120])


def test_a_long_stream_or_news_make_the_gap_short_again() -> None:
    """An agent that is at work is listened to."""
    assert gaps(ended(), ended(), ended(40)) == [30, 45, 30]
    assert gaps(ended(), ended(), ended(news=True), ended()) == [30, 45, 30, 30]


@given(interval_s=st.floats(2, 60), rands=st.lists(st.floats(0, 0.999), min_size=10, max_size=10))
def test_at_most_five_subscriptions_in_the_first_ten_seconds(interval_s: float, rands: list[float]) -> None:
    """Case C087, at any interval of two seconds or more."""
    tries, now, subscribed = Tries(), 0.0, 0
    for rand in itertools.cycle(rands):
        if now >= 10:
            break
        subscribed += 1
        chosen = choose_next(tries, ended(0.0), interval_s=interval_s, rand=rand)
        assert chosen.gap_s is not None
        assert chosen.gap_s >= interval_s
        tries, now = chosen.tries, now + chosen.gap_s
    assert subscribed <= 5


@pytest.mark.parametrize(
    ("end", "wakes"),
    [
        (End(ending=Ending.FAILED), True),
        (End(ending=Ending.FAILED, lived_s=3600, was_open=True), True),
        (End(ending=Ending.SILENT, lived_s=5), True),
        (End(ending=Ending.REFUSED), True),
        (End(ending=Ending.NOT_TRIED), False),
    ],
)
def test_what_did_not_go_well_is_tried_again_after_the_interval(end: End, wakes: bool) -> None:
    """One look meanwhile, unless the reason is on our side."""
    chosen = choose_next(Tries(), end, interval_s=INTERVAL_S, rand=0.0)
    assert (chosen.gap_s, chosen.wake) == (INTERVAL_S, wakes)


def test_a_stream_that_fell_silent_after_a_long_life_is_opened_at_once() -> None:
    """The connection may have gone; the agent has not been asked for longer than an interval."""
    chosen = choose_next(Tries(), End(ending=Ending.SILENT, lived_s=60), interval_s=INTERVAL_S, rand=0.5)
    assert chosen.wake
    assert chosen.gap_s is not None
    assert chosen.gap_s <= 1


def test_an_agent_that_asks_for_more_time_gets_it() -> None:
    """Retry-After beats a shorter interval, and only that."""
    assert gaps(End(ending=Ending.FAILED, retry_after_s=100)) == [100]
    assert gaps(End(ending=Ending.FAILED, retry_after_s=1)) == [30]


def test_repeated_refusals_end_the_follow_and_a_stream_in_between_forgives_them() -> None:
    """The first may mean that the task has ended, which GetTask tells; three more mean that there are no streams."""
    refused = End(ending=Ending.REFUSED)
    assert gaps(*[refused] * 4) == [30, 30, 30, None]
    assert gaps(*[refused] * 3, ended(), *[refused] * 3)[-1] == 30


def test_what_is_not_offered_is_not_asked_for_again() -> None:
    """Nor looked at: whoever hears of it chooses another watch."""
    chosen = choose_next(Tries(), End(ending=Ending.NOT_OFFERED), interval_s=INTERVAL_S, rand=0.0)
    assert (chosen.gap_s, chosen.wake) == (None, False)
