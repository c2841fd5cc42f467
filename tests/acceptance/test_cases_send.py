"""Public bug reports about sending: one message, one agent task, whatever becomes of the answer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.support.cases import (
    Bench,
    answer,
    bench,
    ended,
    message_ids,
    on_get,
    on_send,
    outcome_in,
    record_of,
    script_of,
)
from tests.support.cases import wait_for_record as wait_for
from workers import Workflow

#: A send is held back after an ambiguous one for a lease and a call deadline, here 4.5 s instead of 75 s.
TIMING = {"call_deadline": 2, "lease_margin": 0.5}
AGENTS: dict[str, dict[str, Any]] = {
    "c001-lists": {},
    "c001-no-list": {"list_tasks": False},
    "c001-resend": {"list_tasks": False, "dedup": True},
    "c003": {"push": False},
    "c017-slow": {},
    "c017-too-slow": {},
    "c018": {},
    "c019": {},
    "c041-lists": {},
    "c041-no-list": {"list_tasks": False},
    "c041-busy": {},
    "c050": {"push": False},
    "c052": {"push": False},
    "c077": {},
    "c086": {"push": False},
    "c088": {"push": False},
    "c088-send": {},
    "c094": {"push": False},
    "c100": {},
}
WORK_THEN_RESET = {"on": "SendMessage", "times": 1, "work": True, "end": "reset"}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    resends = {"c001-resend": {"on_ambiguous_send": "resend"}}
    directory = tmp_path_factory.mktemp("send")
    with bench(directory, AGENTS, agent_settings=resends, timing=TIMING, concurrency=16) as started:
        yield started


def test_c001_a_reply_lost_after_the_work_began_is_reconciled(it: Bench) -> None:
    """The agent has the task, its answer is lost: found by our contextId and messageId, never sent again."""
    lost, _must_never_come, listed = script_of("C001")
    delegation = it.run("c001-lists", [lost, listed, on_get(answer("COMPLETED", "ok"))])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"], outcome["agent_task_id"]) == ("COMPLETED", "ok", "t1")
    assert len(it.agents["c001-lists"].sends()) == 1
    assert any("found in the agent's list" in line["text"] for line in delegation.history())


def test_c001_where_the_agent_lists_nothing_the_outcome_is_said_to_be_unknown(it: Bench) -> None:
    """Without ListTasks nobody can know, so the delegation FAILED as send.outcome_unknown after one send."""
    delegation = it.run("c001-no-list", [WORK_THEN_RESET])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["reason"]) == ("FAILED", "send.outcome_unknown")
    assert len(it.agents["c001-no-list"].sends()) == 1
    assert len(it.agents["c001-no-list"].created()) == 1


def test_c001_only_an_agent_set_to_resend_gets_the_same_message_again(it: Bench) -> None:
    """With on_ambiguous_send = "resend" the message comes twice under one messageId: one task where it dedups."""
    delegation = it.run("c001-resend", [WORK_THEN_RESET])

    outcome = ended(delegation)

    agent = it.agents["c001-resend"]
    assert outcome["state"] == "COMPLETED"
    assert len(agent.sends()) == 2
    assert message_ids(agent) == {record_of(delegation).message_id}
    assert len(agent.created()) == 1


def test_c003_the_task_id_is_known_while_the_agent_works(it: Bench) -> None:
    """The send asks for an answer at once, so the id is stored and no slot is held while the agent works."""
    send, get = script_of("C003")
    delegation = it.run("c003", [send, on_get(answer("WORKING"))])

    parked = wait_for(delegation, lambda d: d.parked and d.progress.agent_task_id, what="parked record")
    sent = it.agents["c003"].sends()[0]
    it.agents["c003"].script([get])

    assert sent["return_immediately"] is True
    assert parked.progress.agent_task_id == "t1"
    assert it.agents["c003"].stats()["in_flight"] == 0
    assert ended(delegation)["text"] == "ok"


def test_c017_a_slow_answer_is_waited_for(it: Bench) -> None:
    """An answer that takes most of the call deadline (1.2 of 2 s) is no failure."""
    (send,) = script_of("C017")
    outcome = ended(it.run("c017-slow", [{**send, "delay_s": 1.2}]))

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "slow but right")
    assert len(it.agents["c017-slow"].sends()) == 1


def test_c017_an_answer_later_than_the_deadline_is_not_a_reason_to_send_again(it: Bench) -> None:
    """The body is out when the call deadline passes: the task is found in the list, one send, one task."""
    delegation = it.run("c017-too-slow", [{"on": "SendMessage", "work": True, "delay_s": 6}])

    outcome = ended(delegation)

    agent = it.agents["c017-too-slow"]
    assert outcome["state"] == "COMPLETED"
    assert len(agent.sends()) == len(agent.created()) == 1


def test_c018_an_unreadable_answer_never_sends_the_message_again(it: Bench) -> None:
    """Half a JSON object as the answer to the send: the task is found in the list and completes, one send."""
    cut = {"status": 200, "headers": {}, "body": '{"jsonrpc":"2.0","id":"<same>","result":{"statusUp'}
    _must_never_come, get = script_of("C018")
    work = {"on": "SendMessage", "times": 1, "work": True, "http": cut}
    delegation = it.run("c018", [work, {**get, "reply": answer("COMPLETED", "ok")}], goal='{"id": "t1"}')

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(it.agents["c018"].sends()) == 1


def test_c019_a_message_instead_of_a_task_ends_the_delegation(it: Bench) -> None:
    """A Message completes with its text, keeps its context, and nobody asks for a task that does not exist."""
    outcome = ended(it.run("c019", script_of("C019")))

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "Hello, 42")
    assert (outcome["agent_task_id"], outcome["context_id"]) == (None, "c9")
    assert it.agents["c019"].calls("GetTask") == it.agents["c019"].calls("CancelTask") == []


def test_c041_every_send_of_a_delegation_carries_one_message_id(it: Bench) -> None:
    """Reset, then 503: the agent lists no task each time, late enough, so the same messageId goes out once more."""
    delegation = it.run("c041-lists", script_of("C041"))

    outcome = ended(delegation, 40)

    agent = it.agents["c041-lists"]
    sends = agent.sends()
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(sends) == 3
    assert message_ids(agent) == {record_of(delegation).message_id}
    assert all(later["at"] - sooner["at"] >= 2 for sooner, later in pairwise(sends))
    assert len(agent.created()) == 1


def test_c041_a_reset_is_not_repeated_where_the_agent_cannot_be_asked(it: Bench) -> None:
    """A reset after the body at an agent without ListTasks: FAILED as send.outcome_unknown, one send."""
    outcome = ended(it.run("c041-no-list", script_of("C041")))

    assert outcome["reason"] == "send.outcome_unknown"
    assert len(it.agents["c041-no-list"].sends()) == 1


def test_c041_a_503_with_retry_after_may_be_repeated(it: Bench) -> None:
    """503 with Retry-After says that nothing was started: the same message goes out after the wait."""
    _reset, busy, done = script_of("C041")
    busy["http"]["headers"] = {"Retry-After": "1"}
    outcome = ended(it.run("c041-busy", [busy, done]))

    agent = it.agents["c041-busy"]
    first, second = agent.sends()
    assert outcome["text"] == "ok"
    assert first["message_id"] == second["message_id"]
    assert second["at"] - first["at"] >= 1


def test_c050_an_agent_without_streams_and_pushes_is_asked_for_neither(it: Bench) -> None:
    """Capabilities {} mean SendMessage once and GetTask, no streaming call and no push config."""
    delegation = it.run("c050", script_of("C050"))

    outcome = ended(delegation)

    methods = [call["method"] for call in it.agents["c050"].calls() if not call["method"].startswith("GET /")]
    assert outcome["text"] == "ok"
    assert methods[0] == "SendMessage"
    assert len(methods) > 1
    assert set(methods[1:]) == {"GetTask"}
    assert it.agents["c050"].sends()[0]["push_config"] is None


def test_c052_a_peer_that_falls_silent_is_given_up_and_asked_again(it: Bench) -> None:
    """A GetTask without a byte of answer ends at the call deadline, and the next one completes."""
    (get,) = script_of("C052")
    silent = {"on": "GetTask", "times": 1, "end": "hang"}
    outcome = ended(it.run("c052", [on_send(answer("WORKING")), silent, get]))

    assert outcome["text"] == "ok"
    assert it.agents["c052"].stats()["in_flight"] == 0


def test_c077_a_completed_first_answer_ends_it_and_resumes_the_parent_once(it: Bench) -> None:
    """COMPLETED in the answer to the send: one send, no look afterwards, the parent released once."""
    agent = it.agents["c077"]
    agent.script(script_of("C077"))
    workflow = Workflow.open("c077")
    child = workflow.delegate("c077", "the work of c077")
    workflow.join()
    workflow.wait(20)

    assert outcome_in(workflow, child)["text"] == "All done"
    assert [line["cause"] for line in child.history()] == ["opened", "sent"]
    assert workflow.describe()["round"] == 1
    assert len(agent.sends()) == 1
    assert agent.calls("GetTask") == []


def test_c086_a_long_text_is_whole_in_the_record_and_never_cut_in_silence(it: Bench) -> None:
    """300,003 characters: the outcome that travels says it is truncated, what is kept has every one of them."""
    text = "x" * 300_000 + "END"
    delegation = it.run("c086", [on_send(answer("WORKING")), on_get(answer("COMPLETED", text))])

    outcome = ended(delegation)

    assert outcome["state"] == "COMPLETED"
    assert outcome["truncated"] is True
    assert delegation.artifacts()[0]["parts"][0]["text"] == text


def test_c086_an_answer_above_the_cap_is_said_to_be_too_large(it: Bench) -> None:
    """More than limits.answer_bytes is FAILED as response.too_large, never a part of it called complete."""
    large = {"status": 200, "headers": {"Content-Length": str(9 * 1024 * 1024)}, "body": "{}"}
    outcome = ended(it.run("c086", [on_send(answer("WORKING")), {"on": "GetTask", "http": large}]))

    assert (outcome["state"], outcome["reason"]) == ("FAILED", "response.too_large")


def test_c088_a_gateway_page_and_a_foreign_answer_are_asked_again(it: Bench) -> None:
    """502 HTML, then an answer under another JSON-RPC id: both are passed over, with a pause, and the third counts."""
    delegation = it.run("c088", [on_send(answer("WORKING")), *script_of("C088")])

    outcome = ended(delegation)

    gets = it.agents["c088"].calls("GetTask")
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(gets) == 3
    assert gets[1]["at"] - gets[0]["at"] >= 0.1


def test_c088_a_gateway_page_for_a_send_is_reconciled(it: Bench) -> None:
    """502 for a send says nothing about the agent behind: the task is found in the list, one send."""
    page = script_of("C088")[0]["http"]
    outcome = ended(it.run("c088-send", [{"on": "SendMessage", "times": 1, "work": True, "http": page}]))

    agent = it.agents["c088-send"]
    assert outcome["state"] == "COMPLETED"
    assert len(agent.sends()) == len(agent.created()) == 1


def test_c094_a_minimal_task_completes_with_an_empty_result(it: Bench) -> None:
    """No artifacts, history, message or timestamp: COMPLETED, with an empty text and no artifacts."""
    outcome = ended(it.run("c094", script_of("C094")))

    assert (outcome["state"], outcome["text"], outcome["artifacts"]) == ("COMPLETED", "", [])
    assert "Traceback" not in it.deployment.logs()


@pytest.mark.parametrize("variant", range(5))
def test_c100_a_result_in_another_shape_is_never_an_empty_task(it: Bench, variant: int) -> None:
    """A bare Task is read; what is neither a task nor a message leaves no id to poll, and is not sent again."""
    reply = script_of("C100")[0]["variants"][variant]["reply"]
    agent = it.agents["c100"]
    sends_before = len(agent.sends())
    agent.configure(list_tasks=False)
    delegation = it.run("c100", [{"on": "SendMessage", "reply": reply}])

    outcome = ended(delegation)

    if reply and "status" in reply:
        assert (outcome["state"], outcome["agent_task_id"]) == ("COMPLETED", "t1")
    else:
        assert (outcome["reason"], outcome["agent_task_id"]) == ("send.outcome_unknown", None)
    assert len(agent.sends()) == sends_before + 1
    assert agent.calls("GetTask") == []
