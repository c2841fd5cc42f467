"""docs/workflows.md does what it says: its tasks in a real worker, its calls in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.caller import caller_in
from tests.support.processes import Deployment, ScriptedAgent, wait_until
from tests.support.snippets import module_of, snippets_of
from workers import Workflow

PAGE, MODULE = "workflows.md", "trips.py"
WAIT_S = 60
DONE = {"default_script": {"states": [["WORKING", 0], ["COMPLETED", 0.1]], "artifact": "found it"}}
SCRIPTS = {
    "flights": DONE,
    "hotels": DONE,
    "slow": {"default_script": {"states": [["WORKING", 0]]}},
    "broken": {"default_script": {"states": [["FAILED", 0]]}},
}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    directory = tmp_path_factory.mktemp("docs")
    (directory / MODULE).write_text(module_of(PAGE, MODULE), encoding="utf-8")
    agents = {name: ScriptedAgent(directory, name=name, **config) for name, config in SCRIPTS.items()}
    deployment = Deployment(directory, agents=agents, workers=0)
    path = deployment.env.get("PYTHONPATH", "")
    with deployment:
        deployment.start_worker(options=("-I", "trips"), env={"PYTHONPATH": f"{directory}:{path}"})
        yield deployment


@pytest.fixture(scope="module")
def said(deployment: Deployment) -> Iterator[dict[str, Any]]:
    """Everything the page's calls have named."""
    names: dict[str, Any] = {}
    sys.path.insert(0, str(deployment.directory))
    try:
        with caller_in(deployment):
            for block in snippets_of(PAGE):
                if not block.startswith(f"# {MODULE}\n"):
                    exec(compile(block, PAGE, "exec"), names)  # the page's own code
            yield names
    finally:
        sys.path.remove(str(deployment.directory))
        sys.modules.pop(Path(MODULE).stem, None)


def result_of(workflow: Workflow) -> Any:
    """What it was completed with, once it is."""
    return wait_until(lambda: workflow.describe()["result"], WAIT_S, what=f"end of {workflow}")


def test_the_barrier_keeps_its_results(said: dict[str, Any]) -> None:
    """The continuation ran and has both texts."""
    assert result_of(said["trip"]) == {"order": "order 7", "found": ["found it", "found it"]}


def test_a_race_has_one_winner(said: dict[str, Any]) -> None:
    """The loser is cancelled, and the workflow completed when it is gone."""
    assert result_of(said["race"]) == {"found": ["found it"]}
    assert said["slow"].describe()["cancel"] == "cancelled"


def test_a_vote_needs_two(said: dict[str, Any]) -> None:
    """Two of three agents agree; the third is not waited for."""
    description = said["vote"].describe()
    assert (description["policy"], description["satisfied"], description["round"]) == ({"quorum": 2}, True, 1)


def test_rounds_follow_one_another(said: dict[str, Any]) -> None:
    """The same text is checked once: one child in round two, and the end after it."""
    assert result_of(said["rounds"]) == {"checked": 1}


def test_a_tour_has_a_leg(said: dict[str, Any]) -> None:
    """The outcome of the child workflow stands among its parent's."""
    assert said["tour"].outcomes()[said["leg"].id]["result"] == {"order": "order 8", "found": ["found it"]}


def test_what_was_done_again_remembers_it(said: dict[str, Any]) -> None:
    """The redriven delegation is another one of the same workflow."""
    assert said["second"].describe()["ancestor"] == said["broken"].id
    assert len(said["again"].children()) == 2
