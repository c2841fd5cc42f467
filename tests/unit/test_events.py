"""Bytes into events, and what an event says."""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import TaskState
from delegation.errors import AgentError, AgentRefused, AgentTaskNotFound, AnswerTooLarge, CallAmbiguous
from delegation.events import ErrorData, EventSplitter, StreamEvent, read_event, read_stream_response
from delegation.replies import HTTP_JSON, JSONRPC, Question

RPC = Question(method="SubscribeToTask", binding=JSONRPC, request_id="r1", names_task=True)
REST = Question(method="SubscribeToTask", binding=HTTP_JSON, names_task=True)
#: What other readers take for line ends.
SEPARATORS = "alpha\u2028beta\u0085gamma\u2029delta\x0b\x0c"
STATUS = {"state": "TASK_STATE_WORKING", "timestamp": "2026-03-01T10:00:00Z"}


def split(*chunks: bytes, max_bytes: int = 1000) -> list[bytes]:
    splitter = EventSplitter(max_bytes)
    return [event for chunk in chunks for event in splitter.feed(chunk)]


# --- Bytes into events ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\n", [b"a"]),
        (b"data:  a\n\n", [b" a"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\ndata: b\ndata:c\n\n", [b"a\nb\nc"]),
        (b"data: a\r\n\ndata: b\n\r\n", [b"a", b"b"]),
        (b"data\n\n", [b""]),
        (b"data\ndata\n\n", [b"\n"]),
        (b"\n\n\n", []),
        (b": comment\n\n:\n\n", []),
        (b"data: a\n: comment\ndata: b\n\n", [b"a\nb"]),
        (b"event: status\nid: 9\nretry: 500\ndata: a\nextra\nDATA: b\n data: c\n\n", [b"a"]),
        (b"id: 1\n\n", []),
        (b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n", [b"a"]),
        (b"data: a\x00b\nid: \x00\n\n", [b"a\x00b"]),
        (f"data: {SEPARATORS}\n\n".encode(), [SEPARATORS.encode()]),
    ],
)
def test_a_stream_is_split_as_the_standard_says(stream: bytes, events: list[bytes]) -> None:
    """Cases C051 and C093; and in whatever pieces it comes."""
    assert split(stream) == events
    assert split(*(stream[n : n + 1] for n in range(len(stream)))) == events


@given(
    st.lists(
        st.sampled_from([b"data: a", b"data:b", b"data", b"event: error", b"event: x", b": c", b"x", b"", b"", b""])
    ),
    st.sampled_from([b"\n", b"\r", b"\r\n"]),
    st.lists(st.integers(0, 200)),
    st.booleans(),
)
def test_pieces_and_line_ends_make_no_difference(lines: list[bytes], end: bytes, cuts: list[int], mark: bool) -> None:
    """CRLF may be split over chunks, and so may the byte order mark."""
    plain = b"".join(line + b"\n" for line in lines)
    stream = (b"\xef\xbb\xbf" if mark else b"") + plain.replace(b"\n", end)
    places = sorted({0, *(cut for cut in cuts if cut < len(stream)), len(stream)})
    pieces = [stream[begin:end] for begin, end in itertools.pairwise(places)]
    whole, cut = split(plain), split(*pieces, b"")
    assert cut == whole
    assert [type(event) for event in cut] == [type(event) for event in whole]


def test_an_error_event_is_told_apart() -> None:
    """The one name that matters; it is forgotten with its event."""
    first, second = split(b"event: error\ndata: a\n\ndata: b\n\n")
    assert (type(first), first) == (ErrorData, b"a")
    assert type(second) is bytes


@pytest.mark.parametrize(
    ("stream", "was_cut"),
    [
        (b"", False),
        (b"data: a\n\n", False),
        (b"data: a\n\n: pi", False),
        (b"data: a\n", True),
        (b"data: a\n\nda", True),
        (b"data: a\n\ndata: {", True),
    ],
)
def test_what_is_cut_is_no_event(stream: bytes, was_cut: bool) -> None:
    """An end in the middle says that something is missing."""
    splitter = EventSplitter(100)
    assert len(splitter.feed(stream)) == stream.count(b"\n\n")
    assert splitter.finish() is was_cut


@pytest.mark.parametrize(
    "stream",
    [b"data: " + b"x" * 100, b"x" * 101, b": " + b"x" * 100, b"data: xxxxxx\n" * 15, b"data\n" * 102],
    ids=["long data", "long line", "long comment", "many lines", "many empty lines"],
)
def test_an_event_over_the_cap_is_too_large(stream: bytes) -> None:
    """Whatever it grows by, and in whatever pieces."""
    for pieces in ([stream], [stream[n : n + 1] for n in range(len(stream))]):
        with pytest.raises(AnswerTooLarge):
            split(*pieces, max_bytes=100)


def test_what_was_complete_before_it_became_too_large_is_handed_out() -> None:
    """The task's id may be in it."""
    splitter = EventSplitter(10)
    assert splitter.feed(b"data: a\n\ndata: b\n\ndata: " + b"x" * 20) == [b"a", b"b"]
    with pytest.raises(AnswerTooLarge):
        splitter.feed(b"")
    with pytest.raises(AnswerTooLarge):
        splitter.finish()


def test_endless_comments_hold_nothing() -> None:
    """Keep-alives of days are no event that grows."""
    splitter = EventSplitter(100)
    for _ in range(10_000):
        assert splitter.feed(b": ping\n") == []
    assert splitter.feed(b"data: a\n\n") == [b"a"]


def test_hostile_streams_take_linear_time() -> None:
    """A million events, and a megabyte byte by byte, are a matter of seconds."""
    began = time.monotonic()
    splitter = EventSplitter(2_000_000)
    assert sum(len(splitter.feed(b"data:\n\n" * 10_000)) for _ in range(100)) == 1_000_000
    for _ in range(1_000_000):
        splitter.feed(b"x")
    for _ in range(100):
        splitter.feed(b"\r" * 10_000)
    assert time.monotonic() - began < 60


# --- What an event says -----------------------------------------------------------------------------------------------


def rpc(result: Any, **envelope: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "r1", "result": result, **envelope}).encode()


TASK = {"id": "t1", "contextId": "c1", "status": STATUS}
REMARK = {"messageId": "a1", "parts": [{"text": "hm"}]}
UPDATE = {"taskId": "t1", "contextId": "c1", "status": {**STATUS, "message": REMARK}}
CHUNK = {"taskId": "t1", "contextId": "c1", "artifact": {"artifactId": "r1", "name": "n", "parts": []}, "append": True}
MESSAGE = {"messageId": "a1", "contextId": "c1", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}


@pytest.mark.parametrize("is_bare", [False, True])
@pytest.mark.parametrize("question", [RPC, REST])
def test_every_payload_is_read_in_both_bindings(question: Question, is_bare: bool) -> None:
    """Under its name in the StreamResponse, or bare as some agents send it."""

    def read(name: str, payload: dict[str, Any]) -> StreamEvent:
        result = payload if is_bare else {name: payload}
        return read_event(question, rpc(result) if question is RPC else json.dumps(result).encode())

    task, status = read("task", TASK), read("statusUpdate", UPDATE)
    assert (task.kind, task.task_id, task.state) == ("task", "t1", TaskState.WORKING)
    assert task.task is not None
    assert (status.kind, status.task_id, status.context_id) == ("status", "t1", "c1")
    assert (status.state, status.status_text, status.status_message_id) == (TaskState.WORKING, "hm", "a1")
    assert task.status_at == status.status_at == "2026-03-01T10:00:00.000000Z"
    artifact, message = read("artifactUpdate", CHUNK), read("message", MESSAGE)
    assert (artifact.kind, artifact.artifact_id, artifact.artifact_name) == ("artifact", "r1", "n")
    assert artifact.appends
    assert (message.kind, message.message and message.message.text) == ("message", "hi")


@pytest.mark.parametrize("result", [{}, {"poll": {}}, {"task": None}, {"metadata": {"a": 1}}])
def test_an_unknown_payload_is_no_news(result: Any) -> None:
    """A later version of the protocol may send more kinds."""
    assert read_event(RPC, rpc(result)).kind == "other"


def test_an_event_without_data_is_no_news() -> None:
    """Some servers keep a connection alive with empty ones."""
    assert read_event(RPC, b"").kind == "other"
    assert read_event(REST, b" \n").kind == "other"


@pytest.mark.parametrize(
    "payload",
    [
        rpc({"task": TASK}, id="other"),
        rpc({"task": TASK}, id=None),
        rpc({"task": TASK, "statusUpdate": UPDATE}),
        rpc({"task": {"id": ""}}),
        rpc({"task": "t1"}),
        rpc({"statusUpdate": [1]}),
        rpc({"artifactUpdate": {"taskId": "t1"}}),
        rpc(None),
        rpc([]),
        rpc("x"),
        b"[]",
        b"null",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":"r1"}',
        ErrorData(b"went wrong"),
        ErrorData(rpc({"task": TASK})),
    ],
)
def test_what_cannot_be_read_is_ambiguous(payload: bytes) -> None:
    """One error, whatever is wrong with it (cases C088 and C086)."""
    with pytest.raises(CallAmbiguous):
        read_event(RPC, payload)


def test_an_error_of_the_agent_is_its_own() -> None:
    """In either binding, named an error event or not."""
    not_found = {"jsonrpc": "2.0", "id": "r1", "error": {"code": -32001, "message": "gone"}}
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "TASK_NOT_FOUND"}
    status = {"error": {"code": 404, "status": "NOT_FOUND", "message": "gone", "details": [info]}}
    for question, body in ((RPC, not_found), (REST, status)):
        for kind in (bytes, ErrorData):
            with pytest.raises(AgentTaskNotFound, match="gone"):
                read_event(question, kind(json.dumps(body).encode()))
    unknown = {"error": {"code": 500, "status": "INTERNAL", "message": "unknown exception"}}
    with pytest.raises(AgentError) as raised:
        read_event(REST, json.dumps(unknown).encode())
    assert type(raised.value) is CallAmbiguous
    with pytest.raises(AgentRefused):
        read_event(RPC, json.dumps({"id": None, "error": {"code": -32602}}).encode())


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["task", "message", "statusUpdate", "artifactUpdate", "id", "taskId", "status", "state", "artifact"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


@given(json_values)
def test_nothing_an_agent_says_is_another_error(raw: Any) -> None:
    """Read or ambiguous, nothing else."""
    try:
        assert isinstance(read_stream_response(raw), StreamEvent)
    except CallAmbiguous:
        return
