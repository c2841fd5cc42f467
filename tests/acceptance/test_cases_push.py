"""Public bug reports about pushes and the endpoint they come to: early, odd, forged, unlabelled, or never."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from delegation.agent_task import TaskState
from tests.support.cases import (
    Bench,
    answer,
    bench,
    case_input,
    ended,
    on_get,
    pushes_of,
    record_of,
    script_of,
    wait_for_record,
)
from tests.support.processes import wait_until
from workers import DelegationHandle

AGENTS = ("c006", "c009", "c013", "c014", "c026", "c026-question", "c055", "c056", "c057", "c099")


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("push"), AGENTS) as started:
        yield started


def begin(it: Bench, agent: str, task_id: str, **script: Any) -> tuple[DelegationHandle, dict[str, Any]]:
    """A delegation whose agent task works and pushes nothing by itself, and the push config the agent was given."""
    goal = {"id": task_id, "states": [["WORKING", 0]], "push": False, **script}
    delegation = it.run(agent, goal=json.dumps(goal))
    wait_for_record(delegation, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
    (task,) = [task for task in it.agents[agent].tasks() if task["id"] == task_id]
    (config,) = task["push_configs"]
    return delegation, config


def post(config: dict[str, Any], body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    """A push by hand; a header that is None is left out."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    with httpx.Client(trust_env=False, timeout=10) as client:
        return client.post(config["url"], content=content, headers=headers or bearer(config))


def bearer(config: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {config['token']}", "Content-Type": "application/json"}


def completed(task_id: str) -> dict[str, Any]:
    status = {"state": "TASK_STATE_COMPLETED"}
    return {"statusUpdate": {"taskId": task_id, "contextId": "c1", "status": status}}


def causes(delegation: DelegationHandle) -> list[str]:
    return [line["cause"] for line in delegation.history()]


def test_c006_a_push_before_the_answer_to_the_send_is_not_lost(it: Bench) -> None:
    """The push of the end is answered 2xx before we know the task id, and leads to the end, not to a slow look."""
    goal = {"states": [["WORKING", 0], ["COMPLETED", 0.1]], "push_before_reply": "COMPLETED", "push_states": []}
    delegation = it.run("c006", goal=json.dumps({**goal, "reply_delay": 0.5}))

    outcome = ended(delegation)

    (push,) = it.agents["c006"].pushes()
    assert push["status"] == 202
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert causes(delegation)[-1] in ("sent", "push")


def test_c009_a_forged_push_with_a_right_credential_is_no_news(it: Bench) -> None:
    """Claims about another task or of an invented result: 202, the registered agent is asked, and stays WORKING."""
    agent = it.agents["c009"]
    delegation, config = begin(it, "c009", "c009")
    other, _config = begin(it, "c009", "t-of-Y")
    for push in pushes_of("C009"):
        before = len(agent.calls("GetTask"))
        assert post(config, push["body"]).status_code == 202
        agent.wait_for_calls("GetTask", before + 1)

    assert (record_of(delegation).wakes, record_of(other).wakes) == (2, 0)
    assert record_of(delegation).state is record_of(other).state is TaskState.WORKING
    with it.deployment.valkey.client() as client:
        dump = repr([_read(client, key) for key in client.scan_iter()])
    assert "c009" in dump
    assert "9 999" not in dump


def _read(client: Any, key: str) -> Any:
    readers = {
        "string": client.get,
        "hash": client.hgetall,
        "set": client.smembers,
        "list": lambda key: client.lrange(key, 0, -1),
        "zset": lambda key: client.zrange(key, 0, -1),
    }
    return readers[client.type(key)](key)


def test_c013_every_shape_of_body_is_a_wake_and_none_is_an_answer(it: Bench) -> None:
    """Seven shapes that senders use, and four that nobody should: all 202; what the agent then says is what counts."""
    bodies = [*case_input("C013")["bodies"], {}, [], b"not json", b""]
    delegations = [begin(it, "c013", f"c013-{number}") for number in range(len(bodies))]
    says_completed = [b'"state"' in _content(body) for body in bodies]
    for number, said in enumerate(says_completed):
        if said:
            it.agents["c013"].move(f"c013-{number}", "COMPLETED", artifact="ok")

    statuses = [post(config, body).status_code for body, (_, config) in zip(bodies, delegations, strict=True)]

    assert statuses == [202] * len(bodies)
    for said, (delegation, _config) in zip(says_completed, delegations, strict=True):
        if said:
            outcome = ended(delegation)
            assert (outcome["state"], outcome["text"], causes(delegation)[-1]) == ("COMPLETED", "ok", "push")
        else:
            looked = wait_for_record(delegation, lambda d: d.fetched_at and not d.heard, what="look after the push")
            assert looked.state is TaskState.WORKING
    assert says_completed.count(True) == 5


def _content(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def test_c014_either_credential_header_will_do_and_a_wrong_one_never(it: Bench) -> None:
    """The config names both; token alone, Bearer alone in any case: 202. None, another, one right one wrong: 404."""
    delegation, config = begin(it, "c014", "c014")
    other, other_config = begin(it, "c014", "c014-other")
    stand_ins = {"tok-1": config["token"], "cred-1": config["authentication"]["credentials"]}

    answers = []
    for headers in case_input("C014")["pushes"]:
        for name, value in headers.items():
            for word, secret in stand_ins.items():
                headers[name] = headers[name].replace(word, secret) if word in value else headers[name]
        # Still working: whatever is answered, the state must not change by it.
        answers.append(post(config, completed("c014"), {**headers, "Content-Type": "application/json"}).status_code)

    assert answers == [202, 202, 202, 404, 404, 404]
    assert config["authentication"]["scheme"] == "Bearer"
    assert len(config["token"]) >= 22  # 128 bits in base64
    assert config["token"] != other_config["token"]
    assert record_of(delegation).state is record_of(other).state is TaskState.WORKING


def test_c026_without_any_push_the_end_is_found_all_the_same(it: Bench) -> None:
    """The agent took the push config and never pushes: the re-check (2 s for 60) finds the end."""
    delegation = it.run("c026", script_of("C026"))

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert set(causes(delegation)) <= {"opened", "sent", "sweep"}
    assert it.agents["c026"].pushes() == []


def test_c026_without_any_push_a_question_is_found_all_the_same(it: Bench) -> None:
    """INPUT_REQUIRED is heard by the re-check as well."""
    send, *_ = script_of("C026")
    delegation = it.run("c026-question", [send, on_get(answer("INPUT_REQUIRED"))])

    wait_for_record(delegation, lambda d: d.state is TaskState.INPUT_REQUIRED, what="question")

    assert causes(delegation)[-1] == "sweep"


def test_c055_any_content_type_that_senders_use_is_taken(it: Bench) -> None:
    """a2a+json, a charset, octet-stream, none at all, text/plain: each 202 and each leads to the end."""
    for number, push in enumerate(case_input("C055")["pushes"]):
        task_id = f"c055-{number}"
        delegation, config = begin(it, "c055", task_id)
        it.agents["c055"].move(task_id, "COMPLETED")
        headers = {"Authorization": f"Bearer {config['token']}", **push["headers"]}
        if headers["Content-Type"] == "(absent)":
            del headers["Content-Type"]

        assert post(config, push["body"], headers).status_code == 202
        assert ended(delegation)["state"] == "COMPLETED"
        assert causes(delegation)[-1] == "push"


def test_c056_a_push_is_answered_at_once_while_no_worker_works(it: Bench) -> None:
    """All workers frozen: 202 in well under the agent's 2 s, and the delegation ends when they go on."""
    delegation, config = begin(it, "c056", "c056")
    it.agents["c056"].move("c056", "COMPLETED")
    for worker in it.deployment.workers:
        worker.pause()
    try:
        began = time.monotonic()
        status = post(config, completed("c056")).status_code
        took_s = time.monotonic() - began
    finally:
        for worker in it.deployment.workers:
            worker.resume()

    assert status == 202
    assert took_s < 2
    assert ended(delegation, 10)["state"] == "COMPLETED"


def test_c056_a_push_while_redis_is_silent_is_refused_or_kept(it: Bench) -> None:
    """Redis paused for 5 s: 503, or 2xx that is not lost; the delegation ends in either case."""
    delegation, config = begin(it, "c056", "c056-paused")
    it.agents["c056"].move("c056-paused", "COMPLETED")
    with it.deployment.valkey.client() as client:
        client.client_pause(5000)
        status = post(config, completed("c056-paused")).status_code

    assert status in (202, 503)
    assert ended(delegation)["state"] == "COMPLETED"


def test_c057_a_chunked_push_is_read_like_any_other(it: Bench) -> None:
    """A body without Content-Length wakes as well (what exceeds the limit: integration/test_push_door.py)."""
    delegation, config = begin(it, "c057", "c057")
    it.agents["c057"].move("c057", "COMPLETED")
    push = case_input("C057")["pushes"][0]
    chunks = iter([json.dumps(push["body"]).encode()])
    with httpx.Client(trust_env=False, timeout=10) as client:
        answered = client.post(config["url"], content=chunks, headers=bearer(config))

    assert answered.request.headers["Transfer-Encoding"] == push["headers"]["Transfer-Encoding"]
    assert answered.status_code == 202
    assert ended(delegation)["state"] == "COMPLETED"
    assert causes(delegation)[-1] == "push"


def test_c099_progress_texts_are_not_the_result(it: Bench) -> None:
    """Each text is shown while it is the latest, and kept in the history; the result is the last one alone."""
    agent = it.agents["c099"]
    delegation, _config = begin(it, "c099", "c099", push=True, artifact=None)
    texts = [push["statusUpdate"]["status"]["message"]["parts"][0]["text"] for push in pushes_of("C099")]
    for text in texts[:2]:
        agent.move("c099", "WORKING", text)
        wait_until(lambda: record_of(delegation).progress.status_text == text, what=text)  # noqa: B023  ends in here
    agent.move("c099", "COMPLETED", texts[2])

    outcome = ended(delegation)

    assert outcome["text"] == "Total 12"
    assert [line["text"] for line in delegation.history()][-3:] == texts
    assert causes(delegation)[-3:] == ["push"] * 3
