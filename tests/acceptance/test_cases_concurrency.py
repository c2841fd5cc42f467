"""Public bug reports about many at once: two workers on one delegation, few slots, shared and dead connections."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from delegation.agent_task import TaskState
from delegation.errors import StoreUnavailable
from delegation.store import Store
from tests.support.cases import Bench, bench, ended, script_of, wait_for_record
from tests.support.gate import Gate
from tests.support.processes import ValkeyProcess, wait_until


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Two slots, each a process of its own, and a follower."""
    directory = tmp_path_factory.mktemp("concurrency")
    agents: dict[str, dict[str, Any]] = {"c071": {}, "c072": {}, "c072-streams": {"streaming": True}, "c080": {}}
    follows = {"c072-streams": {"updates": "follow"}}
    with bench(directory, agents, agent_settings=follows, pool="prefork", concurrency=2, follower=True) as started:
        yield started


def test_c007_a_worker_that_lost_its_lease_changes_nothing(tmp_path: Path) -> None:
    """Frozen in the middle of its send until another has taken over: its late write is refused, one send, no error."""
    timing = {"call_deadline": 2, "lease_margin": 0.5}
    with bench(tmp_path, {"c007": {"push": False}}, timing=timing) as it:
        agent = it.agents["c007"]
        (first,) = it.deployment.workers
        send, get = script_of("C007")
        agent.script([{**send, "delay_s": 1}, get])
        delegation = it.run("c007")
        agent.wait_for_calls("SendMessage")
        first.pause()
        it.deployment.start_worker()

        outcome = ended(delegation)
        first.resume()
        first.wait_for_output("delegation.write_refused")

        assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
        assert len(agent.sends()) == 1
        assert agent.calls("CancelTask") == []
        assert delegation.describe()["outcome"] == outcome
        assert [line["state"] for line in delegation.history()].count("COMPLETED") == 1


def test_c070_two_sweepers_ask_no_more_than_one(tmp_path: Path) -> None:
    """Two workers sweep ten times a second, 50 delegations: one look per interval and never two at a time."""
    timing = {"poll_first": 1, "poll_max": 1}
    with bench(tmp_path, {"c070": {"push": False}}, workers=2, timing=timing) as it:
        agent = it.agents["c070"]
        agent.script([{"on": "GetTask", "delay_s": 0.1}])
        goal = {"states": [["WORKING", 0], ["COMPLETED", 5]]}
        delegations = [it.run("c070", goal=json.dumps(goal)) for _ in range(50)]

        outcomes = [ended(each) for each in delegations]

        looks = defaultdict[str, list[float]](list)
        for call in agent.calls("GetTask"):
            looks[call["task_id"]].append(call["at"])
        gaps = [later - sooner for at in looks.values() for sooner, later in pairwise(at)]
        assert {outcome["state"] for outcome in outcomes} == {"COMPLETED"}
        assert len(looks) == len(agent.sends()) == 50
        assert min(gaps) >= 0.7  # an interval of 1 s less its jitter
        assert all([line["state"] for line in each.history()].count("COMPLETED") == 1 for each in delegations)
        assert all("delegation.settled" in worker.output() for worker in it.deployment.workers)


def test_c071_one_process_serves_one_delegation_after_another(it: Bench) -> None:
    """Three in a row to one keep-alive agent: all complete, over one connection per process, no event loop is hurt."""
    outcomes = [ended(it.run("c071")) for _ in range(3)]

    assert [outcome["state"] for outcome in outcomes] == ["COMPLETED"] * 3
    assert it.agents["c071"].open_connections() <= 2
    assert "event loop" not in it.deployment.logs().lower()


def test_c072_waiting_delegations_leave_the_slots_to_what_is_urgent(it: Bench) -> None:
    """30 delegations wait, two slots: all sends are out in time, and a push for one of them is acted on at once."""
    agent = it.agents["c072"]
    began = time.monotonic()
    working = {"states": [["WORKING", 0]], "push": False}
    delegations = [it.run("c072", goal=json.dumps({**working, "id": f"c072-{n}"})) for n in range(30)]
    agent.wait_for_calls("SendMessage", 30, 30)
    for each in delegations:
        wait_for_record(each, lambda d: d.parked and d.progress.agent_task_id, 30, what="parked record")
    sent_s = time.monotonic() - began

    agent.move("c072-7", "COMPLETED")
    assert agent.push("c072-7") == [202]
    wait_for_record(delegations[7], lambda d: d.phase.is_settled, 3, what="end")

    assert sent_s < 30
    assert len(agent.sends()) == 30
    assert it.deployment.store().metrics()["parked"] == 29


def test_c072_open_streams_hold_no_slot(it: Bench) -> None:
    """30 streams are open, two slots: a cancel reaches the agent, and a push of another is acted on, at once."""
    agent, pushing = it.agents["c072-streams"], it.agents["c072"]
    began = time.monotonic()
    working = json.dumps({"states": [["WORKING", 0]]})
    followed = [it.run("c072-streams", goal=working) for _ in range(30)]
    agent.wait_for(lambda _: len(agent.sends()) == 30, 30, what="30 sends")
    sent_s = time.monotonic() - began
    for each in followed:
        wait_for_record(each, lambda d: d.parked and d.followed, 30, what="followed record")
    pushed = it.run("c072", goal=json.dumps({"states": [["WORKING", 0]], "push": False, "id": "c072-pushed"}))
    wait_for_record(pushed, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
    agent.wait_for_streams(30)

    followed[7].cancel("enough")
    agent.wait_for_calls("CancelTask", 1, 3)
    pushing.move("c072-pushed", "COMPLETED")
    assert pushing.push("c072-pushed") == [202]
    wait_for_record(pushed, lambda d: d.phase.is_settled, 3, what="end")

    assert sent_s < 30
    assert ended(followed[7])["state"] == "CANCELED"
    agent.wait_for_streams(29)
    assert len(agent.sends()) == 30


def test_c080_a_reply_is_never_somebody_elses(it: Bench) -> None:
    """Readers that time out in the middle of a reply share connections: every record read is the one asked for."""
    delegations = [it.run("c080", goal=json.dumps({"artifact": f"text {number}"})) for number in range(20)]
    texts = {each.id: f"text {number}" for number, each in enumerate(delegations)}
    assert {each.id: ended(each)["text"] for each in delegations} == texts
    counts: Counter[str] = Counter()
    lock = threading.Lock()
    store = Store.connect(it.deployment.valkey.url(), timeout_s=0.004, max_connections=6)

    def read(until: float) -> None:
        while time.monotonic() < until:
            for delegation_id, text in texts.items():
                try:
                    outcome = store.load(delegation_id).delegation.outcome
                    seen = (
                        "right"
                        if outcome and (outcome.delegation_id, outcome.text) == (delegation_id, text)
                        else "wrong"
                    )
                except StoreUnavailable:
                    seen = "timed out"
                with lock:
                    counts[seen] += 1

    readers = [threading.Thread(target=read, args=(time.monotonic() + 3,)) for _ in range(6)]
    for reader in readers:
        reader.start()
    with it.deployment.valkey.client() as client:
        while any(reader.is_alive() for reader in readers):
            client.client_pause(8)
            time.sleep(0.02)
    store.close()

    assert counts["wrong"] == 0
    assert counts["right"] > 100
    assert counts["timed out"] > 10


def test_c079_connections_that_went_dead_without_a_word_are_replaced(tmp_path: Path) -> None:
    """Redis behind a proxy that forgets connections: 503 in time meanwhile, and work goes on over new ones."""
    valkey = ValkeyProcess(tmp_path / "valkey")
    with Gate(valkey.port) as gate:
        config = {"redis": {"url": valkey.url(port=gate.port)}}
        with bench(tmp_path, ["c079"], valkey=valkey, config=config) as it:
            agent, web = it.agents["c079"], it.deployment.web
            assert web is not None
            delegation = it.run("c079", goal='{"id": "c079", "states": [["WORKING", 0]], "push": false}')
            wait_for_record(delegation, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
            direct = Store.connect(valkey.url())

            gate.fall_silent()
            agent.move("c079", "COMPLETED")
            began = time.monotonic()
            status = httpx.get(f"{web.url}/readyz", trust_env=False, timeout=20).status_code
            pushed = agent.push("c079")
            took_s = time.monotonic() - began
            gate.let_new_ones_through()
            settled = wait_until(lambda: _state(direct, delegation.id) is TaskState.COMPLETED, 60, what="end")
            direct.close()

            assert (status, pushed) == (503, [503])
            assert took_s < 10
            assert settled


def _state(store: Store, delegation_id: str) -> TaskState:
    return store.load(delegation_id).delegation.state
