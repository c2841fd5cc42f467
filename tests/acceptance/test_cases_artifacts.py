"""Public bug reports about artifacts, parts and files: hostile names, malformed parts, numbers that change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import chain

from tests.support.cases import Bench, bench, ended, on_send, script_of
from tests.support.foreign_tasks import say
from workers import delegate


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("artifacts"), ["c038", "c064", "c066", "c067", "c068"], workers=0) as started:
        started.deployment.start_worker(options=("-I", "tests.support.foreign_tasks"))
        yield started


def test_c038_an_agents_file_name_is_never_a_path(it: Bench) -> None:
    """Names that climb, are absolute, break lines, or hold NUL: all six files are kept as data, none is written."""
    delegation = it.run("c038", script_of("C038"))

    outcome = ended(delegation)

    (artifact,) = delegation.artifacts()
    assert outcome["state"] == "COMPLETED"
    assert [part["raw"] for part in artifact["parts"]] == ["aGk="] * 6
    assert not Path("/tmp/pwned").exists()
    assert not Path("/tmp/pwned2").exists()


def test_c064_the_result_is_the_one_of_the_last_look(it: Bench) -> None:
    """The artifact is the one that GetTask shows at the end, whatever was heard before."""
    (get,) = script_of("C064")
    working = {"id": "t1", "contextId": "{contextId}", "status": {"state": "TASK_STATE_WORKING"}}
    tail = {**working, "artifacts": [{"artifactId": "r1", "parts": [{"text": "tail only"}]}]}
    delegation = it.run("c064", [on_send(tail), get])

    assert ended(delegation)["text"] == "head tail only"


def test_c066_numbers_stay_as_they_are(it: Bench) -> None:
    """Data keeps 3, 2**53 + 1, 0.1, true and null, on the way back and on the way out."""
    rules = script_of("C066")
    data = rules[0]["reply"]["task"]["artifacts"][0]["parts"][0]["data"]
    it.agents["c066"].script(rules)
    works = delegate.s(agent="c066", goal="the work of c066", on_failure="return")
    delegation_id = chain(say.s(data), works).apply_async().get(timeout=20)["delegation_id"]

    kept = json.loads(it.deployment.store().content(delegation_id) or "[]")[0]["parts"][0]["data"]
    assert json.dumps(kept, sort_keys=True) == json.dumps(data, sort_keys=True)
    (record,) = it.deployment.store().load_many([delegation_id])
    assert json.dumps(record.brief.inputs, sort_keys=True) == json.dumps([data], sort_keys=True)


def test_c067_a_message_that_is_too_large_for_the_agent_is_refused_once(it: Bench) -> None:
    """413 without reading the rest: the status is the reason, no retry."""
    outcome = ended(it.run("c067", script_of("C067"), goal="x" * 200_000))

    assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent.refused")
    assert "413" in outcome["text"]
    assert len(it.agents["c067"].sends()) == 1


def test_c068_a_malformed_part_loses_only_itself(it: Bench) -> None:
    """The good part and the end are kept, each bad part is marked with its index, nothing is sent again."""
    delegation = it.run("c068", script_of("C068"))

    outcome = ended(delegation)

    (artifact,) = delegation.artifacts()
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "good")
    assert artifact["parts"] == [{"text": "good"}, *({"invalid_part": index} for index in range(1, 8))]
    assert len(it.agents["c068"].sends()) == 1
    assert "Traceback" not in it.deployment.logs()
