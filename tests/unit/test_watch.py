"""How we hear back from an agent, and when we look next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest

from delegation.agent_task import TaskState
from delegation.decide import transition
from delegation.state import Cause, Rules, Watch
from delegation.watch import backoff_s, choose, next_look_at, spread
from tests.support.delegations import NOW, a_delegation, a_task, at


@dataclass(frozen=True)
class Card:
    can_push: bool


@pytest.mark.parametrize(
    ("updates", "can_push", "base_url", "watch"),
    [
        ("auto", True, "https://here", Watch.PUSH),
        ("auto", True, None, Watch.POLL),
        ("auto", False, "https://here", Watch.POLL),
        ("push", True, "https://here", Watch.PUSH),
        ("push", True, None, Watch.POLL),
        ("push", False, "https://here", Watch.POLL),
        ("follow", True, "https://here", Watch.POLL),  # read as poll until a follower exists
        ("poll", True, "https://here", Watch.POLL),
        ("poll", False, None, Watch.POLL),
        ("off", True, "https://here", Watch.OFF),
        ("off", False, None, Watch.OFF),
    ],
)
def test_which_watch_is_chosen(updates: str, can_push: bool, base_url: str | None, watch: Watch) -> None:
    """The table of the watches: a push needs an address of ours and an agent that offers pushes."""
    assert choose(updates, Card(can_push), base_url=base_url) is watch


def looks(rand: Random, until_s: float, watch: Watch = Watch.POLL) -> list[float]:
    """Seconds after the first answer at which an agent that only ever says WORKING is asked."""
    heard = transition(a_delegation(progress={"watch": watch}), a_task(), cause=Cause.SENT, moment=at(NOW)).after
    times: list[float] = []
    while (now := heard.timers.poll_at or 0) <= NOW + until_s:
        times.append(now - NOW)
        heard = transition(heard, a_task(), cause=Cause.POLL, moment=at(now, rand.random())).after
    return times


def test_a_working_agent_is_polled_at_most_15_times_in_a_minute() -> None:
    """C054: the gaps grow from 2 to 30 seconds and stay there, for each of 40 delegations."""
    for seed in range(40):
        times = looks(Random(seed), 600)
        assert len([time for time in times if time <= 60]) <= 15
        gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
        assert 1.6 <= gaps[0] <= 2.4
        assert all(24 <= gap <= 36 for gap in gaps[9:])


def test_polls_of_many_delegations_are_spread() -> None:
    """C054: forty that were opened together are not asked for in the same tenth of a second."""
    tenths = {round(next_look_at(a_delegation(), now=NOW, rules=Rules(), rand=n / 40) or 0, 1) for n in range(40)}
    assert len(tenths) >= 8


def test_news_makes_polling_quick_again() -> None:
    """An agent that moves is asked soon."""
    slow = a_delegation(progress={"polls": 12, "state": TaskState.WORKING})
    moved = transition(slow, a_task(status_text="half way"), cause=Cause.POLL, moment=at()).after
    assert moved.timers.poll_at == NOW + 2


@pytest.mark.parametrize(
    ("age_s", "interval_s"),
    [(0, 60), (599, 60), (1200, 120), (36_000, 3600), (216_000, 21_600), (600_000, 21_600)],
)
def test_behind_a_push_we_look_ever_more_rarely(age_s: float, interval_s: float) -> None:
    """From a minute to a tenth of the age, at most six hours: a lost push costs at most that."""
    pushed = a_delegation(progress={"watch": Watch.PUSH})
    assert next_look_at(pushed, now=NOW + age_s, rules=Rules(), rand=0.5) == NOW + age_s + interval_s


def test_unwatched_work_is_polled_and_an_unwatched_question_is_not() -> None:
    """``off`` still hears the end of an agent that works."""
    off = a_delegation(progress={"watch": Watch.OFF, "state": TaskState.WORKING})
    assert next_look_at(off, now=NOW, rules=Rules(), rand=0.5) == NOW + 2
    for state in (TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED):
        asked = replace(off, progress=replace(off.progress, state=state))
        assert next_look_at(asked, now=NOW, rules=Rules(), rand=0.5) is None


def test_endless_polling_and_failing_overflow_nothing() -> None:
    """Counts that grew for days still give the cap."""
    old = a_delegation(progress={"polls": 10**9})
    assert next_look_at(old, now=NOW, rules=Rules(), rand=0.5) == NOW + 30
    assert backoff_s(10**9, Rules(), 0.5) == 60
    assert backoff_s(0, Rules(), 0.5) == backoff_s(1, Rules(), 0.5) == 2


def test_a_spread_is_a_fifth_to_either_side() -> None:
    """No interval becomes zero or doubles."""
    assert (spread(10, 0.0), spread(10, 0.5)) == (8.0, 10.0)
    assert spread(10, 0.999999) < 12.0
