"""Starting a task by a stream: at a real agent in both bindings, and at servers that stream what they like."""

from __future__ import annotations

import json
import socket
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from delegation.agent_task import AgentMessage, AgentTask, PushConfig, TaskState
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentRefused,
    AgentUnreachable,
    AnswerTooLarge,
    AuthenticationRefused,
    CallAmbiguous,
    MethodNotOffered,
    PushNotAccepted,
)
from tests.support.child import free_port
from tests.support.clients import DEADLINE_S, PATIENCE_S, SdkAgent, client_of, message, sdk_agent_process
from tests.support.raw_server import (
    STREAM_HEAD,
    Behaviour,
    RawServer,
    Seen,
    answers,
    chunk,
    closes,
    hangs,
    refuses,
    resets,
    says,
    tells,
)

EXTENSION = "https://madarauchiha-314.github.io/tiny-harness/a2a/ext/task/v1"


def task(state: str = "SUBMITTED", **fields: Any) -> dict[str, Any]:
    return {"task": {"id": "t1", "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}, **fields}}


def status(state: str) -> dict[str, Any]:
    return {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}}}


def artifact(text: str, **fields: Any) -> dict[str, Any]:
    made = {"artifactId": "r1", "parts": [{"text": text}]}
    return {"artifactUpdate": {"taskId": "t1", "contextId": "c1", "artifact": made, **fields}}


# --- An agent on the official SDK, both bindings ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=["JSONRPC", "HTTP+JSON"])
def sdk_agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SdkAgent]:
    log = tmp_path_factory.mktemp("sdk") / "agent.log"
    with sdk_agent_process(request.param, log, "--extension", EXTENSION) as agent:
        yield agent


def start(agent: SdkAgent, text: str, number: int) -> AgentTask:
    started = agent.client.start_task(message(text, number), push=None, deadline_s=30)
    assert isinstance(started, AgentTask)
    return started


def test_a_stream_is_left_when_the_work_begins_and_the_work_goes_on(sdk_agent: SdkAgent) -> None:
    """The agent counts no open stream afterwards, and completes the task all the same."""
    opened = sdk_agent.streams()["opened"]
    started = start(sdk_agent, "work; wait 1; make 42", 1)
    assert started.state is TaskState.WORKING
    assert started.context_id == "ctx-1"
    assert all(connection.is_idle() for connection in sdk_agent.transport._pool().connections)
    sdk_agent.wait_until_no_stream_is_open()
    assert sdk_agent.streams()["opened"] == opened + 1
    assert sdk_agent.until(started, TaskState.COMPLETED).text == "42"


def test_a_question_and_a_direct_answer_come_by_the_stream(sdk_agent: SdkAgent) -> None:
    """An interrupted task is past SUBMITTED; a message needs no task."""
    asking = start(sdk_agent, "ask Which?", 2)
    assert (asking.state, asking.status_text) == (TaskState.INPUT_REQUIRED, "Which?")
    answer = sdk_agent.client.start_task(message("say hello", 3), push=None, deadline_s=DEADLINE_S)
    assert isinstance(answer, AgentMessage)
    assert answer.text == "hello"
    sdk_agent.wait_until_no_stream_is_open()


def test_a_crash_of_the_agent_after_it_named_the_task_leaves_a_known_task(sdk_agent: SdkAgent) -> None:
    """An error in the stream loses nothing; GetTask tells the rest."""
    known = start(sdk_agent, "crash", 4)
    assert known.id
    assert sdk_agent.until(known, TaskState.FAILED).id == known.id


def test_the_extensions_of_the_card_are_named_on_every_call(sdk_agent: SdkAgent) -> None:
    """A required one that we have is accepted; the fetch of the card comes before there is one to read them from."""
    started = start(sdk_agent, "ask x", 5)
    sdk_agent.client.get_task(started.id, deadline_s=DEADLINE_S)
    sdk_agent.client.cancel_task(started.id, deadline_s=DEADLINE_S)
    card, *calls = sdk_agent.seen()
    assert "a2a-extensions" not in card["headers"]
    assert {call["headers"].get("a2a-extensions") for call in calls} == {EXTENSION}


def test_the_history_is_as_long_as_was_asked_for(sdk_agent: SdkAgent) -> None:
    """By the ids in it a reply whose answer was lost is found."""
    asking = start(sdk_agent, "ask first", 6)
    texts = {"m6"}
    for number in range(7, 10):
        reply = replace(message("ask more", number, agent_task_id=asking.id), context_id=asking.context_id)
        sdk_agent.client.send_message(reply, push=None, deadline_s=DEADLINE_S)
        sdk_agent.until(asking, TaskState.INPUT_REQUIRED)
        texts.add(f"m{number}")
    found = sdk_agent.client.get_task(asking.id, deadline_s=DEADLINE_S, history=20)
    assert texts <= found.history_message_ids
    assert found.status_message_id
    assert len(sdk_agent.client.get_task(asking.id, deadline_s=DEADLINE_S).history_message_ids) <= 2


def test_two_hundred_starts_leave_no_stream_open(sdk_agent: SdkAgent) -> None:
    """From eight threads; the connections of left streams are closed, never used again."""
    with ThreadPoolExecutor(8) as threads:
        started = list(threads.map(lambda n: start(sdk_agent, "work; make x", n), range(1000, 1200)))
    assert len({one.id for one in started}) == 200
    assert sdk_agent.transport.connections <= 8
    sdk_agent.wait_until_no_stream_is_open()
    for one in started[::20]:
        sdk_agent.until(one, TaskState.COMPLETED)


def test_a_prepared_subscription_is_what_the_agent_understands(sdk_agent: SdkAgent) -> None:
    """Nothing is sent until somebody else does, with the headers of every other call."""
    started = start(sdk_agent, "work; wait 5", 20)
    seen, connections = len(sdk_agent.seen()), sdk_agent.transport.connections
    prepared = sdk_agent.client.subscription(started.id)
    assert len(sdk_agent.seen()) == seen
    assert sdk_agent.transport.connections == connections
    request = httpx.Request(prepared.method, prepared.url, headers=prepared.headers, content=prepared.content)
    with httpx.Client(trust_env=False) as client:
        answer = client.send(request, stream=True)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert started.id in next(line for line in answer.iter_lines() if line.startswith("data:"))
        answer.close()
    sent = sdk_agent.seen()[-1]["headers"]
    assert (sent["accept"], sent["accept-encoding"]) == ("text/event-stream", "identity")
    assert (sent["a2a-version"], sent["x-participant-id"], sent["x-team"]) == ("1.0", "us", "travel")
    assert sent["a2a-extensions"] == EXTENSION
    sdk_agent.wait_until_no_stream_is_open()


# --- Streams that lie, drip, break or never end -----------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer(hangs()) as server:
        yield server


def heard(server: RawServer, *, deadline_s: float = DEADLINE_S, push: Any = None, **options: Any) -> Any:
    """What start_task makes of the server's present behaviour; afterwards nothing is in use and nothing stays open."""
    client, transport = client_of(server.url, can_stream=True, **options)
    began = time.monotonic()
    try:
        return client.start_task(message("hi"), push=push, deadline_s=deadline_s)
    finally:
        assert time.monotonic() - began < deadline_s + PATIENCE_S
        assert all(connection.is_idle() for connection in transport._pool().connections)
        assert transport._pool()._requests == []
        transport.close()
        assert server.wait_until_open(0)


def methods(server: RawServer) -> list[str]:
    return [seen.rpc["method"] for seen in server.seen]


def test_the_message_is_that_of_a_plain_send(server: RawServer) -> None:
    """Same ids, same metadata, same push config; only the method and the Accept header differ."""
    server.behaviour = tells(task("WORKING"), then=hangs())
    assert heard(server).state is TaskState.WORKING
    client, transport = client_of(server.url)
    server.behaviour = answers(task("WORKING"))
    client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S)
    transport.close()
    streamed, plain = server.seen
    assert methods(server) == ["SendStreamingMessage", "SendMessage"]
    assert streamed.rpc["params"] == plain.rpc["params"]
    assert (streamed.headers["accept"], plain.headers["accept"]) == ("text/event-stream", "application/json")
    assert streamed.headers["accept-encoding"] == "identity"


def test_the_reading_stops_at_the_event_that_says_enough(server: RawServer) -> None:
    """Though the next has arrived with it; the connection is not used again."""
    server.behaviour = tells(task(), status("WORKING"), artifact("x"), status("COMPLETED"))
    client, transport = client_of(server.url, can_stream=True)
    for _ in range(3):
        started = client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S)
        assert isinstance(started, AgentTask)
        assert started.state is TaskState.WORKING
        assert transport.connections == 0
        assert server.wait_until_open(0)
    assert server.connections == 3


@pytest.mark.parametrize("rpc", [True, False])
def test_an_agent_that_ends_at_once_is_heard_to_its_end(server: RawServer, rpc: bool) -> None:
    """Artifacts and all; nothing has to be asked."""
    server.behaviour = tells(task(), artifact("one "), artifact("two", append=True), status("COMPLETED"), rpc=rpc)
    ended = heard(server, binding="JSONRPC" if rpc else "HTTP+JSON")
    assert (ended.state, ended.text, ended.is_whole) == (TaskState.COMPLETED, "one two", True)
    assert len(server.seen) == 1


def test_an_end_without_artifacts_has_to_be_asked_for(server: RawServer) -> None:
    """A status update is not the whole task."""
    server.behaviour = tells(task(), status("COMPLETED"))
    ended = heard(server)
    assert (ended.state, ended.is_whole) == (TaskState.COMPLETED, False)


def test_an_event_may_be_large_and_oddly_written(server: RawServer) -> None:
    """Cases C086, C051 and C093: beyond any line buffer, separators unescaped, JSON over several lines."""
    text = "x" * 300_000 + "\u2028\u2029\u0085END"
    server.behaviour = tells(task(), artifact(text), status("COMPLETED"))
    assert heard(server, answer_bytes=1_000_000, event_bytes=500_000).text == text

    def odd(request: Seen, connection: socket.socket) -> bool:
        first = b'data:{"jsonrpc":"2.0",\r\ndata:"id":"%s","result":' % request.rpc["id"].encode()
        event = first + json.dumps(task("COMPLETED")).encode() + b"}\r\n\r\n"
        return tells(b": hi\r\nretry: 500\r\n\r\nevent: status\r\nid: 9\r\n" + event)(request, connection)

    server.behaviour = odd
    assert heard(server).state is TaskState.COMPLETED
    assert len(server.seen) == 2


def test_a_silent_stream_is_left_after_a_while(server: RawServer) -> None:
    """A task that is known and not begun is watched, not waited for."""
    server.behaviour = tells(task(), then=hangs())
    began = time.monotonic()
    left = heard(server, stream_start_s=0.3, deadline_s=30)
    assert 0.25 < time.monotonic() - began < 5
    assert (left.id, left.state) == ("t1", TaskState.SUBMITTED)


def test_as_long_as_no_task_is_known_the_whole_deadline_counts(server: RawServer) -> None:
    """A slow first event is better waited for than looked for afterwards."""

    def slow(request: Seen, connection: socket.socket) -> bool:
        server.stopping.wait(0.6)
        return tells(task())(request, connection)

    server.behaviour = slow
    assert heard(server, stream_start_s=0.1).id == "t1"
    server.behaviour = tells(then=hangs())
    with pytest.raises(CallAmbiguous, match="deadline"):
        heard(server, stream_start_s=0.1, deadline_s=0.6)


BROKEN: dict[str, Behaviour] = {
    "end": tells(task()),
    "reset": tells(task(), then=resets()),
    "closed": tells(task(), then=closes()),
    "cut in an event": tells(task(), b"data: {"),
    "another id": tells(task(), b'data: {"jsonrpc":"2.0","id":"x","result":{"task":{}}}\n\n'),
    "not json": tells(task(), b"data: {{{\n\n"),
    "nul bytes": tells(task(), b"data: \x00\x00\n\n", then=hangs()),
    "bad utf-8": tells(task(), b"data: \xff\xfe\n\n", then=hangs()),
    "an error": tells(task(), b'event: error\ndata: {"id":null,"error":{"code":-32004}}\n\n'),
    "error of its own": tells(task(), b"event: error\ndata: oh\n\n"),
    "another task": tells(task(), {"task": {"id": "t2", "status": {"state": "TASK_STATE_WORKING"}}}, then=hangs()),
    "no task at all": tells(task(), {"task": {"id": ""}}, then=hangs()),
    "endless line": tells(task(), b"data: " + b"x" * 60_000, then=hangs()),
    "bad chunk": tells(task(), then=closes(b"zz\r\n")),
}


@pytest.mark.parametrize("name", BROKEN)
def test_once_a_task_is_known_it_is_known_however_the_stream_ends(server: RawServer, name: str) -> None:
    """And nothing is sent twice because something could not be read."""
    server.behaviour = BROKEN[name]
    known = heard(server)
    assert (known.id, known.state) == ("t1", TaskState.SUBMITTED)
    assert known.is_whole is (name == "end")
    assert methods(server) == ["SendStreamingMessage"]


def endless(head: bytes, piece: bytes) -> Behaviour:
    def behave(request: Seen, connection: socket.socket) -> bool:
        connection.sendall(STREAM_HEAD + (chunk(head) if head else b""))
        while True:
            connection.sendall(chunk(piece))

    return behave


def dripping(every_s: float) -> Behaviour:
    def behave(request: Seen, connection: socket.socket) -> bool:
        connection.sendall(STREAM_HEAD)
        while True:
            connection.sendall(chunk(b":"))
            connection.settimeout(every_s)
            try:
                if not connection.recv(1):
                    return False
            except TimeoutError:
                continue

    return behave


NOTHING: dict[str, tuple[Behaviour, type[AgentError]]] = {
    "no event": (tells(), CallAmbiguous),
    "cut in the first": (tells(b'data: {"jsonrpc"'), CallAmbiguous),
    "reset": (tells(then=resets()), CallAmbiguous),
    "closed": (tells(then=closes()), CallAmbiguous),
    "comments without end": (endless(b"", b": ping\n\n" * 1000), AnswerTooLarge),
    "blank lines without end": (endless(b"", b"\n" * 8000), AnswerTooLarge),
    "a line without end": (endless(b"data: ", b"x" * 8000), AnswerTooLarge),
    "an event without end": (endless(b"", b"data: x\n" * 1000), AnswerTooLarge),
    "a million tiny events": (endless(b"", b"data:\n\n" * 1000), AnswerTooLarge),
    "unknown events without end": (tells(*[{"poll": n} for n in range(2000)]), AnswerTooLarge),
    "a drip": (dripping(0.05), CallAmbiguous),
    "gzip": (says(200, b"\x1f\x8b", {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}), CallAmbiguous),
    "huge": (says(200, b"x" * 200_000, {"Content-Type": "text/event-stream"}), AnswerTooLarge),
    "another id": (tells(b'data: {"id":"x","result":{"task":{"id":"t1"}}}\n\n'), CallAmbiguous),
    "nul bytes": (tells(b"\x00data: \x00\n\ndata: \x00\n\n"), CallAmbiguous),
    "unknown events": (tells({"poll": 1}, {}), CallAmbiguous),
    "no usable id": (tells({"task": {"id": "", "status": {}}}), CallAmbiguous),
    "an unreadable error": (tells(b"event: error\ndata: oh\n\n"), CallAmbiguous),
    "an internal error": (tells(b'data: {"id":null,"error":{"code":-32603}}\n\n'), CallAmbiguous),
    "a refusal after others": (tells({}, b'data: {"id":null,"error":{"code":-32004}}\n\n'), CallAmbiguous),
    "a refusal": (tells(b'data: {"id":null,"error":{"code":-32602}}\n\n'), AgentRefused),
    "plain internal error": (refuses(-32603), CallAmbiguous),
    "plain refusal": (refuses(-32602), AgentRefused),
    "plain nonsense": (answers({"x": 1}), CallAmbiguous),
    "plain page": (says(200, b"<html>", {"Content-Type": "text/html"}), CallAmbiguous),
    "500": (says(500), CallAmbiguous),
    "429": (says(429, headers={"Retry-After": "3"}), AgentBusy),
    "401": (says(401), AuthenticationRefused),
}


@pytest.mark.parametrize("name", NOTHING)
def test_a_stream_that_names_no_task_is_classified_and_never_sent_again(server: RawServer, name: str) -> None:
    """In bounded time and memory, by what is certain (case C049)."""
    server.behaviour, kind = NOTHING[name]
    with pytest.raises(AgentError) as raised:
        heard(server, deadline_s=1.0 if name == "a drip" else DEADLINE_S)
    assert type(raised.value) is kind
    assert methods(server) == ["SendStreamingMessage"]


def test_what_never_ends_takes_neither_memory_nor_time(server: RawServer) -> None:
    """A hundred thousand events within the limits of an answer; no more of them is held than one chunk."""
    server.behaviour = endless(b"", b"data:\n\n" * 9000)
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge):
            heard(server, answer_bytes=700_000, deadline_s=60)
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


NOT_OFFERED: dict[str, Behaviour] = {
    "plain error": refuses(-32004, "streaming off"),
    "unknown method": refuses(-32601),
    "event": tells(b'event: error\ndata: {"id":null,"error":{"code":-32004}}\n\n'),
    "405": says(405),
    "501": says(501),
}


@pytest.mark.parametrize("name", NOT_OFFERED)
def test_a_card_that_promised_streams_in_vain_is_told_apart(server: RawServer, name: str) -> None:
    """An error of this kind says that nothing was started: the caller may send the same message without (case C049)."""
    server.behaviour = NOT_OFFERED[name]
    with pytest.raises(MethodNotOffered):
        heard(server)
    assert methods(server) == ["SendStreamingMessage"]


def test_a_refused_push_config_is_said_as_for_a_plain_send(server: RawServer) -> None:
    """The caller sends again without it; here nothing is."""
    push = PushConfig(id="p", url="http://127.0.0.1:9/x", token="tok-0123456789abcdef")
    server.behaviour = refuses(-32602, f"no {push.token}")
    with pytest.raises(PushNotAccepted) as refusal:
        heard(server, push=push)
    assert push.token not in str(refusal.value)
    assert methods(server) == ["SendStreamingMessage"]


@pytest.mark.parametrize("result", [task("WORKING"), task("WORKING")["task"]])
def test_a_plain_answer_to_a_streaming_call_counts(server: RawServer, result: Any) -> None:
    """Some agents do not stream what they were asked to stream."""
    server.behaviour = answers(result)
    assert heard(server).state is TaskState.WORKING
    server.behaviour = answers({"message": {"messageId": "a", "parts": [{"text": "hi"}]}})
    assert heard(server).text == "hi"


def test_a_stream_that_could_not_be_opened_is_certainly_not_sent() -> None:
    """It may be sent again."""
    client, transport = client_of(f"http://127.0.0.1:{free_port()}", can_stream=True)
    with pytest.raises(AgentUnreachable):
        client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S)
    assert transport.connections == 0


def test_an_id_that_is_no_path_segment_is_refused_in_http_json(server: RawServer) -> None:
    """It would be another request."""
    server.behaviour = tells({"task": {"id": "../x", "status": {"state": "TASK_STATE_WORKING"}}}, rpc=False)
    with pytest.raises(CallAmbiguous, match="path"):
        heard(server, binding="HTTP+JSON")


def test_a_stream_read_to_its_end_frees_its_connection(server: RawServer) -> None:
    """For the next call, as any other answer does."""
    server.behaviour = tells(task())
    client, transport = client_of(server.url, can_stream=True)
    for _ in range(3):
        client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S)
    assert server.connections == transport.connections == 1
    transport.close()


# --- Follow-ups -------------------------------------------------------------------------------------------------------


def reply(server: RawServer, answer: dict[str, Any]) -> AgentTask:
    server.behaviour = answers({"task": {"status": {"state": "TASK_STATE_WORKING"}, **answer}})
    client, transport = client_of(server.url)
    follow_up = message("blue", agent_task_id="t1", metadata={"participant_id": "as-before"})
    try:
        answered = client.send_message(follow_up, push=None, deadline_s=DEADLINE_S)
        assert isinstance(answered, AgentTask)
        return answered
    finally:
        transport.close()


def test_a_reply_names_task_context_and_sender(server: RawServer) -> None:
    """The id we delegated as wins over today's settings: agents know us by it."""
    assert reply(server, {"id": "t1", "contextId": "theirs"}).context_id == "theirs"
    sent = server.seen[-1].rpc["params"]["message"]
    assert (sent["taskId"], sent["contextId"], sent["role"]) == ("t1", "ctx-1", "ROLE_USER")
    assert sent["metadata"] == {"participant_id": "as-before"}


def test_an_answer_to_a_reply_without_a_context_keeps_ours(server: RawServer) -> None:
    """An empty id is no other context."""
    assert reply(server, {"id": "t1"}).context_id == "ctx-1"


def test_an_answer_to_a_reply_about_another_task_is_told_as_it_is(server: RawServer) -> None:
    """The reply has arrived, so it is not ambiguous: it would be sent again, and begin one more task each time."""
    answered = reply(server, {"id": "t2", "contextId": "theirs"})
    assert (answered.id, answered.context_id) == ("t2", "theirs")


# --- Subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("binding", "tenant", "target"),
    [
        ("JSONRPC", "", "/rpc"),
        ("JSONRPC", "acme", "/rpc"),
        ("HTTP+JSON", "", "/rpc/tasks/t1:subscribe"),
        ("HTTP+JSON", "acme", "/rpc/acme/tasks/t1:subscribe"),
    ],
)
def test_a_subscription_is_built_and_nothing_is_opened(
    server: RawServer, binding: str, tenant: str, target: str
) -> None:
    """Every header is final; its answers are read by the question beside it."""
    client, transport = client_of(
        server.url, binding, can_stream=True, tenant=tenant, extensions=(EXTENSION,), headers={"X-Key": "secret-key"}
    )
    prepared = client.subscription("t1")  # type: ignore[arg-type]
    assert (prepared.method, prepared.url) == ("POST", server.url + target)
    headers = {name.decode().lower(): value.decode() for name, value in prepared.headers}
    assert headers["accept"] == "text/event-stream"
    assert headers["accept-encoding"] == "identity"
    assert headers["content-length"] == str(len(prepared.content))
    assert (headers["a2a-version"], headers["x-participant-id"], headers["x-key"]) == ("1.0", "us", "secret-key")
    assert headers["a2a-extensions"] == EXTENSION
    assert prepared.question.method == "SubscribeToTask"
    assert "secret-key" not in repr(prepared)
    if binding == "JSONRPC":
        body = json.loads(prepared.content)
        assert (body["method"], body["id"]) == ("SubscribeToTask", prepared.question.request_id)
        assert body["params"] == {"id": "t1", **({"tenant": tenant} if tenant else {})}
    assert transport.connections == server.connections == 0


def test_where_nothing_streams_there_is_no_subscription() -> None:
    """Said before anything is built."""
    client, _ = client_of("http://127.0.0.1:9")
    with pytest.raises(MethodNotOffered):
        client.subscription("t1")  # type: ignore[arg-type]
