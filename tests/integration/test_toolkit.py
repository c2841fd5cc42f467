"""A toolkit: local tools beside the skills of agents, some of which are dead."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from delegation import Toolkit, parse_agents_config, remote_agent
from delegation.errors import InvalidArguments
from tests.support.raw_server import RawServer, hangs
from tests.support.tool_peers import ToolPeer, make_card, p1, p2, p2_script

P1_NAMES = ["Demo_Bot_echo", "Demo_Bot_Slow_Work", "Demo_Bot_fail_now"]
P2_NAMES = ["reviewer_review", "reviewer_plan", "reviewer_fail"]


def add(first: int, second: int) -> int:
    """Adds two numbers."""
    return first + second


class Broken:
    """Somebody's own tool, which does what no tool should."""

    name, description, source = "broken", "raises", "mine"
    input_schema: ClassVar[dict[str, Any]] = {"type": "object"}

    def execute(self, args: Any = None, *, abort: Any = None, timeout: float | None = None) -> Any:
        raise OSError("gone")


@pytest.fixture
def demo() -> Iterator[ToolPeer]:
    with p1() as peer:
        yield peer


@pytest.fixture
def reviewer() -> Iterator[ToolPeer]:
    with p2() as peer:
        yield peer


@pytest.fixture
def dead_url() -> str:
    with RawServer(hangs()) as server:
        return f"{server.url}/.well-known/agent-card.json"


def names(toolkit: Toolkit) -> list[str]:
    return [tool.name for tool in toolkit.tools]


def entry(peer: ToolPeer, **more: Any) -> dict[str, Any]:
    return {"card": peer.card_url, "timeout": 30_000, "pollEvery": 10, **more}


def test_51_config_to_tools(demo: ToolPeer) -> None:
    """What the parser gives is what `remote_agent` takes."""
    (descriptor,) = parse_agents_config({"demo": entry(demo)})
    found = remote_agent(**descriptor)
    assert [tool.name for tool in found.tools] == P1_NAMES
    assert found.tools[0].execute({"task": "echo"}).output == "line one\nline two"


def test_52_agents_beside_mcp_servers(demo: ToolPeer, reviewer: ToolPeer) -> None:
    """The block stands at the top of an MCP configuration; who is switched off is not there."""
    config = {
        "mcpServers": {"files": {"command": "files"}},
        "agents": {"demo": entry(demo), "reviewer": entry(reviewer, enabled=False)},
    }
    assert names(Toolkit(config=config)) == P1_NAMES
    assert reviewer.card_requests == []
    path: Any = "mcp.json"
    with pytest.raises(InvalidArguments, match="read the file first"):
        Toolkit(config=path)


def test_54_a_dead_agent_costs_its_own_tools(demo: ToolPeer, dead_url: str) -> None:
    """The others are there, and a warning says which one failed and why; queries of URLs are not told."""
    with capture_logs() as logs:
        toolkit = Toolkit(tools=[add], agents=[f"{dead_url}?token=s3cret", entry(demo)])
    assert names(toolkit) == ["add", *P1_NAMES]
    (warning,) = [log for log in logs if log["event"] == "tools.agent_failed"]
    assert warning["card"] == dead_url
    assert warning["error"] == "HTTP transport connect-failed"


def test_dead_agents_cost_the_time_of_one(demo: ToolPeer) -> None:
    """Their cards are fetched side by side, and the order is as given."""
    with RawServer(hangs()) as server:
        slow = [{"card": f"{server.url}/{number}", "timeout": 1000} for number in range(4)]
        toolkit = Toolkit(agents=[*slow, entry(demo)])
        assert server.connections == 4
    assert names(toolkit) == P1_NAMES


def test_55_add_at_runtime(demo: ToolPeer, reviewer: ToolPeer, dead_url: str) -> None:
    """A descriptor or a bare URL; a second time nothing changes, and nothing is an error."""
    toolkit = Toolkit(tools=[add])
    assert toolkit.add_agent(entry(demo)).error is None
    assert toolkit.add_agent(reviewer.card_url, poll_every=10).error is None
    assert names(toolkit) == ["add", *P1_NAMES, *P2_NAMES]
    first = toolkit.get("Demo_Bot_echo")
    assert toolkit.add_agent(demo.card_url).error is None
    assert toolkit.get("Demo_Bot_echo") is first
    assert toolkit.add_agent(dead_url).error == "HTTP transport connect-failed"
    assert toolkit.execute("reviewer_review", {"task": "this"}).output == "REVIEWED"


def test_56_disabled_tools_are_absent(demo: ToolPeer) -> None:
    """By their final names, whosever they are."""
    toolkit = Toolkit(tools=[add], agents=[entry(demo)], disable_tools=["Demo_Bot_echo", "add"])
    assert names(toolkit) == P1_NAMES[1:]
    assert toolkit.execute("Demo_Bot_echo", {"task": "x"}).output == "unknown tool: Demo_Bot_echo"


@pytest.mark.parametrize("provider", ["openai", "anthropic", "gemini", "mcp"])
def test_57_provider_schemas(reviewer: ToolPeer, provider: str) -> None:
    """Agents' tools are in a model's list like any other."""
    toolkit = Toolkit(tools=[add], agents=[entry(reviewer)])
    shown = toolkit.schemas(provider)
    entries = shown[0]["functionDeclarations"] if provider == "gemini" else shown
    found = [each["function"]["name"] if provider == "openai" else each["name"] for each in entries]
    assert found == ["add", *P2_NAMES]
    with pytest.raises(InvalidArguments, match="openai, anthropic, gemini, mcp"):
        toolkit.schemas("other")


def test_59_name_clash(reviewer: ToolPeer) -> None:
    """The first to have a name keeps it, with a warning."""
    with (
        ToolPeer(make_card("reviewer", [{"id": "review", "description": "another"}]), p2_script) as other,
        capture_logs() as logs,
    ):
        toolkit = Toolkit(agents=[entry(reviewer)], config={"agents": {"other": entry(other)}})
    tool = toolkit.get("reviewer_review")
    assert tool is not None
    assert tool.description == "To review"
    assert names(toolkit) == P2_NAMES
    assert [log["name"] for log in logs if log["event"] == "tools.name_taken"] == ["reviewer_review"]


def test_a_local_tool_is_called_and_raises_nothing() -> None:
    """What it returns is text, what it raises an error result; so is a name that nobody has."""
    toolkit = Toolkit(tools=[add])
    assert toolkit.execute("add", {"first": 1, "second": 2}).output == "3"
    failed = toolkit.execute("add", {"first": 1})
    assert failed.is_error
    assert failed.output.startswith("TypeError: ")
    assert Toolkit(tools=[Broken()]).execute("broken").output == "OSError: gone"
    unknown = toolkit.execute("nobody", {})
    assert (unknown.output, unknown.is_error, unknown.metadata) == ("unknown tool: nobody", True, {})


def test_tools_of_one_agent_are_called_side_by_side(reviewer: ToolPeer) -> None:
    """Threads share a toolkit."""
    toolkit = Toolkit(agents=[entry(reviewer)])
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: toolkit.execute(P2_NAMES[n % 3], {"task": f"number {n}"}), range(16)))
    assert [result.is_error for result in results] == [False] * 16


@pytest.mark.parametrize("name", [None, 5, ["x"], {}, "\ud800"], ids=repr)
def test_any_name_is_only_an_unknown_tool(name: Any) -> None:
    """A model may give what cannot even be looked up."""
    result = Toolkit(tools=[add]).execute(name)
    assert result.is_error
    assert result.output.startswith("unknown tool: ")


def test_an_error_that_cannot_be_shown_is_one() -> None:
    """Its type is."""

    class Shy(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fails() -> None:
        raise Shy

    assert Toolkit(tools=[fails]).execute("fails").output == "Shy: an error that cannot be shown"


def test_equal_names_of_a_card_are_one_warning() -> None:
    """It counts them."""
    with ToolPeer(make_card("same", [{"id": "a"}] * 300), p2_script) as peer, capture_logs() as logs:
        toolkit = Toolkit(agents=[entry(peer)])
    assert names(toolkit) == ["same_a"]
    assert [(log["name"], log["further"]) for log in logs if log["event"] == "tools.name_taken"] == [("same_a", 298)]


def test_a_soft_time_limit_ends_the_job_and_not_the_call() -> None:
    """Of a Celery worker, raised in the middle of a local tool: by its type's name, no Celery is known here."""

    class SoftTimeLimitExceeded(Exception):
        """As Celery's is called."""

    def works() -> None:
        raise SoftTimeLimitExceeded

    with pytest.raises(SoftTimeLimitExceeded):
        Toolkit(tools=[works]).execute("works")
