"""The skills of an agent as durable tools: each call is a delegation through Celery, with a plain tool's texts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delegation import RemoteAgent, Toolkit, ToolResult, remote_agent
from tests.support.cases import bench
from tests.support.child import wait_until
from tests.support.doc_snippets import python_in
from tests.support.peers import Peer, sdk_peer
from workers import Workflow, durable_agent

CARD_PATH = "/.well-known/agent-card.json"
SENDS = ("SendMessage", "SendStreamingMessage")
METADATA = ["agent", "taskId", "state", "polls", "ms"]


class World:
    """A deployment with a peer on the SDK of 1.0, and an agent that is not there."""

    def __init__(self, peer: Peer, leaving: Peer) -> None:
        self.peer, self.leaving = peer, leaving
        self.card_url = f"{peer.url}{CARD_PATH}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("durable")
    with (
        sdk_peer(directory).start() as peer,
        sdk_peer(directory, "leaving").start() as leaving,
        bench(
            directory,
            {},
            urls={"obeying": peer.url, "flights": peer.url, "leaving": leaving.url, "away": "http://127.0.0.1:9"},
            timing={"cancel_deadline": 5, "unavailable_after": 2},
            agent_settings={"obeying": {"updates": "poll"}},
        ),
    ):
        yield World(peer, leaving)


def check(result: ToolResult, output: str, state: str) -> None:
    task_id = result.metadata["taskId"]
    assert result.output == output.replace("<id>", task_id)
    assert result.is_error == (state != "completed")
    assert list(result.metadata) == METADATA
    assert (result.metadata["agent"], result.metadata["state"]) == ("sdk peer", state)


def only_tool(agent: RemoteAgent) -> Any:
    assert agent.error is None
    (tool,) = agent.tools
    return tool


@pytest.mark.parametrize(
    ("text", "output", "state"),
    [
        ("say hello", "hello", "completed"),
        ("fail boom", "A2A task <id> failed: boom", "failed"),
        ("ask which one?", "A2A task <id> input-required: which one?", "input-required"),
        ("reject not mine", "A2A task <id> rejected: not mine", "rejected"),
    ],
)
def test_a_durable_call_says_what_a_plain_one_says(world: World, text: str, output: str, state: str) -> None:
    """The same tool, the same texts, the same metadata."""
    durable = only_tool(durable_agent("obeying", timeout=60_000))
    plain = only_tool(remote_agent(card=world.card_url, timeout=60_000, poll_every=50))
    assert (durable.name, durable.description, durable.source, durable.input_schema) == (
        plain.name,
        plain.description,
        plain.source,
        plain.input_schema,
    )
    check(durable.execute({"task": text}), output, state)
    check(plain.execute({"task": text}), output, state)


def test_the_texts_of_a_report(world: World) -> None:
    """All text parts of all artifacts, as the agent sent them."""
    result = only_tool(durable_agent("obeying", timeout=60_000)).execute({"task": "make tea"})
    check(result, "tea", "completed")


def test_the_url_of_its_card_names_the_agent_too(world: World) -> None:
    """Of a configured one, and of no other; nothing is raised."""
    assert durable_agent(world.card_url).endpoint == f"{world.peer.url}/rpc"
    unknown = durable_agent("http://127.0.0.1:9/other.json")
    assert (unknown.card, unknown.tools) == (None, [])
    assert unknown.error is not None
    assert unknown.error.startswith("bad descriptor: unknown agent")
    assert "away, flights, leaving, obeying" in unknown.error
    assert durable_agent("away").error == "HTTP transport connect-failed"
    assert durable_agent("obeying", timeout=0).error == "bad descriptor: timeout: a number of milliseconds above 0"
    assert "at most 604800000 milliseconds" in str(durable_agent("obeying", timeout=10**400).error)
    refused = only_tool(durable_agent("obeying")).execute({"task": "\ud800"})
    assert refused.output == "task: holds half a character (a lone surrogate), which cannot be sent"


def test_an_agent_that_stays_away(world: World) -> None:
    """Is tried for as long as the configuration says, and then said to be away as a plain tool says it."""
    tool = only_tool(durable_agent("leaving", timeout=60_000))
    world.leaving.kill()
    result = tool.execute({"task": "say hello"})
    assert (result.output, result.is_error) == ("HTTP transport connect-failed", True)
    assert (result.metadata["taskId"], result.metadata["state"]) == ("", "submitted")


def test_a_timeout_ends_the_delegation(world: World) -> None:
    """Nobody would hear the rest: the agent is told to stop."""
    cancelled = len(world.peer.calls("CancelTask"))
    result = only_tool(durable_agent("obeying", timeout=2000)).execute({"task": "hold"})
    check(result, "A2A task <id> timed out after 2000ms (state=working)", "working")
    wait_until(lambda: len(world.peer.calls("CancelTask")) > cancelled, 30, what="the agent's task cancelled")


def test_an_abort_cancels_the_delegation(world: World) -> None:
    """The call returns at once; the workers do the rest."""
    cancelled, sent = len(world.peer.calls("CancelTask")), len(world.peer.calls(*SENDS))
    tool = only_tool(durable_agent("obeying", timeout=60_000))
    result = tool.execute({"task": "hold"}, abort=lambda: len(world.peer.calls(*SENDS)) > sent)
    assert result.output == f"A2A task {result.metadata['taskId']} canceled"
    assert (result.is_error, result.metadata["state"]) == (True, "canceled")
    wait_until(lambda: len(world.peer.calls("CancelTask")) > cancelled, 30, what="the agent's task cancelled")


def test_a_question_is_waited_over_with_strict_seed(world: World) -> None:
    """And whoever answers it lets the call come to its end."""
    workflow = Workflow.open(name="asking")
    tool = only_tool(durable_agent("obeying", timeout=60_000, strict_seed=True, workflow=workflow.id))
    answered: list[str] = []

    def answer_the_question() -> bool:
        for child in workflow.children():
            if child.describe()["question"] and not answered:
                child.reply("the red one")
                answered.append(child.id)
        return False

    check(tool.execute({"task": "ask which one?"}, abort=answer_the_question), "the red one", "completed")
    assert [child.id for child in workflow.children()] == answered


def test_what_cannot_be_delegated_is_an_error_result(world: World) -> None:
    """An empty task, and a workflow that is not there."""
    result = only_tool(durable_agent("obeying")).execute({})
    assert (result.output, result.is_error) == ("goal: must not be empty", True)
    assert list(result.metadata) == METADATA
    lost = only_tool(durable_agent("obeying", workflow="0" * 32)).execute({"task": "say hello"})
    assert lost.is_error


def test_durable_and_plain_agents_share_a_toolkit(world: World) -> None:
    """The first to have a name keeps it."""
    toolkit = Toolkit()
    toolkit.add_agent(durable_agent("obeying", timeout=60_000))
    toolkit.add_agent(world.card_url)
    assert [tool.name for tool in toolkit.tools] == ["sdk_peer_obey"]
    assert toolkit.execute("sdk_peer_obey", {"task": "say hello"}).output == "hello"


def test_the_snippet_of_the_docs_runs(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """As it stands."""
    exec(python_in("tools.md")[1], {})
    assert capsys.readouterr().out == "Oslo to Rome, 40 euros\n"
