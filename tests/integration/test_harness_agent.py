"""The harness agent is as strict, and streams as oddly, as the peers it stands for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.event_reader import EventReader
from tests.support.processes import HarnessAgent, wait_until
from tests.support.receiver import Receiver, RpcCaller, send_params

TASK_EXTENSION = "https://madarauchiha-314.github.io/tiny-harness/a2a/ext/task/v1"
OURS = {"X-Participant-Id": "us", "A2A-Extensions": TASK_EXTENSION}
REPORTER = {"id": "us", "kind": "agent", "role": "reporter"}
TWO_QUESTIONS = "ask: Which month? | ask: Which year? | say: done"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[HarnessAgent]:
    with HarnessAgent(tmp_path).start() as agent:
        yield agent


@pytest.fixture
def client(agent: HarnessAgent) -> Iterator[RpcCaller]:
    with RpcCaller(agent.url, OURS, path="/") as client:
        yield client


def enveloped(goal: str, message_id: str = "m1", **payload: Any) -> dict[str, Any]:
    """A first message as a brief makes it: text, and an envelope with us as reporter."""
    envelope = {"kind": "task", "payload": {"name": "n", "goal": goal, "participants": [REPORTER], **payload}}
    data = {"data": envelope, "mediaType": "application/vnd.tiny-harness.event+json"}
    return send_params("as in the envelope", messageId=message_id, parts=[{"text": "please"}, data])


def subscribe(agent: HarnessAgent, task_id: str) -> EventReader:
    return EventReader(agent.url, "SubscribeToTask", path="/", headers=OURS, id=task_id)


def task_asking(client: RpcCaller) -> dict[str, Any]:
    """A task that waits for its first answer."""
    params = enveloped(TWO_QUESTIONS)
    params["configuration"]["returnImmediately"] = False
    task: dict[str, Any] = client.call("SendMessage", **params)["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    return task


def answer(client: RpcCaller, task: dict[str, Any], text: str, **message: Any) -> dict[str, Any]:
    """The task after the turn that this reply causes."""
    whole = {"messageId": text, "taskId": task["id"], "contextId": task["contextId"], **message}
    after: dict[str, Any] = client.send(text, return_immediately=False, **whole)["task"]
    return after


def test_it_asks_twice_and_completes_with_the_answers(client: RpcCaller) -> None:
    """A whole conversation; the same reply sent again is not a second answer."""
    task = task_asking(client)
    for _ in range(2):
        again = answer(client, task, "June")
        assert again["status"]["message"]["parts"] == [{"text": "Which year?"}]
    done = answer(client, task, "2026")
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert done["artifacts"][0]["parts"] == [{"text": "done: June, 2026"}]


def test_the_answer_to_a_reply_may_be_the_old_question(client: RpcCaller) -> None:
    """With returnImmediately it is given before the task has moved."""
    task = task_asking(client)
    after = client.send("June", taskId=task["id"], messageId="m2")["task"]
    assert after["status"] == task["status"]


def test_a_text_alone_is_enough(client: RpcCaller) -> None:
    """Without an envelope the goal is in the text, and who sent it may go on with it."""
    task = client.send("Title: ask: Wh…\n\nask: Which? | say: ok\n\ncriteria", return_immediately=False)["task"]
    assert task["status"]["message"]["parts"] == [{"text": "Which?"}]
    assert answer(client, task, "this")["artifacts"][0]["parts"] == [{"text": "ok: this"}]


def test_strangers_find_nothing(agent: HarnessAgent, client: RpcCaller) -> None:
    """Every call of nobody or of somebody else ends as for a missing task; nobody can begin none."""
    task_id = task_asking(client)["id"]
    reply = {"taskId": task_id, "messageId": "m2"}
    for headers in ({}, {"X-Participant-Id": "alice"}):
        with RpcCaller(agent.url, headers, path="/") as stranger:
            for method in ("GetTask", "CancelTask", "SubscribeToTask"):
                assert stranger.error(method, id=task_id) == -32001
            assert stranger.error("CreateTaskPushNotificationConfig", taskId=task_id, url="http://x.test") == -32001
            assert stranger.error("SendMessage", **send_params("June", **reply)) == -32001
            assert stranger.call("ListTasks")["tasks"] == []
    with RpcCaller(agent.url, path="/") as nobody:
        assert nobody.error("SendMessage", **send_params("x")) == -32602
    forwarded = send_params("June", metadata={"participant_id": "alice"}, **reply)
    assert client.error("SendMessage", **forwarded) == -32001
    assert [task["id"] for task in client.call("ListTasks")["tasks"]] == [task_id]


def test_an_envelope_without_us_locks_us_out(client: RpcCaller, tmp_path: Path) -> None:
    """Participants come from the envelope alone, unless the agent adds who sent it."""
    params = enveloped("ask: Which?", participants=[])
    task_id = client.call("SendMessage", **params)["task"]["id"]
    assert client.error("GetTask", id=task_id) == -32001
    with (
        HarnessAgent(tmp_path, name="kind", adds_sender=True).start() as kind,
        RpcCaller(kind.url, OURS, path="/") as ours,
    ):
        task_id = ours.call("SendMessage", **params)["task"]["id"]
        assert ours.call("GetTask", id=task_id)["id"] == task_id


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"kind": "task", "payload": {"name": "n"}}, "invalid task extension"),
        ({"kind": "task", "payload": {"name": "n", "goal": "g", "model": "m"}}, "invalid task extension"),
        ({"kind": "task", "payload": {}, "version": 1}, "invalid event envelope"),
        ({"kind": "wish", "payload": {}}, "invalid event envelope"),
    ],
)
def test_a_bad_envelope_is_refused(client: RpcCaller, data: dict[str, Any], problem: str) -> None:
    """Missing, unknown and wrong keys, each before any task is made."""
    params = enveloped("x")
    params["message"]["parts"][1]["data"] = data
    error = client.post("SendMessage", **params).json()["error"]
    assert error["code"] == -32602
    assert error["message"].startswith(problem)
    assert client.call("ListTasks")["tasks"] == []


def test_a_foreign_context_and_a_late_message_are_refused(client: RpcCaller) -> None:
    """The context id must be the task's own; a task that has ended takes nothing and cannot be cancelled."""
    task = task_asking(client)
    foreign = send_params("June", taskId=task["id"], contextId="other", messageId="m2")
    assert client.error("SendMessage", **foreign) == -32602
    assert client.call("CancelTask", id=task["id"])["status"]["state"] == "TASK_STATE_CANCELED"
    assert client.error("CancelTask", id=task["id"]) == -32002
    assert client.error("SendMessage", **send_params("June", taskId=task["id"], messageId="m3")) == -32004


def test_extensions_are_those_of_the_card(agent: HarnessAgent, tmp_path: Path) -> None:
    """Naming another one is refused on every call; a required one must be named."""
    with RpcCaller(agent.url, {**OURS, "A2A-Extensions": "https://example.test/x"}, path="/") as over_eager:
        assert over_eager.error("SendMessage", **enveloped("x")) == -32004
        assert over_eager.error("GetTask", id="t") == -32004
    with (
        HarnessAgent(tmp_path, name="strict", requires_extension=True).start() as strict,
        RpcCaller(strict.url, {"X-Participant-Id": "us"}, path="/") as bare,
    ):
        assert bare.error("SendMessage", **enveloped("x")) == -32008
        offered = bare.get("/.well-known/agent-card.json").json()["capabilities"]["extensions"]
        assert {each["uri"] for each in offered if each.get("required")} == {TASK_EXTENSION}


def test_a_subscription_replays_and_ends_when_the_newest_is_a_question(agent: HarnessAgent, client: RpcCaller) -> None:
    """The task, then the log from its first entry; over at once while a question is open, and for an ended task."""
    task = task_asking(client)
    with subscribe(agent, task["id"]) as stream:
        assert stream.states() == ["INPUT_REQUIRED", "WORKING", "INPUT_REQUIRED"]
    answer(client, task, "June")
    answer(client, task, "2026")
    with subscribe(agent, task["id"]) as stream:
        replayed = ["WORKING", "INPUT_REQUIRED", "WORKING", "INPUT_REQUIRED", "WORKING", "COMPLETED"]
        assert stream.states() == ["COMPLETED", *replayed]
    assert agent.streams_open() == 0


def test_a_subscription_waits_while_the_task_works(agent: HarnessAgent, client: RpcCaller) -> None:
    """It hears the next question live; a client that hangs up is noticed."""
    task_id = client.call("SendMessage", **enveloped("work: 0.5 | ask: Which?"))["task"]["id"]
    with subscribe(agent, task_id) as stream, subscribe(agent, task_id) as other:
        stream.next()
        other.close()
        assert stream.states()[-1] == "INPUT_REQUIRED"
    agent.wait_for_streams(0)
    assert agent.streams_opened() == 2


def test_a_streamed_send_ends_with_its_turn(agent: HarnessAgent) -> None:
    """The task SUBMITTED, then what the message causes."""
    with EventReader(agent.url, "SendStreamingMessage", path="/", headers=OURS, **enveloped(TWO_QUESTIONS)) as stream:
        assert stream.states() == ["SUBMITTED", "WORKING", "INPUT_REQUIRED"]


def test_pushes_carry_the_token(client: RpcCaller) -> None:
    """A config of ours hears of the entries after it, until it is deleted."""
    task = task_asking(client)
    with Receiver() as receiver:
        config = {"taskId": task["id"], "id": "p1", "url": receiver.url, "token": "t-1"}
        client.call("CreateTaskPushNotificationConfig", **config)
        answer(client, task, "June")
        wait_until(lambda: receiver.states() == ["WORKING", "INPUT_REQUIRED"], what="two pushes")
        assert receiver.received[0][0]["x-a2a-notification-token"] == "t-1"
        client.post("DeleteTaskPushNotificationConfig", taskId=task["id"], id="p1")
        assert client.call("ListTaskPushNotificationConfigs", taskId=task["id"]).get("configs", []) == []
        answer(client, task, "2026")
    assert len(receiver.received) == 2


def test_the_log_shows_every_request(agent: HarnessAgent, client: RpcCaller) -> None:
    """Method, the headers that tell who calls and how, and the parameters; the other binding too."""
    task = task_asking(client)
    client.get(f"/tasks/{task['id']}")
    sent, read = agent.calls()
    assert (sent["method"], sent["params"]["message"]["messageId"]) == ("SendMessage", "m1")
    assert sent["headers"]["a2a-extensions"] == TASK_EXTENSION
    assert (read["method"], read["headers"]["x-participant-id"]) == (f"GET /tasks/{task['id']}", "us")
    assert agent.calls("SendMessage") == [sent]
