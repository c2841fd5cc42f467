"""The follower as a process: it hears, wakes, waits, gives way, takes over, and leaves no stream behind."""

from __future__ import annotations

import itertools
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.agent_task import TaskState
from tests.support.followed import Followed
from tests.support.processes import Deployment, Follower, ScriptedAgent, wait_until
from workers.celery_settings import QUEUE, celery_prefix

INTERVAL_S = 1.0


def given(**values: Any) -> pytest.MarkDecorator:
    """Another agent, ``interval`` or ``timing`` for one test."""
    return pytest.mark.parametrize("followed", [values], indirect=True, ids=["-".join(values)])


@pytest.fixture
def followed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Followed]:
    """No worker, no follower yet."""
    values: dict[str, Any] = dict(getattr(request, "param", {}))
    interval = values.pop("interval", INTERVAL_S)
    timing = {"follow_lease": 3, "follow_idle": 20, **values.pop("timing", {})}
    agent = ScriptedAgent(tmp_path, **{"streaming": True, **values})
    settings = {"agent": {"follow_interval": interval}}
    with (
        Deployment(
            tmp_path, agents={"agent": agent}, agent_settings=settings, timing=timing, workers=0, web=False
        ) as deployment,
        Followed(deployment) as it,
    ):
        yield it


def start(followed: Followed, count: int = 1) -> list[Follower]:
    started = [followed.deployment.start_follower(wait=False) for _ in range(count)]
    for follower in started:
        follower.wait_until_ready()
    return started


def assert_ends_well(follower: Follower) -> None:
    """Exit code 0, and by its own count nothing is left open."""
    assert follower.stop(timeout_s=10) == 0, follower.output()
    assert "connections=0" in follower.output()
    assert "streams=0" in follower.output()
    assert "Traceback" not in follower.output()


# ------------------------------------------------------------ hearing


def test_a_change_is_heard_while_the_stream_is_open(followed: Followed) -> None:
    """The state is claimed, not applied; a wake message is sent; the stream stays for what comes next."""
    (follower,) = start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    assert followed.wakes(delegation_id) == 0

    followed.agent.move(delegation_id, "INPUT_REQUIRED", "Which day?")
    woken = followed.wait_for_wakes(delegation_id)

    assert (woken.heard, woken.claimed, woken.state) == ("follow", TaskState.INPUT_REQUIRED, TaskState.WORKING)
    queue = f"{celery_prefix(followed.deployment.settings())}{QUEUE}"
    wait_until(lambda: followed.client.llen(queue) == 1, what="a wake message")
    followed.agent.move(delegation_id, "WORKING", "on it")
    assert followed.wait_for_wakes(delegation_id, 2).claimed is TaskState.WORKING
    assert len(followed.subscribed_at(delegation_id)) == 1
    assert_ends_well(follower)
    assert followed.agent.streams_open() == 0


def test_a_followed_delegation_need_not_be_polled(followed: Followed) -> None:
    """While its stream is open, the next regular look is a re-check away (2 s here), not a poll (0.2 s)."""
    start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    poll_at = followed.load(delegation_id).timers.poll_at
    assert poll_at is not None
    assert poll_at - followed.store.now() > 1


def test_what_changed_before_the_first_stream_is_heard_with_its_snapshot(followed: Followed) -> None:
    """The record says WORKING, the agent is further on: one wake, at once."""
    delegation_id = followed.begin(at_agent="INPUT_REQUIRED")
    start(followed)
    assert followed.wait_for_wakes(delegation_id).claimed is TaskState.INPUT_REQUIRED


@given(stream_when_interrupted="end", replay=True)
def test_a_peer_that_replays_its_log_and_ends_wakes_nobody(followed: Followed) -> None:
    """Each stream tells the snapshot, the whole past, and ends: no wake, and the next one is an interval away."""
    start(followed)
    delegation_id = followed.begin("INPUT_REQUIRED")
    wait_until(lambda: len(followed.subscribed_at(delegation_id)) >= 3, 20, what="three subscriptions")
    times = followed.subscribed_at(delegation_id)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert min(gaps) >= INTERVAL_S
    assert gaps[1] > 1.2 * INTERVAL_S  # each short stream makes the next gap longer
    assert followed.wakes(delegation_id) == 0
    assert followed.is_followed(delegation_id)


@given(stream_when_interrupted="end", replay=True)
def test_what_comes_between_two_streams_is_heard_with_the_next(followed: Followed) -> None:
    """A question that was answered elsewhere while no stream was open: one wake, by the next snapshot."""
    start(followed)
    delegation_id = followed.begin("INPUT_REQUIRED")
    followed.wait_until_followed(delegation_id)
    followed.agent.wait_for_streams(0)
    followed.agent.move(delegation_id, "INPUT_REQUIRED", "And which month?")
    assert followed.wait_for_wakes(delegation_id).claimed is TaskState.INPUT_REQUIRED


@given(interval=0.3)
def test_a_terminal_task_wakes_and_in_the_end_is_not_followed(followed: Followed) -> None:
    """-32004: GetTask will tell. When nobody settles it and the agent repeats that three times, it is no stream."""
    start(followed)
    delegation_id = followed.begin(at_agent="COMPLETED")
    assert followed.wait_for_wakes(delegation_id).heard == "follow"
    wait_until(lambda: not followed.wanting(), 15, what="end of the follow")
    assert len(followed.subscribed_at(delegation_id)) == 4
    assert followed.load(delegation_id).heard == "no_stream"
    assert followed.owners() == {}


@given(streaming=False)
def test_an_agent_without_streams_is_not_asked_for_one(followed: Followed) -> None:
    """Its card says so: another way of hearing is needed, at once and without a request."""
    start(followed)
    delegation_id = followed.begin()
    assert followed.wait_for_wakes(delegation_id).heard == "no_stream"
    assert followed.wanting() == set()
    assert followed.agent.calls("SubscribeToTask") == []


@pytest.mark.parametrize(
    "rule",
    [{"error": {"code": -32601, "message": "no"}}, {"http": {"status": 405, "headers": {}, "body": ""}}],
    ids=["method not found", "405"],
)
def test_an_agent_whose_card_promised_too_much_is_believed_at_once(followed: Followed, rule: dict[str, Any]) -> None:
    """One attempt is enough."""
    followed.agent.script([{"on": "SubscribeToTask", **rule}])
    start(followed)
    delegation_id = followed.begin()
    assert followed.wait_for_wakes(delegation_id).heard == "no_stream"
    assert len(followed.subscribed_at(delegation_id)) == 1


@pytest.mark.parametrize(
    "rule",
    [
        {"error": {"code": -32001, "message": "no such task"}},
        {"http": {"status": 500, "headers": {"Content-Type": "text/html"}, "body": "<h1>no</h1>"}},
        {"http": {"status": 200, "headers": {"Content-Type": "application/json"}, "body": "{}"}},
        {"http": {"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}, "body": ""}},
        {"end": "reset"},
    ],
    ids=["-32001", "500", "no stream", "redirect", "reset"],
)
def test_a_refused_stream_wakes_and_is_asked_for_again_after_the_interval(
    followed: Followed, rule: dict[str, Any]
) -> None:
    """GetTask decides what it means; meanwhile the agent is left alone for an interval, and then followed."""
    followed.agent.script([{"on": "SubscribeToTask", "times": 1, **rule}])
    start(followed)
    delegation_id = followed.begin()
    assert followed.wait_for_wakes(delegation_id).heard == "follow"
    followed.wait_until_followed(delegation_id)
    first, second = followed.subscribed_at(delegation_id)
    assert second - first >= INTERVAL_S
    assert followed.wakes(delegation_id) == 1


def test_a_stream_whose_credentials_are_refused_is_asked_for_again_without_a_wake(followed: Followed) -> None:
    """A look would be shown the same ones; the agent is left alone for an interval, and then followed."""
    unauthorized = {"http": {"status": 401, "headers": {}, "body": ""}}
    followed.agent.script([{"on": "SubscribeToTask", "times": 1, **unauthorized}])
    start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    first, second = followed.subscribed_at(delegation_id)
    assert second - first >= INTERVAL_S
    assert followed.wakes(delegation_id) == 0


@given(keepalive_s=0.3, timing={"follow_idle": 1.5})
def test_comments_keep_a_quiet_stream_alive(followed: Followed) -> None:
    """Twice the idle limit without an event: still the first stream, and no wake."""
    start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    followed.agent.wait_for(lambda _: time.time() > followed.subscribed_at(delegation_id)[0] + 3, what="three seconds")
    assert len(followed.subscribed_at(delegation_id)) == 1
    assert followed.wakes(delegation_id) == 0


@given(timing={"follow_idle": 1.5})
def test_silence_and_a_half_open_connection_end_in_a_wake_and_a_new_stream(followed: Followed) -> None:
    """Not a byte for longer than the idle limit: closed, looked at, subscribed again; so too when the peer is gone."""
    start(followed)
    delegation_id = followed.begin()
    followed.wait_for_wakes(delegation_id)
    wait_until(lambda: len(followed.subscribed_at(delegation_id)) == 2, what="second subscription")
    followed.agent.wait_for_streams(1)
    assert followed.agent.cut_streams(how="half") == 1
    wait_until(lambda: len(followed.subscribed_at(delegation_id)) == 3, what="third subscription")
    assert followed.wakes(delegation_id) >= 2
    followed.agent.wait_for_streams(1)


@pytest.mark.parametrize("how", ["close", "cut", "reset"])
def test_a_broken_stream_is_opened_again(followed: Followed, how: str) -> None:
    """An orderly end wakes nobody, a break once; both are followed by a new stream after the interval."""
    start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    ended_at = time.time()
    assert followed.agent.cut_streams(how=how) == 1
    wait_until(lambda: len(followed.subscribed_at(delegation_id)) == 2, 15, what="second subscription")
    assert followed.subscribed_at(delegation_id)[1] - ended_at >= INTERVAL_S
    followed.agent.wait_for_streams(1)
    assert followed.wakes(delegation_id) == (0 if how == "close" else 1)


def test_an_event_that_cannot_be_read_wakes_and_reading_goes_on(followed: Followed) -> None:
    """A row of them is one wake; what follows is heard on the same stream."""
    start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    followed.agent.emit(delegation_id, "data: {broken\n\ndata: [also\n\n")
    assert followed.wait_for_wakes(delegation_id).claimed is None
    followed.agent.move(delegation_id, "INPUT_REQUIRED", "?")
    assert followed.wait_for_wakes(delegation_id, 2).claimed is TaskState.INPUT_REQUIRED
    assert len(followed.subscribed_at(delegation_id)) == 1


@given(interval=2)
def test_an_agent_that_ends_its_streams_at_once_is_not_asked_in_a_loop(followed: Followed) -> None:
    """Case C087: at most five subscriptions in the first ten seconds, with growing gaps."""
    delegation_id = followed.begin()
    snapshot = {"id": delegation_id, "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
    followed.agent.script([{"on": "SubscribeToTask", "sse": [{"task": snapshot}], "end": "close"}])
    start(followed)
    wait_until(lambda: followed.subscribed_at(delegation_id), what="first subscription")
    first = followed.subscribed_at(delegation_id)[0]
    wait_until(lambda: time.time() > first + 10, 15, what="ten seconds", every_s=0.2)
    times = [at - first for at in followed.subscribed_at(delegation_id) if at < first + 10]
    assert 3 <= len(times) <= 5
    assert times[2] - times[1] > 2 * 1.2  # one and a half intervals, and the first is at least one


# ------------------------------------------------------------ whose it is


def test_a_delegation_that_is_no_longer_wanted_is_let_go_at_once(followed: Followed) -> None:
    """A reply, a cancel or the end: the stream is closed long before the next renewal."""
    followed.deployment.start_follower()
    ids = [followed.begin() for _ in range(3)]
    followed.wait_until_followed(*ids)
    followed.unwant(ids[0])
    followed.agent.wait_for_streams(2, 2)
    followed.want(ids[0])
    followed.agent.wait_for_streams(3)
    assert len(followed.subscribed_at(ids[0])) == 2


@given(timing={"follow_lease": 60})
def test_a_follower_that_is_asked_to_stop_gives_everything_back(followed: Followed) -> None:
    """Long before the leases run out another one holds all of it; nothing is open twice in the end."""
    first, second = start(followed, 2)
    ids = [followed.begin() for _ in range(40)]
    followed.wait_until_followed(*ids)
    assert_ends_well(first)
    wait_until(lambda: len(set(followed.owners().values())) == 1 and len(followed.owners()) == 40, what="one owner")
    followed.agent.wait_for_streams(40)
    (living,) = [each for each in followed.store.followers() if each.lives]
    assert living.held == 40
    assert_ends_well(second)
    followed.agent.wait_for_streams(0)


def test_a_killed_follower_is_made_up_for_when_its_leases_run_out(followed: Followed) -> None:
    """kill -9: the other one takes over all it held, hears what happened meanwhile, and counts it."""
    first, _ = start(followed, 2)
    ids = [followed.begin() for _ in range(60)]
    followed.wait_until_followed(*ids)
    lost = [each for each, owner in followed.owners().items() if f"-{first.pid}-" in owner]
    assert lost
    first.kill()
    followed.agent.move(lost[0], "INPUT_REQUIRED", "Anybody there?")
    assert followed.wait_for_wakes(lost[0], timeout_s=20).claimed is TaskState.INPUT_REQUIRED
    followed.agent.wait_for_streams(60, 20)
    assert len(set(followed.owners().values())) == 1
    assert followed.counter("follows_taken_over") == len(lost)


def test_two_followers_share_a_burst(followed: Followed) -> None:
    """Two hundred at once: neither gets all, none is followed twice."""
    ids = [followed.begin() for _ in range(200)]
    for each in ids:
        followed.unwant(each)
    start(followed, 2)
    for each in ids:
        followed.want(each)
    followed.agent.wait_for_streams(200, 20)
    owners = list(followed.owners().values())
    shares = [owners.count(owner) for owner in set(owners)]
    assert len(shares) == 2
    assert min(shares) >= 20


def test_a_follower_that_slept_through_its_leases_lets_go(followed: Followed) -> None:
    """Frozen for longer than a lease: the other one has taken over, and in the end each is followed once."""
    first, second = start(followed, 2)
    ids = [followed.begin() for _ in range(20)]
    followed.wait_until_followed(*ids)
    first.pause()
    try:
        wait_until(
            lambda: all(f"-{second.pid}-" in owner for owner in followed.owners().values()), 20, what="take-over"
        )
    finally:
        first.resume()
    followed.agent.wait_for_streams(20, 15)
    assert_ends_well(first)
    followed.agent.wait_for_streams(20)


def test_streams_outlive_redis(followed: Followed) -> None:
    """Redis killed and started again: no stream is closed, and what is heard meanwhile is told afterwards."""
    (follower,) = start(followed)
    delegation_id = followed.begin()
    followed.wait_until_followed(delegation_id)
    followed.deployment.valkey.kill()
    follower.wait_for_output("follower.store_unavailable")
    followed.agent.move(delegation_id, "INPUT_REQUIRED", "?")
    followed.deployment.valkey.start()
    assert followed.wait_for_wakes(delegation_id, timeout_s=20).claimed is TaskState.INPUT_REQUIRED
    assert len(followed.subscribed_at(delegation_id)) == 1
    assert_ends_well(follower)


# ------------------------------------------------------------ with a worker

#: A poll would come long after the test.
NEVER_POLL = {"poll_first": 600, "poll_max": 600, "recheck_first": 600, "recheck_max": 600}


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[Deployment]:
    """Worker and follower, and an agent that streams and does not push."""
    agent = ScriptedAgent(tmp_path, streaming=True, push=False)
    with Deployment(
        tmp_path,
        agents={"agent": agent},
        agent_settings={"agent": {"follow_interval": INTERVAL_S}},
        timing=NEVER_POLL,
        web=False,
        follower=True,
    ) as deployment:
        yield deployment


def test_the_end_of_a_followed_delegation_is_heard_by_its_stream(whole: Deployment) -> None:
    """No poll, no push: each change comes by the follower, which lets go at the end."""
    goal = json.dumps({"states": [["WORKING", 0], ["WORKING", 1, "half way"], ["COMPLETED", 2]], "artifact": "sunny"})
    said = whole.command("delegate", "agent", goal, "--wait")
    assert said.returncode == 0, said.stderr + whole.logs()
    delegation_id, text = said.stdout.splitlines()
    assert text == "sunny"
    story = json.loads(whole.command("show", delegation_id, "--history", "--json").stdout)
    assert [entry["cause"] for entry in story][-2:] == ["follow", "follow"]
    agent = whole.agents["agent"]
    assert isinstance(agent, ScriptedAgent)
    agent.wait_for_streams(0)
    store = whole.store()
    wait_until(lambda: store.wanting_follower() == (0, 0), what="nothing to follow")
    assert store.client.hgetall(store.key("follow_owners")) == {}


# ------------------------------------------------------------ nothing is left behind


@given(timing={"follow_lease": 2}, interval=0.5)
@pytest.mark.timeout(180)
def test_after_five_hundred_delegations_and_every_disturbance_nothing_is_open(followed: Followed) -> None:
    """Random ends, cancelled follows, broken streams, killed and stopped followers: 0 streams at the agent, 0 leases,
    0 connections in the follower, and its memory does not grow with what it has let go."""
    random.seed(7)
    start(followed, 2)
    open_ids: list[str] = []
    begun = 0
    sizes: list[int] = []
    give_up_at = time.monotonic() + 100
    while begun < 500 or open_ids:
        assert time.monotonic() < give_up_at
        for _ in range(min(10, 500 - begun)):
            open_ids.append(followed.begin())
            begun += 1
        followed.wait_until_followed(open_ids[-1])
        random.shuffle(open_ids)
        leaving = [open_ids.pop() for _ in range(min(len(open_ids), 8 if begun < 500 else 15))]
        for number, each in enumerate(leaving):
            if number % 2:
                followed.agent.move(each, random.choice(["COMPLETED", "CANCELED", "FAILED"]))
            followed.unwant(each)
        _disturb(followed, sizes)
    wait_until(lambda: followed.agent.streams_open() == 0, 30, what="0 open streams")
    survivors = [each for each in followed.deployment.followers if each.is_alive]
    assert survivors
    assert followed.counter("follows_opened") >= 400
    for follower in survivors:
        assert_ends_well(follower)
    assert (followed.wanting(), followed.owners()) == (set(), {})
    assert followed.agent.open_connections() == 0
    assert max(sizes[len(sizes) // 2 :]) < min(sizes) + 30_000  # KiB


def _disturb(followed: Followed, sizes: list[int]) -> None:
    what = random.random()
    living = [each for each in followed.deployment.followers if each.is_alive]
    if what < 0.25:
        followed.agent.cut_streams(how=random.choice(["close", "cut", "reset", "half"]))
    elif what < 0.45 and len(followed.deployment.followers) < 8:
        victim = random.choice(living)
        if random.random() < 0.5:
            victim.kill()
        else:
            victim.send(signal.SIGTERM)
        followed.deployment.start_follower(wait=False)
    wait_until(lambda: followed.agent.streams_open() > 0 or not followed.wanting(), 20, what="an open stream")
    sizes.extend(_rss_kib(each.pid) for each in living if each.is_alive and "follower ready" in each.output())


def _rss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
