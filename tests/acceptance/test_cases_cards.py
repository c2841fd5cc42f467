"""Public bug reports about where a card is, whether it is still the one we know, and which version it is of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.agent_handle import ScriptedAgent
from tests.support.cases import (
    Bench,
    answer,
    bench,
    case_input,
    ended,
    on_get,
    on_send,
    record_of,
    script_of,
    wait_for_record,
)
from tests.support.processes import wait_until
from workers import DelegationHandle

CARD = "GET /.well-known/agent-card.json"
OLDER = "GET /.well-known/agent.json"
AGENTS = ("c030", "c047", "c047-busy", "c081", "c081-none", "c082", "c083")
#: Seconds for which C047's cards are fresh; twice the report's, for two starts on a slow machine.
FRESH_S = 4


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("cards")
    with bench(
        directory,
        AGENTS,
        paths={"c083": "/cards/alpha.json"},
        agent_settings={"c082": {"card": f"file:{directory}/pinned.json"}},
        web=False,
    ) as started:
        yield started


def base(agent: ScriptedAgent, path: str = "/rpc", **fields: Any) -> dict[str, Any]:
    """The reports' card, with its one interface at this path."""
    card: dict[str, Any] = {**case_input("C083")["card"], "capabilities": {}}
    interface = {**card["supportedInterfaces"][0], "url": agent.url + path}
    return {**card, "supportedInterfaces": [interface], **fields}


def serves(card: Any, on: str = CARD, status: int = 200, headers: dict[str, str] | None = None, **more: Any) -> Any:
    body = "" if card is None else json.dumps(card)
    return {"on": on, "http": {"status": status, "headers": headers or {}, "body": body}, **more}


def lines(agent: ScriptedAgent, method: str) -> list[str]:
    return [call["http"] for call in agent.calls() if call["http"].startswith(method)]


def refusal(delegation: DelegationHandle) -> str:
    outcome = ended(delegation)
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent.refused")
    text: str = outcome["text"]
    return text


def test_c030_a_card_of_version_0_3_is_told_as_that(it: Bench) -> None:
    """Not as one without interfaces; and nothing of 1.0 is sent to it."""
    agent = it.agents["c030"]
    text = json.dumps(case_input("C030")["card"]).replace("{AGENT}", agent.url)
    agent.script([serves(json.loads(text))])

    assert "version_unsupported: 0.3.0" in refusal(it.run("c030"))
    assert lines(agent, "POST") == []


def test_c047_a_card_is_asked_for_again_when_its_time_is_over(it: Bench) -> None:
    """One GET for two delegations; 304 keeps the card; a new one is used by new work. What is under way keeps its
    interface, and looking at it fetches no card."""
    agent = it.agents["c047"]
    fresh, etags = f"max-age={FRESH_S}", ('"v1"', '"v2"')
    card = base(agent, "/rpc")
    store = it.deployment.store()
    key = store.key("card", "c047")

    def expire() -> None:
        wait_until(lambda: not store.client.exists(key), what="end of the card's time")

    agent.script(
        [
            serves(card, headers={"ETag": etags[0], "Cache-Control": fresh}, times=1),
            serves(None, status=304, times=1, **{"with": {"headers": {"If-None-Match": etags[0]}}}),
            serves(base(agent, "/rpc2"), headers={"ETag": etags[1], "Cache-Control": fresh}),
            on_send(answer("WORKING", task_id="long"), match="under way"),
            on_get(answer("WORKING", task_id="long"), match="under way"),
            on_send(answer("COMPLETED", "ok")),
        ]
    )
    under_way, second = it.run("c047", goal="under way"), it.run("c047")
    wait_for_record(under_way, lambda record: record.progress.agent_task_id, what="task id")
    assert ended(second)["text"] == "ok"
    assert len(agent.calls(CARD)) == 1

    expire()
    polls = len(agent.calls("GetTask"))
    wait_until(lambda: len(agent.calls("GetTask")) >= polls + 2, what="two more looks")
    assert len(agent.calls(CARD)) == 1
    assert ended(it.run("c047"))["text"] == "ok"
    assert len(agent.calls(CARD)) == 2
    assert set(lines(agent, "POST")) == {"POST /rpc"}

    expire()
    assert ended(it.run("c047"))["text"] == "ok"
    assert len(agent.calls(CARD)) == 3
    assert [call["http"] for call in agent.calls("SendMessage")] == ["POST /rpc"] * 3 + ["POST /rpc2"]
    polls = len(agent.calls("GetTask"))
    wait_until(lambda: len(agent.calls("GetTask")) >= polls + 2, what="two more looks")
    assert {call["http"] for call in agent.calls("GetTask")} == {"POST /rpc"}
    assert record_of(under_way).outcome is None
    under_way.cancel("the test is over")


def test_c047_a_brief_that_was_put_off_goes_where_the_card_is_by_then(it: Bench) -> None:
    """Sent to one place and answered "later"; the card names another meanwhile: sent there, and asked about there."""
    agent = it.agents["c047-busy"]
    later = {"on": "SendMessage", "times": 1, "http": {"status": 429, "headers": {"Retry-After": "3"}, "body": ""}}
    agent.script(
        [
            serves(base(agent, "/rpc"), headers={"Cache-Control": "max-age=1"}, times=1),
            serves(base(agent, "/rpc2"), headers={"Cache-Control": "max-age=60"}),
            later,
            on_send(answer("WORKING", task_id="moved")),
            on_get(answer("COMPLETED", "ok", task_id="moved")),
        ]
    )
    assert ended(it.run("c047-busy"))["text"] == "ok"
    assert [call["http"] for call in agent.calls("SendMessage")] == ["POST /rpc", "POST /rpc2"]
    assert {call["http"] for call in agent.calls("GetTask")} == {"POST /rpc2"}


def test_c081_a_card_at_the_older_path_only_is_found(it: Bench) -> None:
    """After a 404, in this order; where neither is there, one error names both."""
    agent = it.agents["c081"]
    agent.script([script_of("C081")[0], serves(base(agent), OLDER), on_send(answer("COMPLETED", "ok"))])
    assert ended(it.run("c081"))["text"] == "ok"
    assert [call["method"] for call in agent.calls()][:2] == [CARD, OLDER]

    nowhere = it.agents["c081-none"]
    nowhere.script([serves(None, CARD, 404), serves(None, OLDER, 404)])
    text = refusal(it.run("c081-none"))
    assert CARD.removeprefix("GET ") in text
    assert OLDER.removeprefix("GET ") in text
    assert [call["method"] for call in nowhere.calls()] == [CARD, OLDER]


def test_c082_a_card_that_the_operator_pinned_is_the_one_that_counts(it: Bench) -> None:
    """The agent's own is not even asked for."""
    agent = it.agents["c082"]
    pinned = it.deployment.directory / "pinned.json"
    pinned.write_text(json.dumps(base(agent, "/private-rpc")), encoding="utf-8")
    agent.script([serves(base(agent, "/public-rpc")), on_send(answer("COMPLETED", "ok"))])

    assert ended(it.run("c082"))["text"] == "ok"
    assert lines(agent, "POST") == ["POST /private-rpc"]
    assert lines(agent, "GET") == []


def test_c083_no_slash_is_added_to_an_address_or_cut_from_it(it: Bench) -> None:
    """A URL that ends with .json is the card's own, and the interface's path is the card's."""
    agent = it.agents["c083"]
    at_card = serves(base(agent), "GET /cards/alpha.json")
    agent.script([at_card, serves(None, "POST /rpc/", 404), on_send(answer("COMPLETED", "ok"))])

    assert ended(it.run("c083"))["text"] == "ok"
    assert lines(agent, "GET") == ["GET /cards/alpha.json"]
    assert lines(agent, "POST") == ["POST /rpc"]
