"""Decide what an HTTP answer means: the result the agent gave, or which of our errors it is. Pure.

What is certain decides (A2A spec sections 5.4, 9.5 and 11.6): an error of the agent's own that says nothing was
started is a refusal, whatever HTTP status carries it; 429, and 503 with Retry-After, are "not now"; the rest of
what is not a readable answer is ambiguous, -32603 and 5xx included, because an agent that crashes on a message
answers so and still keeps the task.
"""

from __future__ import annotations

import email.utils
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from delegation.answers import load_json, one_line
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
from delegation.version_0_3 import VERSION as VERSION_0_3
from delegation.version_0_3 import error_code, to_1_0

JSONRPC = "JSONRPC"
HTTP_JSON = "HTTP+JSON"

#: Error codes after which it is certain that nothing was started. Codes not named here leave that open.
REFUSALS: Mapping[int, type[AgentRefused]] = {
    -32001: AgentTaskNotFound,
    -32002: AgentTaskNotCancelable,
    -32003: PushNotAccepted,
    -32004: MethodNotOffered,
    -32005: AgentRefused,
    -32007: AgentRefused,
    -32008: AgentRefused,
    -32009: VersionNotSpoken,
    -32600: AgentRefused,
    -32601: MethodNotOffered,
    -32602: AgentRefused,
    -32700: AgentRefused,
}
INVALID_PARAMS = -32602
VERSION_NOT_SUPPORTED = -32009
#: Codes of an agent that broke at work: InvalidAgentResponse and InternalError.
OPEN_ENDED = (-32006, -32603)

#: `ErrorInfo.reason` of the HTTP+JSON binding (spec section 11.6) as the JSON-RPC code of the same error.
REASONS: Mapping[str, int] = {
    "TASK_NOT_FOUND": -32001,
    "TASK_NOT_CANCELABLE": -32002,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": -32003,
    "UNSUPPORTED_OPERATION": -32004,
    "CONTENT_TYPE_NOT_SUPPORTED": -32005,
    "INVALID_AGENT_RESPONSE": -32006,
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": -32007,
    "EXTENSION_SUPPORT_REQUIRED": -32008,
    "VERSION_NOT_SUPPORTED": -32009,
    "INVALID_REQUEST": -32600,
    "METHOD_NOT_FOUND": -32601,
    "INVALID_PARAMS": INVALID_PARAMS,
    "INTERNAL_ERROR": -32603,
}

LONGEST_RETRY_AFTER_S = 86_400.0
_NO_HEADERS: Mapping[str, str] = MappingProxyType({})
#: Answers of a server or proxy that itself gave up waiting: the agent may have had the request (408, nginx's 499).
_GAVE_UP = (408, 499)


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What was asked, as far as reading the answer needs it."""

    method: str  #: A2A's name of it, for people
    binding: str
    request_id: str = ""  #: the JSON-RPC id that the answer must carry
    names_task: bool = False  #: about one task: an HTTP+JSON 404 is then about the task
    had_push_config: bool = False
    secrets: tuple[str, ...] = field(default=(), repr=False)  #: never repeated in a detail
    version: str = "1.0"  #: of A2A: what comes in 0.3 is read as 1.0


def read_reply(question: Question, status: int, headers: Mapping[str, str], body: bytes) -> Any:
    """The result in an answer. Raises AgentBusy, AgentRefused and its kinds, AuthenticationRefused, CallAmbiguous.

    Whatever body a 401 carries, it is about our credentials; a 403 may be the agent's own word on something else.
    """
    if status == 429 or (status == 503 and "retry-after" in headers):
        raise AgentBusy(f"{question.method}: HTTP {status}", read_retry_after(headers))
    if status == 401:
        raise _refused_credentials(question, status, headers)
    if 200 <= status < 300:
        return _as_1_0(question, _read_result(question, body))
    error = _read_error_of_status(question, status, body)
    if error is not None:
        raise error
    raise explain_status(question, status, headers)


def read_event_result(question: Question, payload: bytes) -> Any:
    """The result in one event of a stream, where errors of both bindings come in the body. Raises as `read_reply`."""
    if question.binding == JSONRPC:
        return _as_1_0(question, _read_result(question, payload))
    answer = load_json(payload)
    if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
        raise read_error_event(question, payload)
    return _as_1_0(question, answer)


def read_error_event(question: Question, payload: bytes) -> AgentError:
    """What an event that says it is an error means; CallAmbiguous when it does not say which."""
    try:
        answer = load_json(payload)
    except CallAmbiguous:
        answer = None
    read = _read_rpc_error if question.binding == JSONRPC else _read_http_json_error
    error = read(question, answer) if isinstance(answer, dict) else None
    return error or CallAmbiguous(f"{question.method}: the stream ended with an error that is not readable")


def explain_status(question: Question, status: int, headers: Mapping[str, str] = _NO_HEADERS) -> AgentError:
    """The error for an HTTP status that no error of the agent's own explains."""
    detail = f"{question.method}: HTTP {status}"
    if status in (401, 403):
        return _refused_credentials(question, status, headers)
    if 300 <= status < 400:
        return CallAmbiguous(f"{detail}: a redirect, not followed")
    if status in (405, 501) or (question.binding == HTTP_JSON and status == 404 and not question.names_task):
        return MethodNotOffered(detail)
    if 400 <= status < 500 and status not in _GAVE_UP:
        return AgentRefused(detail)
    return CallAmbiguous(detail)


def _refused_credentials(question: Question, status: int, headers: Mapping[str, str]) -> AuthenticationRefused:
    challenge = one_line(headers.get("www-authenticate"), 100, question.secrets)
    detail = (
        f"{question.method}: HTTP {status}: authentication: the agent wants credentials it did not get, or refuses ours"
    )
    return AuthenticationRefused(f"{detail} ({challenge})" if challenge else detail, status)


def read_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from Retry-After as seconds or as a date; at most a day, None when absent or unreadable.

    A date counts from the answer's own Date: our clock says nothing about the agent's. Without one it is unreadable.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), LONGEST_RETRY_AFTER_S)
    at, now = _read_http_date(value), _read_http_date(headers.get("date", ""))
    if at is None or now is None:
        return None
    return min(max((at - now).total_seconds(), 0.0), LONGEST_RETRY_AFTER_S)


def _read_http_date(value: str) -> datetime | None:
    try:
        date = email.utils.parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def _as_1_0(question: Question, result: Any) -> Any:
    return to_1_0(result, is_protobuf=question.binding != JSONRPC) if question.version == VERSION_0_3 else result


def _read_result(question: Question, body: bytes) -> Any:
    if question.binding == HTTP_JSON:
        return load_json(body) if body.strip() else {}
    answer = load_json(body)
    if not isinstance(answer, dict):
        raise CallAmbiguous(f"{question.method}: the answer is not a JSON-RPC object")
    error = answer.get("error")
    if error is not None:
        if answer.get("result") is not None:
            raise CallAmbiguous(f"{question.method}: the answer has both a result and an error")
        raise _read_rpc_error(question, answer) or CallAmbiguous(f"{question.method}: the error is not readable")
    if answer.get("id") != question.request_id:
        raise CallAmbiguous(f"{question.method}: the answer's id is not the request's")
    if "result" not in answer and question.version == VERSION_0_3:
        return None  # so a2a-sdk 0.3 writes null, which is what a removal answers
    if "result" not in answer:
        raise CallAmbiguous(f"{question.method}: the answer has neither a result nor an error")
    return answer["result"]


def _read_error_of_status(question: Question, status: int, body: bytes) -> AgentError | None:
    """The agent's own error in the body of an HTTP error; None when a proxy wrote it, or nobody."""
    try:
        answer = load_json(body)
    except CallAmbiguous:
        return None
    if not isinstance(answer, dict):
        return None
    if question.binding == JSONRPC:
        error = _read_rpc_error(question, answer)
        return error if error is not None and error.a2a_code in (*REFUSALS, *OPEN_ENDED) else None
    if question.version == VERSION_0_3:
        code = error_code(status, answer, names_task=question.names_task)
        return None if code is None else _error_for(question, code, answer["message"])
    return _read_http_json_error(question, answer)


def _read_rpc_error(question: Question, answer: dict[str, Any]) -> AgentError | None:
    error = answer.get("error")
    if not isinstance(error, dict):
        return None
    if answer.get("id") not in (question.request_id, None):
        return CallAmbiguous(f"{question.method}: the answer's id is not the request's")
    code = error.get("code")
    if not isinstance(code, int) or isinstance(code, bool):
        return CallAmbiguous(f"{question.method}: an error without a code")
    return _error_for(question, code, error.get("message"))


def _read_http_json_error(question: Question, answer: dict[str, Any]) -> AgentError | None:
    error = answer.get("error")
    if not isinstance(error, dict):
        return None
    code = next((REASONS[reason] for reason in _reasons(error.get("details")) if reason in REASONS), None)
    if code is None and error.get("status") == "NOT_FOUND" and question.names_task:
        code = REASONS["TASK_NOT_FOUND"]
    if code is None and error.get("status") == "INVALID_ARGUMENT":
        code = INVALID_PARAMS
    return None if code is None else _error_for(question, code, error.get("message"))


def _reasons(details: object) -> list[str]:
    entries = details if isinstance(details, list) else []
    reasons = [entry.get("reason") for entry in entries if isinstance(entry, dict)]
    return [reason for reason in reasons if isinstance(reason, str)]


def _error_for(question: Question, code: int, message: object) -> AgentError:
    said = one_line(message, secrets=question.secrets)
    detail = f"{question.method}: error {code}" + (f": {said}" if said else "")
    if code == VERSION_NOT_SUPPORTED:
        detail = f"version_unsupported: {detail}"
    if code == INVALID_PARAMS and question.had_push_config:
        return PushNotAccepted(detail, code)
    return REFUSALS.get(code, CallAmbiguous)(detail, code)
