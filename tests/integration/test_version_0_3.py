"""A2A 0.3 with agents that say exactly what a test wants: the requests they get, and how their answers are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from delegation.agent_task import AgentMessage, AgentTask, AgentTaskId, ContextId, DataPart, PushConfig, TaskState
from delegation.client import AgentClient
from delegation.errors import AgentTaskNotFound, CallAmbiguous, MethodNotOffered, PushNotAccepted
from delegation.task_extension import TASK_EXTENSION
from tests.support.clients import DEADLINE_S, client_of, message
from tests.support.raw_server import RawServer, Seen, answers, hangs, refuses, says, tells

T1 = AgentTaskId("t1")
TASK = {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": "working"}}
REST_TASK = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
SAID = {"kind": "message", "messageId": "m9", "role": "agent", "parts": [{"kind": "text", "text": "which?"}]}
PUSH = PushConfig(id="push-1", url="http://127.0.0.1:9/a2a/push/x", token="tok-0123456789abcdef")


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer(says(500)) as running:
        yield running


@contextmanager
def speaking(server: RawServer, binding: str = "JSONRPC", **options: Any) -> Iterator[AgentClient]:
    client, transport = client_of(server.url, binding, version="0.3", **options)
    with transport_of(transport):
        yield client


@contextmanager
def transport_of(transport: Any) -> Iterator[None]:
    try:
        yield
    finally:
        transport.close()


def send(client: AgentClient, push: PushConfig | None = None, **fields: Any) -> AgentTask | AgentMessage:
    return client.send_message(message("hi", **fields), push=push, deadline_s=DEADLINE_S)


def update(state: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "status-update", "taskId": "t1", "contextId": "c1", "status": {"state": state, **fields}}


# ------------------------------------------------------------ JSON-RPC


def test_a_message_goes_in_0_3s_names_and_its_answer_is_a_task(server: RawServer) -> None:
    """`message/send`, not blocking, parts with their kind, and the push config with its list of schemes."""
    server.behaviour = answers({**TASK, "status": {"state": "input-required", "message": SAID}})
    with speaking(server) as client:
        answer = send(client, PUSH, data=(DataPart(value={"n": 2**60}), DataPart(value=[1])))

    assert isinstance(answer, AgentTask)
    assert (answer.id, answer.state, answer.status_text) == ("t1", TaskState.INPUT_REQUIRED, "which?")
    (request,) = server.seen
    params = request.rpc["params"]
    assert (request.line, request.rpc["method"]) == ("POST /rpc HTTP/1.1", "message/send")
    assert params["message"]["parts"] == [
        {"kind": "text", "text": "hi"},
        {"kind": "data", "data": {"n": 2**60}},
        {"kind": "data", "data": {"value": [1]}, "metadata": {"data_part_compat": True}},
    ]
    assert (params["message"]["role"], params["message"]["kind"]) == ("user", "message")
    assert params["configuration"]["blocking"] is False
    assert params["configuration"]["pushNotificationConfig"] == {
        "id": PUSH.id,
        "url": PUSH.url,
        "token": PUSH.token,
        "authentication": {"schemes": ["Bearer"], "credentials": PUSH.token},
    }


def test_a_bare_message_is_an_answer(server: RawServer) -> None:
    """No task, nothing to watch."""
    server.behaviour = answers(SAID)
    with speaking(server) as client:
        answer = send(client)
    assert isinstance(answer, AgentMessage)
    assert answer.text == "which?"


def test_the_calls_about_a_task_have_0_3s_names(server: RawServer) -> None:
    """Look, cancel, removal of the push config (null or nothing at all for an answer), subscription."""
    with speaking(server, can_stream=True) as client:
        server.behaviour = answers({**TASK, "status": {"state": "completed"}})
        assert client.get_task(T1, deadline_s=DEADLINE_S).state is TaskState.COMPLETED
        server.behaviour = answers({**TASK, "status": {"state": "canceled"}})
        assert client.cancel_task(T1, deadline_s=DEADLINE_S).state is TaskState.CANCELED
        server.behaviour = answers(None)
        client.delete_push_config(T1, "push-1", deadline_s=DEADLINE_S)
        subscription = client.subscription(T1)
        with pytest.raises(CallAmbiguous):  # nothing at all is no task
            client.get_task(T1, deadline_s=DEADLINE_S)

    asked = [(seen.rpc["method"], seen.rpc["params"]) for seen in server.seen[:3]]
    assert asked == [
        ("tasks/get", {"id": "t1", "historyLength": 2}),
        ("tasks/cancel", {"id": "t1"}),
        ("tasks/pushNotificationConfig/delete", {"id": "t1", "pushNotificationConfigId": "push-1"}),
    ]
    body = json.loads(subscription.content)
    assert (body["method"], body["params"], subscription.question.version) == (
        "tasks/resubscribe",
        {"id": "t1"},
        "0.3",
    )


def test_a_start_is_heard_by_its_stream(server: RawServer) -> None:
    """`message/stream`: the task, its artifact in two chunks, its end."""
    artifact = {"artifactId": "a", "name": "report", "parts": [{"kind": "text", "text": "Ro"}]}
    chunk = {"kind": "artifact-update", "taskId": "t1", "contextId": "c1"}
    server.behaviour = tells(
        {**TASK, "status": {"state": "submitted"}},
        {**chunk, "artifact": artifact},
        {**chunk, "append": True, "artifact": {**artifact, "parts": [{"kind": "text", "text": "me"}]}},
        {**update("completed"), "final": True},
    )
    with speaking(server, can_stream=True) as client:
        answer = client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S)

    assert isinstance(answer, AgentTask)
    assert (answer.state, answer.text, answer.is_whole) == (TaskState.COMPLETED, "Ro\nme", True)
    assert server.seen[0].rpc["method"] == "message/stream"


def test_a_start_with_a_push_config_is_not_streamed(server: RawServer) -> None:
    """a2a-sdk 0.3's server pushes nothing more once its stream was left."""
    server.behaviour = answers(TASK)
    with speaking(server, can_stream=True) as client:
        client.start_task(message("hi"), push=PUSH, deadline_s=DEADLINE_S)
    assert [seen.rpc["method"] for seen in server.seen] == ["message/send"]


def test_what_0_3_does_not_have_is_not_asked_for(server: RawServer) -> None:
    """There are no lists of tasks: whether a message arrived nobody can tell."""
    with speaking(server) as client, pytest.raises(MethodNotOffered, match="has no such method"):
        client.find_task(ContextId("c1"), "m1", deadline_s=DEADLINE_S)
    assert server.seen == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [(-32001, AgentTaskNotFound), (-32601, MethodNotOffered), (-32004, MethodNotOffered), (-32003, PushNotAccepted)],
)
def test_errors_mean_what_they_mean_in_1_0(server: RawServer, code: int, kind: type[Exception]) -> None:
    """The codes did not change."""
    server.behaviour = refuses(code)
    with speaking(server) as client, pytest.raises(kind) as raised:
        client.get_task(T1, deadline_s=DEADLINE_S)
    assert type(raised.value) is kind


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"kind": "task"},
        {**TASK, "id": "other"},
        {**TASK, "kind": "status-update", "taskId": "t1"},
        SAID,
        [],
    ],
)
def test_an_answer_that_is_not_the_task_is_ambiguous(server: RawServer, result: Any) -> None:
    """It may have happened all the same."""
    server.behaviour = answers(result)
    with speaking(server) as client, pytest.raises(CallAmbiguous):
        client.get_task(T1, deadline_s=DEADLINE_S)


def test_c061_every_call_of_0_3_announces_the_extension_by_its_old_name(server: RawServer) -> None:
    """Case C061: `X-A2A-Extensions`, and the version; `A2A-Extensions` is 1.0's."""
    server.behaviour = answers(TASK)
    with speaking(server, can_stream=True, extensions=(TASK_EXTENSION, "urn:strange")) as client:
        send(client)
        client.get_task(T1, deadline_s=DEADLINE_S)
        client.cancel_task(T1, deadline_s=DEADLINE_S)
        subscription = client.subscription(T1)

    prepared = {name.decode().lower(): value.decode() for name, value in subscription.headers}
    for headers in (*(seen.headers for seen in server.seen), prepared):
        assert (headers["x-a2a-extensions"], headers["a2a-version"]) == (TASK_EXTENSION, "0.3")
        assert "a2a-extensions" not in headers


# ------------------------------------------------------------ HTTP+JSON


def test_c084_http_json_of_0_3_is_below_v1(server: RawServer) -> None:
    """Case C084: `/v1` before each path, no double slash; protobuf's names in the body, ours in what is read."""
    with speaking(server, "HTTP+JSON", can_stream=True) as client:
        server.behaviour = says(200, json.dumps({"task": REST_TASK}).encode())
        answer = send(client, PUSH, data=(DataPart(value=[2**60]),))
        server.behaviour = says(200, json.dumps(REST_TASK).encode())
        assert client.get_task(T1, deadline_s=DEADLINE_S).state is TaskState.WORKING
        assert client.cancel_task(T1, deadline_s=DEADLINE_S).state is TaskState.WORKING
        server.behaviour = says(204)
        client.delete_push_config(T1, "push-1", deadline_s=DEADLINE_S)
        subscriptions = [client.subscription(T1).method, client.subscribe_otherwise(), client.subscription(T1).method]

    assert isinstance(answer, AgentTask)
    assert [seen.line.rpartition(" ")[0] for seen in server.seen] == [
        "POST /rpc/v1/message:send",
        "GET /rpc/v1/tasks/t1?historyLength=2",
        "POST /rpc/v1/tasks/t1:cancel",
        "DELETE /rpc/v1/tasks/t1/pushNotificationConfigs/push-1",
    ]
    assert {seen.headers["a2a-version"] for seen in server.seen} == {"0.3"}
    sent = json.loads(server.seen[0].body)
    assert sent["request"]["content"][1]["data"] == {"data": {"value": [2**60]}}
    assert sent["configuration"]["push_notification"]["token"] == PUSH.token
    assert subscriptions == ["POST", True, "GET"]


def test_http_json_of_0_3_streams_its_start(server: RawServer) -> None:
    """Without JSON-RPC's envelope, each event in the member that names it."""
    ended = {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}, "final": True}
    part = {"file": {"fileWithBytes": "VW05dFpRPT0=", "name": "r.txt"}}
    made = {"taskId": "t1", "contextId": "c1", "artifact": {"artifactId": "a", "parts": [part]}}
    began = {**REST_TASK, "status": {"state": "TASK_STATE_SUBMITTED"}}
    server.behaviour = tells({"task": began}, {"artifactUpdate": made}, {"statusUpdate": ended}, rpc=False)
    with speaking(server, "HTTP+JSON", can_stream=True) as client:
        answer = client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S)

    assert isinstance(answer, AgentTask)
    assert answer.state is TaskState.COMPLETED
    assert answer.artifacts[0].parts == ({"raw": "Um9tZQ==", "filename": "r.txt"},)
    assert server.seen[0].line.startswith("POST /rpc/v1/message:stream ")


def test_a_connection_that_hangs_in_0_3_ends_by_the_deadline(server: RawServer) -> None:
    """The official transport of 0.3 goes out through the same guarded one."""
    server.behaviour = hangs()
    with speaking(server) as client, pytest.raises(CallAmbiguous):
        client.get_task(T1, deadline_s=0.3)


def test_an_extended_card_is_left_as_it_is(server: RawServer) -> None:
    """It is asked for by 0.3's name, and no task."""
    card = {"protocolVersion": "0.3.0", "name": "n", "url": "http://x", "skills": []}
    server.behaviour = answers(card)
    with speaking(server) as client:
        assert client.extended_card(deadline_s=DEADLINE_S, max_bytes=1_000_000) == card
    assert server.seen[0].rpc["method"] == "agent/getAuthenticatedExtendedCard"


def test_an_answer_without_a_result_is_still_checked(server: RawServer) -> None:
    """Its id is the request's, or it is no answer to it."""

    def behave(_: Seen, connection: Any) -> bool:
        return says(200, b'{"jsonrpc": "2.0", "id": "another"}')(_, connection)

    server.behaviour = behave
    with speaking(server) as client, pytest.raises(CallAmbiguous, match="id is not"):
        client.delete_push_config(T1, "push-1", deadline_s=DEADLINE_S)
