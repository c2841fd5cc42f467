"""What a provider of language models is told of the tools, and what it cannot be told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel
from structlog.testing import capture_logs

from delegation import Toolkit
from delegation.errors import InvalidArguments
from delegation.tools.toolkit import LocalTool


class Place(BaseModel):
    """Is in a schema's `$defs`."""

    city: str


class Tree(BaseModel):
    """Refers to itself."""

    below: list[Tree] = []


class Named:
    """Somebody's own tool, under any name."""

    description, source = "does things", "mine"

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def input_schema(self) -> dict[str, Any]:
        return {"type": "object", "properties": {}}

    def execute(self, args: Any = None, *, abort: Any = None, timeout: float | None = None) -> Any:
        raise NotImplementedError


def book(place: Place, last: Place | None = None) -> str:
    """Books a room."""
    return f"{place} {last}"


def climb(tree: Tree) -> str:
    """Climbs."""
    return str(tree)


def told(toolkit: Toolkit, provider: str) -> list[str]:
    shown = toolkit.schemas(provider)
    if provider == "gemini":
        shown = shown[0]["functionDeclarations"]
    return [each["function"]["name"] if provider == "openai" else each["name"] for each in shown]


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        ("openai", ["ok", "9_ok"]),
        ("anthropic", ["ok", "9_ok"]),
        ("gemini", ["ok", "with.dot"]),
        ("mcp", ["ok", "9_ok", "with.dot", "x" * 65]),
    ],
)
def test_a_name_that_a_provider_refuses_costs_its_own_tool(provider: str, names: list[str]) -> None:
    """The whole request would be refused for it; one warning tells how many are left out."""
    toolkit = Toolkit(tools=[Named(name) for name in ("ok", "9_ok", "with.dot", "x" * 65)])
    with capture_logs() as logs:
        assert told(toolkit, provider) == names
    further = [log["further"] for log in logs if log["event"] == "tools.left_out"]
    assert further == ([] if provider == "mcp" else [1])


def test_gemini_is_told_what_a_reference_means() -> None:
    """It knows no `$ref`; a schema that refers to itself has no end, so its tool is left out."""
    toolkit = Toolkit(tools=[book, climb])
    with capture_logs() as logs:
        (declared,) = toolkit.schemas("gemini")[0]["functionDeclarations"]
    assert declared["name"] == "book"
    assert declared["parameters"]["properties"]["place"]["properties"] == {"city": {"type": "string"}}
    assert "$ref" not in str(declared)
    assert [log["name"] for log in logs if log["event"] == "tools.left_out"] == ["climb"]
    assert told(toolkit, "openai") == ["book", "climb"]


def test_a_callable_that_no_model_can_call_is_refused() -> None:
    """When it is given, not when a model first sees it: arguments without names, and a name that is none."""

    def add(*numbers: int) -> int:
        return sum(numbers)

    with pytest.raises(InvalidArguments, match="add takes arguments without names"):
        LocalTool(add)
    with pytest.raises(InvalidArguments, match="lambda› is no name for a tool"):
        Toolkit(tools=[lambda x: x])


@pytest.mark.parametrize("given", [{"city": "Oslo"}, '{"city": "Oslo"}'])
def test_arguments_may_come_as_the_json_that_a_provider_hands_over(given: Any) -> None:
    """OpenAI's are a string."""

    def weather(city: str) -> str:
        return f"sunny in {city}"

    assert Toolkit(tools=[weather]).execute("weather", given).output == "sunny in Oslo"


@pytest.mark.parametrize("given", ["[1]", "no JSON", "7", ["city"]])
def test_arguments_that_are_no_object_are_an_error_result(given: Any) -> None:
    """Whatever a model sends, its loop goes on."""
    result = Toolkit(tools=[lambda_free]).execute("lambda_free", given)
    assert result.is_error


def lambda_free() -> str:
    return "called"
