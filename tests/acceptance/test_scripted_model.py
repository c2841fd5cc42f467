"""A model's loop over real processes: the example as it is shipped, the page about it, and each tool's refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.errors import UnresolvedChildren
from tests.support.caller import caller_in
from tests.support.child import ROOT, free_port
from tests.support.processes import Deployment, SampleAgent, ScriptedAgent, ValkeyProcess, wait_until
from workers import Workflow, agents_section, subtask_tools, subtasks
from workers.runtime import reset_runtime
from workers.subtask_results import NOTES_NOTICE

WAIT_S = 30
ASKS = json.dumps({"states": [["WORKING", 0], ["INPUT_REQUIRED", 0.1, "<b>which</b> day?"]], "turns": [{}]})
ACCEPTED = "asking, instant, quiet, scripted"
WORKS = json.dumps({"states": [["WORKING", 0, "on </subtasks> it"]]})


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("model")
    agents: dict[str, Any] = {
        kind: SampleAgent(kind, log=directory / f"{kind}.log") for kind in ("instant", "quiet", "asking")
    }
    agents["scripted"] = ScriptedAgent(directory, name="scripted")
    agents["old"] = SampleAgent("instant", log=directory / "old.log")
    agents["away"] = f"http://127.0.0.1:{free_port()}"
    settings = {"asking": {"updates": "poll"}, "old": {"version": ">=9"}, "quiet": {"description": "Finds <hotels>."}}
    with Deployment(directory, agents=agents, agent_settings=settings) as it:
        yield it


@pytest.fixture
def workflow(deployment: Deployment) -> Iterator[Workflow]:
    with caller_in(deployment):
        yield Workflow.open(name="trip")


def spawn(workflow: Workflow, **arguments: Any) -> Any:
    wanted = {"name": "n", "goal": WORKS, "agent": "scripted", **arguments}
    return subtask_tools(workflow).call("spawn_subtask", wanted)


def rows(workflow: Workflow) -> list[dict[str, str]]:
    result = subtask_tools(workflow).call("list_subtasks")
    assert result.data is not None
    listed: list[dict[str, str]] = result.data["subtasks"]
    return listed


# ---------------------------------------------------------------- the example and the page


def test_the_scripted_model_comes_to_its_end(deployment: Deployment) -> None:
    """Three spawned, one after a correction; completion refused while any is unresolved; the question answered."""
    ran = deployment.python("from examples.scripted_model import main; main()", timeout_s=90)
    assert ran.returncode == 0, ran.stdout + ran.stderr + deployment.logs()
    said = ran.stdout
    assert (
        "told | agent.unknown: unknown agent 'hotels-and-more'; valid agents: asking, instant, quiet, scripted" in said
    )
    assert len(re.findall(r"told \| sub-task \"(weather|hotel|day)\" spawned: its id is [0-9a-f]{32}\.\d", said)) == 3
    assert re.search(r"told \| not complete yet: [123] unresolved child", said)
    assert re.search(r'told \| - "Sub-task \S+ is INPUT_REQUIRED: On which day\?"', said)
    assert re.search(r"told \| reply to sub-task \S+ is on its way", said)
    assert len(re.findall(r"is COMPLETED: ", said)) == 3
    assert said.splitlines()[-1] == "completed: The trip is planned."


def test_the_page_about_models_does_what_it_says(deployment: Deployment) -> None:
    """Its Python is run as it is printed."""
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    ran = deployment.python(snippet, timeout_s=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr + deployment.logs()
    assert re.search(r"is COMPLETED: ", ran.stdout)


# ---------------------------------------------------------------- the roster


def test_the_prompt_lists_the_accepted_agents_alone(deployment: Deployment, workflow: Workflow) -> None:
    """Not the refused one, nor the one that is away; an operator's text in place of the card's; the same each time."""
    section = agents_section()
    assert re.findall(r"^- id: (.*)$", section, re.MULTILINE) == ACCEPTED.split(", ")
    assert '  description: "Finds ‹hotels›."' in section
    assert "http" not in section
    assert agents_section() is section
    told = deployment.command("agents", "--prompt")
    assert (told.returncode, told.stdout) == (0, section + "\n")


# ---------------------------------------------------------------- the tools


def test_a_spawned_sub_task_is_the_workflows_child(deployment: Deployment, workflow: Workflow) -> None:
    """Its id is told, its step is kept with it and not told to the agent."""
    result = spawn(workflow, name="flight", description="cheap", acceptance_criteria=["direct"], step="2: fly")
    assert not result.is_error
    assert result.text == f'sub-task "flight" spawned: its id is {workflow.id}.1, its agent scripted'
    (child,) = workflow.describe()["children"]
    assert (child["id"], child["name"], child["step"]) == (f"{workflow.id}.1", "flight", "2: fly")
    assert "flight [2: fly]" in deployment.command("workflow", "show", workflow.id).stdout
    with pytest.raises(UnresolvedChildren):
        workflow.complete()
    workflow.cancel()


def test_the_same_call_again_is_the_same_child(workflow: Workflow) -> None:
    """A loop that is run again after a crash gives its ids of calls, and gets its children back."""
    tools, wanted = subtask_tools(workflow), {"name": "n", "goal": WORKS, "agent": "scripted"}
    first, again = (tools.call("spawn_subtask", wanted, call_id="call-1") for _ in range(2))
    other = tools.call("spawn_subtask", wanted, call_id="call-2")
    assert first == again != other
    assert len(workflow.children()) == 2
    workflow.cancel()


@pytest.mark.parametrize("agent", ["", "nobody", "Scripted", " scripted", "self", "http://127.0.0.1/"])
def test_an_unknown_agent_creates_nothing(workflow: Workflow, agent: str) -> None:
    """Ids match exactly; the valid ones are named."""
    result = spawn(workflow, agent=agent)
    assert (result.code, result.is_error) == ("agent.unknown", True)
    assert result.text.endswith(f"; valid agents: {ACCEPTED}")
    assert workflow.children() == []


def test_a_refused_agent_creates_nothing(workflow: Workflow) -> None:
    """Its code is told, and who else there is; what its card says is not."""
    result = spawn(workflow, agent="old")
    assert result.text == f"agent.refused: agent 'old' takes no new work now; valid agents: {ACCEPTED}"
    assert workflow.children() == []


def test_an_agent_that_is_away_gets_its_work_later(workflow: Workflow) -> None:
    """A delegation waits for it, as any other does."""
    assert not spawn(workflow, agent="away").is_error
    workflow.cancel()


def test_invalid_arguments_create_nothing(workflow: Workflow) -> None:
    """All of them are named, whichever the agent."""
    result = subtask_tools(workflow).call("spawn_subtask", '{"agent": "nobody", "gaol": 1}')
    assert result.text == "tool.invalid_arguments: name: is missing; goal: is missing; gaol: unknown argument"
    assert workflow.children() == []


def test_a_question_is_listed_and_answered_once(workflow: Workflow) -> None:
    """The agent's words are clean and framed; a reply that nobody asked for is refused."""
    child = spawn(workflow, goal=ASKS, name="day").data["id"]
    wait_until(lambda: rows(workflow)[0]["question"], WAIT_S, what="question")
    tools = subtask_tools(workflow)
    text = tools.call("list_subtasks", {}).text
    assert '  question: "‹b›which‹/b› day?"' in text
    assert not tools.call("reply_subtask", {"id": child, "text": "Friday"}).is_error
    assert tools.call("reply_subtask", {"id": child, "text": "Saturday"}).code in (
        "delegation.not_asking",
        "delegation.ended",
    )
    wait_until(lambda: rows(workflow)[0]["state"] == "COMPLETED", WAIT_S, what="end")
    assert tools.call("reply_subtask", {"id": child, "text": "Sunday"}).code == "delegation.ended"
    assert workflow.children()[0].describe()["replies"] == {"sent": 1, "waiting": 0}
    assert tools.notes().splitlines() == [
        "<notes>",
        NOTES_NOTICE,
        f'- "Sub-task {child} is INPUT_REQUIRED: ‹b›which‹/b› day?"',
        f'- "Sub-task {child} is COMPLETED: ok"',
        "</notes>",
    ]
    assert tools.notes() == ""


def test_of_many_sub_tasks_those_that_ask_are_listed(workflow: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long ago they were spawned; how many are left out is said."""
    first = spawn(workflow, goal=ASKS).data["id"]
    wait_until(lambda: rows(workflow)[0]["question"], WAIT_S, what="question")
    last = [spawn(workflow).data["id"] for _ in range(4)][-1]
    monkeypatch.setattr(subtasks, "MOST_LOADED", 2)
    monkeypatch.setattr(subtasks, "MOST_LISTED", 2)
    assert [row["id"] for row in rows(workflow)] == [first, last]
    assert "(3 more are not shown)" in subtask_tools(workflow).call("list_subtasks").text
    workflow.cancel()


def test_a_sub_task_is_cancelled_with_a_receipt(workflow: Workflow) -> None:
    """And once more, it is told that it had ended."""
    child = spawn(workflow).data["id"]
    wait_until(lambda: rows(workflow)[0]["summary"], WAIT_S, what="work")
    assert '  summary: "on ‹/subtasks› it"' in subtask_tools(workflow).call("list_subtasks").text
    tools = subtask_tools(workflow)
    first = tools.call("cancel_subtask", {"id": child, "reason": "too slow"})
    assert (first.is_error, first.text.startswith(f"cancel of sub-task {child}: ")) == (False, True)
    wait_until(lambda: rows(workflow)[0]["state"] == "CANCELED", WAIT_S, what="cancel")
    assert workflow.children()[0].describe()["cancel_reason"] == "too slow"
    assert not tools.call("cancel_subtask", {"id": child}).is_error


@pytest.mark.parametrize("tool", ["reply_subtask", "cancel_subtask"])
def test_a_child_of_another_workflow_is_unknown(workflow: Workflow, tool: str) -> None:
    """So are ids that are none; theirs is left alone."""
    theirs = Workflow.open()
    child = theirs.delegate("scripted", ASKS)
    wait_until(lambda: child.describe()["question"], WAIT_S, what="question")
    strange = [child.id, child.id.upper(), workflow.id, f"{workflow.id}.1", f"{workflow.id}.01", "", "x" * 9999, "*"]
    words = {"text": "x"} if tool == "reply_subtask" else {}
    for each in strange:
        result = subtask_tools(workflow).call(tool, {"id": each, **words})
        assert result.code == "delegation.unknown", each
        assert len(result.text) < 200
    assert child.describe()["replies"] == {"sent": 0, "waiting": 0}
    theirs.cancel()


def test_an_ended_workflow_takes_no_sub_task(workflow: Workflow) -> None:
    """The refusal is a result, as every other."""
    workflow.complete()
    assert spawn(workflow).code == "workflow.conflict"
    assert subtask_tools("0" * 32).call("list_subtasks").code == "workflow.unknown"


def test_without_redis_every_tool_says_so(tmp_path: Path) -> None:
    """Nothing is raised into the loop, and nothing of our addresses is told."""
    valkey = ValkeyProcess(tmp_path / "valkey")
    deployment = Deployment(tmp_path, agents={"a": "http://127.0.0.1:9"}, web=False, workers=0, valkey=valkey)
    with deployment, caller_in(deployment):
        workflow = Workflow.open()
        reset_runtime()  # the cards are not in this process's memory either
        tools = subtask_tools(workflow)
        valkey.kill()
        calls = {
            "spawn_subtask": {"name": "n", "goal": "g", "agent": "a"},
            "reply_subtask": {"id": f"{workflow.id}.1", "text": "x"},
            "cancel_subtask": {"id": f"{workflow.id}.1"},
            "list_subtasks": {},
        }
        for name, arguments in calls.items():
            result = tools.call(name, arguments)
            assert result.code == "store.unavailable", name
            assert "127.0.0.1" not in result.text
