"""The circuit of an agent that does not answer, on a real Valkey: over all its delegations, one probe at a time."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from delegation import decide, endings
from delegation.agent_task import TaskState
from delegation.errors import AgentBusy, AgentError, AgentRefused, AgentUnreachable, CallAmbiguous, CircuitOpen
from delegation.state import Cause, Delegation, Moment, Reason
from delegation.store import Begun
from tests.support.delegations import CALM, FAST, Records, is_near

_numbers = itertools.count()
#: Misses in a row that open the circuit.
MOST = 3
FIRST_S, LONGEST_S, LEASE_S = 100.0, 350.0, 1500.0


@pytest.fixture
def records(client: Any) -> Records:
    rules = replace(CALM, retry_first_s=FIRST_S, retry_max_s=LONGEST_S)
    limits = replace(FAST, breaker_failures=MOST, calls_per_agent=100)
    return Records(client, prefix=f"delegation:b{next(_numbers)}:", rules=rules, limits=limits)


def begin(records: Records, agent: str = "flights") -> Delegation:
    """A look at one more delegation of the agent is under way."""
    started = records.open(agent=agent)
    verdict, begun = records.intend(started)
    assert verdict is Begun.BEGUN
    return begun


def answer(records: Records, begun: Delegation, error: AgentError | None = None) -> None:
    """What came of it."""
    moment = Moment(now=records.store.now(), rules=records.store.rules)
    if error is None:
        records.hear(begun)
    else:
        records.store.save(begun, decide.postpone(begun, error, cause=Cause.POLL, moment=moment))


def miss(records: Records, times: int = 1, agent: str = "flights") -> None:
    for begun in [begin(records, agent) for _ in range(times)]:
        answer(records, begun, AgentUnreachable("no route"))


def open_for(records: Records, agent: str = "flights") -> float | None:
    """Seconds until the next probe, by whoever tries now; None when the circuit is closed."""
    until = records.client.hget(records.key("breaker", agent), "open_until")
    return None if until is None else float(until) - records.store.now()


def half_open(records: Records) -> None:
    """The time it stays open has passed."""
    records.client.hset(records.key("breaker", "flights"), "open_until", records.store.now() - 1)


def is_refused(records: Records, agent: str = "flights") -> bool:
    opened = records.open(agent=agent)
    before = records.everything()
    try:
        records.intend(opened)
    except CircuitOpen:
        return records.everything() == before
    return False


def test_misses_in_a_row_over_several_delegations_open_it(records: Records) -> None:
    """Nothing is begun then, nothing written, and how long to wait is told; another agent is unaffected."""
    miss(records, MOST - 1)
    assert open_for(records) is None
    miss(records)
    assert open_for(records) == is_near(FIRST_S)
    with pytest.raises(CircuitOpen) as refused:
        begin(records)
    assert refused.value.retry_after_s == is_near(FIRST_S)
    assert is_refused(records)
    assert not is_refused(records, agent="hotels")


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (AgentUnreachable("no route"), True),
        (CallAmbiguous("HTTP 502"), True),
        (AgentBusy("429", 5.0), False),
        (AgentRefused("-32602"), False),
    ],
    ids=repr,
)
def test_what_counts_as_a_miss(records: Records, error: AgentError, counts: bool) -> None:
    """No answer at all, or none that can be read; "later" and a refusal are an agent's words."""
    for _ in range(MOST):
        answer(records, begin(records), error)
    assert (open_for(records) is not None) is counts


@pytest.mark.parametrize("error", [None, AgentRefused("-32602")], ids=repr)
def test_an_answer_in_between_begins_the_count_anew(records: Records, error: AgentError | None) -> None:
    """In a row means in a row; a refusal is an answer."""
    miss(records, MOST - 1)
    answer(records, begin(records), error)
    miss(records, MOST - 1)
    assert open_for(records) is None


def test_a_refused_send_is_an_answer(records: Records) -> None:
    """It ends the delegation, and says that the agent is there."""
    miss(records, MOST - 1)
    moment = Moment(now=records.store.now(), rules=records.store.rules)
    begun = begin(records)
    refused = endings.fail(begun, Reason.AGENT_REFUSED, "no", cause=Cause.SENT, moment=moment, reached=True)
    records.store.settle(begun, refused)
    miss(records, MOST - 1)
    assert open_for(records) is None


def test_an_end_is_an_answer_and_an_expiry_is_none(records: Records) -> None:
    """What the agent says itself closes the count; what our clock says tells nothing of the agent."""
    miss(records, MOST - 1)
    waiting = begin(records)
    records.expire(records.load(waiting.id))
    miss(records)
    assert open_for(records) is not None
    half_open(records)
    records.end(begin(records))
    assert open_for(records) is None


def test_one_at_a_time_tries_whether_it_is_back(records: Records) -> None:
    """For as long as its lease, nobody else does; an answer closes the circuit for all."""
    miss(records, MOST)
    half_open(records)
    probe = begin(records)
    assert is_refused(records)
    assert open_for(records) == is_near(LEASE_S)
    answer(records, probe)
    assert open_for(records) is None
    assert records.client.exists(records.key("breaker", "flights")) == 0
    assert not is_refused(records)


def test_each_probe_that_misses_doubles_the_wait_up_to_a_cap(records: Records) -> None:
    """One miss is enough while it is open."""
    miss(records, MOST)
    waits = [open_for(records)]
    for _ in range(3):
        half_open(records)
        miss(records)
        waits.append(open_for(records))
    assert waits == [is_near(wait) for wait in (FIRST_S, 2 * FIRST_S, LONGEST_S, LONGEST_S)]


def test_misses_that_were_under_way_when_it_opened_do_not_prolong_it(records: Records) -> None:
    """Eight calls time out together: the circuit opens once; an answer among them closes it."""
    under_way = [begin(records) for _ in range(MOST + 5)]
    for begun in under_way[:-1]:
        answer(records, begun, CallAmbiguous("timed out"))
    assert open_for(records) == is_near(FIRST_S)
    assert records.client.hget(records.key("breaker", "flights"), "opened") == "1"
    answer(records, under_way[-1])
    assert open_for(records) is None


def test_a_dead_probe_keeps_nobody_out_for_longer_than_its_lease(records: Records) -> None:
    """Then the next one tries."""
    miss(records, MOST)
    half_open(records)
    begin(records)  # and dies
    half_open(records)  # its lease ends
    assert not is_refused(records)
    assert is_refused(records)


def test_a_probe_that_is_told_later_lets_the_next_one_try_soon(records: Records) -> None:
    """The agent is there, but takes no calls now: not closed, not longer, and not for a whole lease."""
    miss(records, MOST)
    half_open(records)
    answer(records, begin(records), AgentBusy("429", 5.0))
    assert open_for(records) == is_near(FIRST_S)
    half_open(records)
    answer(records, begin(records))
    assert open_for(records) is None


@pytest.mark.parametrize(("error", "wait_s"), [(None, None), (AgentUnreachable(""), 2 * FIRST_S)], ids=repr)
def test_a_clean_up_may_be_the_probe(records: Records, error: AgentError | None, wait_s: float | None) -> None:
    """Many that expired behind an open circuit are to be cleaned up: what comes of that counts like any call."""
    unwanted = begin(records)
    answer(records, unwanted)
    moment = Moment(now=records.store.now(), rules=records.store.rules)
    records.expire(records.load(unwanted.id))
    miss(records, MOST)
    half_open(records)
    _, cleaning = records.store.begin(records.load(unwanted.id), records.load(unwanted.id))
    reached = endings.was_reached(error) if error else None
    later = endings.left_for_later(cleaning, moment, reached=reached)
    records.store.save(cleaning, later if error else endings.cleaned_up(cleaning))
    assert open_for(records) == (None if wait_s is None else is_near(wait_s))


def test_a_cancel_may_be_the_probe(records: Records) -> None:
    """It misses, and the wait doubles; the delegation tries again by its own timer."""
    watched = begin(records)
    answer(records, watched)
    records.store.want_cancel(records.load(watched.id), "")
    miss(records, MOST)
    half_open(records)
    _, canceling = records.store.begin(records.load(watched.id), records.load(watched.id))
    records.write(canceling, endings.cancel_failed, AgentUnreachable("no route"))
    assert open_for(records) == is_near(2 * FIRST_S)


def test_who_is_behind_an_open_circuit_is_parked(records: Records) -> None:
    """It fails by nothing but its own time: looked at again when the agent may be tried, and not called a miss."""
    watched = begin(records)
    answer(records, watched)
    miss(records, MOST)
    known = records.load(watched.id)
    with pytest.raises(CircuitOpen) as refused:
        records.fetch(known)
    moment = Moment(now=records.store.now(), rules=records.store.rules)
    records.store.save(known, decide.postpone(known, refused.value, cause=Cause.POLL, moment=moment), fenced=False)
    parked = records.load(watched.id)
    assert (parked.state, parked.timers.lease_until) == (TaskState.WORKING, None)
    assert (parked.timers.poll_at or 0) - records.store.now() == is_near(FIRST_S)
    assert records.client.hget(records.key("breaker", "flights"), "missed") == str(MOST)


def test_an_agent_that_nobody_calls_any_more_is_forgotten(records: Records) -> None:
    """The count goes by itself within the hour."""
    miss(records)
    assert records.client.ttl(records.key("breaker", "flights")) == is_near(3600)
