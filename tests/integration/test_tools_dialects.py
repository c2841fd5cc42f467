"""Remote agents as tools against real servers of the three dialects: toolnexus, the SDK of A2A 0.3, and that of 1.0."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation import ToolResult, remote_agent
from delegation.tools import AgentTool
from tests.support.child import ROOT, ChildProcess, child_environment, free_port
from tests.support.peers import NotInstalled, Peer, a2a03_peer, install_python, sdk_peer, toolnexus_peer
from tests.support.raw_server import answers, refuses
from tests.support.tool_peers import ToolPeer, make_card, p1, p2

CARD_PATH = "/.well-known/agent-card.json"
METADATA = ["agent", "taskId", "state", "polls", "ms"]

pytestmark = pytest.mark.timeout(360)  # the first one may have to wait for packages


def running(make: Any, directory: Path) -> Iterator[Peer]:
    try:
        peer = make(directory)
    except NotInstalled as reason:
        pytest.skip(str(reason))
    with peer.start():
        yield peer


@pytest.fixture(scope="module")
def toolnexus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    yield from running(toolnexus_peer, tmp_path_factory.mktemp("toolnexus"))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    yield from running(a2a03_peer, tmp_path_factory.mktemp("a2a03"))


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    yield from running(sdk_peer, tmp_path_factory.mktemp("sdk"))


def tool(peer: Peer, **options: Any) -> AgentTool:
    found = remote_agent(card=f"{peer.url}{CARD_PATH}", **({"timeout": 30_000, "poll_every": 20} | options))
    assert found.error is None
    return found.tools[0]


def check(result: ToolResult, output: str, state: str, agent: str) -> None:
    """The same texts and metadata in every dialect; `<id>` stands for the id of the agent's task."""
    task_id = result.metadata["taskId"]
    assert result.output == output.replace("<id>", task_id)
    assert result.is_error == (state != "completed")
    assert list(result.metadata) == METADATA
    assert (result.metadata["agent"], result.metadata["state"]) == (agent, state)


def test_58_toolnexus_answers(toolnexus: Peer) -> None:
    """Its own server: named as its skill, and the model's text as it is."""
    found = tool(toolnexus)
    assert (found.name, found.description) == ("video-desk_hello-world", "says hello")
    check(found.execute({"task": "hello"}), "done: hello", "completed", "video-desk")
    check(found.execute({"task": "fail"}), "A2A task <id> failed: model down", "failed", "video-desk")


@pytest.mark.parametrize("make", [p1, p2], ids=["P1", "P2"])
def test_toolnexus_own_client_says_the_same(make: Any) -> None:
    """Of the same peers, tool for tool and result for result, but for the time it took."""
    texts = ["echo", "multi", "history", "fail", "cancel", "rpc", "http", "data", "slow", "ask"]
    try:
        python = install_python("toolnexus") / "bin" / "python"
    except NotInstalled as reason:
        pytest.skip(str(reason))
    with make() as peer:
        command = [str(python), "-m", "tests.peers.toolnexus_client", peer.card_url, "2000", "100", *texts]
        done = subprocess.run(
            command, cwd=ROOT, env=child_environment({}), capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, done.stderr
        theirs = json.loads(done.stdout)
        found = remote_agent(card=peer.card_url, timeout=2000, poll_every=100, strict_seed=True)
        assert [[tool.name, tool.description, tool.source] for tool in found.tools] == theirs["tools"]
        for text, (output, is_error, metadata) in zip(texts, theirs["results"], strict=True):
            ours = found.tools[0].execute({"task": text})
            assert (ours.output, ours.is_error) == (output, is_error)
            assert comparable(ours.metadata) == comparable(metadata)


def comparable(metadata: dict[str, Any]) -> dict[str, Any]:
    """Without the time; how often it could ask in that is time too."""
    asked = metadata["polls"] if metadata["state"] not in ("working", "input-required") else None
    return {**metadata, "ms": None, "polls": asked}


def test_58_toolnexus_at_work(toolnexus: Peer) -> None:
    """A model that takes its time, and a caller that does not."""
    late = tool(toolnexus, timeout=1500).execute({"task": "hold"})
    check(late, "A2A task <id> timed out after 1500ms (state=working)", "working", "video-desk")
    check(
        tool(toolnexus).execute({"task": "hold"}, abort=lambda: True),
        "A2A task <id> canceled",
        "canceled",
        "video-desk",
    )


@pytest.mark.parametrize(
    ("text", "output", "state"),
    [
        ("make tea", "result for tea", "completed"),
        ("say hello", "hello", "completed"),
        ("fail boom", "A2A task <id> failed: boom", "failed"),
        ("ask which one?", "A2A task <id> input-required: which one?", "input-required"),
        ("reject not mine", "A2A task <id> rejected: not mine", "rejected"),
    ],
)
def test_0_3_answers(old: Peer, text: str, output: str, state: str) -> None:
    """By `message/send` and `tasks/get` of the SDK's compatibility transport, non-blocking."""
    check(tool(old).execute({"task": text}), output, state, "old agent")
    send = old.calls("message/send")[-1]
    assert send.params["configuration"]["blocking"] is False
    assert old.calls("SendMessage") == []


def test_0_3_is_told_of_an_abort(old: Peer) -> None:
    """By `tasks/cancel`; the result is as everywhere."""
    result = tool(old).execute({"task": "hold"}, abort=lambda: bool(old.calls("tasks/get")))
    check(result, "A2A task <id> canceled", "canceled", "old agent")
    assert [call.params["id"] for call in old.calls("tasks/cancel")] == [result.metadata["taskId"]]


@pytest.mark.parametrize(
    ("text", "output", "state"),
    [
        ("make tea", "tea", "completed"),
        ("say hello", "hello", "completed"),
        ("fail boom", "A2A task <id> failed: boom", "failed"),
        ("ask which one?", "A2A task <id> input-required: which one?", "input-required"),
        ("reject not mine", "A2A task <id> rejected: not mine", "rejected"),
    ],
)
def test_1_0_answers(new: Peer, text: str, output: str, state: str) -> None:
    """By `SendMessage` and `GetTask` with their version, to the interface on the card, without waiting."""
    check(tool(new).execute({"task": text}), output, state, "sdk peer")
    send = new.calls("SendMessage")[-1]
    assert send.params["configuration"] == {"returnImmediately": True}
    assert send.headers["a2a-version"] == "1.0"
    assert new.calls("message/send") == []


def test_1_0_is_told_of_an_abort(new: Peer) -> None:
    """By `CancelTask`."""
    asked = len(new.calls("GetTask"))
    result = tool(new).execute({"task": "hold"}, abort=lambda: len(new.calls("GetTask")) > asked)
    check(result, "A2A task <id> canceled", "canceled", "sdk peer")
    assert [call.task_id for call in new.calls("CancelTask")] == [result.metadata["taskId"]]


def test_the_sample_agent_asks(tmp_path: Path) -> None:
    """The project's own example: a question ends the call with its words; strict_seed polls on."""
    port = free_port()
    command = [sys.executable, "-m", "examples.sample_agent", "--kind", "asking", "--port", str(port)]
    with ChildProcess(command, log=tmp_path / "asking.log").start() as child:
        child.wait_for_output(r'"ready"', 30)
        options: dict[str, Any] = {"card": f"http://127.0.0.1:{port}{CARD_PATH}", "poll_every": 50}
        found = remote_agent(**options, timeout=30_000)
        assert found.endpoint == f"http://127.0.0.1:{port}/rpc"
        assert [each.name for each in found.tools] == ["asking_agent_travel", "asking_agent_ledger"]
        result = found.tools[0].execute({"task": "book a flight"})
        assert result.metadata["state"] == "input-required"
        assert result.output.startswith(f"A2A task {result.metadata['taskId']} input-required: ")
        strict = remote_agent(**options, timeout=3000, strict_seed=True).tools[0].execute({"task": "book"})
        assert "timed out after 3000ms (state=input-required)" in strict.output


def test_the_empty_text_trap() -> None:
    """A toolnexus server would take a body of 1.0 and work on an empty text: it never gets one.

    First comes what it refuses, then its own; after an error of another kind nothing further is tried.
    """
    done = {"id": "t", "status": {"state": "completed"}, "artifacts": [{"parts": [{"kind": "text", "text": "ok"}]}]}
    card = make_card("Trap", [{"id": "x"}])
    with ToolPeer(card, lambda _: [answers(done)]) as peer:
        assert remote_agent(card=peer.card_url).tools[0].execute({"task": "go"}).output == "ok"
        first, second = peer.posts
        assert (first.rpc["method"], second.rpc["method"]) == ("message/send", "SendMessage")
        assert second.rpc["params"]["message"]["parts"] == [{"kind": "text", "text": "go"}]
    with ToolPeer(card, lambda _: [answers(done)]) as peer:
        peer.server.behaviour = _after_the_card(peer, refuses(-32603, "broken"))
        assert remote_agent(card=peer.card_url).tools[0].execute({"task": "go"}).output == "broken"
        assert [seen.rpc["method"] for seen in peer.posts] == ["message/send"]


def _after_the_card(peer: ToolPeer, behaviour: Any) -> Any:
    shown = peer.server.behaviour
    return lambda seen, connection: (behaviour if seen.line.startswith("POST ") else shown)(seen, connection)


@pytest.mark.parametrize("dialect", ["0.3", "1.0"])
def test_what_the_descriptor_says_is_spoken(dialect: str) -> None:
    """And nothing else is tried."""
    with ToolPeer(make_card("Fixed", [{"id": "x"}]), lambda _: []) as peer:
        peer.server.behaviour = _after_the_card(peer, refuses(-32601, "Method not found"))
        found = remote_agent(card=peer.card_url, dialect=dialect)
        assert found.tools[0].execute({"task": "go"}).output == "Method not found"
        method = {"0.3": "message/send", "1.0": "SendMessage"}[dialect]
        assert [(seen.rpc["method"], seen.headers["a2a-version"]) for seen in peer.posts] == [(method, dialect)]
