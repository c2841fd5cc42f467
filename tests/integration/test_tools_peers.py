"""Remote agents as tools against scripted peers of the toolnexus dialect: the numbers are those of the table."""

from __future__ import annotations

import json
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from delegation import RemoteAgent, ToolResult, agent_tools, remote_agent
from tests.support.raw_server import Behaviour, RawServer, Seen, answers, closes, hangs, http, refuses, says
from tests.support.tool_peers import ToolPeer, make_card, p1, p1_script, p2, task, text_part

#: Long enough for a machine under load; the loop's own numbers are tested with a clock of their own.
PATIENT: dict[str, Any] = {"timeout": 30_000, "poll_every": 10}


@pytest.fixture
def demo() -> Iterator[ToolPeer]:
    with p1() as peer:
        yield peer


def connect(peer: ToolPeer, **options: Any) -> RemoteAgent:
    return remote_agent(card=peer.card_url, **(PATIENT | options))


def call(peer: ToolPeer, text: str = "echo", **options: Any) -> ToolResult:
    return connect(peer, **options).tools[0].execute({"task": text})


def peer_with(*steps: Any, **card: Any) -> ToolPeer:
    return ToolPeer(make_card("Demo Bot", [{"id": "echo"}], **card), lambda _: steps)


def test_02_card_parsed(demo: ToolPeer) -> None:
    """The card is there as it came."""
    found = connect(demo)
    assert found.card == demo.card
    assert found.error is None
    assert len(demo.card_requests) == 1


def test_03_tool_names(demo: ToolPeer) -> None:
    """One for each skill, in the card's order: its id, else its name."""
    assert [tool.name for tool in connect(demo).tools] == ["Demo_Bot_echo", "Demo_Bot_Slow_Work", "Demo_Bot_fail_now"]


def test_04_source_and_schema(demo: ToolPeer) -> None:
    """One field, and nothing beside it."""
    for tool in connect(demo).tools:
        assert tool.source == "a2a"
        assert tool.input_schema == {
            "type": "object",
            "properties": {"task": {"type": "string"}},
            "required": ["task"],
        }


def test_05_description(demo: ToolPeer) -> None:
    """The skill's, else its name."""
    assert [tool.description for tool in connect(demo).tools[:2]] == ["Echoes what it is told", "Slow Work"]
    with ToolPeer(make_card("Calc Agent", [{"name": "echo!"}]), p1_script) as peer:
        (tool,) = connect(peer).tools
        assert (tool.name, tool.description) == ("Calc_Agent_echo_", "echo!")


def test_06_endpoint(demo: ToolPeer) -> None:
    """The card's, or the card's origin without a slash."""
    assert connect(demo).endpoint == f"{demo.url}/"
    with peer_with(task("x", "completed"), url=None) as peer:
        assert connect(peer).endpoint == peer.url


def test_07_the_endpoint_that_is_fallen_back_to_is_used() -> None:
    """The message reaches the origin."""
    with peer_with(task("x", "completed", artifacts=[["here"]]), url=None) as peer:
        assert call(peer).output == "here"
        assert [seen.line.split()[1] for seen in peer.calls("SendMessage")] == ["/"]


def test_08_404_card(demo: ToolPeer) -> None:
    """The status and the body say why there are no tools."""
    found = remote_agent(card=f"{demo.url}/nope.json")
    assert (found.card, found.endpoint, found.tools, found.error) == (None, None, [], "HTTP 404: no card here")
    assert agent_tools(card=f"{demo.url}/nope.json") == []


def test_09_dead_port() -> None:
    """Nobody listens: no tools, and no exception."""
    with RawServer(hangs()) as server:
        url = server.url
    found = remote_agent(card=f"{url}/card.json")
    assert (found.tools, found.error) == ([], "HTTP transport connect-failed")


def test_10_dns_and_timeout() -> None:
    """Kinds, and nothing of the address; a name with such a label is refused before any resolver is asked."""
    assert remote_agent(card=f"http://{'a' * 64}.invalid/card.json").error == "HTTP transport dns"
    with RawServer(hangs()) as server:
        assert remote_agent(card=f"{server.url}/card.json", timeout=200).error == "HTTP transport timeout"
    with RawServer(closes(b"SSH-2.0\r\n\r\n")) as server:
        assert remote_agent(card=f"{server.url}/card.json").error == "HTTP transport transport"


@pytest.mark.parametrize("body", [b"<html>", b"", b"{} x", b"null", b"[]", b'"x"'], ids=str)
def test_11_13_a_bad_card(body: bytes) -> None:
    """Only a JSON object is a card."""
    with RawServer(says(200, body)) as server:
        found = remote_agent(card=f"{server.url}/card.json")
    assert found.tools == []
    assert found.error is not None
    assert found.error.startswith("bad card: ")


def test_12_redirects_are_not_followed() -> None:
    """No header of ours goes where a peer points to, be it on its own origin."""
    with RawServer(says(200, b"{}")) as other:
        with RawServer(says(302, b"over there", {"Location": f"{other.url}/card.json"})) as server:
            assert remote_agent(card=f"{server.url}/card.json").error == "HTTP 302: over there"
        assert other.seen == []
    with peer_with(says(307, b"", {"Location": "/elsewhere"})) as peer:
        assert call(peer).output == "HTTP 307: "
        assert len(peer.calls("SendMessage")) == 1


def test_500_with_an_empty_body_keeps_its_space() -> None:
    """The prefix is what programs compare."""
    with RawServer(says(500)) as server:
        assert remote_agent(card=f"{server.url}/card.json").error == "HTTP 500: "


@pytest.mark.parametrize(
    ("text", "output", "is_error", "state"),
    [
        ("echo", "line one\nline two", False, "completed"),
        ("multi", "part one\npart two", False, "completed"),
        ("history", "final reply", False, "completed"),
        ("fail", "A2A task task-fail failed: boom", True, "failed"),
        ("cancel", "A2A task task-cancel canceled", True, "canceled"),
    ],
)
def test_15_16_17_20_22_outcomes(demo: ToolPeer, text: str, output: str, is_error: bool, state: str) -> None:
    """Over the wire as in the loop."""
    result = call(demo, text)
    assert (result.output, result.is_error) == (output, is_error)
    assert result.metadata | {"ms": 0} == {
        "agent": "Demo Bot",
        "taskId": f"task-{text}",
        "state": state,
        "polls": 2,
        "ms": 0,
    }


def test_23_timeout(demo: ToolPeer) -> None:
    """The limit as configured, and at least as long."""
    result = call(demo, "hang", timeout=3000, poll_every=1000)
    assert result.output == "A2A task task-hang timed out after 3000ms (state=working)"
    assert result.metadata["ms"] >= 3000


def test_24_an_abort_that_is_always_true(demo: ToolPeer) -> None:
    """One POST; toolnexus has no way to tell the agent."""
    result = connect(demo, dialect="toolnexus").tools[0].execute({"task": "hang"}, abort=lambda: True)
    assert (result.output, result.metadata["state"]) == ("A2A task task-hang canceled", "canceled")
    assert result.metadata["polls"] == 0
    assert len(demo.posts) == 1


def test_25_an_abort_in_mid_poll(demo: ToolPeer) -> None:
    """Nothing is asked afterwards."""
    tool = connect(demo, timeout=300_000).tools[0]
    result = tool.execute({"task": "slow"}, abort=lambda: len(demo.calls("GetTask")) >= 1)
    asked = len(demo.calls("GetTask"))
    assert (result.is_error, result.metadata["state"], result.metadata["taskId"]) == (True, "canceled", "task-slow")
    assert asked == 1


@pytest.mark.parametrize("method", ["SendMessage", "GetTask"])
def test_27_an_abort_ends_a_request_that_hangs(method: str) -> None:
    """Long before its time is up; of a message that was not answered no task is known."""
    steps = [hangs()] if method == "SendMessage" else [task("x", "working"), hangs()]
    with peer_with(*steps) as peer:
        tool = connect(peer, timeout=300_000).tools[0]
        result = tool.execute({"task": "echo"}, abort=lambda: bool(peer.calls(method)))
    task_id = "" if method == "SendMessage" else "task-x"
    assert (result.output, result.metadata["taskId"]) == (f"A2A task {task_id} canceled", task_id)


def test_an_event_is_an_abort_predicate(demo: ToolPeer) -> None:
    """It ends a long sleep between two polls at once."""
    gone = threading.Event()
    tool = connect(demo, timeout=300_000, poll_every=300_000).tools[0]
    timer = threading.Timer(0.3, gone.set)
    timer.start()
    assert tool.execute({"task": "slow"}, abort=gone).output == "A2A task task-slow canceled"
    timer.join()


@pytest.mark.parametrize(
    ("steps", "output", "task_id"),
    [
        ([task("x", "working"), refuses(-32000, "agent exploded")], "agent exploded", "task-x"),
        ([refuses(-32000, "agent exploded")], "agent exploded", ""),
        ([refuses(-32601, "")], "JSON-RPC error -32601", ""),
        ([says(500, b"oops")], "HTTP 500: oops", ""),
        ([task("x", "working"), says(503, b"busy")], "HTTP 503: busy", "task-x"),
        ([says(200, b"<")], "invalid JSON-RPC response", ""),
        ([says(200, b"null")], "invalid JSON-RPC response", ""),
        ([closes()], "HTTP transport connect-failed", ""),
    ],
    ids=["28", "29", "30", "31_send", "31_get", "33", "33_null", "closed"],
)
def test_28_to_33_errors(steps: list[Any], output: str, task_id: str) -> None:
    """Each ends the call, with what is known of the task."""
    with peer_with(*steps) as peer:
        result = call(peer)
    assert (result.output, result.is_error) == (output, True)
    assert (result.metadata["taskId"], result.metadata["polls"]) == (task_id, 0)


def test_32_dead_endpoint() -> None:
    """The card is there, the agent is not."""
    with RawServer(hangs()) as server:
        gone = server.url
    with peer_with(task("x", "completed"), url=f"{gone}/") as peer:
        refused = connect(peer)
        assert refused.error is not None
        assert refused.error.startswith("bad card: card_origin_refused")
        result = call(peer, origins=[gone])
    assert (result.output, result.is_error) == ("HTTP transport connect-failed", True)


def test_36_an_end_at_once() -> None:
    """Then one POST was all."""
    with peer_with(task("x", "completed", artifacts=[["at once"]])) as peer:
        result = call(peer, dialect="toolnexus")
        assert (result.output, result.metadata["polls"], len(peer.posts)) == ("at once", 0, 1)


def test_38_a_request_has_the_whole_timeout() -> None:
    """And its own text when that is over."""
    with peer_with(task("x", "working"), hangs()) as peer:
        result = call(peer, timeout=2000, dialect="toolnexus")
    assert (result.output, result.metadata["state"]) == ("HTTP transport timeout", "working")


def test_39_40_a_question_ends_the_call_unless_the_seed_is_kept() -> None:
    """By default at once, with the agent's words."""
    told = task("ask", "input-required", says="which one?")
    with peer_with(told) as peer:
        assert call(peer).output == "A2A task task-ask input-required: which one?"
        result = call(peer, timeout=1500, poll_every=20, strict_seed=True, dialect="toolnexus")
    assert result.output == "A2A task task-ask timed out after 1500ms (state=input-required)"
    assert result.metadata["polls"] >= 1


def test_41_a_timeout_for_one_call(demo: ToolPeer) -> None:
    """It replaces the agent's own, in the text too."""
    tool = connect(demo, timeout=60_000).tools[0]
    assert "timed out after 1200ms" in tool.execute({"task": "hang"}, timeout=1200).output
    assert tool.execute({"task": "hang"}, timeout=-1).output == "timeout: a number of milliseconds above 0"


def test_42_request_shape(demo: ToolPeer) -> None:
    """What toolnexus's own clients send, and nothing else."""
    call(demo, "echo me")
    sent = demo.calls("SendMessage")[0]
    message = sent.rpc["params"]["message"]
    assert sent.rpc == {
        "jsonrpc": "2.0",
        "id": sent.rpc["id"],
        "method": "SendMessage",
        "params": {
            "message": {"role": "user", "messageId": message["messageId"], "parts": [text_part("echo me")]},
            "configuration": {"blocking": False},
        },
    }
    assert isinstance(message["messageId"], str)
    assert sent.headers["content-type"] == "application/json"
    assert not {"accept", "a2a-version", "a2a-extensions"} & sent.headers.keys()
    asked = demo.calls("GetTask")
    assert [seen.rpc["params"] for seen in asked] == [{"id": "task-echo"}] * 2
    assert len({seen.rpc["id"] for seen in (sent, *asked)}) == 3


@pytest.mark.parametrize("args", [None, {}, {"task": None}, {"task": 5}, {"task": "x", "more": 1}], ids=str)
def test_whatever_a_model_sends_is_a_text(demo: ToolPeer, args: Any) -> None:
    """No schema is enforced."""
    connect(demo).tools[0].execute(args)
    sent = demo.calls("SendMessage")[0].rpc["params"]["message"]["parts"]
    task_given = (args or {}).get("task")
    assert sent == [text_part("" if task_given is None else str(task_given))]


def test_43_the_message_goes_once() -> None:
    """Whatever the peer is first tried with, its own method is called once."""
    with p2() as peer:
        assert call(peer, "look at it").output == "REVIEWED"
        assert (len(peer.calls("SendMessage")), len(peer.calls("GetTask"))) == (1, 2)
        assert call(peer, "fail").output == "A2A task task-review failed: boom"


def test_the_dialect_is_found_out_once(demo: ToolPeer) -> None:
    """A second call of the agent begins with what the first found."""
    tool = connect(demo).tools[0]
    tool.execute({"task": "echo"})
    tool.execute({"task": "echo"})
    methods = [seen.rpc["method"] for seen in demo.posts if seen.rpc["method"] != "GetTask"]
    assert methods == ["message/send", "SendMessage", "SendMessage"]


def test_44_46_headers_come_from_the_environment_at_each_call(demo: ToolPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated token counts from the next call on."""
    monkeypatch.setenv("TN_A2A_TOKEN", "first-token")
    found = connect(demo, headers={"Authorization": "Bearer ${TN_A2A_TOKEN}", "Content-Type": "text/plain"})
    found.tools[0].execute({"task": "echo"})
    monkeypatch.setenv("TN_A2A_TOKEN", "second-token")
    found.tools[0].execute({"task": "echo"})
    assert demo.card_requests[0].headers["authorization"] == "Bearer first-token"
    shown = [seen.headers["authorization"] for seen in demo.calls("SendMessage")]
    assert shown == ["Bearer first-token", "Bearer second-token"]
    assert {seen.headers["content-type"] for seen in demo.posts} == {"application/json"}


def test_no_secret_comes_back_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that repeats our headers tells the model nothing."""
    monkeypatch.setenv("TN_A2A_TOKEN", "s3cret-of-ours")

    def echo_headers(seen: Any, connection: Any) -> bool:
        connection.sendall(http(401, json.dumps(seen.headers).encode()))
        return True

    headers = {"Authorization": "Bearer ${TN_A2A_TOKEN}"}
    with RawServer(echo_headers) as server:
        error = remote_agent(card=f"{server.url}/card", headers=headers).error
    with peer_with(echo_headers) as peer:
        output = call(peer, headers=headers).output
    for text in (error, output):
        assert text is not None
        assert text.startswith("HTTP 401: ")
        assert "s3cret" not in text
        assert "***" in text


def test_a_long_body_is_cut() -> None:
    """A model is not told a megabyte of somebody's error page."""
    with RawServer(says(500, b"x" * 1_000_000)) as server:
        error = remote_agent(card=f"{server.url}/card").error
    assert error is not None
    assert len(error) == len("HTTP 500: ") + 2000


@pytest.mark.parametrize(
    "behaviour",
    [answers([]), answers("x"), answers({}), answers({"status": "x", "id": 5}), answers({"id": "\ud800"})],
    ids=["list", "text", "empty", "wrong_types", "surrogate"],
)
def test_odd_results_are_no_exception(behaviour: Behaviour) -> None:
    """They end in a result like anything else."""
    with peer_with(behaviour) as peer:
        assert call(peer, timeout=1000).is_error


@pytest.mark.parametrize("dialect", ["1.0", "0.3", "toolnexus"])
def test_half_a_character_is_not_sent(demo: ToolPeer, dialect: str) -> None:
    """JSON can spell a lone surrogate, no request can hold one; it is said what is wrong, and nothing sent."""
    result = call(demo, "\ud800", dialect=dialect)
    assert result.output == "task: holds half a character (a lone surrogate), which cannot be sent"
    assert (result.is_error, demo.posts) == (True, [])


def test_a_soft_time_limit_goes_through_a_call_under_way() -> None:
    """The signal of a Celery worker raises in the middle of a request; its job has to end, the tool must not answer."""
    began = threading.Event()

    class SoftTimeLimitExceeded(Exception):
        """As Celery's is called."""

    def limit(*_: object) -> None:
        raise SoftTimeLimitExceeded

    def interrupts(seen: Seen, connection: socket.socket) -> bool:
        began.set()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        return hangs()(seen, connection)

    before = signal.signal(signal.SIGUSR1, limit)
    try:
        with peer_with(interrupts) as peer, pytest.raises(SoftTimeLimitExceeded):
            call(peer, dialect="toolnexus")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert began.is_set()


def test_a_card_that_repeats_a_secret_does_not_show_it() -> None:
    """Neither in the tools nor in the error: a host is told in small letters."""
    headers = {"Authorization": "Bearer S3cret-Token"}
    skills = [{"id": "S3cret-Token", "description": "Bearer S3cret-Token"}]
    with ToolPeer(make_card("Bot S3cret-Token", skills), p1_script) as peer:
        (tool,) = connect(peer, headers=headers).tools
        assert "s3cret" not in f"{tool.name} {tool.description} {tool.agent}".lower()
        peer.card = {**peer.card, "url": "http://S3cret-Token.example/"} if isinstance(peer.card, dict) else peer.card
        error = connect(peer, headers=headers).error
    assert error is not None
    assert error.startswith("bad card: card_origin_refused: the agent's url is at http://***.example")
