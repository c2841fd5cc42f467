"""What an HTTP answer is taken for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentRefused,
    AgentTaskNotCancelable,
    AgentTaskNotFound,
    AuthenticationRefused,
    CallAmbiguous,
    MethodNotOffered,
    PushNotAccepted,
    VersionNotSpoken,
)
from delegation.replies import (
    HTTP_JSON,
    JSONRPC,
    Question,
    read_error_event,
    read_event_result,
    read_reply,
    read_retry_after,
)

RPC = Question(method="GetTask", binding=JSONRPC, request_id="r1", names_task=True)
REST = Question(method="GetTask", binding=HTTP_JSON, names_task=True)


def reply(question: Question, status: int, body: Any, **headers: str) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return read_reply(question, status, headers, content)


def refusal(question: Question, status: int, body: Any, **headers: str) -> AgentError:
    with pytest.raises(AgentError) as raised:
        reply(question, status, body, **headers)
    return raised.value


def rpc_error(code: Any, message: Any = "no", **envelope: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": "r1", "error": {"code": code, "message": message}, **envelope}


def rest_error(reason: str, status: str = "FAILED_PRECONDITION") -> dict[str, Any]:
    info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "a2a-protocol.org"}
    return {"error": {"code": 400, "status": status, "message": "no", "details": [info]}}


KNOWN = [
    (-32001, "TASK_NOT_FOUND", AgentTaskNotFound),
    (-32002, "TASK_NOT_CANCELABLE", AgentTaskNotCancelable),
    (-32003, "PUSH_NOTIFICATION_NOT_SUPPORTED", PushNotAccepted),
    (-32004, "UNSUPPORTED_OPERATION", MethodNotOffered),
    (-32005, "CONTENT_TYPE_NOT_SUPPORTED", AgentRefused),
    (-32006, "INVALID_AGENT_RESPONSE", CallAmbiguous),
    (-32008, "EXTENSION_SUPPORT_REQUIRED", AgentRefused),
    (-32009, "VERSION_NOT_SUPPORTED", VersionNotSpoken),
    (-32600, "INVALID_REQUEST", AgentRefused),
    (-32601, "METHOD_NOT_FOUND", MethodNotOffered),
    (-32602, "INVALID_PARAMS", AgentRefused),
    (-32603, "INTERNAL_ERROR", CallAmbiguous),
]


@pytest.mark.parametrize("status", [200, 400, 404, 500])
@pytest.mark.parametrize(("code", "reason", "kind"), KNOWN)
def test_an_error_of_the_agent_decides_whatever_status_carries_it(
    code: int, reason: str, kind: type[AgentError], status: int
) -> None:
    """Delivery certainty by error: refused when nothing was started, ambiguous when it may have been."""
    error = refusal(RPC, status, rpc_error(code))
    assert (type(error), error.a2a_code) == (kind, code)
    if status != 200:
        error = refusal(REST, status, rest_error(reason))
        assert (type(error), error.a2a_code) == (kind, code)


@pytest.mark.parametrize("code", [-32000, -32099, 1, 0, "x", None, True, 1.5])
def test_a_code_nobody_knows_is_ambiguous(code: object) -> None:
    """It does not say that nothing was started."""
    assert type(refusal(RPC, 200, rpc_error(code))) is CallAmbiguous


def test_invalid_params_are_about_the_push_config_when_one_was_sent() -> None:
    """Agents that check webhook URLs answer so; without the config the message is welcome."""
    with_push = Question(method="SendMessage", binding=JSONRPC, request_id="r1", had_push_config=True)
    assert type(refusal(with_push, 200, rpc_error(-32602))) is PushNotAccepted
    with_push = Question(method="SendMessage", binding=HTTP_JSON, had_push_config=True)
    assert type(refusal(with_push, 400, rest_error("INVALID_PARAMS", "INVALID_ARGUMENT"))) is PushNotAccepted


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (301, CallAmbiguous),
        (307, CallAmbiguous),
        (400, AgentRefused),
        (401, AuthenticationRefused),
        (403, AuthenticationRefused),
        (404, AgentRefused),
        (405, MethodNotOffered),
        (408, CallAmbiguous),
        (413, AgentRefused),
        (499, CallAmbiguous),
        (500, CallAmbiguous),
        (501, MethodNotOffered),
        (502, CallAmbiguous),
        (503, CallAmbiguous),
        (504, CallAmbiguous),
        (199, CallAmbiguous),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<h1>Bad gateway</h1>", b'"x"', b"[]", b'{"error": "x"}', b'{"message": "no"}'])
@pytest.mark.parametrize("question", [RPC, REST])
def test_without_an_error_of_the_agent_the_status_decides(
    question: Question, body: bytes, status: int, kind: type[AgentError]
) -> None:
    """Case C088: a gateway's page is read by its status alone."""
    error = refusal(question, status, body)
    assert type(error) is kind
    assert str(status) in error.detail


def test_401_and_403_say_authentication() -> None:
    """Case C058: an operator must see what to do, whatever the body."""
    for status in (401, 403):
        assert "authentication" in refusal(RPC, status, b"").detail
        assert "authentication" in refusal(RPC, status, rpc_error(-32000)).detail


def test_a_missing_route_of_http_json_is_a_method_not_offered() -> None:
    """Lists and sends name no task, so a 404 is about the method; about a task, only the agent can say so."""
    assert type(refusal(Question(method="ListTasks", binding=HTTP_JSON), 404, b"")) is MethodNotOffered
    assert type(refusal(REST, 404, {"error": {"status": "NOT_FOUND"}})) is AgentTaskNotFound
    assert type(refusal(REST, 404, b"")) is AgentRefused


@pytest.mark.parametrize(("status", "body"), [(429, b""), (429, rpc_error(-32603)), (503, b"")])
def test_not_now_is_busy(status: int, body: Any) -> None:
    """429, and 503 with Retry-After: the same call again after the wait."""
    error = refusal(RPC, status, body, **{"retry-after": "7"})
    assert isinstance(error, AgentBusy)
    assert error.retry_after_s == 7


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "120"}, 120.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "999999999999"}, 86_400.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "١٢"}, None),
        (
            {"retry-after": "Mon, 30 Nov 2026 10:01:00 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"},
            60.0,
        ),
        (
            {"retry-after": "Mon, 30 Nov 2026 10:00:00 GMT", "date": "Mon, 30 Nov 2026 10:01:00 GMT"},
            0.0,
        ),
        (
            {"retry-after": "Thu, 01 Jan 2099 00:00:00 GMT", "date": "Mon, 30 Nov 2026 10:00:00 GMT"},
            86_400.0,
        ),
        ({"retry-after": "Thu, 01 Jan 2099 00:00:00 GMT"}, None),
        ({"retry-after": "Thu, 01 Jan 2099 00:00:00 GMT", "date": "soon"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    """A date counts from the agent's own Date, never from our clock; never more than a day."""
    assert read_retry_after(headers) == seconds


@pytest.mark.parametrize(
    "body",
    [
        {"jsonrpc": "2.0", "id": "other", "result": {}},
        {"jsonrpc": "2.0", "result": {}},
        {"jsonrpc": "2.0", "id": None, "result": {}},
        {"jsonrpc": "2.0", "id": "r1"},
        {"jsonrpc": "2.0", "id": "r1", "result": {}, "error": {"code": -32001, "message": "x"}},
        {"jsonrpc": "2.0", "id": "r1", "error": "no"},
        {"jsonrpc": "2.0", "id": "other", "error": {"code": -32001, "message": "x"}},
        [{"jsonrpc": "2.0", "id": "r1", "result": {}}],
        "text",
        b"<html>login</html>",
        b"",
    ],
)
def test_what_is_no_answer_to_our_request_is_ambiguous(body: Any) -> None:
    """Case C088: another id, batches, both members, neither, HTML with 200."""
    assert type(refusal(RPC, 200, body)) is CallAmbiguous


def test_an_error_without_id_is_about_our_request() -> None:
    """JSON-RPC answers a request it could not read with a null id."""
    assert type(refusal(RPC, 200, rpc_error(-32700, id=None))) is AgentRefused


def test_a_result_is_handed_on_as_it_is() -> None:
    """HTTP+JSON has no envelope, and may answer a deletion with nothing."""
    assert reply(RPC, 200, {"jsonrpc": "2.0", "id": "r1", "error": None, "result": {"a": 1}}) == {"a": 1}
    assert reply(REST, 200, {"a": 1}) == {"a": 1}
    assert reply(REST, 204, b"") == {}


def test_details_are_one_short_line_without_secrets() -> None:
    """They are logged and shown."""
    question = Question(method="SendMessage", binding=JSONRPC, request_id="r1", secrets=("s3cret-token",))
    message = "bad url https://us.example/push/1?token=s3cret-token s3cret-token\n" + "x" * 5000
    detail = refusal(question, 200, rpc_error(-32600, message)).detail
    assert "s3cret" not in detail
    assert "?" not in detail
    assert "\n" not in detail
    assert len(detail) < 250


def test_in_a_stream_both_bindings_say_errors_in_the_body() -> None:
    """The HTTP status has been sent long before."""
    with pytest.raises(AgentTaskNotFound):
        read_event_result(RPC, json.dumps(rpc_error(-32001)).encode())
    with pytest.raises(AgentTaskNotFound):
        read_event_result(REST, json.dumps(rest_error("TASK_NOT_FOUND")).encode())
    assert read_event_result(RPC, b'{"id": "r1", "result": {"a": 1}}') == {"a": 1}
    assert read_event_result(REST, b'{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("question", [RPC, REST])
@pytest.mark.parametrize(
    "body", [b"", b"oh", b"[]", b"{}", b'{"error": 1}', b'{"error": {}}', b'{"id": "r1", "result": 1}']
)
def test_an_error_event_that_says_nothing_is_ambiguous(question: Question, body: bytes) -> None:
    """It never turns into news, and never into a refusal."""
    assert type(read_error_event(question, body)) is CallAmbiguous


def test_a_question_keeps_its_secrets_to_itself() -> None:
    """It is shown in tracebacks and logs."""
    assert "hunter2" not in repr(Question(method="GetTask", binding=JSONRPC, secrets=("hunter2",)))
