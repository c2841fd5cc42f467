"""Public bug reports about polling: an agent that forgets, is busy, never ends, or must not be flooded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from email.utils import formatdate
from itertools import pairwise
from typing import Any

import pytest
from celery import current_app

from tests.support.cases import Bench, answer, bench, ended, on_send, outcome_in, record_of, script_of, wait_for_record
from workers import Workflow
from workers.queues import queue_lengths

#: Polling as by default, ten times as fast: 0.2 s growing to 3 s instead of 2 s growing to 30 s.
TIMING = {"poll_first": 0.2, "poll_max": 3}
AGENTS: dict[str, dict[str, Any]] = {
    "c024": {"push": False},
    "c024-lost": {"push": False},
    "c034": {"push": False},
    "c053": {},
    "c053-send": {},
    "c054": {"push": False},
}
#: Rules.retry_after_max_s: no setting, the longest an agent may send us away.
LONGEST_WAIT_S = 300


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(tmp_path_factory.mktemp("polling"), AGENTS, timing=TIMING) as started:
        yield started


def test_c024_a_task_that_is_not_found_once_is_not_lost(it: Bench) -> None:
    """-32001 between two good answers is a replica or a restart: COMPLETED, one send."""
    outcome = ended(it.run("c024", [on_send(answer("WORKING")), *script_of("C024")]))

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(it.agents["c024"].sends()) == 1


def test_c024_a_task_that_stays_unknown_is_lost_and_the_parent_hears_it(it: Bench) -> None:
    """-32001 for ever ends as agent_task.lost after some answers over lost_after (3 s for 60 s); nobody asks again."""
    agent = it.agents["c024-lost"]
    working, not_found, *_ = script_of("C024")
    not_found.pop("times")
    agent.script([on_send(answer("WORKING")), working, not_found])
    workflow = Workflow.open("c024")
    delegation = workflow.delegate("c024-lost", "the work of c024-lost")
    workflow.join()
    workflow.wait(20)

    outcome = outcome_in(workflow, delegation)
    looks = [call for call in agent.calls("GetTask") if call["rule"] == 2]
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent_task.lost")
    assert 3 <= len(looks) <= 5
    assert looks[-1]["at"] - looks[0]["at"] >= 2.5
    assert record_of(delegation).timers.poll_at is None
    assert len(agent.sends()) == 1


def test_c034_a_task_that_never_ends_is_ended_by_its_deadline(it: Bench) -> None:
    """WORKING for ever: deadline.exceeded (2 s for 20 s), one CancelTask, no look afterwards, parent released once."""
    agent = it.agents["c034"]
    agent.script([on_send(answer("WORKING")), *script_of("C034")])
    workflow = Workflow.open("c034")
    delegation = workflow.delegate("c034", "the work of c034", deadline=timedelta(seconds=2))
    workflow.join()
    workflow.wait(20)
    (cancel,) = agent.wait_for_calls("CancelTask")

    outcome = outcome_in(workflow, delegation)
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "deadline.exceeded")
    assert workflow.describe()["round"] == 1
    wait_for_record(delegation, lambda d: d.timers.cleanup_at is None, what="clean-up")
    assert len(agent.calls("CancelTask")) == 1
    assert all(look["at"] <= cancel["at"] for look in agent.calls("GetTask"))


def test_c053_a_busy_agent_is_left_alone_as_long_as_it_asks(it: Bench) -> None:
    """429 and 503 are no failures: 1 s (for 4), then until the date by its clock, then our own cap and not 11 days."""
    agent = it.agents["c053"]
    seconds, date, for_ever, done = script_of("C053")
    seconds["http"]["headers"]["Retry-After"] = "1"
    wrong = it.deployment.store().now() - 86_400
    date["http"]["headers"] |= {
        "Date": formatdate(wrong, usegmt=True),
        "Retry-After": formatdate(wrong + 3, usegmt=True),
    }
    delegation = it.run("c053", [on_send(answer("WORKING")), seconds, date, for_ever, done])
    wait_for_record(delegation, lambda d: d.progress.agent_task_id, what="task id")
    assert agent.push("t1", state="WORKING") == [202]

    first, second, third = agent.wait_for_calls("GetTask", 3, 20)
    waiting = wait_for_record(delegation, lambda d: d.progress.failures == 3, what="third wait")
    assert second["at"] - first["at"] >= 1
    assert third["at"] - second["at"] >= 3
    assert waiting.timers.poll_at is not None
    assert waiting.timers.poll_at - third["at"] <= LONGEST_WAIT_S + 5
    assert not waiting.phase.is_settled

    assert agent.push("t1", state="COMPLETED") == [202]
    outcome = ended(delegation)
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")


def test_c053_a_send_that_was_refused_for_now_goes_out_again_after_the_wait(it: Bench) -> None:
    """429 on SendMessage: the same messageId after the wait, and one send that got an answer."""
    busy = {**script_of("C053")[0], "on": "SendMessage"}
    busy["http"]["headers"]["Retry-After"] = "1"
    outcome = ended(it.run("c053-send", [busy, on_send(answer("COMPLETED", "ok"))]))

    first, second = it.agents["c053-send"].sends()
    assert outcome["text"] == "ok"
    assert second["at"] - first["at"] >= 1
    assert first["message_id"] == second["message_id"]
    assert len(it.agents["c053-send"].created()) == 1


def test_c054_many_delegations_do_not_flood_their_agent(it: Bench) -> None:
    """40 delegations over 5 s (for 50): at most 12 looks each, gaps that grow, spread out, never two at a time."""
    agent = it.agents["c054"]
    agent.script([{"on": "GetTask", "delay_s": 0.05}])
    working = '{"states": [["WORKING", 0]]}'
    delegations = [it.run("c054", goal=working, deadline=timedelta(seconds=30)) for _ in range(40)]
    for each in delegations:
        wait_for_record(each, lambda d: d.progress.agent_task_id, 30, what="task id")
    begun_at = max(created["at"] for created in agent.created())
    agent.wait_for(lambda ledger: ledger[-1]["at"] >= begun_at + 5, 20, what="look 5 s after the last start")

    looks = defaultdict[str, list[float]](list)
    for call in agent.calls("GetTask"):
        looks[call["task_id"]].append(call["at"])
    gaps = [[later - sooner for sooner, later in pairwise(at)] for at in looks.values()]
    third = sorted(at[2] - at[0] for at in looks.values() if len(at) > 2)
    assert len(looks) == 40
    assert max(map(len, looks.values())) <= 12
    assert all(each[-1] > each[0] for each in gaps if len(each) > 2)
    assert min(gap for each in gaps for gap in each) >= 0.1
    assert third[-1] - third[0] > 0.05
    assert sum(queue_lengths(current_app).values()) < 80
