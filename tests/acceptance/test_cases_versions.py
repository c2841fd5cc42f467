"""Public bug reports about agents of A2A 0.3, and about those that refuse a version: through all processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.cases import Bench, bench, case_input, ended, record_of, wait_for_record
from tests.support.child import wait_until
from tests.support.raw_server import Behaviour, RawServer, Seen, hangs, http

OPTED_IN = ("c030", "c030-rest", "c063", "c063-busy", "mixed")


class OldAgent:
    """Serves a card, and answers by path and method; a list is one answer after the other, the last for ever."""

    def __init__(self, server: RawServer) -> None:
        self.url = server.url
        self._server = server
        server.behaviour = self._behave
        self._card: dict[str, Any] = {}
        self._answers: dict[tuple[str, str], list[Any]] = {}

    def plays(self, card: dict[str, Any], answers: dict[tuple[str, str], Any]) -> None:
        self._card = json.loads(json.dumps(card).replace("{AGENT}", self.url))
        self._answers = {key: found if isinstance(found, list) else [found] for key, found in answers.items()}
        self._server.seen.clear()

    def posts(self) -> list[tuple[str, str]]:
        """Path and method of each call; of HTTP+JSON the line."""
        return [_key(seen) for seen in list(self._server.seen) if not _is_card(seen)]

    def bodies(self) -> list[dict[str, Any]]:
        return [seen.rpc for seen in list(self._server.seen) if seen.body]

    def _behave(self, request: Seen, connection: Any) -> bool:
        if _is_card(request):
            connection.sendall(http(200, json.dumps(self._card).encode(), {"Cache-Control": "no-cache"}))
            return True
        key = _key(request)
        found = self._answers.get(key) or [{"error": {"code": -32601, "message": f"unexpected {key}"}}]
        answer = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(answer, bytes):
            connection.sendall(answer)
            return True
        if request.body and "method" in request.rpc:
            answer = {"jsonrpc": "2.0", "id": request.rpc["id"]} | (answer if "error" in answer else {"result": answer})
        connection.sendall(http(200, json.dumps(answer).encode()))
        return True


def _is_card(request: Seen) -> bool:
    return request.line.startswith("GET /.well-known/")


def _key(request: Seen) -> tuple[str, str]:
    verb, target, _ = request.line.split(" ")
    method = request.rpc.get("method", "") if request.body else ""
    return target.partition("?")[0], method or verb


def task(state: str, text: str = "", *, task_id: str = "t1") -> dict[str, Any]:
    found = {"kind": "task", "id": task_id, "contextId": "c1", "status": {"state": state}}
    parts = [{"kind": "text", "text": text}]
    return found | ({"artifacts": [{"artifactId": "a", "parts": parts}]} if text else {})


def quiet(card: dict[str, Any]) -> dict[str, Any]:
    """Neither streams nor pushes: looks are what hears."""
    return {**card, "capabilities": {}}


class World:
    def __init__(self, it: Bench, agents: dict[str, OldAgent]) -> None:
        self.bench = it
        self.agents = agents


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory: Path = tmp_path_factory.mktemp("versions")
    nothing: Behaviour = hangs()
    with ExitStack() as ends:
        names = (*OPTED_IN, "c063-plain")
        agents = {name: OldAgent(ends.enter_context(RawServer(nothing))) for name in names}
        it = ends.enter_context(
            bench(
                directory,
                [],
                urls={name: agent.url for name, agent in agents.items()},
                agent_settings={name: {"protocol": "0.3"} for name in OPTED_IN},
                web=False,
            )
        )
        yield World(it, agents)


def test_c030_an_old_card_is_spoken_to_in_0_3(world: World) -> None:
    """JSON-RPC at its url is the first interface; the send goes there as message/send, and the looks as tasks/get."""
    agent = world.agents["c030"]
    looks = [task("working"), task("completed", "ok")]
    agent.plays(
        quiet(case_input("C030")["card"]), {("/a2a", "message/send"): task("working"), ("/a2a", "tasks/get"): looks}
    )
    delegation = world.bench.run("c030")

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert agent.posts() == [("/a2a", "message/send"), ("/a2a", "tasks/get"), ("/a2a", "tasks/get")]
    assert json.loads(record_of(delegation).progress.interface)["protocolVersion"] == "0.3"


def test_c030_the_second_interface_of_an_old_card_is_there_for_those_that_lack_the_first(world: World) -> None:
    """HTTP+JSON at /rest, below /v1."""
    agent = world.agents["c030-rest"]
    done = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}
    card = {**quiet(case_input("C030")["card"]), "preferredTransport": "GRPC"}
    agent.plays(card, {("/rest/v1/message:send", "POST"): {"task": done}})

    assert ended(world.bench.run("c030-rest"))["state"] == "COMPLETED"
    assert agent.posts() == [("/rest/v1/message:send", "POST")]


def test_c063_a_refused_version_is_followed_by_the_other_one_once(world: World) -> None:
    """-32009 from /rpc, then /old in 0.3's names with the same messageId; looks go to /old, after failures too."""
    agent = world.agents["c063"]
    refused = {"error": {"code": -32009, "message": "1.0 not here"}}
    broken = http(500, b"no")
    agent.plays(
        quiet(case_input("C063")["card"]),
        {
            ("/rpc", "SendMessage"): refused,
            ("/old", "message/send"): task("working"),
            ("/old", "tasks/get"): [task("working"), broken, broken, task("completed", "ok")],
        },
    )
    delegation = world.bench.run("c063")

    assert ended(delegation)["text"] == "ok"

    assert agent.posts() == [("/rpc", "SendMessage"), ("/old", "message/send"), *[("/old", "tasks/get")] * 4]
    first, second = (body["params"]["message"]["messageId"] for body in agent.bodies()[:2])
    assert first == second
    assert "A2A 1.0 refused, so 0.3: " in " ".join(line["text"] for line in delegation.history())


def test_c063_a_refused_version_is_the_end_where_0_3_is_not_allowed(world: World) -> None:
    """One POST, and version_unsupported as the reason."""
    agent = world.agents["c063-plain"]
    agent.plays(quiet(case_input("C063")["card"]), {("/rpc", "SendMessage"): case_input("C063")["script"][0]})

    outcome = ended(world.bench.run("c063-plain"))

    assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent.refused")
    assert outcome["text"] == "version_unsupported: SendMessage: error -32009: 1.0 not here"
    assert agent.posts() == [("/rpc", "SendMessage")]


def test_a_version_that_was_chosen_stays_for_the_delegations_life(world: World) -> None:
    """The card offers 1.0 by the time of the next look: what was sent in 0.3 is looked at in 0.3; new work is not."""
    agent = world.agents["mixed"]
    card = quiet(case_input("C030")["card"])
    interface = {"url": "{AGENT}/new", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    waiting = {("/a2a", "message/send"): task("working"), ("/a2a", "tasks/get"): [task("working")]}
    agent.plays(card, waiting)
    old = world.bench.run("mixed")
    wait_for_record(old, lambda d: d.progress.agent_task_id, what="task")
    new = {"task": {"id": "t2", "contextId": "c2", "status": {"state": "TASK_STATE_COMPLETED"}}}
    looks = [*[task("working")] * 3, task("completed", "ok")]
    agent.plays(
        {**card, "supportedInterfaces": [interface]}, {("/a2a", "tasks/get"): looks, ("/new", "SendMessage"): new}
    )
    store = world.bench.deployment.store()
    wait_until(lambda: not store.client.exists(store.key("card", "mixed")), what="end of the card's time")

    assert ended(world.bench.run("mixed"))["agent_task_id"] == "t2"
    assert ended(old)["text"] == "ok"
    assert set(agent.posts()) == {("/a2a", "tasks/get"), ("/new", "SendMessage")}
