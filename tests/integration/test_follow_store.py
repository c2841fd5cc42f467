"""Leases of followed delegations on a real Valkey: claims, renewals, events, give-backs, repeats and races."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.errors import StoreUnavailable
from delegation.state import Delegation
from delegation.store import Store
from delegation.store_follows import FollowAnswer, FollowEvent
from tests.support.delegations import CALM, Records
from tests.support.processes import free_port, wait_until

_numbers = itertools.count()
A, B = "host-1-aa", "host-2-bb"


@pytest.fixture
def records(client: Any) -> Records:
    return Records(client, prefix=f"delegation:f{next(_numbers)}:", rules=replace(CALM, min_fetch_gap_s=0.0))


def want(records: Records, *ids: str) -> list[str]:
    """As the store's other scripts do."""
    for each in ids:
        records.client.zadd(records.key("follows"), {each: 0}, nx=True)
    return list(ids)


def claim(records: Records, follower: str, at_most: int = 10, *, lease_s: float = 60.0, **more: Any) -> Any:
    return records.store.claim_follows(follower, at_most=at_most, lease_s=lease_s, **{"held": 0, "streams": 0, **more})


def expire_lease(records: Records, *ids: str) -> None:
    for each in ids:
        records.client.zadd(records.key("follows"), {each: records.store.now() - 1}, xx=True)


def owners(records: Records) -> dict[str, str]:
    found: dict[str, str] = records.client.hgetall(records.key("follow_owners"))
    return found


def a_watched(records: Records) -> Delegation:
    watched = records.start()
    want(records, watched.id)
    return watched


# ------------------------------------------------------------ claims


def test_a_claim_takes_what_nobody_holds_and_no_more_than_asked(records: Records) -> None:
    """Each is handed out once; the lease keeps it from others."""
    want(records, *"abcde")
    first, second, third = claim(records, A, 3), claim(records, B, 3), claim(records, A, 3)
    assert (len(first.ids), len(second.ids), len(third.ids)) == (3, 2, 0)
    assert sorted(first.ids + second.ids) == list("abcde")
    assert owners(records) == {**dict.fromkeys(first.ids, A), **dict.fromkeys(second.ids, B)}
    assert records.store.wanting_follower() == (5, 0)


def test_a_claim_after_a_lease_ran_out_is_a_take_over(records: Records) -> None:
    """Counted where another follower lost it, not where one comes back to its own."""
    want(records, "a", "b")
    claim(records, A)
    expire_lease(records, "a", "b")
    assert records.store.wanting_follower() == (2, 2)
    assert claim(records, A, 1).taken_over == 0
    assert claim(records, B, 1).taken_over == 1
    assert records.counter("follows_taken_over") == 1


def test_a_claim_whose_reply_was_lost_is_answered_again(records: Records) -> None:
    """The same operation gets the same delegations, though there are others by now."""
    want(records, "a", "b")
    first = claim(records, A, operation="op1")
    want(records, "c")
    assert claim(records, A, operation="op1") == first
    assert claim(records, A, operation="op2").ids == ("c",)


def test_a_claim_for_nothing_says_that_the_follower_lives(records: Records) -> None:
    """It is listed with what it holds, and the others learn how much that is."""
    want(records, "a")
    claim(records, A, 0, held=7, streams=5)
    (seen,) = records.store.followers()
    assert (seen.id, seen.held, seen.streams, seen.lives) == (A, 7, 5, True)
    assert seen.silent_s < 5
    assert claim(records, B, 1).mean_of_others == 7
    assert claim(records, A, 0, held=7).mean_of_others == 1


def test_a_follower_alone_has_nobody_to_compare_with(records: Records) -> None:
    """Nor does one whose only companion is silent; after a minute that one is forgotten."""
    assert claim(records, A).mean_of_others is None
    long_ago = records.store.now()
    records.client.hset(records.key("followers"), B, f"{long_ago - 20:.3f} 9 9 op -1 0")
    assert claim(records, A).mean_of_others is None
    assert [each.lives for each in records.store.followers()] == [True, False]
    records.client.hset(records.key("followers"), B, f"{long_ago - 61:.3f} 9 9 op -1 0")
    claim(records, A)
    assert [each.id for each in records.store.followers()] == [A]


def test_many_followers_at_once_share_and_never_overlap(records: Records, client: Any) -> None:
    """Eight threads claim in small batches: five hundred delegations, each held once."""
    want(records, *(f"d{n}" for n in range(500)))
    got: list[str] = []

    def work(number: int) -> None:
        store = Store(client, prefix=records.store.prefix)
        while ids := store.claim_follows(f"f{number}", at_most=7, lease_s=60, held=0, streams=0).ids:
            got.extend(ids)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == len(set(got)) == 500


# ------------------------------------------------------------ renewals


def test_a_renewal_extends_what_is_held_and_names_what_is_lost(records: Records) -> None:
    """No longer wanted, and another's."""
    want(records, "a", "b", "c")
    claim(records, A, lease_s=1)
    records.client.zrem(records.key("follows"), "b")
    records.client.hset(records.key("follow_owners"), "c", B)
    assert records.store.renew_follows(A, ["a", "b", "c"], lease_s=600) == ["b", "c"]
    assert records.client.zscore(records.key("follows"), "a") - records.store.now() > 500
    assert owners(records) == {"a": A, "c": B}


def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(records: Records) -> None:
    """Redis was away: whoever still reads the stream goes on."""
    want(records, "a")
    claim(records, A)
    expire_lease(records, "a")
    assert records.store.renew_follows(A, ["a"], lease_s=60) == []
    assert claim(records, B).ids == ()


def test_thousands_are_renewed_in_pages(records: Records) -> None:
    """No script gets more than five hundred."""
    ids = want(records, *(f"d{n}" for n in range(1201)))
    while claim(records, A, 400).ids:
        pass
    records.client.hset(records.key("follow_owners"), ids[-1], B)
    assert records.store.renew_follows(A, ids, lease_s=60) == [ids[-1]]


# ------------------------------------------------------------ events


def test_what_is_heard_wakes_once_and_is_then_under_way(records: Records) -> None:
    """The record knows who brought it and which state was claimed; the due index brings it back."""
    watched = a_watched(records)
    claim(records, A)
    told = records.store.tell_follow(watched.id, A, FollowEvent.HEARD, claimed="INPUT_REQUIRED")
    again = records.store.tell_follow(watched.id, A, FollowEvent.HEARD)
    loaded = records.load(watched.id)
    assert (told, again) == (FollowAnswer.WOKEN, FollowAnswer.COALESCED)
    assert (loaded.heard, loaded.claimed, loaded.wakes) == ("follow", TaskState.INPUT_REQUIRED, 2)
    assert loaded.state is TaskState.WORKING
    assert loaded.timers.refetch_at == pytest.approx(records.store.now() + CALM.hint_patience_s, abs=20)
    assert records.counter("follow_wakes") == 2


def test_a_follower_that_lost_a_delegation_changes_nothing(records: Records) -> None:
    """Slept, was taken over, woke up: refused, whatever it has to say."""
    watched = a_watched(records)
    claim(records, A)
    expire_lease(records, watched.id)
    claim(records, B)
    before = records.client.hgetall(records.key("d", watched.id))
    for event in FollowEvent:
        assert records.store.tell_follow(watched.id, A, event) is FollowAnswer.REFUSED
    assert records.client.hgetall(records.key("d", watched.id)) == before
    assert owners(records) == {watched.id: B}


def test_an_open_stream_puts_off_the_next_regular_look_and_never_brings_it_forward(records: Records) -> None:
    """It is looked at after a while all the same: a stream may be silent for good."""
    watched = a_watched(records)
    claim(records, A)
    records.client.hset(records.key("d", watched.id), "poll_at", f"{records.store.now() + 2:.3f}")
    told = records.store.tell_follow(watched.id, A, FollowEvent.SUBSCRIBED, next_look_s=600)
    assert told is FollowAnswer.NOTED
    assert records.due_in(watched.id) == pytest.approx(600, abs=20)
    records.store.tell_follow(watched.id, A, FollowEvent.SUBSCRIBED, next_look_s=60)
    assert records.due_in(watched.id) == pytest.approx(600, abs=20)
    assert records.client.hget(records.key("d", watched.id), "followed") == "1"
    assert records.counter("follows_opened") == 2


def test_an_agent_without_streams_is_followed_no_longer(records: Records) -> None:
    """The wake says so, and the delegation leaves the followers' list in the same script."""
    watched = a_watched(records)
    claim(records, A)
    assert records.store.tell_follow(watched.id, A, FollowEvent.NOT_OFFERED) is FollowAnswer.WOKEN
    assert records.load(watched.id).heard == "no_stream"
    assert (records.store.wanting_follower(), owners(records)) == ((0, 0), {})
    assert records.client.hget(records.key("d", watched.id), "followed") is None


@pytest.mark.parametrize("event", list(FollowEvent))
def test_a_repeated_event_is_answered_and_not_told_twice(records: Records, event: FollowEvent) -> None:
    """The reply was lost, the call came again."""
    watched = a_watched(records)
    claim(records, A)
    first = records.store.tell_follow(watched.id, A, event, next_look_s=600)
    after = records.client.hgetall(records.key("d", watched.id))
    assert FollowAnswer(records.store.run_again()) is first
    assert records.client.hgetall(records.key("d", watched.id)) == after


def test_what_has_ended_or_is_gone_is_taken_out(records: Records) -> None:
    """A member that was left behind is not followed for ever, and no record is made up for it."""
    watched = a_watched(records)
    records.end(records.fetch(watched)[1])
    want(records, watched.id, "gone")
    claim(records, A)
    for each in (watched.id, "gone"):
        assert records.store.tell_follow(each, A, FollowEvent.HEARD) is FollowAnswer.REFUSED
    assert (records.store.wanting_follower(), owners(records)) == ((0, 0), {})
    assert not records.client.exists(records.key("d", "gone"))


def test_a_wake_during_a_step_is_seen_by_the_step(records: Records) -> None:
    """While the agent is being asked the wake is only counted; the step looks again when it writes."""
    watched = a_watched(records)
    claim(records, A)
    _, begun = records.fetch(watched)
    assert records.store.tell_follow(watched.id, A, FollowEvent.HEARD) is FollowAnswer.COALESCED
    assert records.hear(begun)


# ------------------------------------------------------------ give-backs


def test_what_is_given_back_is_free_at_once_and_told(records: Records) -> None:
    """Another follower need not wait for the lease; what is not ours is left alone."""
    want(records, "a", "b", "c")
    claim(records, A, 2)
    claim(records, B, 1)
    with records.store.listen_to_follows() as next_id:
        records.store.drop_follows(A, ["a", "b", "c"], leaving=True)
        told = wait_until(lambda: next_id(1.0), what="something told")
    assert told in ("a", "b", "c")
    assert owners(records) == {"c": B}
    assert sorted(claim(records, B).ids) == ["a", "b"]
    assert records.counter("follows_taken_over") == 0
    assert [each.id for each in records.store.followers()] == [B]


def test_what_is_given_back_and_taken_by_nobody_is_polled_soon(records: Records) -> None:
    """Its next look was put off while a stream was open; the last follower takes that back."""
    watched = a_watched(records)
    claim(records, A)
    records.store.tell_follow(watched.id, A, FollowEvent.SUBSCRIBED, next_look_s=7200)
    assert records.due_in(watched.id) == pytest.approx(7200, abs=20)
    records.store.drop_follows(A, [watched.id], leaving=True)
    assert records.due_in(watched.id) == pytest.approx(CALM.hint_patience_s, abs=20)
    assert not records.load(watched.id).followed


def test_a_give_back_that_comes_twice_changes_nothing(records: Records) -> None:
    """The reply was lost; meanwhile the delegation is another's."""
    want(records, "a")
    claim(records, A)
    records.store.drop_follows(A, ["a"], leaving=False)
    claim(records, B)
    records.store.drop_follows(A, ["a"], leaving=False)
    assert owners(records) == {"a": B}
    assert claim(records, A).ids == ()


def test_a_follower_with_nothing_can_leave(records: Records) -> None:
    """It is gone from the list."""
    claim(records, A)
    records.store.drop_follows(A, [], leaving=True)
    assert records.store.followers() == []


def test_without_redis_every_call_says_so() -> None:
    """One error, and nothing of redis-py's."""
    store = Store.connect(f"redis://127.0.0.1:{free_port()}/0", timeout_s=1)
    calls = [
        lambda: store.claim_follows(A, at_most=1, lease_s=1, held=0, streams=0),
        lambda: store.renew_follows(A, ["a"], lease_s=1),
        lambda: store.tell_follow("a", A, FollowEvent.HEARD),
        lambda: store.drop_follows(A, ["a"], leaving=True),
        store.followers,
        store.wanting_follower,
        lambda: store.listen_to_follows().__enter__(),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable):
            call()
    store.close()


def test_streams_that_tell_nothing_do_not_put_the_regular_look_off_for_ever(records: Records) -> None:
    """Each new subscription counts from the last look, not from itself."""
    watched = records.start()
    want(records, watched.id)
    claim(records, A)
    now, record = records.store.now(), records.key("d", watched.id)
    records.client.hset(record, mapping={"fetched_at": f"{now - 50:.3f}", "poll_at": f"{now + 5:.3f}"})
    for _ in range(3):
        records.store.tell_follow(watched.id, A, FollowEvent.SUBSCRIBED, next_look_s=60.0)
    look_at = records.load(watched.id).timers.poll_at
    assert look_at is not None
    assert look_at <= now - 50 + 60 + 1


def test_what_a_dead_follower_held_is_polled_again_when_nobody_takes_it_over(records: Records) -> None:
    """The janitor gives back leases that ran out; a living follower's stay."""
    dead, alive = records.start(), records.start()
    want(records, dead.id, alive.id)
    claim(records, A)
    for each in (dead, alive):
        records.store.tell_follow(each.id, A, FollowEvent.SUBSCRIBED, next_look_s=5000.0)
    expire_lease(records, dead.id)
    assert records.store.free_dead_follows() == 1
    assert [records.load(each.id).followed for each in (dead, alive)] == [False, True]
    due_in = records.due_in(dead.id)
    assert due_in is not None
    assert due_in <= CALM.hint_patience_s
    assert set(owners(records)) == {alive.id}
    assert records.store.free_dead_follows() == 0


def test_a_step_that_ends_the_stream_leaves_a_delegation_that_is_polled(records: Records) -> None:
    """Until a follower holds its next stream; nobody may come for that one."""
    watched = records.start()
    want(records, watched.id)
    claim(records, A)
    records.store.tell_follow(watched.id, A, FollowEvent.SUBSCRIBED, next_look_s=60.0)
    before = records.load(watched.id)
    assert before.followed
    _, begun = records.store.begin(before, before, unfollowed=True)
    assert not begun.followed
    assert not records.load(watched.id).followed


def test_a_new_stream_does_not_put_off_the_looks_at_one_that_is_being_cancelled(records: Records) -> None:
    """It was asked to stop, and is about to say so, perhaps to GetTask alone."""
    watched = records.start()
    want(records, watched.id)
    claim(records, A)
    record, soon = records.key("d", watched.id), records.store.now() + 2
    records.client.hset(record, mapping={"poll_at": f"{soon:.3f}", "cancel_at": f"{soon + 50:.3f}"})
    records.store.tell_follow(watched.id, A, FollowEvent.SUBSCRIBED, next_look_s=5000.0)
    assert records.load(watched.id).timers.poll_at == pytest.approx(soon, abs=0.01)
