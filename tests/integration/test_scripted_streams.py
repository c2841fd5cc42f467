"""The scripted agent streams as the SDKs' servers do, and as no server should, seen over plain HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.event_reader import EventReader
from tests.support.processes import ScriptedAgent
from tests.support.receiver import RpcCaller, send_params

WORKING = {"task": {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}}
COMPLETED = {"statusUpdate": {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}}
ASKING = {"states": [["WORKING", 0], ["INPUT_REQUIRED", 0, "Which month?"]]}


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(tmp_path, streaming=True).start() as agent:
        yield agent


@pytest.fixture
def client(agent: ScriptedAgent) -> Iterator[RpcCaller]:
    with RpcCaller(agent.url) as client:
        yield client


def stream_of(agent: ScriptedAgent, script: dict[str, Any] | str, **message: Any) -> EventReader:
    return EventReader(agent.url, "SendStreamingMessage", **send_params(script, **message))


def subscribe(agent: ScriptedAgent, task_id: str) -> EventReader:
    return EventReader(agent.url, "SubscribeToTask", id=task_id)


def closed(agent: ScriptedAgent) -> list[str]:
    """Why the streams that are over ended, oldest first."""
    agent.wait_for_streams(0)
    return [entry["why"] for entry in agent.ledger("stream_closed")]


# ------------------------------------------------------------------ its own streams, turn by turn


def test_a_streamed_send_tells_the_whole_story(agent: ScriptedAgent) -> None:
    """First the SUBMITTED task, then each state, the chunks and the artifact before COMPLETED; then a clean end."""
    states = [["SUBMITTED", 0], ["WORKING", 0], ["COMPLETED", 0.1]]
    script = {"states": states, "chunks": [["a", 0.02], ["b", 0.04]]}
    with stream_of(agent, script) as stream:
        assert stream.response.headers["content-type"] == "text/event-stream"
        events = list(stream)
    assert [next(iter(event)) for event in events] == [
        *("task", "statusUpdate", "artifactUpdate", "artifactUpdate", "artifactUpdate", "statusUpdate")
    ]
    assert events[0]["task"]["status"]["state"] == "TASK_STATE_SUBMITTED"
    pieces = [event["artifactUpdate"] for event in events if "artifactUpdate" in event]
    said = [(each["artifact"]["parts"][0]["text"], each["append"], each["lastChunk"]) for each in pieces]
    assert said == [("a", False, False), ("b", True, True), ("ok", False, True)]
    assert closed(agent) == ["end"]


def test_a_streamed_send_ends_at_a_question_and_goes_on_with_the_reply(agent: ScriptedAgent) -> None:
    """The reply's stream begins with the task as it was, the old question in it, and ends at the next stop."""
    script = {**ASKING, "turns": [{"states": [["INPUT_REQUIRED", 0.02, "Which year?", {"data": {"from": 2020}}]]}]}
    with stream_of(agent, script) as stream:
        first, *_, asked = list(stream)
    task_id = first["task"]["id"]
    assert asked["statusUpdate"]["status"]["message"]["parts"] == [{"text": "Which month?"}]
    with stream_of(agent, "June", messageId="m2", taskId=task_id) as stream:
        before, second = list(stream)
    assert before["task"]["status"] == asked["statusUpdate"]["status"]
    status = second["statusUpdate"]["status"]
    assert status["message"]["parts"] == [{"text": "Which year?"}, {"data": {"from": 2020}}]
    assert status["message"]["messageId"] != asked["statusUpdate"]["status"]["message"]["messageId"]


def test_a_further_message_without_a_script_takes_the_next_turn(client: RpcCaller) -> None:
    """A conversation can be written down in the goal; the question it answers is in the history."""
    turns = [{"states": [["INPUT_REQUIRED", 0, "Year?"]]}, {"states": [["COMPLETED", 0]], "artifact": "done"}]
    task = client.send({"states": [["INPUT_REQUIRED", 0, "Month?"]], "turns": turns})["task"]
    asked = client.send("June", messageId="m2", taskId=task["id"])["task"]
    assert asked["status"]["message"]["parts"] == [{"text": "Year?"}]
    ended = client.send("2026", messageId="m3", taskId=task["id"])["task"]
    assert ended["artifacts"][0]["parts"] == [{"text": "done"}]
    assert [each["parts"][0]["text"] for each in ended["history"][1:]] == ["Month?", "June", "Year?", "2026"]


def test_a_direct_message_is_the_whole_stream(agent: ScriptedAgent) -> None:
    """One message event, and no task was made."""
    with stream_of(agent, {"message": "hello"}) as stream:
        assert [event["message"]["parts"] for event in stream] == [[{"text": "hello"}]]
    assert agent.created() == []


def test_a_subscription_stays_through_questions(agent: ScriptedAgent, client: RpcCaller) -> None:
    """The task as it is, then what happens to it, through INPUT_REQUIRED to the end."""
    task_id = client.send(ASKING)["task"]["id"]
    with subscribe(agent, task_id) as stream:
        assert stream.next()["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        client.send({"states": [["WORKING", 0], ["COMPLETED", 0.02]]}, messageId="m2", taskId=task_id)
        assert stream.states() == ["WORKING", "COMPLETED"]
    assert closed(agent) == ["end"]


def test_a_subscription_may_end_at_questions_and_replay_the_past(agent: ScriptedAgent, client: RpcCaller) -> None:
    """As tiny-harness does: the snapshot, every status from the first on, and the end when the newest is a question."""
    agent.configure(stream_when_interrupted="end", replay=True)
    task_id = client.send(ASKING)["task"]["id"]
    with subscribe(agent, task_id) as stream:
        assert stream.states() == ["INPUT_REQUIRED", "WORKING", "INPUT_REQUIRED"]
    client.send({"states": [["WORKING", 0]]}, messageId="m2", taskId=task_id)
    with subscribe(agent, task_id) as stream:
        assert stream.next()["task"]["status"]["state"] == "TASK_STATE_WORKING"
        agent.move(task_id, "AUTH_REQUIRED")
        assert stream.states() == ["WORKING", "INPUT_REQUIRED", "WORKING", "AUTH_REQUIRED"]


def test_what_cannot_be_streamed_is_refused(agent: ScriptedAgent, client: RpcCaller) -> None:
    """An unknown task, one that has ended, and an agent that offers no streams."""
    assert client.error("SubscribeToTask", id="nobody") == -32001
    task_id = client.send({"states": [["COMPLETED", 0]]})["task"]["id"]
    assert client.error("SubscribeToTask", id=task_id) == -32004
    agent.configure(streaming=False)
    assert client.error("SendStreamingMessage", **send_params("x", messageId="m2")) == -32004
    assert agent.stats()["streams_opened"] == 0


def test_streams_are_kept_alive_with_comments(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Comments come at their interval and are no events."""
    agent.configure(keepalive_s=0.02)
    task_id = client.send({"states": [["WORKING", 0], ["COMPLETED", 0.3]]})["task"]["id"]
    with subscribe(agent, task_id) as stream:
        assert stream.states() == ["WORKING", "COMPLETED"]
        assert stream.comments >= 2


def test_statuses_may_have_no_timestamp_or_a_wrong_one(agent: ScriptedAgent, client: RpcCaller) -> None:
    """In streams and in GetTask alike."""
    agent.configure(timestamps="none")
    with stream_of(agent, {"states": [["WORKING", 0], ["COMPLETED", 0]]}) as stream:
        task, *updates = list(stream)
    assert not any("timestamp" in event["statusUpdate"]["status"] for event in updates if "statusUpdate" in event)
    assert "timestamp" not in client.call("GetTask", id=task["task"]["id"])["status"]
    agent.configure(timestamps="skew:-3600")
    skewed = client.send({"states": [["WORKING", 0]]}, messageId="m2")["task"]["status"]["timestamp"]
    agent.configure(timestamps="real")
    real = client.send({"states": [["WORKING", 0]]}, messageId="m3")["task"]["status"]["timestamp"]
    assert skewed[:13] < real[:13]


# ------------------------------------------------------------------ counted, cut, disturbed


def test_open_streams_are_counted_until_the_client_goes(agent: ScriptedAgent, client: RpcCaller) -> None:
    """A client that hangs up is noticed; the task goes on without it."""
    task_id = client.send({"states": [["WORKING", 0]]})["task"]["id"]
    with subscribe(agent, task_id) as one, subscribe(agent, task_id) as two:
        assert [stream.next()["task"]["id"] for stream in (one, two)] == [task_id] * 2
        assert agent.streams_open() == 2
        two.close()
        agent.wait_for_streams(1)
    assert closed(agent) == ["client", "client"]
    facts = agent.ledger("stream_opened")[0]
    assert (facts["method"], facts["task_id"]) == ("SubscribeToTask", task_id)
    stats = agent.stats()
    assert (stats["streams_opened"], stats["streams_max"]) == (2, 2)
    assert agent.move(task_id, "COMPLETED")["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("how", "error"), [("close", None), ("cut", httpx.RemoteProtocolError), ("reset", httpx.ReadError)]
)
def test_streams_can_be_cut(agent: ScriptedAgent, client: RpcCaller, how: str, error: type[Exception] | None) -> None:
    """With a clean end, in the middle, or with a reset; only those of the task that is named."""
    mine, other = (client.send({"states": [["WORKING", 0]]}, messageId=each)["task"]["id"] for each in "ab")
    with subscribe(agent, mine) as stream, subscribe(agent, other) as left:
        assert (stream.next()["task"]["id"], left.next()["task"]["id"]) == (mine, other)
        assert agent.cut_streams(mine, how) == 1
        if error is None:
            assert list(stream) == []
        else:
            with pytest.raises(error):
                list(stream)
        assert agent.streams_open() == 1
    assert closed(agent) == ["cut", "client"]


def test_a_half_open_stream_is_silent_for_good(agent: ScriptedAgent, client: RpcCaller) -> None:
    """No event, no comment and no end come any more, while the connection stays."""
    agent.configure(keepalive_s=0.02)
    task_id = client.send({"states": [["WORKING", 0]]})["task"]["id"]
    with subscribe(agent, task_id) as stream, subscribe(agent, task_id) as other:
        stream.next()
        other.next()
        agent.cut_streams(how="half")
        agent.move(task_id, "COMPLETED")
        assert agent.streams_open() == 2
    assert closed(agent) == ["client", "client"]


def test_a_test_can_write_into_open_streams(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Bytes as they are, and events in the right envelope."""
    task_id = client.send({"states": [["WORKING", 0]]})["task"]["id"]
    with subscribe(agent, task_id) as stream:
        stream.next()
        assert agent.emit(task_id, b": \xff\r\n\r\n") == 1
        assert agent.emit(task_id, event=COMPLETED) == 1
        assert stream.next() == COMPLETED
        assert b": \xff\r\n\r\n" in stream.raw
    agent.wait_for_streams(0)
    assert agent.emit(task_id, "nobody hears") == 0


# ------------------------------------------------------------------ rules


def test_a_rule_plays_events_and_its_task_is_there(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Stand-ins are filled, raw bytes and errors come as told, and GetTask says what the stream has said."""
    piece = {
        "taskId": "t1",
        "contextId": "c1",
        "artifact": {"artifactId": "r1", "parts": [{"text": "a\u2028b\u0085c"}]},
    }
    events = [WORKING, {"delay_s": 0.01}, {"raw": ": ping\r\n\r\n", "every_s": 0.01, "for_s": 0.03}]
    events += [{"artifactUpdate": piece}, {"error": {"code": -32603, "message": "no"}}, {"note": "nothing"}, COMPLETED]
    agent.script([{"on": "SendStreamingMessage", "sse": events, "end": "close"}])
    with stream_of(agent, "x") as stream:
        assert list(stream) == [WORKING, {"artifactUpdate": piece}, events[4], COMPLETED]
        assert stream.comments >= 2
        assert "a\u2028b\u0085c".encode() in stream.raw
    task = client.call("GetTask", id="t1")
    assert (task["status"]["state"], task["artifacts"]) == ("TASK_STATE_COMPLETED", [piece["artifact"]])
    assert [made["task_id"] for made in agent.created()] == ["t1"]


def test_a_played_task_goes_on_without_its_client(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Hanging up does not stop what the rule says will happen, and a subscription hears the rest of it."""
    events = [WORKING, {"delay_s": 0.2}, COMPLETED]
    agent.script([{"on": "SendStreamingMessage", "sse": events}])
    with stream_of(agent, "x") as stream:
        stream.next()
    with subscribe(agent, "t1") as stream:
        assert stream.states() == ["WORKING", "COMPLETED"]
    assert client.call("GetTask", id="t1")["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize(
    ("end", "error"), [("reset", httpx.ReadError), ("cut", httpx.RemoteProtocolError), ("hold 0.05 s", None)]
)
def test_a_played_stream_ends_as_told(agent: ScriptedAgent, end: str, error: type[Exception] | None) -> None:
    """After its events it breaks, or is held for a while and ends well."""
    agent.script([{"on": "SendStreamingMessage", "sse": [WORKING], "end": end}])
    with stream_of(agent, "x") as stream:
        assert stream.next() == WORKING
        if error is None:
            assert list(stream) == []
        else:
            with pytest.raises(error):
                list(stream)
    assert closed(agent) == ["cut" if error else "end"]


@pytest.mark.parametrize("end", ["hold", "half"])
def test_a_played_stream_can_be_held_until_the_client_goes(agent: ScriptedAgent, end: str) -> None:
    """Nothing comes after its events, and it counts as open."""
    agent.script([{"on": "SubscribeToTask", "sse": [WORKING], "end": end}])
    with subscribe(agent, "t1") as stream:
        assert stream.next() == WORKING
        assert agent.streams_open() == 1
    assert closed(agent) == ["client"]


def test_a_rule_may_write_the_whole_body(agent: ScriptedAgent) -> None:
    """Whatever SSE allows, with the call's own JSON-RPC id where it is asked for."""
    raw = ': hi\r\nretry: 500\r\n\r\nevent: status\r\nid: 9\r\ndata:{"jsonrpc":"2.0",\r\n'
    raw += 'data:"id":"<same>","result":{}}\r\n\r\n'
    agent.script([{"on": "SendStreamingMessage", "raw": raw}])
    with stream_of(agent, "x") as stream:
        assert list(stream) == [{}]
        assert stream.raw == raw.replace("<same>", "s-1").encode()


def test_a_stream_can_be_refused_in_plain_json(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Rules without events answer streaming calls like any other, for instance with an error in application/json."""
    agent.script([{"on": "SendStreamingMessage", "error": {"code": -32004, "message": "streaming off"}}])
    assert client.error("SendStreamingMessage", **send_params("x")) == -32004


def test_the_work_can_be_done_and_the_stream_lost(agent: ScriptedAgent) -> None:
    """`work` with a reset: the task exists, and the client has heard nothing of it."""
    agent.script([{"on": "SendStreamingMessage", "work": True, "end": "reset", "times": 1}])
    with pytest.raises(httpx.ReadError):
        stream_of(agent, "x")
    assert len(agent.created()) == 1
    assert agent.stats()["streams_opened"] == 0
