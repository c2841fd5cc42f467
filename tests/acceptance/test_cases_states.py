"""Public bug reports about states and times: spelled otherwise, late, unknown, paused, out of order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain
from celery.result import AsyncResult

from delegation.agent_task import TaskState
from delegation.errors import AgentTaskFailed
from delegation.state import Delegation
from tests.support.cases import (
    Bench,
    Rule,
    answer,
    bench,
    case_input,
    ended,
    on_get,
    on_send,
    outcome_in,
    pushes_of,
    record_of,
    script_of,
    wait_for_record,
)
from workers import DelegationHandle, Workflow, delegate

AGENTS: dict[str, dict[str, Any]] = {
    "c005": {},
    "c008": {},
    "c011": {},
    "c012": {"push": False},
    "c012-paused": {"push": False},
    "c012-spellings": {},
    "c023": {"push": False},
    "c027": {"push": False},
    "c033": {"push": False},
    "c033-twice": {"push": False},
    "c074": {"push": False},
    "c089": {},
    "c089-get": {"push": False},
    "c089-push": {},
    "c089-shown": {"push": False},
}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("states"), AGENTS) as started:
        yield started


def states_heard(delegation: DelegationHandle) -> list[str]:
    return [line["state"] for line in delegation.history()]


def test_c005_nothing_that_comes_late_changes_a_completed_delegation(it: Bench) -> None:
    """A late WORKING push is the constant 404, nobody asks the agent, and the parent was released once."""
    agent = it.agents["c005"]
    stale = script_of("C005")[-1]
    agent.script([on_send(answer("WORKING")), on_get(answer("COMPLETED", "ok"), times=1), stale])
    workflow = Workflow.open("c005")
    delegation = workflow.delegate("c005", "the work of c005")
    workflow.join()
    wait_for_record(delegation, lambda d: d.progress.agent_task_id, what="task id")
    (config,) = agent.tasks()[0]["push_configs"]
    completed = {"statusUpdate": {"taskId": "t1", "contextId": "c", "status": {"state": "TASK_STATE_COMPLETED"}}}
    assert agent.push("t1", body=completed) == [202]
    workflow.wait(20)
    gets = len(agent.calls("GetTask"))

    (late,) = pushes_of("C005", "then_push")
    answers = agent.push(url=config["url"], body=late, token=config["token"], times=2)

    assert answers == [404, 404]
    assert outcome_in(workflow, delegation)["text"] == "ok"
    assert record_of(delegation).state is TaskState.COMPLETED
    assert workflow.describe()["round"] == 1
    assert len(agent.calls("GetTask")) == gets


def test_c008_a_question_is_seen_at_once_and_holds_nothing(it: Bench) -> None:
    """INPUT_REQUIRED is shown with its question as soon as it is pushed, while the delegation holds no slot."""
    agent = it.agents["c008"]
    delegation = it.run("c008", [], goal='{"states": [["WORKING", 0]], "id": "c008"}')
    wait_for_record(delegation, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
    agent.move("c008", "INPUT_REQUIRED", "Which month?")

    asked = wait_for_record(delegation, lambda d: d.state is TaskState.INPUT_REQUIRED, 5, what="question")

    assert asked.progress.status_text == "Which month?"
    assert asked.parked
    assert delegation.describe()["status_text"] == "Which month?"
    assert [line["cause"] for line in delegation.history()] == ["opened", "sent", "push"]
    assert agent.stats()["in_flight"] == 0


def _timestamps() -> list[tuple[Any, str]]:
    """The report's timestamps, and how they are kept: UTC where they can be read, else as they came."""
    kept = (
        "2026-03-01T10:00:00.123456Z",
        "2026-03-01T10:00:01.000000Z",
        "2026-03-01T10:00:02.000000Z",
        "2026-03-01T10:00:03.000000Z",
        "2026-03-01T10:00:04.000000Z",
        "0001-01-01T00:00:00.000000Z",
        "",
    )
    first, *updates = case_input("C011")["script"][0]["sse"]
    statuses = [first["task"]["status"], *(update["statusUpdate"]["status"] for update in updates)]
    return [*zip([status["timestamp"] for status in statuses], kept, strict=True), ("yesterday", "yesterday")]


def test_c011_no_form_of_timestamp_loses_an_answer(it: Bench) -> None:
    """Offset, no zone, space, nanoseconds, number, year 1, empty, no time: each is read or kept, all complete."""
    times = _timestamps()
    rules: list[Rule] = []
    for number, (stamp, _kept) in enumerate(times):
        task = answer("WORKING", task_id=f"t{number}")
        task["status"]["timestamp"] = stamp
        rules += [on_send(task, match=f"stamp {number}."), on_get(task, match=f"stamp {number}.")]
    it.agents["c011"].script(rules)
    delegations = [it.run("c011", goal=f"stamp {number}.") for number in range(len(times))]
    working = [wait_for_record(each, lambda d: d.progress.agent_task_id, what="task id") for each in delegations]

    assert [record.progress.status_at for record in working] == [kept for _stamp, kept in times]

    (last,) = script_of("C011")
    it.agents["c011"].script(
        [{**last, "match": f"stamp {n}.", "reply": {**last["reply"], "id": f"t{n}"}} for n in range(len(times))]
    )
    outcomes = [ended(each) for each in delegations]
    assert {(outcome["state"], outcome["text"]) for outcome in outcomes} == {("COMPLETED", "ok")}
    assert len(it.agents["c011"].sends()) == len(times)


def test_c012_an_unknown_state_is_kept_in_view_and_ends_nothing(it: Bench) -> None:
    """working, PAUSED, UNSPECIFIED and no state are not terminal and are asked about again; CANCELLED is CANCELED."""
    delegation = it.run("c012", [on_send(answer("SUBMITTED")), *script_of("C012")])

    outcome = ended(delegation)

    texts = [line["text"] for line in delegation.history()]
    assert outcome["state"] == "CANCELED"
    assert states_heard(delegation)[1:3] == ["SUBMITTED", "WORKING"]
    assert [text for text in texts if text.startswith("unknown_state")] == [
        "unknown_state 'TASK_STATE_PAUSED'",
        "unknown_state 'TASK_STATE_UNSPECIFIED'",
        "unknown_state ''",
    ]
    assert "Traceback" not in it.deployment.logs()


def test_c012_an_unknown_state_that_stays_is_told_once(it: Bench) -> None:
    """PAUSED for ever is flagged in the record, and fills neither the history nor the agent's day."""
    agent = it.agents["c012-paused"]
    delegation = it.run("c012-paused", [on_send(answer("WORKING")), on_get(answer("PAUSED"))])
    agent.wait_for_calls("GetTask", 3)

    flagged = wait_for_record(delegation, lambda d: d.progress.unknown_state, what="flag")
    agent.wait_for_calls("GetTask", 5)

    assert (flagged.state, flagged.progress.unknown_state) == (TaskState.WORKING, "'TASK_STATE_PAUSED'")
    assert [line["text"] for line in delegation.history()].count("unknown_state 'TASK_STATE_PAUSED'") == 1


@pytest.mark.parametrize(
    ("spelling", "state"),
    [("cancelled", "CANCELED"), ("canceled", "CANCELED"), ("completed", "COMPLETED"), ("Rejected", "REJECTED")],
)
def test_c012_a_terminal_state_is_terminal_in_any_spelling(it: Bench, spelling: str, state: str) -> None:
    """Lower case, British or American: the state is the one that is meant."""
    task = {**answer("WORKING"), "status": {"state": spelling}}
    assert ended(it.run("c012-spellings", [on_send(task)]))["state"] == state


def test_c023_auth_required_goes_on_by_itself(it: Bench) -> None:
    """The link is shown, never fetched; looking goes on, and the delegation completes with one message sent."""
    agent = it.agents["c023"]
    send, still_waiting, working, done = script_of("C023")
    delegation = it.run("c023", [send, {name: value for name, value in still_waiting.items() if name != "times"}])
    waiting = wait_for_record(delegation, lambda d: d.state is TaskState.AUTH_REQUIRED, what="AUTH_REQUIRED")
    agent.wait_for_calls("GetTask", 2)
    agent.script([working, done])

    outcome = ended(delegation)

    assert waiting.progress.status_text == "Open https://login.example.test/d/77"
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(agent.sends()) == 1
    assert [call["method"] for call in agent.calls() if call["method"].startswith("GET /")] == [
        "GET /.well-known/agent-card.json"
    ]


def test_c027_a_failed_agent_task_stops_the_chain(it: Bench) -> None:
    """FAILED in a good answer is a failure with the agent's reason; what it produced is kept, but no result."""
    failed = answer("FAILED", "partial")
    failed["status"]["message"] = {"messageId": "m-a1", "role": "ROLE_AGENT", "parts": [{"text": "quota used up"}]}
    it.agents["c027"].script([on_send(answer("WORKING")), on_get(failed)])
    works = delegate.s(agent="c027", goal="the work of c027")
    never = delegate.s(agent="c027", goal="what must not be begun")

    result = chain(works, never).apply_async()

    first = result.parent
    assert isinstance(first, AsyncResult)
    with pytest.raises(AgentTaskFailed) as raised:
        first.get(timeout=20)
    delegation = DelegationHandle(raised.value.delegation_id)
    outcome = delegation.describe()["outcome"]
    assert (outcome["state"], outcome["text"]) == ("FAILED", "quota used up")
    assert delegation.artifacts()[0]["parts"] == [{"text": "partial"}]
    assert [sent["text"] for sent in it.agents["c027"].sends()] == ["the work of c027"]


def _is_asked(delegation: Delegation) -> bool:
    return delegation.state is TaskState.INPUT_REQUIRED


def test_c033_a_reply_goes_to_the_task_that_asked(it: Bench) -> None:
    """The same task and context, a messageId of its own, the user's role: one task at the agent, and its result."""
    agent = it.agents["c033"]
    delegation = it.run("c033", script_of("C033"))
    wait_for_record(delegation, _is_asked, what="question")
    delegation.reply("May")

    outcome = ended(delegation)

    goal, reply = agent.sends()
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "May: 12")
    assert (reply["task_id"], reply["context_id"]) == ("t1", goal["context_id"])
    assert (reply["text"], reply["role"]) == ("May", "ROLE_USER")
    assert reply["message_id"] != goal["message_id"]
    assert len(agent.created()) == 1


def test_c033_two_clicks_are_one_reply(it: Bench) -> None:
    """The same answer to the same question given twice goes out once."""
    agent = it.agents["c033-twice"]
    delegation = it.run("c033-twice", script_of("C033"))
    wait_for_record(delegation, _is_asked, what="question")

    assert delegation.reply("May") == delegation.reply("May") == 1
    assert ended(delegation)["text"] == "May: 12"
    assert len(agent.sends()) == 2


def test_c074_times_are_kept_as_instants(it: Bench) -> None:
    """WORKING at 10:00:00, a question 0.1 s later, WORKING at 12:30+02:00: each newer than the last, in UTC."""
    (get,) = script_of("C074")
    first, *later = get["replies"]
    delegation = it.run("c074", [on_send(first), {"on": "GetTask", "replies": later}])
    wait_for_record(delegation, lambda d: d.progress.status_at.startswith("2026-03-01T10:30"), what="last answer")

    assert states_heard(delegation)[1:] == ["WORKING", "INPUT_REQUIRED", "WORKING"]
    assert record_of(delegation).progress.status_at == "2026-03-01T10:30:00.000000Z"


@pytest.mark.parametrize("way", ["c089", "c089-get", "c089-push"])
def test_c089_a_question_keeps_all_its_parts(it: Bench, way: str) -> None:
    """Text and data of a question are kept in order, learnt from the send, from a look or from a push."""
    (send,) = script_of("C089")
    task = send["reply"]["task"]
    heard = {
        "c089": [send, on_get(task)],
        "c089-get": [on_send(answer("WORKING")), on_get(task)],
        "c089-push": [on_send(answer("WORKING")), on_get(task)],
    }
    delegation = it.run(way, heard[way])
    if way == "c089-push":
        wait_for_record(delegation, lambda d: d.progress.agent_task_id, what="task id")
        assert it.agents[way].push("t1", state="INPUT_REQUIRED") == [202]

    asked = wait_for_record(delegation, _is_asked, what="question")

    assert asked.progress.status_parts == tuple(task["status"]["message"]["parts"])
    assert asked.progress.status_text == "Pick one:"
    assert delegation.describe()["question"]["parts"] == task["status"]["message"]["parts"]


def test_c089_a_question_is_shown_with_all_its_parts(it: Bench) -> None:
    """`delegation show` and `inbox` print the text and then the data; `--json` has both as the agent sent them."""
    (send,) = script_of("C089")
    message = send["reply"]["task"]["status"]["message"]
    delegation = it.run("c089-shown", [send, on_get(send["reply"]["task"])])
    wait_for_record(delegation, _is_asked, what="question")

    shown = it.deployment.command("show", delegation.id)
    listed = it.deployment.command("inbox", "--agent", "c089-shown")
    as_json = json.loads(it.deployment.command("show", delegation.id, "--json").stdout)

    choices = json.dumps(message["parts"][1]["data"])
    assert shown.returncode == listed.returncode == 0
    assert 0 <= shown.stdout.find("Pick one:") < shown.stdout.find(choices)
    assert f"Pick one: {choices}" in listed.stdout
    assert as_json["question"]["parts"] == message["parts"]


def test_c089_a_question_outlives_its_worker(it: Bench) -> None:
    """What was asked is in the record, so a killed worker takes nothing of it along."""
    (send,) = script_of("C089")
    delegation = it.run("c089", [send, on_get(send["reply"]["task"])])
    before = wait_for_record(delegation, _is_asked, what="question")
    (worker,) = it.deployment.workers
    worker.kill()
    worker.start()

    assert record_of(delegation).progress.status_parts == before.progress.status_parts != ()
