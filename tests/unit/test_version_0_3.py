"""Cards and answers of A2A 0.3, as those of 1.0."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from a2a.compat.v0_3 import conversions, types
from google.protobuf.json_format import MessageToDict

from delegation.agent_task import AgentTask, ContextId, DataPart, OutgoingMessage, TaskState
from delegation.answers import read_send_answer, read_task
from delegation.card_changes import compare
from delegation.cards import CheckedCard, at_interface, check_card, standard_headers
from delegation.errors import AgentRefused, AgentTaskNotCancelable, AgentTaskNotFound, CallAmbiguous, PushNotAccepted
from delegation.events import read_event
from delegation.outgoing import json_restorer
from delegation.replies import HTTP_JSON, JSONRPC, Question, read_reply
from delegation.settings import AgentSettings, load_settings
from delegation.version_0_3 import to_1_0, without_address
from tests.support.cases import case_input

HOME = "https://agent.example"
HINT = 'protocol = "0.3" in its [[agents]] block allows it'
AT = "2026-11-30T10:00:00Z"


def settings(protocol: str = "0.3", **fields: Any) -> AgentSettings:
    return AgentSettings(id="old", url=HOME, protocol=protocol, **fields)


def old_card(**fields: Any) -> dict[str, Any]:
    """Case C030's."""
    card: dict[str, Any] = json.loads(json.dumps(case_input("C030")["card"]).replace("{AGENT}", HOME))
    return {name: value for name, value in {**card, **fields}.items() if value is not None}


def entry(path: str, version: str, binding: str = "JSONRPC") -> dict[str, Any]:
    return {"url": HOME + path, "protocolBinding": binding, "protocolVersion": version}


def new_card(*interfaces: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "n", "description": "d", "version": "1", "supportedInterfaces": list(interfaces), **fields}


def chosen(raw: dict[str, Any], **fields: Any) -> tuple[str, str, str]:
    interface = check_card(settings(**fields), raw).interface
    return interface.binding, interface.url.removeprefix(HOME), interface.version


# ------------------------------------------------------------ cards


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ("JSONRPC", "/a2a", "0.3")),
        ({"preferredTransport": None}, ("JSONRPC", "/a2a", "0.3")),
        ({"protocolVersion": None}, ("JSONRPC", "/a2a", "0.3")),
        ({"preferredTransport": "GRPC"}, ("HTTP+JSON", "/rest", "0.3")),
        ({"preferredTransport": "HTTP+JSON"}, ("HTTP+JSON", "/a2a", "0.3")),
        ({"url": "https://elsewhere.example/a2a"}, ("HTTP+JSON", "/rest", "0.3")),
        ({"additionalInterfaces": None}, ("JSONRPC", "/a2a", "0.3")),
        ({"supportedInterfaces": [entry("/new", "1.0")]}, ("JSONRPC", "/new", "1.0")),
        ({"supportedInterfaces": [entry("/x", "1.0", "GRPC")]}, ("JSONRPC", "/a2a", "0.3")),
    ],
)
def test_c030_the_interfaces_of_an_old_card_are_taken_in_order(
    fields: dict[str, Any], expected: tuple[str, str, str]
) -> None:
    """Case C030: url with its preferredTransport first, then additionalInterfaces; one of 1.0 before all of them."""
    assert chosen(old_card(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, f"version_unsupported: 0.3.0; {HINT}"),
        ({"protocolVersion": "0.2.6"}, "version_unsupported: 0.2.6"),
        ({"protocolVersion": "0.30"}, "version_unsupported: 0.30"),
        ({"protocolVersion": None}, "card_invalid: supportedInterfaces missing"),
    ],
)
def test_c030_an_old_card_is_refused_with_the_cure_where_the_settings_say_nothing(
    fields: dict[str, Any], reason: str
) -> None:
    """Case C030: the version, and what allows it; never a card without interfaces."""
    with pytest.raises(AgentRefused) as refusal:
        check_card(settings("1.0"), old_card(**fields))
    assert refusal.value.detail == reason


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"protocolVersion": "0.2.6"}, "version_unsupported: 0.2.6"),
        ({"url": ""}, "card_invalid: url missing"),
        ({"url": 7, "additionalInterfaces": []}, "card_invalid: the card.url is missing"),
        ({"url": "https://elsewhere.example/", "additionalInterfaces": []}, "card_origin_refused: "),
        ({"additionalInterfaces": ["x"]}, "card_invalid: additionalInterfaces[0] is not an object"),
        ({"preferredTransport": "GRPC", "additionalInterfaces": []}, "no_supported_interface: the card offers GRPC"),
    ],
)
def test_an_old_card_is_checked_like_any(fields: dict[str, Any], reason: str) -> None:
    """Its origins, its shapes, its bindings."""
    with pytest.raises(AgentRefused) as refusal:
        check_card(settings(), old_card(**fields))
    assert refusal.value.detail.startswith(reason)


def test_1_0_is_preferred_wherever_it_stands() -> None:
    """The settings allow 0.3, they do not ask for it; it is kept for an agent that then refuses 1.0."""
    raw = new_card(entry("/old", "0.3"), entry("/new", "1.0"))
    card = check_card(settings(), raw)
    assert (card.interface.url, card.interface.version) == (f"{HOME}/new", "1.0")
    assert json.loads(card.older_interface_key)["url"] == f"{HOME}/old"
    assert check_card(settings("1.0"), raw).older_interface_key == ""
    assert check_card(settings(), new_card(entry("/new", "1.0"))).older_interface_key == ""


def test_the_version_is_pinned_with_the_interface() -> None:
    """A card that offers 1.0 later changes nothing for what was sent in 0.3; nor does an address that is gone."""
    agent = settings()
    before = check_card(agent, old_card())
    later = check_card(agent, new_card(entry("/new", "1.0"), entry("/old", "0.3.0")))

    def pinned(card: CheckedCard, key: str) -> tuple[str, str]:
        interface = at_interface(agent, card, key).interface
        return interface.url.removeprefix(HOME), interface.version

    assert pinned(later, before.interface_key) == ("/a2a", "0.3")
    assert pinned(later, without_address(before.interface_key)) == ("/old", "0.3")
    assert pinned(check_card(agent, new_card(entry("/new", "1.0"))), without_address(before.interface_key)) == (
        "/new",
        "1.0",
    )
    assert at_interface(settings("1.0"), later, before.interface_key) is later
    assert without_address(later.interface_key) == ""
    assert [without_address(broken) for broken in ("", "{", "[]", "3")] == ["", "", "", ""]


def test_a_moved_old_interface_is_a_change_that_pauses() -> None:
    """As with those of 1.0."""
    agent = settings(origins=["https://eu.example"])
    moved = compare(agent, old_card(), old_card(url="https://eu.example/a2a"))
    assert moved.codes == ("endpoint_moved",)
    assert compare(agent, old_card(), old_card(description="other")).codes == ()


def test_c061_the_headers_are_those_of_the_version() -> None:
    """Case C061: X-A2A-Extensions in 0.3; several are separated by commas."""
    headers = standard_headers(settings(), "us", extensions=("urn:a", "urn:b"), version="0.3")
    assert (headers["A2A-Version"], headers["X-A2A-Extensions"]) == ("0.3", "urn:a,urn:b")
    assert "A2A-Extensions" not in headers


def test_the_docs_show_a_configuration_that_allows_it(tmp_path: Path) -> None:
    """docs/versions.md: the block works as it stands, and the reason is the one that a refused card gets."""
    text = (Path(__file__).parents[2] / "docs" / "versions.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert block is not None
    file = tmp_path / "delegation.toml"
    file.write_text(block[1], encoding="utf-8")
    agent = load_settings(file).agent("ledger")
    card = old_card(url=f"{agent.url}/a2a")
    assert check_card(agent, card).interface.version == "0.3"
    with pytest.raises(AgentRefused) as refusal:
        check_card(agent.model_copy(update={"protocol": "1.0"}), card)
    assert f"\n    {refusal.value.detail}\n" in text


# ------------------------------------------------------------ what is said, in JSON-RPC's spelling


FILE = {"uri": "https://files.example/r.pdf", "mimeType": "application/pdf", "name": "r.pdf"}
PARTS = [
    ({"kind": "text", "text": "hi"}, {"text": "hi"}),
    ({"kind": "text", "text": "hi", "metadata": {"a": 1}}, {"text": "hi", "metadata": {"a": 1}}),
    ({"kind": "file", "file": FILE}, {"url": FILE["uri"], "mediaType": FILE["mimeType"], "filename": "r.pdf"}),
    ({"kind": "file", "file": {"bytes": "Um9tZQ==", "name": "r"}}, {"raw": "Um9tZQ==", "filename": "r"}),
    ({"kind": "data", "data": {"a": [1, None]}}, {"data": {"a": [1, None]}}),
    ({"kind": "data", "data": {"value": 3}, "metadata": {"data_part_compat": True}}, {"data": 3}),
    ({"kind": "data", "data": {"data": {"x": 1}}}, {"data": {"data": {"x": 1}}}),
]
STATES = {
    "submitted": "TASK_STATE_SUBMITTED",
    "working": "TASK_STATE_WORKING",
    "input-required": "TASK_STATE_INPUT_REQUIRED",
    "auth-required": "TASK_STATE_AUTH_REQUIRED",
    "completed": "TASK_STATE_COMPLETED",
    "canceled": "TASK_STATE_CANCELED",
    "failed": "TASK_STATE_FAILED",
    "rejected": "TASK_STATE_REJECTED",
    "unknown": "TASK_STATE_UNSPECIFIED",
}


def said(text: str = "hi", role: str = "agent", **fields: Any) -> dict[str, Any]:
    return {"kind": "message", "messageId": "m1", "role": role, "parts": [{"kind": "text", "text": text}], **fields}


def task(state: str = "working", **fields: Any) -> dict[str, Any]:
    return {"kind": "task", "id": "t1", "contextId": "c1", "status": {"state": state, "timestamp": AT}, **fields}


@pytest.mark.parametrize(("old", "new"), PARTS)
def test_a_part_is_what_1_0_writes(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Wherever parts are: in a message, an artifact, the history, a status."""
    raw = task(
        status={"state": "input-required", "message": said(parts=[old])},
        artifacts=[{"artifactId": "a", "parts": [old]}],
        history=[said(parts=[old])],
    )
    read = to_1_0(raw, is_protobuf=False)
    owners = [read["status"]["message"], *read["artifacts"], *read["history"]]
    assert [owner["parts"] for owner in owners] == [[new]] * 3
    assert to_1_0(said(parts=[old]), is_protobuf=False)["message"]["parts"] == [new]


@pytest.mark.parametrize(("old", "new"), STATES.items())
def test_a_state_is_what_1_0_calls_it(old: str, new: str) -> None:
    """All of 0.3's."""
    assert to_1_0(task(old), is_protobuf=False)["status"] == {"state": new, "timestamp": AT}


@pytest.mark.parametrize(
    "raw",
    [
        *(task(state) for state in STATES if state != "unknown"),
        *(task(artifacts=[{"artifactId": "a", "name": "n", "parts": [old]}]) for old, _ in PARTS),
        task(history=[said("question", "user", contextId="c1", taskId="t1"), said()], metadata={"k": "v"}),
        task(status={"state": "input-required", "message": said(), "timestamp": AT}),
    ],
)
def test_a_task_is_what_the_sdk_makes_of_it(raw: dict[str, Any]) -> None:
    """The official conversion is the reference wherever it can read the answer."""
    official = MessageToDict(conversions.to_core_task(types.Task.model_validate(raw)))
    assert without_sizes(to_1_0(raw, is_protobuf=False)) == without_sizes(official)


def without_sizes(raw: dict[str, Any]) -> AgentTask:
    """By way of protobuf numbers become floats, which are longer."""
    found = read_task(raw)
    return replace(found, artifacts=tuple(replace(artifact, size=0) for artifact in found.artifacts))


@pytest.mark.parametrize(
    "event",
    [
        task("completed"),
        said(),
        {"kind": "status-update", "taskId": "t1", "contextId": "c1", "final": True, "status": {"state": "failed"}},
        {
            "kind": "artifact-update",
            "taskId": "t1",
            "contextId": "c1",
            "append": True,
            "artifact": {"artifactId": "a", "name": "n", "parts": [{"kind": "text", "text": "x"}]},
        },
    ],
)
def test_an_event_is_what_the_sdk_makes_of_it(event: dict[str, Any]) -> None:
    """All four kinds, in the stream's envelope; and the same without its `kind`, as some send it."""
    official = MessageToDict(
        conversions.to_core_stream_response(types.SendStreamingMessageSuccessResponse.model_validate({"result": event}))
    )
    old = Question(method="m", binding=JSONRPC, request_id="1", version="0.3")
    new = Question(method="m", binding=JSONRPC, request_id="1")
    expected = read_event(new, envelope(official))
    assert read_event(old, envelope(event)) == expected
    bare = {name: value for name, value in event.items() if name != "kind"}
    assert read_event(old, envelope(bare)) == expected


def envelope(result: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": "1", "result": result}).encode()


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        7,
        "task",
        {},
        {"kind": 7},
        {"kind": "dream"},
        {"name": "card", "skills": [], "url": HOME},
        task(status=None),
        task(artifacts=7, history="x"),
        task(
            artifacts=[7, {"parts": 7}], history=[None, {"parts": [7, {"kind": "file", "file": 3}, {"kind": "data"}]}]
        ),
        task(status={"state": 7, "message": 7}),
        {"kind": "status-update"},
        {"kind": "artifact-update", "artifact": 7},
        {"kind": "message", "parts": {}},
    ],
)
@pytest.mark.parametrize("is_protobuf", [True, False])
def test_what_is_malformed_raises_nothing(raw: Any, is_protobuf: bool) -> None:
    """It stays malformed, for whoever reads it as 1.0; what is given is not changed."""
    before = json.dumps(raw)
    to_1_0(raw, is_protobuf=is_protobuf)
    assert json.dumps(raw) == before


def test_an_unknown_state_keeps_its_spelling() -> None:
    """As with 1.0: the history shows what the agent wrote."""
    read = read_task(to_1_0(task("pondering"), is_protobuf=False))
    assert (read.state, read.raw_state) == (None, "pondering")


# ------------------------------------------------------------ HTTP+JSON's spelling, and its errors


def test_an_answer_in_protobufs_spelling_is_the_same_task() -> None:
    """`content`, `{"data": {"data": …}}`, bytes encoded twice, roles and states in capitals, British English."""
    old = {
        "task": {
            "id": "t1",
            "contextId": "c1",
            "status": {
                "state": "TASK_STATE_CANCELLED",
                "message": {"messageId": "m", "role": "ROLE_AGENT", "content": [{"text": "no"}]},
            },
            "artifacts": [
                {
                    "artifactId": "a",
                    "parts": [
                        {"data": {"data": {"x": 1}}},
                        {"file": {"fileWithUri": "https://f", "name": "f"}},
                        {"file": {"fileWithBytes": "VW05dFpRPT0=", "mimeType": "text/plain"}},
                        {"file": {"fileWithBytes": "AP8="}},
                    ],
                }
            ],
        }
    }
    answer = read_send_answer(to_1_0(old, is_protobuf=True))
    assert isinstance(answer, AgentTask)
    assert (answer.state, answer.status_text) == (TaskState.CANCELED, "no")
    assert answer.artifacts[0].parts == (
        {"data": {"x": 1}},
        {"url": "https://f", "filename": "f"},
        {"raw": "Um9tZQ==", "mediaType": "text/plain"},
        {"raw": "AP8="},
    )


@pytest.mark.parametrize(
    ("member", "body"),
    [
        ("message", {"messageId": "m", "role": "ROLE_AGENT", "content": [{"text": "hi"}]}),
        ("statusUpdate", {"taskId": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}, "final": True}),
        ("artifactUpdate", {"taskId": "t1", "artifact": {"artifactId": "a", "parts": [{"text": "x"}]}}),
    ],
)
def test_an_event_in_protobufs_spelling_keeps_its_member(member: str, body: dict[str, Any]) -> None:
    """StreamResponse had the same members."""
    assert list(to_1_0({member: body}, is_protobuf=True)) == [member]


@pytest.mark.parametrize(
    ("status", "body", "names_task", "kind"),
    [
        (404, {"message": "Task not found"}, True, AgentTaskNotFound),
        (404, {"message": "no", "type": "TaskNotFoundError"}, True, AgentTaskNotFound),
        (404, {"detail": "Not Found"}, True, AgentRefused),
        (409, {"message": "it is over"}, True, AgentTaskNotCancelable),
        (422, {"message": "bad config"}, False, PushNotAccepted),
        (500, {"message": "unknown exception"}, False, CallAmbiguous),
        (502, {"message": "no", "type": "InvalidAgentResponseError"}, False, CallAmbiguous),
    ],
)
def test_an_error_of_http_json_is_known_by_its_status(
    status: int, body: dict[str, Any], names_task: bool, kind: type[Exception]
) -> None:
    """0.3's servers send a message and no reason; a proxy's 404 is not about the task."""
    question = Question(
        method="m", binding=HTTP_JSON, names_task=names_task, had_push_config=not names_task, version="0.3"
    )
    with pytest.raises(kind) as raised:
        read_reply(question, status, {}, json.dumps(body).encode())
    assert type(raised.value) is kind


# ------------------------------------------------------------ what we send


@pytest.mark.parametrize("value", [{"n": 2**60}, [1, 2], 3, None, "text"])
@pytest.mark.parametrize("binding", [JSONRPC, HTTP_JSON])
def test_our_own_json_is_put_into_the_shapes_of_0_3_and_read_back(value: Any, binding: str) -> None:
    """A data part of 0.3 is an object; another value is wrapped and marked as the SDK does it."""
    restore = json_restorer(
        OutgoingMessage(message_id="m", context_id=ContextId("c"), text="hi", data=(DataPart(value=value),)),
        "us",
        binding,
        "0.3",
    )
    assert restore is not None
    parts = [{"text": "hi"}, {"data": None, "metadata": {"data_part_compat": True}}]
    body = {"params": {"message": {"parts": parts}}} if binding == JSONRPC else {"request": {"content": parts}}
    sent = json.loads(restore(json.dumps(body).encode()))
    message = sent["params"]["message"] if binding == JSONRPC else {**sent["request"], "messageId": "m"}
    read = to_1_0({"kind": "message", **message}, is_protobuf=binding != JSONRPC)
    assert read["message"]["parts"][1] == {"data": value}
