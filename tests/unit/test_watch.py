"""How we hear back from an agent, and when we look next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random

import pytest

from delegation.agent_task import TaskState
from delegation.decide import transition
from delegation.state import Cause, Phase, Question, Rules, Watch
from delegation.watch import backoff_s, choose, is_left_alone, next_look_at, spread, wants_follow
from tests.support.delegations import NOW, a_delegation, a_task, at


@dataclass(frozen=True)
class Card:
    can_push: bool = False
    can_stream: bool = False


HERE = "https://here"
BOTH, PUSHES, STREAMS, NEITHER = Card(True, True), Card(can_push=True), Card(can_stream=True), Card()


@pytest.mark.parametrize(
    ("updates", "card", "base_url", "watch"),
    [
        ("auto", BOTH, HERE, Watch.PUSH),
        ("auto", PUSHES, HERE, Watch.PUSH),
        ("auto", BOTH, None, Watch.FOLLOW),
        ("auto", STREAMS, HERE, Watch.FOLLOW),
        ("auto", PUSHES, None, Watch.POLL),
        ("auto", NEITHER, HERE, Watch.POLL),
        ("push", BOTH, HERE, Watch.PUSH),
        ("push", BOTH, None, Watch.FOLLOW),
        ("push", STREAMS, HERE, Watch.FOLLOW),
        ("push", NEITHER, HERE, Watch.POLL),
        ("follow", BOTH, HERE, Watch.FOLLOW),
        ("follow", PUSHES, HERE, Watch.POLL),
        ("poll", BOTH, HERE, Watch.POLL),
        ("off", BOTH, HERE, Watch.OFF),
        ("off", NEITHER, None, Watch.OFF),
    ],
)
def test_which_watch_is_chosen(updates: str, card: Card, base_url: str | None, watch: Watch) -> None:
    """The table of the watches: a push needs an address of ours and an agent that offers pushes, a follow streams."""
    assert choose(updates, card, base_url=base_url) is watch


@pytest.mark.parametrize(
    ("watch", "can_follow", "state", "is_followed"),
    [
        (Watch.FOLLOW, True, TaskState.WORKING, True),
        (Watch.FOLLOW, True, TaskState.INPUT_REQUIRED, True),
        (Watch.FOLLOW, False, TaskState.WORKING, False),
        (Watch.OFF, True, TaskState.WORKING, True),
        (Watch.OFF, True, TaskState.AUTH_REQUIRED, False),
        (Watch.OFF, False, TaskState.WORKING, False),
        (Watch.PUSH, True, TaskState.WORKING, False),
        (Watch.POLL, True, TaskState.WORKING, False),
    ],
)
def test_who_is_followed(watch: Watch, can_follow: bool, state: TaskState, is_followed: bool) -> None:
    """With ``off`` a working agent is followed all the same, one that waits for us is left alone."""
    delegation = a_delegation(progress={"watch": watch, "can_follow": can_follow, "state": state})
    assert wants_follow(delegation) is is_followed


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


# ---------------------------------------------------------------- when to look next

ASKS, WORKS = TaskState.INPUT_REQUIRED, TaskState.WORKING
RARELY, OFTEN = 60.0, 2.0


@pytest.mark.parametrize(
    ("watch", "followed", "can_follow", "state", "has_replied", "wait_s"),
    [
        (Watch.POLL, False, True, WORKS, False, OFTEN),
        (Watch.POLL, True, True, WORKS, False, OFTEN),
        (Watch.PUSH, False, True, WORKS, False, RARELY),
        (Watch.PUSH, False, True, ASKS, True, RARELY),
        (Watch.FOLLOW, False, True, WORKS, False, OFTEN),
        (Watch.FOLLOW, True, True, WORKS, False, RARELY),
        (Watch.FOLLOW, True, True, ASKS, False, RARELY),
        (Watch.FOLLOW, True, False, WORKS, False, OFTEN),
        (Watch.OFF, False, True, WORKS, False, OFTEN),
        (Watch.OFF, True, True, WORKS, False, RARELY),
        (Watch.OFF, False, True, ASKS, False, None),
        (Watch.OFF, True, True, ASKS, False, None),
        (Watch.OFF, False, True, ASKS, True, OFTEN),
        (Watch.OFF, True, True, ASKS, True, RARELY),
        (Watch.OFF, True, False, ASKS, True, OFTEN),
    ],
)
def test_when_we_look_next(
    watch: Watch, followed: bool, can_follow: bool, state: TaskState, has_replied: bool, wait_s: float | None
) -> None:
    """Rarely behind a push or a stream that is held, else soon; never at an ``off`` one that waits for us."""
    question = Question(number=1, state=ASKS, digest="d") if state is ASKS else None
    progress = {
        "watch": watch,
        "can_follow": can_follow,
        "state": state,
        "question": question,
        "turn": int(has_replied),
    }
    delegation = a_delegation(followed=followed, progress=progress)
    look_at = next_look_at(delegation, now=NOW, rules=Rules(), rand=0.5)
    assert look_at == (None if wait_s is None else NOW + wait_s)
    assert is_left_alone(delegation) is (wait_s is None)


def test_one_that_reads_our_reply_is_followed_with_off_too() -> None:
    """Its answer is waited for; once it asks again it is left alone."""
    progress = {"watch": Watch.OFF, "can_follow": True, "state": ASKS}
    asked = Question(number=1, state=ASKS, digest="d")
    assert wants_follow(a_delegation(progress={**progress, "question": asked, "turn": 1}))
    assert not wants_follow(a_delegation(progress={**progress, "question": replace(asked, turn=1), "turn": 1}))


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.WATCHING])
def test_only_a_watched_one_is_followed(phase: Phase) -> None:
    """Before there is an agent task, and after the end, there is no stream to hold."""
    progress = {"watch": Watch.FOLLOW, "can_follow": True, "state": WORKS}
    assert not wants_follow(a_delegation(phase, progress=progress))
