"""Public bug reports about Celery and Redis: killed workers, messages seen twice or never, a broker that goes away."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import current_app

from delegation.errors import UnknownDelegation
from tests.support.caller import Witness
from tests.support.cases import Bench, answer, bench, ended, on_send, outcome_in, record_of, script_of, wait_for_record
from tests.support.foreign_tasks import WITNESS_VARIABLE, keep_call
from tests.support.processes import ValkeyProcess, wait_until
from tests.support.redis_users import ADMIN
from workers import DelegationHandle, Workflow, delegate
from workers.runtime import runtime

#: A dead step is taken over after its lease, here 3 s instead of 45 s.
TIMING = {"call_deadline": 2, "lease_margin": 1}
USERS_TASKS = ("-I", "tests.support.foreign_tasks")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("celery")
    agents: dict[str, dict[str, Any]] = {"c042": {}, "c069": {}, "c091": {"push": False}}
    with witnessed(directory, agents, config={"limits": {"artifact_bytes": 16 * 1024 * 1024}}) as started:
        started.deployment.start_worker(options=USERS_TASKS)
        yield started


def witnessed(directory: Path, agents: dict[str, dict[str, Any]], **options: Any) -> Any:
    """A bench without a worker, whose processes know where continuations leave their trace."""
    valkey = ValkeyProcess(directory / "valkey")
    env = {WITNESS_VARIABLE: valkey.url(9, user=ADMIN)}
    return bench(directory, agents, valkey=valkey, env=env, workers=0, timing=TIMING, **options)


def test_c002_a_message_given_to_a_second_worker_sends_nothing_twice(tmp_path: Path) -> None:
    """A send of 4.5 s with a visibility timeout of 2 s (for 15 and 3): the message comes again, the call does not."""
    send, get = script_of("C002")
    slow = {"call_deadline": 10, "lease_margin": 1}
    with bench(tmp_path, ["c002"], workers=0, timing=slow) as it:
        workers = [it.deployment.start_worker(app="tests.support.impatient_app:app", wait=False) for _ in range(2)]
        for worker in workers:
            worker.wait_until_ready()
        delegation = it.run("c002", [{**send, "delay_s": 4.5}, get])

        outcome = ended(delegation)

        begins = f"begins {delegation.id}.start"
        assert sum(worker.output().count(begins) for worker in workers) >= 2
        assert len(it.agents["c002"].sends()) == 1
        assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_c028_a_kill_at_any_point_of_a_delegation_costs_time_only(tmp_path: Path, pool: str) -> None:
    """SIGKILL (to prefork's children, or to the worker) before, during and after a send and during a look.

    All four delegations complete with one send and one agent task each, and their parent goes on once.
    """
    points = ("before", "during", "after", "polling")
    with bench(tmp_path, {point: {"push": False} for point in points}, pool=pool, concurrency=4) as it:
        (worker,) = it.deployment.workers
        send, *gets = script_of("C028")
        scripts = {point: [send, *gets] for point in points}
        scripts["during"] = [{**send, "delay_s": 2.5}, *gets]
        scripts["polling"] = [send, {**gets[0], "times": 1, "delay_s": 2.5}, *gets]
        for point, rules in scripts.items():
            it.agents[point].script(rules)
        workflow = Workflow.open("c028")
        children = {"after": workflow.delegate("after", "the work")}
        wait_for_record(children["after"], lambda d: d.parked and d.progress.agent_task_id, what="parked record")
        children["polling"] = workflow.delegate("polling", "the work")
        it.agents["polling"].wait_for_calls("GetTask")
        children["during"] = workflow.delegate("during", "the work")
        it.agents["during"].wait_for_calls("SendMessage")
        victims = _children_of(worker.pid) if pool == "prefork" else [worker.pid]
        for victim in victims:
            os.kill(victim, signal.SIGSTOP)
        children["before"] = workflow.delegate("before", "the work")
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        if pool == "threads":
            worker.wait()
            worker.start()
        workflow.join()
        workflow.wait(60)

        ends = {point: outcome_in(workflow, child)["state"] for point, child in children.items()}
        assert ends == dict.fromkeys(points, "COMPLETED")
        assert {point: len(it.agents[point].sends()) for point in points} == dict.fromkeys(points, 1)
        assert {point: len(it.agents[point].created()) for point in points} == dict.fromkeys(points, 1)
        assert workflow.describe()["round"] == 1


def _children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_c035_the_parent_hears_of_an_end_whose_worker_died_at_once(tmp_path: Path) -> None:
    """Killed right after the child is COMPLETED: the parent goes on after the restart, once, under one release id."""
    with witnessed(tmp_path, {"c035": {}}) as it:
        doomed = {"DELEGATION_FAILPOINT": "release.after_commit:kill:1"}
        worker = it.deployment.start_worker(env=doomed, options=USERS_TASKS)
        workflow = Workflow.open("c035")
        delegation = workflow.delegate("c035", '{"states": [["WORKING", 0], ["COMPLETED", 0.3]]}')
        workflow.join(then=keep_call.s(key="c035"))
        worker.wait(20)
        assert record_of(delegation).phase.is_settled

        it.deployment.start_worker(options=USERS_TASKS)
        witness = Witness(it.deployment.valkey)
        (told,) = witness.wait_for("c035")

        assert told["kwargs"]["workflow_id"] == workflow.id
        assert told["id"] == told["kwargs"]["release_id"]
        wait_until(lambda: not it.deployment.store().metrics()["due"], what="empty due index")
        assert len(witness.saw("c035")) == 1


def test_c039_workers_go_on_by_themselves_after_redis_came_back(tmp_path: Path) -> None:
    """Redis away while the agent works: not ready meanwhile, COMPLETED afterwards, and nobody restarted a worker.

    The last of a parent's children ends while Redis is away (C042's variant). With an empty Redis the loss is said.
    """
    with bench(tmp_path, ["c039"]) as it:
        valkey, web = it.deployment.valkey, it.deployment.web
        assert web is not None
        workflow = Workflow.open("c039")
        children = [workflow.delegate("c039", _goal(task_id=f"c039-{number}")) for number in range(2)]
        workflow.join()
        for child in children:
            wait_for_record(child, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
        it.agents["c039"].move("c039-0", "COMPLETED", artifact="ok")
        wait_for_record(children[0], lambda d: d.phase.is_settled, what="end")

        valkey.kill()
        it.agents["c039"].move("c039-1", "COMPLETED", artifact="ok")
        wait_until(lambda: _ready(web.url)[0] == 503, what="not ready")
        it.deployment.workers[0].wait_for_output("delegation.sweep_failed")
        pushes = it.agents["c039"].wait_for_pushes(2)
        valkey.start()
        workflow.wait(30)

        assert [push["status"] for push in pushes] == [202, 503]
        assert {outcome_in(workflow, child)["text"] for child in children} == {"ok"}
        assert workflow.describe()["round"] == 1
        wait_until(lambda: _ready(web.url)[0] == 200, what="ready again")

        valkey.kill()
        shutil.rmtree(tmp_path / "valkey" / "appendonlydir")
        valkey.start()
        assert "our state in it is gone" in str(wait_until(lambda: _unready(web.url), what="reason"))
        it.deployment.workers[0].wait_for_output("delegation.state_lost")


def _goal(**script: Any) -> str:
    return json.dumps({"id": script["task_id"], "states": [["WORKING", 0]]})


def _ready(url: str) -> tuple[int, Any]:
    answered = httpx.get(f"{url}/readyz", trust_env=False, timeout=10)
    return answered.status_code, answered.json()["reasons"]


def _unready(url: str) -> Any:
    status, reasons = _ready(url)
    return reasons if status == 503 and "does not answer" not in str(reasons) else None


def test_c040_what_a_dead_worker_had_reserved_goes_on_with_the_next(tmp_path: Path) -> None:
    """20 delegations, the worker killed with all slots and its prefetch full: all complete, each with one send."""
    with bench(tmp_path, ["c040"], concurrency=4, timing=TIMING) as it:
        agent = it.agents["c040"]
        agent.script([{"on": "SendMessage", "delay_s": 0.4}])
        delegations = [it.run("c040") for _ in range(20)]
        agent.wait_for_calls("SendMessage", 6)
        (worker,) = it.deployment.workers
        worker.kill()
        agent.script([])
        worker.start()

        outcomes = [ended(each, 60) for each in delegations]

        assert {outcome["state"] for outcome in outcomes} == {"COMPLETED"}
        assert len({sent["message_id"] for sent in agent.sends()}) == len(agent.sends()) == 20
        assert len(agent.created()) == 20


def test_c042_a_parent_goes_on_once_however_its_children_end(it: Bench) -> None:
    """Completed, failed, rejected, timed out; none, one, all failed, one heard twice: each parent once, with all."""
    ends = {
        "mixed": ["COMPLETED", "FAILED", "REJECTED", "timed out"],
        "none": [],
        "one": ["COMPLETED"],
        "all-fail": ["FAILED", "FAILED", "REJECTED"],
        "heard-twice": ["COMPLETED", "twice"],
    }
    parents = {name: Workflow.open(name) for name in ends}
    for name, parent in parents.items():
        for end in ends[name]:
            parent.delegate("c042", _ending(end), deadline=timedelta(seconds=1.5) if end == "timed out" else None)
        parent.join(then=keep_call.s(key=f"c042-{name}"))
    witness = Witness(it.deployment.valkey)

    for name, parent in parents.items():
        (told,) = witness.wait_for(f"c042-{name}")
        assert told["kwargs"]["workflow_id"] == parent.id
        states = [outcome and outcome["state"] for outcome in parent.outcomes().values()]
        assert states == [{"timed out": "FAILED", "twice": "COMPLETED"}.get(end, end) for end in ends[name]]
    timed_out = list(parents["mixed"].outcomes().values())[3]
    assert timed_out
    assert timed_out["reason"] == "deadline.exceeded"
    it.agents["c042"].wait_for(lambda ledger: sum(e["kind"] == "push" for e in ledger) >= 9, what="all pushes")
    wait_until(lambda: not it.deployment.store().metrics()["due"], what="empty due index")
    assert {name: len(witness.saw(f"c042-{name}")) for name in ends} == dict.fromkeys(ends, 1)


def _ending(end: str) -> str:
    states: list[Any] = [["WORKING", 0]]
    if end != "timed out":
        states.append(["COMPLETED" if end == "twice" else end, 0.2])
    return json.dumps({"states": states, "push_times": 3 if end == "twice" else 1})


def test_c069_an_unknown_delegation_is_unknown_and_a_finished_one_outlives_its_celery_result(it: Bench) -> None:
    """A made-up id is an error and never "pending"; with Celery's result gone the record still has the outcome."""
    result = delegate.delay(agent="c069", goal="the work of c069")
    outcome = result.get(timeout=20)
    result.forget()
    with pytest.raises(UnknownDelegation):
        DelegationHandle.get("0123456789abcdef0123456789abcdef")

    assert current_app.AsyncResult(result.id).state == "PENDING"
    described = DelegationHandle(outcome["delegation_id"]).describe()
    assert (described["state"], described["outcome"]["text"]) == ("COMPLETED", "ok")


def test_c091_a_large_result_stays_out_of_celery(it: Bench) -> None:
    """An 8 MB text: kept once beside the record; what travels through Celery is a fraction and says so."""
    text = "8 MB " * 1_600_000
    it.agents["c091"].script([on_send(answer("COMPLETED", text))])
    result = delegate.delay(agent="c091", goal="the work of c091")

    outcome = result.get(timeout=30)

    delegation = DelegationHandle(outcome["delegation_id"])
    store = runtime().store
    with it.deployment.valkey.client() as client:
        sizes = {key: client.memory_usage(key, samples=0) or 0 for key in client.scan_iter("delegation:*")}
    kept = sizes.pop(store.key("c", delegation.id))
    assert (outcome["state"], outcome["truncated"]) == ("COMPLETED", True)
    assert delegation.artifacts()[0]["parts"][0]["text"] == text
    assert kept <= 1.5 * len(text)
    assert max(sizes.values()) < 256 * 1024
    assert outcome["artifacts"][0]["size"] >= len(text)
    assert "8 MB 8 MB" in outcome["text"]
    assert it.agents["c091"].calls("GetTask") == []
