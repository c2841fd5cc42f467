"""Other people's servers: a2a-sdk (its last of A2A 0.3 too), the JavaScript SDK, fasta2a, each through every turn.

What the agents do is told in ``tests/peers``; what they were asked is read from their own logs. A peer whose packages
cannot be had is skipped with the reason. In CI that is a failure, but for the JavaScript peers where there is no Node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from delegation.agent_task import AgentTaskId, ContextId, TaskState
from delegation.errors import CallAmbiguous, MethodNotOffered
from delegation.state import Delegation
from tests.peers.stage import made_parts
from tests.support.cases import Bench, bench, ended, record_of, wait_for_record
from tests.support.child import wait_until
from tests.support.clients import SdkAgent
from tests.support.peers import Call, NotInstalled, Peer, fasta2a_peer, js_peer, sdk_03_peer, sdk_peer
from workers import DelegationHandle

#: The two SDKs serve both bindings; which is spoken is the first on the card.
SDKS = ("sdk", "sdk-rest", "js", "js-rest")
PEERS = (*SDKS, "fasta2a", "sdk03")
#: Spoken to in A2A 0.3, where all but this is the same.
OLD = ("sdk03", "sdk03-rest")
WATCHES = ("push", "follow", "poll")
#: fasta2a's card offers no pushes.
HEARD = [(name, watch) for name in PEERS for watch in WATCHES if (name, watch) != ("fasta2a", "push")]
#: The safety nets are too late to be what hears; the cancel deadline is one that a test can wait for.
TIMING = {"recheck_first": 30, "recheck_max": 60, "cancel_deadline": 5}
INTERVAL_S = 0.5


pytestmark = pytest.mark.timeout(360)  # the first one may have to wait for packages


class World:
    """The peers that run here, each registered once for every way of hearing it, and why the others do not."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.peers: dict[str, Peer] = {}
        self.absent: dict[str, str] = {}
        self.bench: Bench

    def start(self, ends: ExitStack) -> None:
        for name in (*PEERS, "fasta2a-plain", "sdk03-rest"):
            try:
                self.peers[name] = ends.enter_context(make_peer(self.directory, name).start())
            except NotInstalled as reason:
                self.absent[name] = str(reason)
        urls = {f"{name}-{watch}": peer.url for name, peer in self.peers.items() for watch in WATCHES}
        settings = {
            agent: {"updates": agent.rpartition("-")[2], "follow_interval": INTERVAL_S, "protocol": protocol_of(agent)}
            for agent in urls
        }
        self.bench = ends.enter_context(
            bench(self.directory, {}, urls=urls, agent_settings=settings, timing=TIMING, follower=True)
        )

    def peer(self, name: str) -> Peer:
        if name in self.absent:
            pytest.skip(self.absent[name])
        return self.peers[name]


def make_peer(directory: Path, name: str) -> Peer:
    kind, _, manner = name.partition("-")
    flags = {"rest": ["--rest-first"], "plain": ["--forgetful"]}.get(manner, [])
    makers = {"sdk": sdk_peer, "js": js_peer, "fasta2a": fasta2a_peer, "sdk03": sdk_03_peer}
    return makers[kind](directory, name, *flags)


def protocol_of(name: str) -> str:
    return "0.3" if name.startswith(OLD) else "1.0"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with ExitStack() as ends:
        made = World(tmp_path_factory.mktemp("peers"))
        made.start(ends)
        yield made


class Talk:
    """One delegation to a peer."""

    def __init__(self, world: World, peer: Peer, goal: str, watch: str) -> None:
        self.peer = peer
        self.handle: DelegationHandle = world.bench.run(f"{peer.name}-{watch}", goal=goal)
        self.id = self.handle.id

    @property
    def task_id(self) -> str:
        return record_of(self.handle).progress.agent_task_id or ""

    def wait_for(self, state: TaskState) -> Delegation:
        return wait_for_record(self.handle, lambda d: d.state is state, what=state)

    def wait_for_question(self, number: int) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            question: dict[str, Any] | None = self.handle.describe()["question"]
            return question if question is not None and question["number"] == number else None

        return wait_until(look, 15, what=f"question {number}")

    def let_go_on(self) -> None:
        """When the agent holds, and whoever shall hear it is listening."""
        self.wait_for(TaskState.WORKING)
        if self.handle.describe()["watch"] == "follow":
            wait_for_record(self.handle, lambda d: d.followed, what="open stream")
        self.peer.go_on(self.id)

    def subscriptions(self) -> list[Call]:
        return self.peer.about(self.task_id, "SubscribeToTask")

    def told(self, state: str) -> list[str]:
        """How each news of this state was heard."""
        return [line["cause"] for line in self.handle.history() if line["state"] == state]


@pytest.fixture
def peer(world: World, name: str) -> Iterator[Peer]:
    """In the end no stream is open at it, and every request said which A2A is spoken and by whom."""
    found = world.peer(name)
    yield found
    found.wait_until_quiet()
    for call in found.calls():
        spoken = "1.0" if call.method.startswith("GET /.well-known") else protocol_of(name)
        assert (call.headers["a2a-version"], call.headers["x-participant-id"]) == (spoken, "delegation")


@pytest.mark.parametrize("name", SDKS)
def test_a_message_is_an_outcome(world: World, peer: Peer) -> None:
    """Instant answer, no task: COMPLETED with its text, after one request."""
    talk = Talk(world, peer, "say Sunny", "poll")
    outcome = ended(talk.handle)
    assert (outcome["state"], outcome["text"], outcome["agent_task_id"]) == ("COMPLETED", "Sunny", None)
    assert [call.name for call in peer.sends(talk.id)] == ["SendStreamingMessage"]


@pytest.mark.parametrize("name", PEERS)
def test_a_task_that_ends_at_once_is_an_outcome(world: World, peer: Peer) -> None:
    """Its end is in the first stream, or one look away."""
    outcome = ended(Talk(world, peer, "make Rome", "poll").handle)
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "Rome")


@pytest.mark.parametrize(("name", "watch"), HEARD)
def test_the_end_of_a_task_is_heard(world: World, peer: Peer, watch: str) -> None:
    """By push, by stream, by asking: the history says which, and all kinds of parts are kept as they came."""
    talk = Talk(world, peer, "hold; make Rome", watch)
    talk.let_go_on()

    outcome = ended(talk.handle)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "Rome")
    assert talk.told("COMPLETED") == [watch]
    (artifact,) = talk.handle.artifacts()
    parts = made_parts("Rome")
    if peer.name in OLD:
        del parts[1]["mediaType"]  # 0.3 has none for data
    assert (artifact["name"], artifact["parts"]) == ("report", parts)
    assert len(peer.sends(talk.id)) == 1


@pytest.mark.parametrize("name", PEERS)
def test_a_start_is_heard_by_stream_and_left_when_the_work_begins(world: World, peer: Peer) -> None:
    """SendStreamingMessage once, closed by us at WORKING; the work goes on without a listener."""
    talk = Talk(world, peer, "hold; make Rome", "poll")
    talk.wait_for(TaskState.WORKING)

    (send,) = wait_until(lambda: [call for call in peer.sends(talk.id) if call.ended], what="end of the stream")
    talk.let_go_on()

    assert (send.name, send.stream, send.ended) == ("SendStreamingMessage", True, "client")
    assert send.message["messageId"] == f"{talk.id}:goal"
    assert send.path.startswith("/rest") == peer.name.endswith("-rest")
    assert ended(talk.handle)["state"] == "COMPLETED"
    assert len(peer.sends(talk.id)) == 1


@pytest.mark.parametrize("name", SDKS)
def test_a_push_config_has_both_proofs_and_is_taken_back(world: World, peer: Peer) -> None:
    """The JavaScript SDK sends the token only where there are no credentials, older Python ones nothing but it."""
    talk = Talk(world, peer, "ask Why?", "push")
    talk.wait_for_question(1)
    talk.handle.reply("Because")
    assert ended(talk.handle)["state"] == "COMPLETED"

    goal, reply = peer.sends(talk.id)
    config = goal.params["configuration"]["taskPushNotificationConfig"]
    assert config["authentication"] == {"scheme": "Bearer", "credentials": config["token"]}
    assert "taskPushNotificationConfig" not in reply.params["configuration"]
    (removal,) = wait_until(lambda: peer.about(talk.task_id, "DeleteTaskPushNotificationConfig"), what="removal")
    assert config["id"] in (removal.params.get("id"), removal.path.rpartition("/")[2])


@pytest.mark.parametrize(("name", "watch"), HEARD)
def test_two_questions_get_their_answers(world: World, peer: Peer, watch: str) -> None:
    """Each is heard, answered once in the same task and context, and the end holds both answers."""
    talk = Talk(world, peer, "hold; ask Which month?; ask Which year?", watch)
    talk.let_go_on()
    assert talk.wait_for_question(1)["text"] == "Which month?"
    assert talk.told("INPUT_REQUIRED") == [watch]
    talk.handle.reply("May")
    assert talk.wait_for_question(2)["text"] == "Which year?"
    talk.handle.reply("2027")

    outcome = ended(talk.handle)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "May and 2027")
    goal, *replies = peer.sends(talk.id)
    assert [call.name for call in replies] == ["SendMessage", "SendMessage"]
    assert [call.message["messageId"] for call in (goal, *replies)] == [
        f"{talk.id}:goal",
        f"{talk.id}:reply:1",
        f"{talk.id}:reply:2",
    ]
    assert {call.message["taskId"] for call in replies} == {talk.task_id}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(("step", "state"), [("hold", TaskState.WORKING), ("ask Why?", TaskState.INPUT_REQUIRED)])
def test_a_cancel_ends_the_task(world: World, peer: Peer, step: str, state: TaskState) -> None:
    """At work or waiting for us: CANCELED by the agent, and the receipt says so."""
    talk = Talk(world, peer, step, "poll")
    talk.wait_for(state)
    talk.handle.cancel("enough")

    outcome = ended(talk.handle)

    assert (outcome["state"], outcome["reason"]) == ("CANCELED", None)
    assert talk.handle.describe()["cancel"] == "cancelled"
    assert peer.about(talk.task_id, "CancelTask")


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize(("step", "state"), [("fail No seats", "FAILED"), ("reject Not my job", "REJECTED")])
def test_an_unhappy_end_comes_with_the_agents_words(world: World, peer: Peer, step: str, state: str) -> None:
    """FAILED and REJECTED are the agent's own: no reason of ours."""
    outcome = ended(Talk(world, peer, step, "poll").handle)
    assert (outcome["state"], outcome["reason"]) == (state, None)
    assert outcome["text"] == step.partition(" ")[2]


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("sdk", ["client"]),
        ("sdk-rest", ["client"]),
        ("js", ["agent", "client"]),
        ("js-rest", ["agent", "client"]),
        ("fasta2a", ["agent", "agent"]),
    ],
)
def test_a_question_is_followed_as_the_server_has_it(world: World, peer: Peer, ends: list[str]) -> None:
    """a2a-sdk keeps the stream open through a question, the JavaScript SDK ends that one and keeps the next, fasta2a
    ends each at once. The reply closes what is open, and a new stream hears the rest."""
    talk = Talk(world, peer, "hold; ask Which month?; hold", "follow")
    talk.let_go_on()
    talk.wait_for_question(1)
    wait_until(lambda: len(talk.subscriptions()) >= len(ends), what="subscriptions")

    talk.handle.reply("May")
    talk.let_go_on()

    assert ended(talk.handle)["text"] == "May"
    assert talk.told("COMPLETED") == ["follow"]
    ended_by = [call.ended for call in talk.subscriptions()]
    assert ended_by[: len(ends)] == ends
    assert len(ended_by) > len(ends)


# ------------------------------------------------------------ what is special to one of them


@pytest.mark.parametrize("name", ["sdk03"])
def test_a_push_config_in_0_3s_shape_is_taken_back(world: World, peer: Peer) -> None:
    """Token and credentials in `pushNotificationConfig`; a push is a bare task; the answer to the removal is empty. It
    is sent without a stream: this server pushes nothing more once its stream was left."""
    talk = Talk(world, peer, "hold; make Rome", "push")
    talk.let_go_on()

    assert ended(talk.handle)["state"] == "COMPLETED"

    (send,) = peer.sends(talk.id)
    assert send.name == "SendMessage"
    config = send.params["configuration"]["pushNotificationConfig"]
    assert config["authentication"] == {"schemes": ["Bearer"], "credentials": config["token"]}
    wait_for_record(talk.handle, lambda d: d.timers.cleanup_at is None, what="clean-up")
    assert len(peer.about(talk.task_id, "DeleteTaskPushNotificationConfig")) == 1


@pytest.mark.parametrize("name", ["sdk03-rest"])
@pytest.mark.parametrize("watch", ["push", "follow"])
def test_http_json_of_0_3_is_spoken_as_well(world: World, peer: Peer, watch: str) -> None:
    """A question and its answer below /v1. This server is subscribed to by GET, which is found out once."""
    talk = Talk(world, peer, "hold; ask Which month?; make Rome", watch)
    talk.let_go_on()
    assert talk.wait_for_question(1)["text"] == "Which month?"
    talk.handle.reply("May")

    assert ended(talk.handle)["text"] == "Rome\nMay"
    assert {call.path.startswith("/rest/v1/") for call in peer.about(talk.task_id)} == {True}
    assert talk.told("INPUT_REQUIRED")[0] == watch


def test_a_send_that_a_crash_cut_off_is_found_again(world: World, tmp_path: Path) -> None:
    """Each worker dies by kill -9 with the answer in its hand. Both SDKs list the task, and nothing is sent twice;
    fasta2a lists none (-32004) and A2A 0.3 has no lists, so nobody can know: send.outcome_unknown, and nothing is sent
    twice either."""
    silent = ("fasta2a", *OLD)
    names = [name for name in PEERS if name in world.peers]
    settings = {name: {"updates": "poll", "protocol": protocol_of(name)} for name in names}
    urls = {name: world.peers[name].url for name in names}
    with bench(tmp_path, {}, urls=urls, agent_settings=settings, workers=0, web=False, concurrency=1) as it:
        handles = {name: it.run(name, goal="make Rome") for name in names}
        crash = {"DELEGATION_FAILPOINT": "send.after_call:kill"}
        doomed = [it.deployment.start_worker(wait=False, env=crash) for _ in names]
        wait_until(lambda: not any(worker.is_alive for worker in doomed), 60, what="last crash")
        it.deployment.start_worker()
        outcomes = {name: ended(handle, 60) for name, handle in handles.items()}

    reasons = {name: outcome["reason"] for name, outcome in outcomes.items()}
    assert reasons == {name: "send.outcome_unknown" if name in silent else None for name in names}
    texts = {outcome["text"] for name, outcome in outcomes.items() if name not in silent}
    assert texts == {"Rome"}
    assert {name: len(world.peers[name].sends(handle.id)) for name, handle in handles.items()} == dict.fromkeys(
        names, 1
    )


@pytest.mark.parametrize("name", ["fasta2a"])
def test_fasta2as_times_without_a_zone_are_utc(world: World, peer: Peer) -> None:
    """They lose no answer, and are kept as all times are; its events have none."""
    talk = Talk(world, peer, "hold", "poll")
    timed = wait_for_record(talk.handle, lambda d: d.progress.status_at, what="time of the status")
    assert re.fullmatch(r"....-..-..T..:..:..\.\d{6}Z", timed.progress.status_at)
    talk.let_go_on()
    assert ended(talk.handle)["state"] == "COMPLETED"


def test_what_fasta2a_does_not_know_is_an_error_of_its_kind(world: World) -> None:
    """ListTasks is -32004: not offered, so nobody asks again. A method that it has not heard of is HTTP 500 and plain
    text: the call may have had its effect."""
    agent = SdkAgent(world.peer("fasta2a-plain").url)
    with closing(agent.transport):
        with pytest.raises(MethodNotOffered) as refusal:
            agent.client.find_task(ContextId("c1"), "m1", deadline_s=10)
        assert refusal.value.a2a_code == -32004
        with pytest.raises(CallAmbiguous, match="HTTP 500"):
            agent.client.delete_push_config(AgentTaskId("t1"), "p1", deadline_s=10)


def test_fasta2as_own_storage_cannot_take_a_reply(world: World) -> None:
    """It makes every message a new task. The reply counts as refused, its question is open again, the task that it
    began for nothing is cancelled, and it is not sent once more; the delegation waits until it is cancelled."""
    peer = world.peer("fasta2a-plain")
    talk = Talk(world, peer, "ask Which month?", "poll")
    talk.wait_for_question(1)
    talk.handle.reply("hold")
    strays = wait_until(lambda: peer.calls("CancelTask"), what="cancel of the stray task")

    refused = wait_for_record(talk.handle, lambda d: d.progress.turn == 1 and d.waits_for_reply, what="open question")

    assert [call.message["messageId"] for call in peer.sends(talk.id)] == [f"{talk.id}:goal", f"{talk.id}:reply:1"]
    assert [call.task_id == refused.progress.agent_task_id for call in strays] == [False]
    assert "reply 1 refused: the agent began another task with it" in [line["text"] for line in talk.handle.history()]
    talk.handle.cancel("no use")
    assert ended(talk.handle)["state"] == "CANCELED"
    peer.wait_until_quiet()


@pytest.mark.parametrize(
    ("name", "reason", "receipt"),
    [
        ("sdk", None, "cancelled"),
        ("js", "cancel.unconfirmed", "unreachable"),
        ("fasta2a", "cancel.unconfirmed", "unreachable"),
    ],
)
def test_a_cancel_that_the_agents_code_ignores_ends_all_the_same(
    world: World, peer: Peer, reason: str | None, receipt: str
) -> None:
    """a2a-sdk's server writes CANCELED itself. The JavaScript SDK's call hangs, fasta2a's answers with the task as it
    was: there the cancel deadline ends it."""
    talk = Talk(world, peer, "deaf; ask Why?", "poll")
    talk.wait_for(TaskState.INPUT_REQUIRED)
    talk.handle.cancel("enough")

    outcome = ended(talk.handle)

    assert (outcome["state"], outcome["reason"]) == ("CANCELED", reason)
    assert talk.handle.describe()["cancel"] == receipt
    assert peer.about(talk.task_id, "CancelTask")
