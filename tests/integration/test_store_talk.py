"""Replies, cancels, the inbox and who is followed, on a real Valkey: kept first, in order, once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from delegation import endings, turns
from delegation.agent_task import TaskState
from delegation.decide import transition
from delegation.due import Step
from delegation.errors import (
    AgentRefused,
    AgentUnreachable,
    CallAmbiguous,
    DelegationEnded,
    InvalidArguments,
    UnknownDelegation,
)
from delegation.opening import new_workflow_id
from delegation.state import Cause, Delegation, DelegationId, Moment, Phase, Watch
from delegation.store import Begun
from delegation.store_talk import MOST_REPLIES_WAITING, CancelVerdict
from tests.support.delegations import CALM, FAST, Records, a_task, is_near

_numbers = itertools.count()
ASKS, WORKS = TaskState.INPUT_REQUIRED, TaskState.WORKING


@pytest.fixture
def make_records(client: Any) -> Callable[..., Records]:
    prefix = f"delegation:k{next(_numbers)}:"

    def make(*, calls_per_agent: int = 8, calls_per_second: int = 10**6, **rules: Any) -> Records:
        limits = replace(FAST, calls_per_agent=calls_per_agent, calls_per_second=calls_per_second, retention_s=500)
        return Records(client, prefix=prefix, rules=replace(CALM, **rules), limits=limits)

    return make


@pytest.fixture
def records(make_records: Callable[..., Records]) -> Records:
    return make_records()


def give(records: Records, delegation_id: str, text: str = "Monday", key: str | None = None) -> tuple[int, bool]:
    return records.store.give_reply(records.load(delegation_id), {"text": text}, key=key)


def cancel(records: Records, delegation_id: str, reason: str = "too slow") -> CancelVerdict:
    return records.store.want_cancel(records.load(delegation_id), reason)


def moment(records: Records) -> Moment:
    return Moment(now=records.store.now(), rules=records.store.rules)


def hear_reply(records: Records, sending: Delegation, state: TaskState, **said: Any) -> Delegation:
    """The answer to a reply."""
    change = transition(sending, a_task(state, **said), cause=Cause.REPLY, moment=moment(records))
    records.store.save(sending, change)
    return records.load(sending.id)


def reply_due_in(records: Records, delegation_id: str) -> float | None:
    at = records.load(delegation_id).timers.reply_at
    return None if at is None else at - records.store.now()


# ---------------------------------------------------------------- replies


def test_a_reply_is_kept_in_order_and_due(records: Records) -> None:
    """Numbered from 1, told in the history, out of the inbox, and sent again should its message be lost."""
    asked = records.ask(records.start())
    assert records.store.inbox() == [asked.id]
    assert give(records, asked.id, "Monday") == (1, True)
    assert give(records, asked.id, "or Tuesday") == (2, True)
    assert [records.store.load_reply(asked.id, n)["text"] for n in (1, 2)] == ["Monday", "or Tuesday"]
    assert records.store.inbox() == []
    assert reply_due_in(records, asked.id) == is_near(1000)
    assert [entry["cause"] for entry in records.store.history(asked.id)][-2:] == ["reply", "reply"]
    assert records.load(asked.id).replies == 2


def test_what_is_due_for_a_reply_is_to_send_it(records: Records) -> None:
    """Whoever is asked a question sends what waits; one that works is looked at first when nothing else is."""
    asked = records.ask(records.start())
    give(records, asked.id)
    records.client.hset(records.key("d", asked.id), "reply_at", 1)
    assert records.steps_of(asked.id) == (Step.SEND_REPLY,)


def test_a_reply_to_one_that_has_not_begun_waits(records: Records) -> None:
    """It is not due before there is a question: the start comes first."""
    opened = records.open()
    give(records, opened.id)
    assert records.due_in(opened.id) == is_near(1000)
    records.client.hset(records.key("d", opened.id), mapping={"reply_at": 1, "publish_at": 2})
    assert records.steps_of(opened.id) == (Step.START,)
    records.hear(records.intend(records.load(opened.id))[1], ASKS, status_text="Which day?")
    assert records.due_in(opened.id) == is_near(0)
    assert records.store.inbox() == []


@pytest.mark.parametrize("key", [None, "mine"])
def test_the_same_reply_to_the_same_question_is_one(records: Records, key: str | None) -> None:
    """However often it is given, by its key or by its words; also after the end."""
    asked = records.ask(records.start())
    assert give(records, asked.id, "Monday", key) == (1, True)
    assert give(records, asked.id, "Monday", key) == (1, False)
    assert give(records, asked.id, "Tuesday" if key else "Monday", key) == (1, False)
    records.end(records.load(asked.id))
    assert give(records, asked.id, "Monday", key) == (1, False)
    assert records.load(asked.id).replies == 1


def test_the_same_words_to_another_question_are_another_reply(records: Records) -> None:
    """'yes' twice is two answers."""
    asked = records.ask(records.start(), "Window?", status_at="t1")
    give(records, asked.id, "yes")
    sending = records.send_reply(records.load(asked.id), "yes")
    hear_reply(records, sending, ASKS, status_text="Breakfast?", status_at="t2")
    assert give(records, asked.id, "yes") == (2, True)


def test_the_same_words_after_a_refusal_are_another_reply(records: Records) -> None:
    """The question is open again, in the inbox as of when it was first asked."""
    asked = records.ask(records.start())
    (asked_at,) = [score for _, score in records.client.zrange(records.key("inbox"), 0, -1, withscores=True)]
    give(records, asked.id)
    refused = records.write(records.send_reply(records.load(asked.id)), turns.reply_refused, AgentRefused("no"))
    assert refused.waits_for_reply
    assert records.client.zscore(records.key("inbox"), asked.id) == asked_at
    assert give(records, asked.id) == (2, True)


def test_a_reply_is_refused_when_it_is_too_late(records: Records) -> None:
    """After the end, while it is being cancelled, and when too many wait: with a clear error, and nothing kept."""
    ended, canceling, full = (records.ask(records.start()) for _ in range(3))
    records.end(ended)
    cancel(records, canceling.id)
    for number in range(MOST_REPLIES_WAITING):
        give(records, full.id, f"reply {number}")
    before = records.everything()
    with pytest.raises(DelegationEnded, match="has ended"):
        give(records, ended.id)
    with pytest.raises(DelegationEnded, match="is being cancelled"):
        give(records, canceling.id)
    with pytest.raises(InvalidArguments, match="100 replies wait"):
        give(records, full.id, "one more")
    assert records.everything() == before


def test_nobody_replies_to_what_is_not_there(records: Records) -> None:
    """And no record is made by trying to."""
    nobody = replace(records.new(), id=DelegationId(new_workflow_id()))
    with pytest.raises(UnknownDelegation):
        records.store.give_reply(nobody, {"text": "x"}, key=None)
    with pytest.raises(UnknownDelegation):
        records.store.want_cancel(nobody, "x")
    with pytest.raises(UnknownDelegation):
        records.store.load_reply(nobody.id, 1)
    assert records.all_keys() == []


def test_a_reply_during_a_look_disturbs_neither(records: Records) -> None:
    """The look writes what it heard, its version is still right, and the reply is due when it ends."""
    _, looking = records.fetch(records.ask(records.start()))
    give(records, looking.id)
    assert records.due_in(looking.id) == is_near(1500)  # a step is at work
    records.hear(looking, ASKS, status_text="Which day?")
    assert records.due_in(looking.id) == is_near(0)
    assert records.store.inbox() == []


def test_a_reply_during_the_look_that_hears_the_question_is_due_at_once(records: Records) -> None:
    """It was given before anybody here knew that it is asked for; its own message did nothing."""
    _, looking = records.fetch(records.start())
    give(records, looking.id)
    records.hear(looking, ASKS, status_text="Which day?")
    assert records.due_in(looking.id) == is_near(0)
    assert records.store.inbox() == []


@pytest.mark.parametrize("watch", [Watch.PUSH, Watch.OFF])
def test_a_reply_while_the_last_one_is_sent_is_due_with_the_next_question(records: Records, watch: Watch) -> None:
    """The step that sends the first knows nothing of the second, and its answer is the next question already: with
    ``off`` nobody would ever look again."""
    started = records.start()
    started = records.write(records.fetch(started)[1], set_watch, watch)
    asked = records.ask(started, "Which day?", status_at="t1")
    give(records, asked.id, "Monday")
    sending = records.send_reply(records.load(asked.id))
    assert give(records, asked.id, "from Lisbon") == (2, True)
    hear_reply(records, sending, ASKS, status_text="From where?", status_at="t2")
    assert records.due_in(asked.id) == is_near(0)
    assert records.steps_of(asked.id) == (Step.SEND_REPLY,)
    assert records.store.inbox() == []


def set_watch(delegation: Delegation, watch: Watch, now: Moment) -> Any:
    can_follow = watch is not Watch.POLL
    known = replace(delegation, progress=replace(delegation.progress, watch=watch, can_follow=can_follow))
    return transition(known, a_task(WORKS), cause=Cause.POLL, moment=now)


# ---------------------------------------------------------------- the inbox


def test_the_inbox_has_the_oldest_question_first(records: Records) -> None:
    """By when each was first heard, however often it is heard again."""
    first, second = records.ask(records.start()), records.ask(records.start(), state=TaskState.AUTH_REQUIRED)
    records.ask(first)
    assert records.store.inbox() == [first.id, second.id]
    assert records.store.inbox(limit=1) == [first.id]


def test_the_inbox_has_what_waits_for_somebody_and_nothing_else(records: Records) -> None:
    """Asked, answered, read by the agent, asked again, gone on by itself, ended."""
    asked = records.ask(records.start(), status_at="t1")
    assert records.store.inbox() == [asked.id]
    give(records, asked.id)
    sending = records.send_reply(records.load(asked.id))
    reading = hear_reply(records, sending, ASKS, status_text="Which day?", status_at="t1")
    assert reading.waits_for_agent
    assert records.store.inbox() == []
    again = records.ask(reading, "From where?", status_at="t2")
    assert records.store.inbox() == [asked.id]
    _, looking = records.fetch(again)
    records.hear(looking, WORKS)
    assert records.store.inbox() == []
    records.ask(records.load(asked.id), "And back?", status_at="t3")
    records.end(records.load(asked.id))
    assert records.store.inbox() == []


def test_expiry_empties_the_inbox(records: Records) -> None:
    """Nobody can answer any more."""
    asked = records.ask(records.start())
    records.expire(asked)
    assert records.store.inbox() == []


def test_a_reply_nobody_could_deliver_keeps_it_out_of_the_inbox(records: Records) -> None:
    """It still waits to be sent; nobody has to answer again."""
    asked = records.ask(records.start())
    give(records, asked.id)
    for decided, error in ((turns.reply_not_sent, AgentUnreachable("")), (turns.reply_unclear, CallAmbiguous(""))):
        after = records.write(records.send_reply(records.load(asked.id)), decided, error)
        assert records.store.inbox() == []
        assert after.timers.reply_at == after.timers.poll_at


# ---------------------------------------------------------------- cancels


def test_a_wish_to_cancel_is_durable_and_due(records: Records) -> None:
    """With its reason and the time the agent has; a message is under way, and comes again should it be lost."""
    asked = records.ask(records.start())
    assert cancel(records, asked.id) is CancelVerdict.WANTED
    wished = records.load(asked.id)
    assert wished.cancel_reason == "too slow"
    assert (wished.cancel_until or 0) - records.store.now() == is_near(60)
    assert records.due_in(asked.id) == is_near(60)  # at the latest when the agent's time is up
    assert records.store.inbox() == []
    last = records.store.history(asked.id)[-1]
    assert (last["cause"], last["text"]) == ("cancel", "wanted: too slow")
    records.client.hset(records.key("d", asked.id), "cancel_at", 1)
    assert records.steps_of(asked.id) == (Step.CANCEL,)


def test_who_is_cancelled_twice_has_the_first_deadline(records: Records) -> None:
    """Asking again prolongs nothing."""
    watched = records.start()
    cancel(records, watched.id, "one")
    before = records.everything()
    assert cancel(records, watched.id, "two") is CancelVerdict.WANTED_ALREADY
    assert records.everything() == before


def test_what_has_ended_is_not_cancelled(records: Records) -> None:
    """Nothing is written."""
    records.end(watched := records.start())
    before = records.everything()
    assert cancel(records, watched.id) is CancelVerdict.ENDED
    assert records.everything() == before


def test_a_cancel_waits_for_a_step_at_work_and_is_due_when_it_ends(records: Records) -> None:
    """The send is not interrupted; its agent task is cancelled as soon as it is known."""
    _, sending = records.intend(records.open())
    cancel(records, sending.id)
    assert records.due_in(sending.id) == is_near(1500)
    records.hear(sending)
    assert records.due_in(sending.id) == is_near(0)
    assert records.steps_of(sending.id) == (Step.CANCEL,)


def test_no_cancel_outlives_the_deadline(records: Records) -> None:
    """What the agent has to confirm by is at most the delegation's own deadline."""
    opened = records.open(deadline_s=30)
    cancel(records, opened.id)
    wished = records.load(opened.id)
    assert wished.cancel_until == wished.timers.deadline_at


def test_after_a_refused_cancel_the_conversation_goes_on(records: Records) -> None:
    """The agent will not, so its questions come back to the inbox, can be answered, and it can be cancelled again."""
    asked = records.ask(records.start())
    cancel(records, asked.id)
    _, canceling = records.store.begin(records.load(asked.id), records.load(asked.id))
    refused = records.write(canceling, endings.cancel_refused, AgentRefused("not cancelable"))
    assert (refused.timers.cancel_at, endings.receipt(refused)) == (None, "refused")
    records.ask(refused)
    assert records.store.inbox() == [asked.id]
    assert give(records, asked.id) == (1, True)
    assert cancel(records, asked.id) is CancelVerdict.WANTED
    assert endings.receipt(records.load(asked.id)) == "pending"


def test_a_cancel_during_a_look_is_not_lost(records: Records) -> None:
    """Nor is what the look heard; the question it heard does not come into the inbox."""
    _, looking = records.fetch(records.start())
    cancel(records, looking.id)
    records.hear(looking, ASKS, status_text="Which day?")
    after = records.load(looking.id)
    assert (after.state, after.cancel_reason) == (ASKS, "too slow")
    assert records.store.inbox() == []
    assert records.due_in(looking.id) == is_near(0)


def test_a_settled_one_keeps_no_timer_of_a_talk(records: Records) -> None:
    """Whatever waited: only finalize and the clean-up are due."""
    asked = records.ask(records.start())
    give(records, asked.id)
    cancel(records, asked.id)
    records.expire(records.load(asked.id))
    timers = records.load(asked.id).timers
    assert (timers.reply_at, timers.cancel_at, timers.poll_at, timers.refetch_at) == (None, None, None, None)


# ---------------------------------------------------------------- a repeat, as after a lost reply


def test_a_repeated_reply_is_kept_once(records: Records) -> None:
    """Its number again, nothing written; only whether it is new is answered otherwise, and the due index has it."""
    asked = records.ask(records.start())
    give(records, asked.id)
    before = records.everything()
    assert records.store.run_again() == ["repeated", 1]
    assert records.everything() == before


def test_a_repeated_cancel_is_wanted_once(records: Records) -> None:
    """As for a second caller; nothing is written."""
    cancel(records, records.start().id)
    before = records.everything()
    assert records.store.run_again() == "wanted already"
    assert records.everything() == before


# ---------------------------------------------------------------- a full or hurried agent


def test_a_reply_and_a_cancel_wait_for_a_slot_like_a_look(make_records: Callable[..., Records]) -> None:
    """No sooner than a lease, so that none of them makes the delegation due at once; a cancel not past its deadline."""
    records = make_records(calls_per_agent=1)
    replying, canceling = records.ask(records.start()), records.ask(records.start())
    give(records, replying.id)
    cancel(records, canceling.id)
    records.intend(records.open())  # has the one slot
    for waiting in (replying, canceling):
        known = records.load(waiting.id)
        assert records.store.begin(known, known)[0] is Begun.BUSY
    assert records.due_in(replying.id) == is_near(1500)
    assert reply_due_in(records, replying.id) == is_near(1500)
    assert records.due_in(canceling.id) == is_near(60)


def test_more_calls_than_a_second_allows_wait_a_second(make_records: Callable[..., Records]) -> None:
    """Over all workers, per agent, without a place in line; other agents do not wait."""
    records = make_records(calls_per_second=2)
    records.client.set(records.key("rate", "flights"), 2, ex=60)
    opened = records.open()
    assert records.intend(opened)[0] is Begun.BUSY
    assert records.due_in(opened.id) == pytest.approx(1, abs=1)
    assert records.client.exists(records.key("waiting", "flights")) == 0
    assert records.intend(records.open(agent="hotels"))[0] is Begun.BEGUN
    assert 0 < records.client.pttl(records.key("rate", "hotels")) <= 1000


def test_calls_are_counted_second_by_second(make_records: Callable[..., Records]) -> None:
    """The count goes by itself; who was refused did not count."""
    records = make_records(calls_per_second=1)
    assert records.intend(records.open())[0] is Begun.BEGUN
    assert records.client.get(records.key("rate", "flights")) == "1"
    records.intend(records.open())
    assert records.client.get(records.key("rate", "flights")) == "1"
    records.client.delete(records.key("rate", "flights"))  # the second is over
    assert records.intend(records.open())[0] is Begun.BEGUN


# ---------------------------------------------------------------- who is followed


def followed(records: Records) -> set[str]:
    return set(records.client.zrange(records.key("follows"), 0, -1))


@pytest.mark.parametrize(
    ("watch", "asks", "wants"),
    [
        (Watch.FOLLOW, False, True),
        (Watch.FOLLOW, True, True),
        (Watch.OFF, False, True),
        (Watch.OFF, True, False),
        (Watch.POLL, False, False),
        (Watch.PUSH, False, False),
    ],
)
def test_the_set_of_the_followed_is_kept(records: Records, watch: Watch, asks: bool, wants: bool) -> None:
    """In one script with what makes a stream of use, or of none; nobody's at first, and gone with the end."""
    started = records.write(records.fetch(records.start())[1], set_watch, watch)
    if watch is Watch.PUSH:
        started = records.load(started.id)
    if asks:
        started = records.ask(started)
    assert followed(records) == ({started.id} if wants else set())
    records.end(records.load(started.id))
    assert followed(records) == set()


def test_with_off_a_question_ends_the_stream_and_a_reply_begins_it(records: Records) -> None:
    """The agent that waits for us is left alone; the one that reads our reply is not."""
    started = records.write(records.fetch(records.start())[1], set_watch, Watch.OFF)
    asked = records.ask(started, status_at="t1")
    assert followed(records) == set()
    give(records, asked.id)
    sending = records.send_reply(records.load(asked.id))
    assert followed(records) == set()
    hear_reply(records, sending, ASKS, status_text="Which day?", status_at="t1")
    assert followed(records) == {asked.id}


def test_a_call_that_says_something_ends_the_stream_meanwhile(records: Records) -> None:
    """Reply and cancel: no stream is held while they are made, its follower hears of it, and it begins anew after."""
    started = records.write(records.fetch(records.start())[1], set_watch, Watch.FOLLOW)
    records.client.zadd(records.key("follows"), {started.id: records.store.now() + 30})
    records.client.hset(records.key("follow_owners"), started.id, "a-follower")
    records.client.hset(records.key("d", started.id), "followed", 1)
    with records.client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(records.key("follows"))
        heard.get_message(timeout=5)
        known = records.load(started.id)
        assert known.followed
        _, canceling = records.store.begin(known, known, unfollowed=True)
        told = heard.get_message(timeout=5)
        assert told is not None
        assert told["data"] == started.id
    assert (followed(records), records.load(started.id).followed) == (set(), False)
    assert records.client.hgetall(records.key("follow_owners")) == {}
    records.hear(canceling, WORKS)
    assert records.client.zrange(records.key("follows"), 0, -1, withscores=True) == [(started.id, 0.0)]


def test_a_stream_that_is_held_is_kept_by_a_look(records: Records) -> None:
    """Its lease and its owner are the follower's business."""
    started = records.write(records.fetch(records.start())[1], set_watch, Watch.FOLLOW)
    until = round(records.store.now() + 30, 3)
    records.client.zadd(records.key("follows"), {started.id: until})
    records.hear(records.fetch(records.load(started.id))[1], WORKS)
    assert records.client.zscore(records.key("follows"), started.id) == until


# ---------------------------------------------------------------- what is kept


def test_replies_are_kept_as_long_as_the_record(records: Records) -> None:
    """Not a second less while it lives, and for the retention after."""
    asked = records.ask(records.start())
    give(records, asked.id)
    assert records.client.ttl(records.key("r", asked.id)) == -1
    records.end(records.load(asked.id))
    assert records.client.ttl(records.key("r", asked.id)) == -1
    records.finish(records.load(asked.id))
    assert records.client.ttl(records.key("r", asked.id)) == is_near(500)
    assert records.load(asked.id).phase is Phase.RELEASED
