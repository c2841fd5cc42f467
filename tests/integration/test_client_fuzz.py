"""Whatever bytes an agent answers with: an answer, or one of our errors, and nothing left behind (O-08, O-09)."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delegation.errors import AgentError
from delegation.outbound import GuardedTransport
from tests.support.clients import client_of, message
from tests.support.measured_client import T1
from tests.support.raw_server import RawServer, Seen, closes

SECRET = "hunter2-hunter2"

_TOKENS = st.sampled_from(
    [
        "Content-Length: 5",
        "Content-Length: -1",
        "Content-Length: 5, 6",
        "Transfer-Encoding: chunked",
        "Transfer-Encoding: gzip",
        "Transfer-Encoding: chunked, chunked",
        "Content-Encoding: br",
        "Location: /rpc",
        "Content-Type: text/event-stream",
        "Content-Type: application/json",
        "Retry-After: -1",
        "Retry-After: 1e9",
        "Set-Cookie: a=b",
        "Upgrade: h2c",
        "Connection: close",
        "WWW-Authenticate: Bearer",
        "Date: x",
        ": empty",
        " folded",
        "X Y: z",
    ]
)
_STATUS = st.sampled_from(
    [100, 101, 103, 200, 201, 204, 206, 301, 304, 307, 308, 400, 401, 403, 404, 407, 429, 500, 503]
)
_NAMES = st.sampled_from(
    [
        "id",
        "result",
        "error",
        "code",
        "message",
        "task",
        "status",
        "state",
        "parts",
        "artifacts",
        "history",
        "contextId",
        "statusUpdate",
        "artifactUpdate",
        "artifact",
        "taskId",
        "metadata",
        "text",
        "data",
    ]
)
_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            _NAMES,
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
_BODY = st.one_of(
    st.binary(max_size=200),
    _JSON.map(lambda value: json.dumps(value).encode()),
    _JSON.map(lambda value: b"data: " + json.dumps(value).encode() + b"\n\n"),
    st.lists(st.sampled_from([b"data:", b"event: error", b"id: 1", b":", b"\r", b"\n", b"\n\n", b"{}", b"\xff"])).map(
        b"".join
    ),
)


@st.composite
def _answers(draw: st.DrawFn) -> bytes:
    """Something like HTTP; its body may hold the marker of the request's id."""
    lines = draw(st.lists(_TOKENS | st.text(st.characters(max_codepoint=255), max_size=20), max_size=5))
    body = draw(_BODY)
    if draw(st.booleans()):
        lines.append(f"Content-Length: {len(body)}")
    if draw(st.booleans()):
        body = b'{"jsonrpc":"2.0","id":%ID,"result":' + body + b"}"
    head = "\r\n".join([f"HTTP/1.1 {draw(_STATUS)} X", *lines, "", ""])
    return head.encode("latin-1") + body


ANSWERS = st.binary(max_size=300) | _answers()


@pytest.fixture(scope="module")
def server() -> Iterator[RawServer]:
    with RawServer(closes()) as server:
        yield server


@pytest.fixture(scope="module", params=["JSONRPC", "HTTP+JSON"])
def client(server: RawServer, request: pytest.FixtureRequest) -> Iterator[tuple[Any, GuardedTransport]]:
    client, transport = client_of(server.url, request.param, can_stream=True, headers={"X-API-Key": SECRET})
    yield client, transport
    transport.close()
    assert server.wait_until_open(0)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(answer=ANSWERS)
def test_any_answer_is_read_or_becomes_one_of_our_errors(
    client: tuple[Any, GuardedTransport], server: RawServer, answer: bytes
) -> None:
    """No other exception, no secret of ours in the detail, no connection half read."""

    def behave(request: Seen, connection: Any) -> bool:
        request_id = b"0"
        with contextlib.suppress(ValueError, KeyError):
            request_id = json.dumps(request.rpc["id"]).encode()
        return closes(answer.replace(b"%ID", request_id))(request, connection)

    server.behaviour = behave
    agent, transport = client
    for call in (
        lambda: agent.get_task(T1, deadline_s=5.0),
        lambda: agent.start_task(message("hi"), push=None, deadline_s=5.0),
    ):
        try:
            call()
        except AgentError as error:
            said = error.detail
            assert SECRET not in said
            assert "\n" not in said
            assert "\r" not in said
        assert all(connection.is_idle() for connection in transport._pool().connections)
        assert transport._pool()._requests == []
