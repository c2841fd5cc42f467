"""The store on a real Valkey: one script per fact, repeats, races, timers, slots, pushes, sweeps, and what is kept."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.decide import not_started
from delegation.due import Step, choose_steps
from delegation.endings import cleaned_up, left_for_later, settle
from delegation.errors import AgentUnreachable, StaleWrite, StoreUnavailable, WorkflowConflict
from delegation.opening import new_workflow_id
from delegation.state import Cause, Delegation, Moment, Phase, Rules, WorkflowId
from delegation.store import Begun, PushAnswer, Settlement, Store
from delegation.workflow import WorkflowState
from tests.support.delegations import CALM, FAST, TOKEN_DIGEST, Records, a_task, an_artifact, at
from tests.support.processes import ValkeyProcess, free_port, wait_until
from tests.support.redis_users import TESTER

_numbers = itertools.count()
RETENTION_S = 500


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    with ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start() as valkey:
        yield valkey


@pytest.fixture(scope="session")
def client(valkey: ValkeyProcess) -> Iterator[Any]:
    with valkey.client(user=TESTER) as client:
        yield client


@pytest.fixture
def make_records(client: Any) -> Callable[..., Records]:
    """Views of one and the same fresh keyspace, each with rules of its own."""
    prefix = f"delegation:t{next(_numbers)}:"

    def make(*, calls_per_agent: int = 8, history: int = 200, **rules: Any) -> Records:
        limits = replace(FAST, calls_per_agent=calls_per_agent, history=history, retention_s=RETENTION_S)
        return Records(client, prefix=prefix, rules=replace(CALM, **rules), limits=limits)

    return make


@pytest.fixture
def records(make_records: Callable[..., Records]) -> Records:
    return make_records()


def is_near(expected_s: float) -> Any:
    return pytest.approx(expected_s, abs=20)


# ---------------------------------------------------------------- opening


def test_an_opened_one_is_due_when_its_message_must_have_come(records: Records) -> None:
    """The message is sent again after the patience; with a countdown there is none and the due entry starts it."""
    assert records.due_in(records.open().id) == is_near(1000)
    later = records.new()
    records.store.open_delegation(later, start_after_s=300)
    assert records.due_in(later.id) == is_near(300)
    assert records.steps_of(later.id) == (Step.START,)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ({}, 7 * 86400),
        ({"deadline_s": 60}, 60),
        ({"deadline_s": 10**9}, 7 * 86400),
        ({"deadline_at": 10.0**12}, 7 * 86400),
        ({"deadline_s": 60, "deadline_at": 1.0}, None),
    ],
)
def test_the_nearest_deadline_counts(records: Records, given: dict[str, float], seconds: float | None) -> None:
    """From now by Redis time, or absolute; never beyond the longest; one that has passed ends it at once."""
    made = records.new()
    records.store.open_delegation(made, **given)  # type: ignore[arg-type]
    deadline_at = records.load(made.id).timers.deadline_at
    assert deadline_at is not None
    if seconds is None:
        assert records.steps_of(made.id) == (Step.EXPIRE,)
    else:
        assert deadline_at - records.store.now() == is_near(seconds)


def test_no_child_outlives_its_workflow(records: Records) -> None:
    """Its deadline is at most the parent's."""
    workflow = new_workflow_id()
    records.store.open_workflow(workflow, name="", deadline_s=100)
    child = records.open(workflow=workflow, deadline_s=5000)
    assert child.timers.deadline_at == records.store.load_workflow(workflow).deadline_at


def test_only_an_open_workflow_takes_children(records: Records) -> None:
    """Joining and ended ones refuse, and nothing is left of the attempt; a released one is open again."""
    workflow = records.open_workflow()
    child = records.start(workflow=workflow)
    records.store.join_workflow(workflow, None)
    before = records.all_keys()
    with pytest.raises(WorkflowConflict, match="JOINING"):
        records.open(workflow=workflow)
    assert records.all_keys() == before
    records.end(child)
    assert records.store.load_workflow(workflow).state is WorkflowState.RELEASED
    records.open(workflow=workflow)
    assert records.store.load_workflow(workflow).state is WorkflowState.OPEN
    records.store.end_workflow(workflow, WorkflowState.FAILED)
    with pytest.raises(WorkflowConflict, match="FAILED"):
        records.open(workflow=workflow)


def test_child_numbers_are_never_given_twice(valkey: ValkeyProcess, records: Records) -> None:
    """Four processes that open children at once get numbers of their own."""
    workflow, numbers = records.open_workflow(), list[int]()

    def reserve() -> None:
        store = Store.connect(valkey.url(), prefix=records.store.prefix)
        numbers.extend(store.next_child_number(workflow) for _ in range(50))
        store.close()

    run_together(*[reserve] * 4)
    assert sorted(numbers) == list(range(1, 201))


def run_together(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_repeated_call_id_is_kept_no_longer_than_the_delegation_can_last(records: Records) -> None:
    """A second call with an idempotency key leaves a note of its own, which nobody would ever clean up."""
    records.store.open_delegation(records.new(idempotency="key", call_id="one"), arguments_digest="a")
    records.store.open_delegation(records.new(idempotency="key", call_id="two"), arguments_digest="a")
    assert records.client.ttl(records.key("call", "one")) == -1
    assert records.client.ttl(records.key("call", "two")) == is_near(7 * 86400 + RETENTION_S)


# ---------------------------------------------------------------- repeats (law 4)


def open_it(records: Records) -> None:
    records.store.open_delegation(records.new())


def begin_it(records: Records) -> None:
    records.intend(records.open())


def save_it(records: Records) -> None:
    records.hear(records.intend(records.open())[1])


def save_it_and_wake(records: Records) -> None:
    """A push came before the answer to the send."""
    _, sending = records.intend(records.open())
    push(records, sending.id)
    assert records.hear(sending)


def settle_it(records: Records) -> None:
    """Of a parked last child of a joining workflow."""
    workflow = records.open_workflow()
    child = records.start(workflow=workflow)
    records.store.park(child.id)
    records.store.join_workflow(workflow, {"task": "next"})
    records.end(records.fetch(child)[1])


def join_it(records: Records) -> None:
    """At once released."""
    records.store.join_workflow(records.open_workflow(), {"task": "next"})


def end_it(records: Records) -> None:
    records.store.end_workflow(records.open_workflow(), WorkflowState.COMPLETED, 1)


def park_it(records: Records) -> None:
    records.store.park(records.open().id)


@pytest.mark.parametrize("act", [open_it, begin_it, save_it, save_it_and_wake, settle_it, join_it, end_it, park_it])
def test_a_repeated_script_answers_the_same_and_does_nothing(records: Records, act: Callable[[Records], None]) -> None:
    """redis-py repeats calls whose reply was lost: the very same arguments are answered, not run again."""
    act(records)
    answer, before = records.store.answer, records.everything()
    again = records.store.run_again()
    if records.store.call[0] in ("begin", "open"):  # their last word is the time
        answer, again = answer[:-1], again[:-1]
    assert again == answer
    assert records.everything() == before


def test_a_repeated_finish_changes_nothing(records: Records) -> None:
    """It is safe to run twice, as every step is."""
    records.end(watched := records.start())
    records.finish(records.load(watched.id))
    before = records.everything()
    records.store.run_again()
    assert records.everything() == before


# ---------------------------------------------------------------- leases and versions


def test_one_of_two_steps_begins(records: Records) -> None:
    """A second one is held off while the lease lasts, with whatever version it loaded."""
    opened = records.open()
    verdict, begun = records.intend(opened)
    assert (verdict, begun.version, begun.fence) == (Begun.BEGUN, 2, 1)
    assert records.intend(opened)[0] is Begun.STALE
    assert records.intend(records.load(opened.id))[0] is Begun.HELD
    assert records.due_in(opened.id) == is_near(1500)
    assert records.steps_of(opened.id) == ()


def test_one_at_work_is_not_due_for_what_it_is_at_work_on(records: Records) -> None:
    """The look that was overdue is under way; until the lease ends nothing but the deadline is to do."""
    watched = records.start()
    records.client.hset(records.key("d", watched.id), "poll_at", records.store.now() - 5)
    assert records.fetch(records.load(watched.id))[0] is Begun.BEGUN
    assert records.due_in(watched.id) == is_near(1500)


def test_a_dead_steps_delegation_is_due_when_its_lease_ends(make_records: Callable[..., Records]) -> None:
    """Nothing but the lease has to pass, and the next step begins with a higher fence."""
    records = make_records(call_deadline_s=0.2, lease_margin_s=0.1)
    _, dead = records.intend(records.open())
    assert records.store.sweep(10) == []
    (due,) = wait_until(lambda: records.store.sweep(10), what="the end of the lease")
    assert choose_steps(Phase(due.phase), due.timers, due.now) == (Step.START,)
    verdict, begun = records.fetch(records.load(dead.id))
    assert (verdict, begun.fence) == (Begun.BEGUN, 2)


def test_a_step_that_lost_its_lease_cannot_write(records: Records) -> None:
    """The fence of whoever began later wins, although the record looks the same to both."""
    _, paused = records.fetch(records.start())
    records.end_lease(paused)
    _, other = records.fetch(records.load(paused.id))
    for write in (records.hear, records.end):
        with pytest.raises(StaleWrite):
            write(paused)
        with pytest.raises(StaleWrite):
            write(replace(other, fence=other.fence - 1))
    records.hear(other)


def test_a_late_answer_nobody_replaced_is_still_taken(records: Records) -> None:
    """The lease only lets others in; when none came, the answer is as good as before."""
    _, late = records.fetch(records.start())
    records.end_lease(late)
    records.hear(late, TaskState.INPUT_REQUIRED)
    assert records.load(late.id).state is TaskState.INPUT_REQUIRED


def test_expiry_overrides_a_lease_but_no_version(records: Records) -> None:
    """It needs no lease; a step that wrote in between is looked at first, and the overridden one cannot write."""
    watched = records.start()
    _, busy = records.fetch(watched)
    with pytest.raises(StaleWrite):
        records.expire(watched)
    assert records.expire(records.load(watched.id)).settled
    with pytest.raises(StaleWrite):
        records.hear(busy)
    assert not records.end(busy).settled
    assert records.counter("settled:FAILED:deadline") == 1


def test_a_save_sets_the_next_look_and_ends_the_lease(records: Records) -> None:
    """The due entry is the step's next timer; the call slot is free again."""
    watched = records.start()
    assert watched.timers.lease_until is None
    assert records.due_in(watched.id) == is_near(60)  # behind a push
    assert records.store.calls_in_flight("flights") == 0


def test_a_deadline_stays_in_sight_whatever_else_is_due(records: Records) -> None:
    """Also while a step is at work, and when nothing else would be looked at."""
    opened = records.open(deadline_s=30)
    assert records.due_in(opened.id) == is_near(30)
    _, begun = records.intend(opened)
    assert records.due_in(begun.id) == is_near(30)


# ---------------------------------------------------------------- call slots


def test_a_full_agent_lets_delegations_wait_in_line(make_records: Callable[..., Records]) -> None:
    """One slot: the second and third wait, in order; each save calls up the next by making it due now."""
    records = make_records(calls_per_agent=1)
    one, two, three = (records.open() for _ in range(3))
    _, first = records.intend(one)
    assert records.intend(two) == (Begun.BUSY, two)
    assert records.intend(three)[0] is Begun.BUSY
    assert records.due_in(two.id) == is_near(1500)
    assert records.due_in(three.id) == is_near(1500)
    records.hear(first)
    assert records.due_in(two.id) == is_near(0)
    assert records.due_in(three.id) == is_near(1500)
    assert [due.id for due in records.store.sweep(10)] == [two.id]
    _, second = records.intend(records.load(two.id))
    records.end(second)
    assert [due.id for due in records.store.sweep(10) if due.id != two.id] == [three.id]


def test_other_agents_do_not_wait(make_records: Callable[..., Records]) -> None:
    """Slots are per agent."""
    records = make_records(calls_per_agent=1)
    records.intend(records.open(agent="slow"))
    assert records.intend(records.open(agent="fast"))[0] is Begun.BEGUN


@pytest.mark.parametrize("overdue", ["poll_at", "refetch_at"])
def test_who_waits_for_a_slot_comes_round_no_sooner_than_a_lease(
    make_records: Callable[..., Records], overdue: str
) -> None:
    """The look that was due is the one that waits: it must not make the delegation due again at once."""
    records = make_records(calls_per_agent=1)
    watched = records.start()
    records.intend(records.open())
    records.client.hset(records.key("d", watched.id), overdue, records.store.now() - 5)
    assert records.fetch(records.load(watched.id))[0] is Begun.BUSY
    assert records.due_in(watched.id) == is_near(1500)


def test_a_newcomer_is_not_served_before_who_was_called_up(make_records: Callable[..., Records]) -> None:
    """The freed slot is kept for whoever waited longest, and the newcomer goes to the end of the line."""
    records = make_records(calls_per_agent=1)
    one, two, three, newcomer = (records.open() for _ in range(4))
    _, first = records.intend(one)
    records.intend(two)
    records.intend(three)
    records.hear(first)
    assert records.intend(newcomer)[0] is Begun.BUSY
    begun, second = records.intend(records.load(two.id))
    assert begun is Begun.BEGUN
    assert records.due_in(three.id) == is_near(1500)
    records.hear(second)
    assert records.due_in(three.id) == is_near(0)
    assert records.due_in(newcomer.id) == is_near(1500)


def test_who_begins_by_its_own_timer_leaves_the_line(make_records: Callable[..., Records]) -> None:
    """The holder died: nobody was called up, and whoever comes first takes the slot and no place twice."""
    records = make_records(calls_per_agent=1)
    one, two = records.open(), records.open()
    _, dead = records.intend(one)
    records.intend(two)
    records.end_lease(dead)
    assert records.intend(records.load(two.id))[0] is Begun.BEGUN
    assert records.client.exists(records.key("waiting", "flights")) == 0


def test_a_dead_holder_frees_its_slot(make_records: Callable[..., Records]) -> None:
    """With the end of its lease, without anybody's help."""
    records = make_records(calls_per_agent=1)
    _, dead = records.intend(records.open())
    records.end_lease(dead)
    assert records.intend(records.open())[0] is Begun.BEGUN


def test_an_ended_one_leaves_line_and_slot(make_records: Callable[..., Records]) -> None:
    """Expiry of one that waits leaves no place behind; one whose call is under way frees its slot when that returns."""
    records = make_records(calls_per_agent=1)
    calling, waiting, next_one = (records.open() for _ in range(3))
    _, at_work = records.intend(calling)
    records.intend(waiting)
    records.intend(next_one)
    records.expire(records.load(waiting.id))
    records.expire(records.load(calling.id))
    assert records.client.zrange(records.key("calls", "flights"), 0, -1) == [calling.id]
    with pytest.raises(StaleWrite):
        records.hear(at_work)
    assert records.due_in(next_one.id) == is_near(0)
    assert records.client.zrange(records.key("calls", "flights"), 0, -1) == [next_one.id]
    assert records.client.exists(records.key("waiting", "flights")) == 0


def test_cleaning_up_at_a_full_agent_waits_without_a_place_in_line(make_records: Callable[..., Records]) -> None:
    """It is never urgent: next attempt a lease later, and no message before that; finalize is not held back."""
    records = make_records(calls_per_agent=1)
    ended = settled_with_leftovers(records)
    records.intend(records.open())
    assert records.store.begin(ended, ended)[0] is Begun.BUSY
    assert records.due_in(ended.id) == is_near(1000)  # finalize
    records.finish(ended)
    assert records.due_in(ended.id) == is_near(1500)
    assert records.client.zcard(records.key("waiting", "flights")) == 0


def settled_with_leftovers(records: Records) -> Delegation:
    watched = records.start()
    records.end(records.fetch(watched)[1])
    ended = records.load(watched.id)
    assert ended.timers.cleanup_at is not None
    return ended


# ---------------------------------------------------------------- cleaning up


def test_a_clean_up_at_work_is_not_sent_again(records: Records) -> None:
    """While its lease lasts nothing is due but finalize; when it dies, it is due with the lease's end."""
    ended = settled_with_leftovers(records)
    assert records.due_in(ended.id) == is_near(0)
    assert records.store.begin(ended, ended)[0] is Begun.BEGUN
    assert records.due_in(ended.id) == is_near(1000)
    assert records.steps_of(ended.id) == ()
    records.finish(ended)
    assert records.due_in(ended.id) == is_near(1500)


def test_a_clean_up_ends_or_is_tried_again(records: Records) -> None:
    """Later when it failed; when it is done, nothing is due."""
    ended = settled_with_leftovers(records)
    records.finish(ended)
    moment = Moment(now=records.store.now(), rules=Rules())
    _, begun = records.store.begin(records.load(ended.id), records.load(ended.id))
    records.store.save(begun, left_for_later(begun, moment))
    assert records.due_in(ended.id) == is_near(2)
    _, begun = records.store.begin(records.load(ended.id), records.load(ended.id))
    records.store.save(begun, cleaned_up(begun))
    assert records.due_in(ended.id) is None
    assert records.store.calls_in_flight("flights") == 0


# ---------------------------------------------------------------- pushes


def push(records: Records, delegation_id: str, claimed: str | None = "WORKING") -> PushAnswer:
    return records.store.receive_push(delegation_id, TOKEN_DIGEST, acceptable=True, claimed=claimed)


def test_a_push_before_the_answer_to_the_send_is_not_lost(records: Records) -> None:
    """The agent may be quicker than its own reply: noted, and fetched as soon as the agent task id is known."""
    _, sending = records.intend(records.open())
    assert push(records, sending.id, "COMPLETED") is PushAnswer.COALESCED
    assert records.hear(sending)
    watched = records.load(sending.id)
    assert (watched.claimed, watched.heard) == (TaskState.COMPLETED, "push")
    assert records.due_in(sending.id) == is_near(60)  # or 1000 from now, when the wake message is lost
    assert (watched.timers.refetch_at or 0) - records.store.now() == is_near(1000)


def test_a_push_to_one_whose_sender_died_is_kept(records: Records) -> None:
    """Its claim is there for whoever finds out what became of the send."""
    _, dead = records.intend(records.open())
    records.end_lease(dead)
    assert push(records, dead.id, "COMPLETED") is PushAnswer.COALESCED
    assert records.steps_of(dead.id) == (Step.START,)
    assert records.load(dead.id).claimed is TaskState.COMPLETED


def test_a_push_during_a_fetch_is_followed_by_another_fetch(make_records: Callable[..., Records]) -> None:
    """The answer under way may be older than the news; the next fetch keeps its distance of a second."""
    records = make_records(min_fetch_gap_s=100)
    _, fetching = records.fetch(records.start())
    assert push(records, fetching.id) is PushAnswer.COALESCED
    assert not records.hear(fetching)
    assert (records.load(fetching.id).timers.refetch_at or 0) - records.store.now() == is_near(100)


def test_a_push_during_a_fetch_that_took_long_wakes_at_once(make_records: Callable[..., Records]) -> None:
    """The second since the fetch began has passed; a lost message is made good by the due entry."""
    records = make_records(min_fetch_gap_s=0)
    _, fetching = records.fetch(records.start())
    push(records, fetching.id)
    assert records.hear(fetching)
    assert (records.load(fetching.id).timers.refetch_at or 0) - records.store.now() == is_near(1000)


def test_the_latest_claim_wins_over_a_fetch_that_knew_an_older_one(make_records: Callable[..., Records]) -> None:
    """WORKING claimed, fetched and found true; COMPLETED claimed meanwhile: that claim is still to be compared."""
    records = make_records(min_fetch_gap_s=100)
    watched = records.start()
    push(records, watched.id, "WORKING")
    _, fetching = records.fetch(records.load(watched.id))
    push(records, watched.id, "COMPLETED")
    records.hear(fetching, TaskState.WORKING)
    after = records.load(watched.id)
    assert (after.claimed, after.heard) == (TaskState.COMPLETED, "push")


def test_a_claim_that_was_found_true_is_forgotten(records: Records) -> None:
    """Without a later push there is nothing left to compare."""
    watched = records.start()
    push(records, watched.id, "WORKING")
    records.hear(records.fetch(records.load(watched.id))[1], TaskState.WORKING)
    after = records.load(watched.id)
    assert (after.claimed, after.heard, after.timers.refetch_at) == (None, "", None)


def test_many_pushes_are_one_message(records: Records) -> None:
    """While a message is under way, further pushes need none; each is counted and the latest claim kept."""
    watched = records.start()
    answers = [push(records, watched.id, state) for state in ("WORKING", "INPUT_REQUIRED", "COMPLETED")]
    assert answers == [PushAnswer.WOKEN, PushAnswer.COALESCED, PushAnswer.COALESCED]
    woken = records.load(watched.id)
    assert (woken.wakes, woken.claimed) == (3, TaskState.COMPLETED)
    assert (records.counter("pushes_accepted"), records.counter("pushes_rejected")) == (3, 0)


def test_a_push_whose_message_was_lost_is_made_good(make_records: Callable[..., Records]) -> None:
    """The due entry sends the wake again after the patience, and the next push asks for a message again."""
    records = make_records(hint_patience_s=0.2)
    watched = records.start()
    assert push(records, watched.id) is PushAnswer.WOKEN
    assert push(records, watched.id) is PushAnswer.COALESCED
    (due,) = wait_until(lambda: records.store.sweep(10), what="the wake again")
    assert choose_steps(Phase(due.phase), due.timers, due.now) == (Step.WAKE,)
    assert push(records, watched.id) is PushAnswer.WOKEN


def test_a_push_right_after_a_fetch_waits_for_its_turn(make_records: Callable[..., Records]) -> None:
    """At most one fetch a second: no message now, and the due entry at the second's end."""
    records = make_records(min_fetch_gap_s=100)
    _, fetching = records.fetch(records.start())
    records.hear(fetching)
    assert push(records, fetching.id) is PushAnswer.COALESCED
    assert records.due_in(fetching.id) == is_near(60)
    assert (records.load(fetching.id).timers.refetch_at or 0) - records.store.now() == is_near(100)


def test_a_push_after_the_end_is_refused_like_a_stranger(records: Records) -> None:
    """The token died with the delegation; nothing is changed and nothing told apart."""
    records.end(watched := records.start())
    before = records.client.hgetall(records.key("d", watched.id))
    assert push(records, watched.id) is PushAnswer.REFUSED
    assert records.client.hgetall(records.key("d", watched.id)) == before
    assert records.counter("pushes_rejected") == 1


def test_a_delegation_without_a_token_accepts_no_push(records: Records) -> None:
    """Nothing equals nothing."""
    opened = records.open()
    for digest in ("", TOKEN_DIGEST):
        answer = records.store.receive_push(opened.id, digest, acceptable=True, claimed=None)
        assert answer is PushAnswer.REFUSED


def test_a_failed_start_keeps_what_was_pushed_for_later(records: Records) -> None:
    """A push to one that is not watched schedules nothing: a start step is due anyway."""
    _, sending = records.intend(records.open())
    push(records, sending.id)
    failed = not_started(sending, AgentUnreachable("no route"), Moment(now=records.store.now(), rules=Rules()))
    assert not records.store.save(sending, failed).wake_now
    assert records.due_in(sending.id) == is_near(2)
    assert records.steps_of(sending.id) == (Step.START,)


# ---------------------------------------------------------------- ends


def test_the_end_is_one_fact(records: Records) -> None:
    """Outcome, artifacts, history, counters, digest gone, timers gone but finalize's."""
    watched = records.start()
    task = a_task(TaskState.COMPLETED, artifacts=(an_artifact("Lisbon"),))
    change = settle(
        watched, task.state or TaskState.FAILED, cause=Cause.PUSH, moment=at(), text="Lisbon", artifacts=task.artifacts
    )
    records.store.settle(watched, change)
    ended = records.load(watched.id)
    assert ended.outcome == change.outcome
    assert json.loads(records.store.content(watched.id) or "") == list(change.content)
    last = records.store.history(watched.id)[-1]
    assert (last["cause"], last["phase"], last["state"]) == ("push", "SETTLED", "COMPLETED")
    assert records.counter("settled:COMPLETED:push") == 1
    assert (ended.push_digest, ended.timers.poll_at, ended.timers.refetch_at) == ("", None, None)
    assert (ended.timers.publish_at or 0) - records.store.now() == is_near(1000)


def test_finalize_is_due_until_it_is_finished(make_records: Callable[..., Records]) -> None:
    """However often its message is lost; parked or not."""
    records = make_records(hint_patience_s=0.1)
    opened = records.open()
    records.end(opened)
    for _ in range(3):
        (due,) = wait_until(lambda: records.store.sweep(10), what="finalize again")
        assert choose_steps(Phase(due.phase), due.timers, due.now) == (Step.FINALIZE,)
    records.finish(records.load(opened.id))
    assert records.due() == {}


def test_only_settled_ones_are_finished(records: Records) -> None:
    """A finalize that comes too early, or again, changes nothing."""
    watched = records.start()
    before = records.everything()
    records.finish(watched)
    assert records.everything() == before


def test_parked_ones_are_counted_while_nobody_settles_them(records: Records) -> None:
    """Parking twice counts once; one that has ended goes on instead."""
    one, two = records.start(), records.start()
    assert [records.store.park(it.id) for it in (one, one, two)] == [True, True, True]
    assert records.store.metrics()["parked"] == 2
    assert records.end(records.load(one.id)).was_parked
    assert not records.store.park(one.id)
    assert records.store.metrics()["parked"] == 1
    assert not records.end(records.start()).was_parked


def test_the_story_is_bounded(make_records: Callable[..., Records]) -> None:
    """The oldest lines are dropped."""
    records = make_records(history=3)
    watched = records.start()
    for number in range(5):
        records.hear(records.fetch(records.load(watched.id))[1], status_text=f"step {number}")
    assert [line["text"] for line in records.store.history(watched.id)] == ["step 2", "step 3", "step 4"]


def test_lone_surrogates_reach_neither_redis_nor_a_traceback(records: Records) -> None:
    """An agent's text is stored and read back; an id that cannot be one is unknown."""
    watched = records.start()
    records.end(watched, text="\ud800")
    assert (outcome := records.load(watched.id).outcome) is not None
    assert outcome.text == "\ud800"
    assert records.store.id_of_call("\udce4") is None
    assert records.store.load_many(["\udce4"]) == []


# ---------------------------------------------------------------- parents


def test_two_last_children_that_end_together_release_once(valkey: ValkeyProcess, records: Records) -> None:
    """Twenty children settled by four processes: one of them hears the release id, whoever was last."""
    workflow = records.open_workflow()
    children = [records.start(workflow=workflow) for _ in range(20)]
    records.store.join_workflow(workflow, None)
    heard: list[Settlement] = []

    def end_all(order: list[Delegation]) -> None:
        mine = Records(valkey.client(user=TESTER), prefix=records.store.prefix)
        heard.extend(mine.end(child) for child in order)
        mine.client.close()

    run_together(*(lambda n=n: end_all(children[n * 5 :] + children[: n * 5]) for n in range(4)))
    assert sum(it.settled for it in heard) == 20
    assert [it.release_id for it in heard if it.release_id] == [f"{workflow}.release.1"]
    assert records.counter("released") == 1


def test_each_round_releases_once(records: Records) -> None:
    """After a release the workflow takes more children, and the next join waits for those."""
    workflow = records.open_workflow()
    for number in (1, 2):
        child = records.start(workflow=workflow)
        assert records.store.join_workflow(workflow, None) is None
        with pytest.raises(WorkflowConflict, match="waiting already"):
            records.store.join_workflow(workflow, None)
        assert records.end(child).release_id == f"{workflow}.release.{number}"
    assert records.store.load_workflow(workflow).round == 2


def test_a_join_without_children_is_released_at_once(records: Records) -> None:
    """With a continuation its message is due; without one there is nothing to publish."""
    with_one, without = records.open_workflow(), records.open_workflow()
    assert records.store.join_workflow(with_one, {"task": "next"}) == f"{with_one}.release.1"
    assert records.store.join_workflow(without, None) == f"{without}.release.1"
    assert set(records.due()) == {f"workflow:{with_one}"}


def test_a_continuation_is_published_ever_more_rarely_and_then_no_more(records: Records) -> None:
    """Longer apart each time, until it was seen; given up, it is visible as poisoned, and no longer due."""
    workflow = records.open_workflow()
    release = records.store.join_workflow(workflow, {"task": "next"}) or ""
    waits = []
    for _ in range(4):
        records.store.continuation_published(workflow, release)
        waits.append(round(records.due()[f"workflow:{workflow}"], -2))
    assert waits == [1000, 2000, 4000, 8000]
    with pytest.raises(WorkflowConflict):
        records.store.join_workflow(workflow, None)
    assert records.store.continuation_published(workflow, release) == 5
    records.store.continuation_poisoned(workflow, release)
    assert records.due() == {}
    assert records.store.load_workflow(workflow).is_poisoned
    assert records.store.continuation_published(workflow, release) == -1
    records.store.join_workflow(workflow, None)
    assert not records.store.load_workflow(workflow).is_poisoned


def test_a_continuation_that_was_seen_is_over(records: Records) -> None:
    """Nothing is due; a word about another release is not heard."""
    workflow = records.open_workflow()
    release = records.store.join_workflow(workflow, {"task": "next"}) or ""
    records.store.continuation_seen(workflow, "other.release.1")
    assert records.store.load_workflow(workflow).is_publishing
    records.store.continuation_seen(workflow, release)
    assert not records.store.load_workflow(workflow).is_publishing
    assert records.due() == {}
    assert records.store.continuation_published(workflow, release) == -1


def test_children_of_an_ended_workflow_release_nobody(records: Records) -> None:
    """It was failed while it waited; the late child only leaves the set."""
    workflow = records.open_workflow()
    child = records.start(workflow=workflow)
    records.store.join_workflow(workflow, {"task": "next"})
    records.store.end_workflow(workflow, WorkflowState.FAILED, {"reason": "no"})
    assert records.end(child).release_id is None
    assert records.store.load_workflow(workflow).unresolved == 0


def test_a_completed_workflow_still_owes_its_last_continuation(records: Records) -> None:
    """Its retention begins, and the continuation stays due until it was seen to run."""
    workflow = records.open_workflow()
    release = records.store.join_workflow(workflow, {"task": "next"}) or ""
    records.store.end_workflow(workflow, WorkflowState.COMPLETED)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    assert records.store.load_workflow(workflow).is_publishing
    assert f"workflow:{workflow}" in records.due()
    records.store.continuation_seen(workflow, release)
    assert records.due() == {}


def test_a_failed_workflow_publishes_no_continuation(records: Records) -> None:
    """Whoever failed it wants none; what is due is the beginning of its retention."""
    workflow = records.open_workflow()
    release = records.store.join_workflow(workflow, {"task": "next"}) or ""
    records.store.end_workflow(workflow, WorkflowState.FAILED)
    ended = records.store.load_workflow(workflow)
    assert (ended.is_publishing, ended.continuation) == (False, None)
    assert records.store.continuation_published(workflow, release) == -1
    assert records.due() == {f"workflow:{workflow}": is_near(0)}


# ---------------------------------------------------------------- sweeping


def test_two_sweepers_never_get_the_same_entry(valkey: ValkeyProcess, records: Records) -> None:
    """Four at once over 200 due entries: each entry once."""
    ids = [records.open().id for _ in range(200)]
    records.client.zadd(records.key("due"), {f"delegation:{one}": 0 for one in ids})
    taken: list[str] = []

    def sweep() -> None:
        store = Store.connect(valkey.url(), prefix=records.store.prefix, rules=CALM)
        while found := store.sweep(7):
            taken.extend(due.id for due in found)
        store.close()

    run_together(*[sweep] * 4)
    assert sorted(taken) == sorted(ids)


def test_a_sweep_takes_no_more_than_it_may(records: Records) -> None:
    """The earliest first; with nothing to take it still leaves its heartbeat."""
    ids = [records.open().id for _ in range(5)]
    records.client.zadd(records.key("due"), {f"delegation:{one}": n for n, one in enumerate(ids)})
    assert records.store.sweeper_seen_at() is None
    assert records.store.sweep(0) == []
    assert records.store.sweeper_seen_at() == pytest.approx(0, abs=5)
    assert [due.id for due in records.store.sweep(2)] == ids[:2]
    assert [due.id for due in records.store.sweep(9)] == ids[2:]


def test_a_full_queue_still_lets_ends_through(records: Records) -> None:
    """Steps that call agents come round in a second; deadlines, finalize and releases are taken."""
    calling, late, ended = records.start(), records.open(deadline_s=-1), records.start()
    records.end(ended)
    records.client.hset(records.key("d", ended.id), "publish_at", 1)
    members = {f"delegation:{it.id}": 0 for it in (calling, late, ended)}
    records.client.zadd(records.key("due"), members)
    assert {due.id for due in records.store.sweep(0, ends=9)} == {late.id, ended.id}
    assert records.due_in(calling.id) == pytest.approx(1, abs=1)


def test_calls_and_ends_have_rooms_of_their_own(records: Records) -> None:
    """Many that are to call agents take no room from deadlines, and the other way round."""
    calling = [records.start().id for _ in range(3)]
    late = [records.open(deadline_s=-1).id for _ in range(3)]
    records.client.zadd(records.key("due"), {f"delegation:{one}": n for n, one in enumerate(calling + late)})
    assert [due.id for due in records.store.sweep(1, ends=2)] == [calling[0], *late[:2]]
    assert [due.id for due in records.store.sweep(9, ends=0)] == calling[1:]
    assert records.due_in(late[2]) == pytest.approx(-records.store.now(), rel=0.01)  # untouched, and still first


def test_a_clean_up_waits_for_leisure_a_minute_at_most(records: Records) -> None:
    """It gives way to all else, but it comes."""
    records.finish(ended := settled_with_leftovers(records))
    assert records.store.sweep(9, leisure=False) == []
    assert records.due_in(ended.id) == pytest.approx(5, abs=2)
    records.client.hset(records.key("d", ended.id), "cleanup_at", records.store.now() - 61)
    records.client.zadd(records.key("due"), {f"delegation:{ended.id}": 0})
    assert [due.id for due in records.store.sweep(9, leisure=False)] == [ended.id]


# ---------------------------------------------------------------- shared delegations


def test_further_calls_go_on_when_the_delegation_has_ended(records: Records) -> None:
    """Each with what follows it; the delegation stays due until all of them were published."""
    opened = records.open(idempotency="key", call_id="one")
    assert not records.store.share_delegation(opened, "two", {"chain": ["next"]})
    assert not records.store.share_delegation(opened, "three", {})
    records.end(opened)
    ended = records.load(opened.id)
    assert records.store.waiting_shares(ended) == {"two": {"chain": ["next"]}, "three": {}}
    for call_id in ("one", "three", "two"):
        assert records.due_in(opened.id) is not None
        records.store.finish(ended, call_id)
    assert records.due_in(opened.id) is None
    assert records.store.waiting_shares(ended) == {}


def test_a_call_after_the_end_goes_on_at_once(records: Records) -> None:
    """Its message is due until it was published, and the same call again is nothing new."""
    opened = records.open(idempotency="key")
    records.end(opened)
    records.finish(ended := records.load(opened.id))
    assert records.due_in(opened.id) is None
    assert records.store.share_delegation(ended, "late", {"chain": ["next"]})
    assert records.due_in(opened.id) == is_near(1000)
    records.store.finish(ended, "late")
    assert not records.store.share_delegation(ended, "late", {"chain": ["other"]})
    assert records.due_in(opened.id) is None
    assert records.client.ttl(records.key("shares", "key")) == is_near(RETENTION_S)


# ---------------------------------------------------------------- what is kept


def test_nothing_that_is_not_ended_has_a_ttl(records: Records) -> None:
    """Through every phase of a delegation and a workflow: no live state can expire."""
    workflow = records.open_workflow()
    records.open(workflow=workflow)
    records.intend(records.open(workflow=workflow))
    records.store.park(records.start(workflow=workflow, idempotency="k", call_id="c").id)
    push(records, records.start().id)
    records.end(records.start(workflow=workflow))
    records.end(child := records.start(workflow=workflow))
    records.finish(records.load(child.id))
    records.end(records.start())
    records.store.join_workflow(workflow, {"task": "next"})
    records.store.join_workflow(records.open_workflow(), {"task": "next"})
    records.store.make_epoch()
    records.store.sweep(10)
    assert records.keys_with_ttl() <= {f"call:{child.call_id}", "rate:flights"}


def test_a_lone_delegation_is_kept_for_the_retention(records: Records) -> None:
    """From its release: record, history, artifacts, and what recognises its call."""
    made = records.new(idempotency="key", call_id="call")
    records.store.open_delegation(made, arguments_digest="a")
    task = a_task(TaskState.COMPLETED, artifacts=(an_artifact("Lisbon"),))
    opened = records.load(made.id)
    records.store.settle(
        opened, settle(opened, TaskState.COMPLETED, cause=Cause.POLL, moment=at(), artifacts=task.artifacts)
    )
    records.finish(records.load(made.id))
    kept = {f"d:{made.id}", f"h:{made.id}", f"c:{made.id}", "call:call", "idem:key"}
    assert records.keys_with_ttl() == kept
    assert all(records.client.ttl(records.store.prefix + key) == is_near(RETENTION_S) for key in kept)


def test_children_are_kept_until_their_workflow_has_ended(records: Records) -> None:
    """Then all go together, after the retention; running it again changes nothing."""
    workflow = records.open_workflow()
    for _ in range(3):
        records.end(child := records.start(workflow=workflow))
        records.finish(records.load(child.id))
    assert not any(key.startswith(("d:", "h:", "w:")) for key in records.keys_with_ttl())
    records.store.end_workflow(workflow, WorkflowState.COMPLETED)
    assert records.due()[f"workflow:{workflow}"] == is_near(0)
    for _ in range(2):
        records.store.retire_workflow(records.store.load_workflow(workflow))
        assert sum(key.startswith(("d:", "h:", "w:")) for key in records.keys_with_ttl()) == 7
        assert f"workflow:{workflow}" not in records.due()


def test_a_child_that_outlives_a_failed_workflow_is_kept_till_it_ended_too(records: Records) -> None:
    """Live state never expires, however short the retention; its own begins with its release."""
    workflow = records.open_workflow()
    child = records.start(workflow=workflow)
    records.store.end_workflow(workflow, WorkflowState.FAILED)
    records.store.retire_workflow(records.store.load_workflow(workflow))
    assert records.client.ttl(records.key("d", child.id)) == -1
    records.end(child)
    assert records.client.ttl(records.key("d", child.id)) == -1
    records.finish(records.load(child.id))
    assert records.client.ttl(records.key("d", child.id)) == is_near(RETENTION_S)
    assert records.client.ttl(records.key("h", child.id)) == is_near(RETENTION_S)


def test_the_listing_forgets_what_has_expired(records: Records) -> None:
    """The newest while they are listed; the oldest, which no listing comes to, when they are trimmed."""
    old, new, newest = (records.open().id for _ in range(3))
    workflow = records.open_workflow()
    records.client.zadd(records.key("roots"), {old: 1, new: 2, newest: 3, workflow: 4})
    records.client.delete(records.key("d", old), records.key("d", newest))
    assert records.store.list_roots(2) == [(workflow, True)]
    assert records.store.trim_roots() == 1
    assert records.client.zrange(records.key("roots"), 0, -1) == [new, workflow]


def test_a_number_taken_of_a_gone_workflow_leaves_nothing(records: Records) -> None:
    """A record with a number and no state would be neither there nor gone."""
    assert records.client.exists(records.key("w", "gone")) == 0
    with pytest.raises(Exception, match="unknown workflow gone"):
        records.store.next_child_number(WorkflowId("gone"))
    assert records.client.exists(records.key("w", "gone")) == 0


def test_a_parked_child_takes_two_kilobytes_at_most(records: Records) -> None:
    """Everything of 1,000 parked children of 20 workflows, shared keys included."""
    for _ in range(20):
        workflow = records.open_workflow()
        for _ in range(50):
            child = records.start(workflow=workflow, canvas={"link": [{"task": "next", "args": []}]})
            records.store.park(child.id)
    # What has a TTL of a second may be gone by now.
    total = sum(records.client.memory_usage(key, samples=0) or 0 for key in records.all_keys())
    print(f"\n{total / 1000:.0f} bytes per parked child")
    assert total / 1000 <= 2048


# ---------------------------------------------------------------- operators


def test_metrics_tell_what_is_due_and_since_when(records: Records) -> None:
    """Due now, scheduled in all, the age of the oldest, and the counters by name."""
    records.open()
    late = records.open()
    records.client.zadd(records.key("due"), {f"delegation:{late.id}": records.store.now() - 50})
    records.store.count("fetches", 3)
    metrics = records.store.metrics()
    assert (metrics["due"], metrics["scheduled"], metrics["parked"]) == (1, 2, 0)
    assert metrics["oldest_due_age_s"] == is_near(50)
    assert metrics["counters"] == {"opened": 2, "fetches": 3}


def test_calls_in_flight_are_those_under_a_lease(records: Records) -> None:
    """A dead step's call is none any more."""
    _, one = records.intend(records.open())
    records.intend(records.open())
    assert records.store.calls_in_flight("flights") == 2
    records.end_lease(one)
    assert records.store.calls_in_flight("flights") == 1


def test_an_epoch_is_made_once(records: Records) -> None:
    """Whoever comes later finds the first one's."""
    epoch = records.store.make_epoch()
    assert records.store.make_epoch() == epoch
    assert records.store.epoch() == epoch


def test_a_change_is_heard_by_those_who_listen(records: Records) -> None:
    """Under the root's id: of the delegation itself, or of a child of the workflow."""
    workflow = records.open_workflow()
    child = records.start(workflow=workflow)
    with records.store.listen(workflow) as next_change:
        records.end(child)
        assert wait_until(lambda: next_change(1.0), what="the change") == child.id
        assert next_change(0.01) is None


def test_many_records_are_loaded_in_the_order_asked_for(records: Records) -> None:
    """Those that are gone are left out."""
    one, two = records.open(), records.open()
    assert [it.id for it in records.store.load_many([two.id, "gone", one.id])] == [two.id, one.id]


# ---------------------------------------------------------------- Redis away


def test_without_redis_every_door_says_so(tmp_path: Path) -> None:
    """StoreUnavailable, and no exception of the client's."""
    store = Store.connect(f"redis://127.0.0.1:{free_port()}/0", timeout_s=0.5)
    nobody = Records(store.client, prefix="x:").new()
    calls: list[Callable[[], object]] = [
        store.ping,
        store.now,
        store.epoch,
        store.metrics,
        lambda: store.load("d"),
        lambda: store.load_many(["d"]),
        lambda: store.park("d"),
        lambda: store.sweep(1),
        lambda: store.history("d"),
        lambda: store.content("d"),
        lambda: store.id_of_call("c"),
        lambda: store.open_delegation(nobody),
        lambda: store.begin(nobody, nobody),
        lambda: store.receive_push("d", "x", acceptable=True, claimed=None),
        lambda: store.load_workflow("w"),
        lambda: store.next_child_number(WorkflowId("w")),
        lambda: store.join_workflow(WorkflowId("w"), None),
        lambda: store.list_roots(5),
        lambda: store.count("x"),
    ]
    for call in calls:
        with pytest.raises(StoreUnavailable, match="Redis does not answer"):
            call()
    store.close()


def test_a_frozen_redis_is_given_up_on_and_found_again(tmp_path: Path) -> None:
    """After the timeout, not for ever; the same store works when Redis does, scripts included."""
    with ValkeyProcess(tmp_path / "valkey").start() as valkey:
        store = Store.connect(valkey.url(), timeout_s=0.5)
        records = Records(store.client, prefix="delegation:")
        opened = records.new()
        store.open_delegation(opened)
        valkey.pause()
        with pytest.raises(StoreUnavailable):
            store.park(opened.id)
        valkey.resume()
        wait_until(lambda: _answers(store), what="an answer")
        valkey.kill()
        valkey.start()
        wait_until(lambda: _answers(store), what="an answer")
        assert store.park(opened.id)
        store.close()


def _answers(store: Store) -> bool:
    try:
        store.ping()
    except StoreUnavailable:
        return False
    return True


def test_a_janitor_repairs_an_unresolved_set_that_differs(records: Records) -> None:
    """A lost removal is made up for, and brings the release it had kept back; a second look finds nothing."""
    workflow = new_workflow_id()
    records.store.open_workflow(workflow, name="", deadline_s=None)
    child = records.open(workflow=workflow)
    records.end(child)
    records.store.join_workflow(workflow, None)
    records.client.hset(records.key("w", workflow), "state", "JOINING")
    records.client.sadd(records.key("u", workflow), child.id, f"{workflow}.7")
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (2, f"{workflow}.release.2")
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (0, None)


def test_a_janitor_puts_back_a_child_that_is_missing(records: Records) -> None:
    """A parent must not be released while a child of it is at work."""
    workflow = new_workflow_id()
    records.store.open_workflow(workflow, name="", deadline_s=None)
    child = records.open(workflow=workflow)
    records.client.delete(records.key("u", workflow))
    assert records.store.repair_workflow(records.store.load_workflow(workflow)) == (1, None)
    assert records.client.smembers(records.key("u", workflow)) == {child.id}
