"""Public bug reports about streams that are followed: held open, silent, closed at once, late, with extensions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from delegation.agent_task import TaskState
from delegation.state import Delegation
from delegation.task_extension import TASK_EXTENSION
from tests.support.cases import (
    Bench,
    Rule,
    answer,
    bench,
    ended,
    outcome_in,
    pausing,
    record_of,
    script_of,
    wait_for_record,
)
from tests.support.processes import wait_until
from workers import Workflow

STREAMS = {"streaming": True, "push": False}
AGENTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("c005", "c008-held", "c011", "c011-followed", "c018", "c034", "c052-comments"), STREAMS),
    **dict.fromkeys(("c052-silent", "c060-a", "c061-plain", "c087"), STREAMS),
    "c008-closed": {**STREAMS, "stream_when_interrupted": "end"},
    "c060-b": {**STREAMS, "cancel": "ignore"},
    "c061": {**STREAMS, "extensions": [{"uri": TASK_EXTENSION, "required": True}]},
}
#: Seconds of the reports are tenths here, or as a test says.
TIMING = {"poll_first": 1, "poll_max": 1, "recheck_first": 1.5, "follow_idle": 2}
INTERVAL_S = 1.0
INTERVAL_OF_C087_S = 2.0


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    follows: dict[str, Any] = {name: {"follow_interval": INTERVAL_S} for name in AGENTS}
    follows["c087"] = {"follow_interval": INTERVAL_OF_C087_S}
    with bench(
        tmp_path_factory.mktemp("follow"), AGENTS, agent_settings=follows, timing=TIMING, follower=True
    ) as started:
        yield started


def working(task_id: str = "t1") -> Rule:
    """A stream that answers the send: the work has begun, and the rest is another stream's to tell."""
    return {"on": "SendStreamingMessage", "sse": [{"task": answer("WORKING", task_id=task_id)}], "end": "close"}


def subscribing(stream: Rule) -> Rule:
    """The report's stream, played to whoever subscribes."""
    return {**stream, "on": "SubscribeToTask"}


def is_followed(delegation: Delegation) -> bool:
    return delegation.followed


def is_given_up(entry: dict[str, Any]) -> bool:
    """A line of an agent's ledger: a subscription that we closed."""
    return (entry["kind"], entry.get("method"), entry.get("why")) == ("stream_closed", "SubscribeToTask", "client")


def test_c005_what_a_stream_says_after_the_end_changes_nothing(it: Bench) -> None:
    """COMPLETED, then a late WORKING on the same stream: the end is heard once, and stays."""
    stream = script_of("C005", streams=True)[0]
    delegation = it.run("c005", [working(), subscribing({**pausing(stream, 0.5), "end": "hold"})])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert [line["state"] for line in delegation.history()].count("COMPLETED") == 1
    assert [line["cause"] for line in delegation.history()][-1] == "follow"
    it.agents["c005"].wait_for_streams(0)
    assert record_of(delegation).state is TaskState.COMPLETED


@pytest.mark.parametrize("way", ["c008-held", "c008-closed"])
def test_c008_a_question_is_seen_whether_the_stream_stays_or_ends(it: Bench, way: str) -> None:
    """INPUT_REQUIRED is shown with its question while the stream is held open, or was closed: no error, no slot."""
    agent = it.agents[way]
    (stream,) = script_of("C008", streams=True)
    delegation = it.run(way, [pausing(stream, 1)])
    wait_for_record(delegation, is_followed, what="followed record")

    asked = wait_for_record(delegation, lambda d: d.state is TaskState.INPUT_REQUIRED, what="question")

    question = delegation.describe()["question"]
    assert asked.parked
    assert (question["text"], question["number"]) == ("Which month?", 1)
    assert delegation.id in it.deployment.store().inbox()
    assert delegation.history()[-1]["cause"] == "follow"
    assert agent.stats()["in_flight"] == 0
    agent.wait_for_streams(1 if way == "c008-held" else 0)
    assert "Traceback" not in it.deployment.logs()


def test_c011_timestamps_of_any_form_lose_no_end(it: Bench) -> None:
    """Seven forms in a stream, one more in the answer to the look: COMPLETED, and nothing is sent again."""
    delegation = it.run("c011", script_of("C011", streams=True))

    outcome = ended(delegation)

    record = record_of(delegation)
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert record.progress.status_at == "yesterday"
    assert len(it.agents["c011"].sends()) == 1


def test_c011_a_followed_stream_of_odd_timestamps_is_heard_to_its_end(it: Bench) -> None:
    """Each event of the report on one subscription, the last with an empty time: its COMPLETED is heard there."""
    stream, _get = script_of("C011", streams=True)
    odd = subscribing({**pausing(stream, 0.5, after=6), "end": "hold"})
    delegation = it.run("c011-followed", [working(), odd])

    outcome = ended(delegation)

    assert outcome["state"] == "COMPLETED"
    assert delegation.history()[-1]["cause"] == "follow"
    assert len(it.agents["c011-followed"].calls("SubscribeToTask")) == 1


def test_c018_an_unreadable_event_of_a_subscription_is_a_reason_to_look(it: Bench) -> None:
    """Half a JSON object on a stream that then stays open and silent: GetTask, COMPLETED, one send."""
    agent = it.agents["c018"]
    stream, never, get = script_of("C018", streams=True)
    stream["sse"] = stream["sse"][:2]
    held = subscribing({**pausing(stream, 0.3), "end": "hold"})
    delegation = it.run("c018", [working(), held, never, {**get, "reply": answer("COMPLETED", "ok")}])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert [sent["method"] for sent in agent.sends()] == ["SendStreamingMessage"]


def test_c034_a_stream_that_never_tells_the_end_is_ended_by_the_deadline(it: Bench) -> None:
    """WORKING for ever on a held stream and in every look: deadline.exceeded (2 s for 20), one CancelTask, no look or
    stream afterwards, the parent released once."""
    agent = it.agents["c034"]
    agent.script(script_of("C034", streams=True))
    workflow = Workflow.open("c034")
    delegation = workflow.delegate("c034", "the work of c034", deadline=timedelta(seconds=2))
    workflow.join()
    workflow.wait(20)
    (cancel,) = agent.wait_for_calls("CancelTask")
    agent.wait_for_streams(0)

    outcome = outcome_in(workflow, delegation)
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "deadline.exceeded")
    assert workflow.describe()["round"] == 1
    wait_for_record(delegation, lambda d: d.timers.cleanup_at is None, what="clean-up")
    assert len(agent.calls("CancelTask")) == 1
    assert all(call["at"] <= cancel["at"] for call in [*agent.calls("GetTask"), *agent.calls("SubscribeToTask")])
    assert len(agent.sends()) == 1


def test_c052_comments_keep_a_quiet_stream_and_are_no_events(it: Bench) -> None:
    """A comment each 0.1 s for 4 s (1 s for 40), twice the idle limit: one stream, no wake, then COMPLETED by it."""
    agent = it.agents["c052-comments"]
    stream, _get = script_of("C052", streams=True)
    sse = stream["variants"][0]["sse"]
    sse[1] = {**sse[1], "every_s": 0.1, "for_s": 4}
    commented: Rule = {"on": "SubscribeToTask", "sse": sse, "end": "hold"}
    delegation = it.run("c052-comments", [working(), commented])
    begun = wait_for_record(delegation, is_followed, what="followed record")

    outcome = ended(delegation)

    assert begun.state is TaskState.WORKING
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert [line["cause"] for line in delegation.history()] == ["opened", "sent", "follow"]
    assert len(agent.calls("SubscribeToTask")) == 1


def test_c052_a_silent_stream_is_given_up_and_the_agent_asked(it: Bench) -> None:
    """Not a byte for the idle limit (2 s for 60): closed by us and asked about, no slot held, COMPLETED in the end."""
    agent = it.agents["c052-silent"]
    stream, get = script_of("C052", streams=True)
    sse, silent = stream["variants"][1]["sse"], stream["variants"][1]["end"]
    delegation = it.run("c052-silent", [working(), {"on": "SubscribeToTask", "sse": sse, "end": silent}])
    parked = wait_for_record(delegation, is_followed, what="followed record")

    closed = agent.wait_for(lambda entries: [each for each in entries if is_given_up(each)], 20, what="closed stream")
    agent.wait_for(lambda _: agent.calls("GetTask")[-1:] and agent.calls("GetTask")[-1]["at"] >= closed[0]["at"])
    agent.script([get])

    outcome = ended(delegation)
    assert parked.parked
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    agent.wait_for_streams(0)


def test_c060_updates_keep_a_child_and_a_late_one_is_told_once(it: Bench) -> None:
    """A is heard of each 0.9 s for 4.5 s, over one stream, and completes; B is silent, ends by its deadline (2 s),
    and what it says later changes nothing: one note, one release."""
    agent = it.agents["c060-b"]
    updates = [["WORKING", 0], *(["WORKING", 0.9 * n, f"step {n}"] for n in range(1, 5)), ["COMPLETED", 4.5, "A ok"]]
    late = {"states": [["WORKING", 0], ["COMPLETED", 4, "B late"]], "artifact": None, "id": "b"}
    workflow = Workflow.open("c060")
    a = workflow.delegate("c060-a", json.dumps({"states": updates, "artifact": None}), deadline=timedelta(seconds=60))
    b = workflow.delegate("c060-b", json.dumps(late), deadline=timedelta(seconds=2))
    workflow.join()
    workflow.wait(30)
    agent.wait_for(lambda entries: any(each.get("state") == "COMPLETED" for each in entries), what="late end")

    outcome = outcome_in(workflow, b)
    assert outcome_in(workflow, a)["text"] == "A ok"
    assert len(it.agents["c060-a"].calls("SubscribeToTask")) == 1
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "deadline.exceeded")
    assert workflow.describe()["round"] == 1
    assert [note["state"] for note in workflow.notes() if note["delegation_id"] == b.id] == ["FAILED"]
    assert b.describe()["outcome"] == outcome


def test_c061_an_extension_is_announced_on_every_call(it: Bench) -> None:
    """A card requires the task extension: its URI is in A2A-Extensions on send, subscribe, look and cancel."""
    agent = it.agents["c061"]
    needed = script_of("C061", streams=True)[0]["error"]
    agent.script([{"on": "any", "unless_header": {"A2A-Extensions": TASK_EXTENSION}, "error": needed}])
    delegation = it.run("c061", goal='{"states": [["WORKING", 0]]}')
    wait_for_record(delegation, is_followed, what="followed record")
    agent.wait_for_calls("GetTask")
    delegation.cancel("enough")

    outcome = ended(delegation)

    methods = {call["method"] for call in agent.calls() if call["headers"].get("a2a-extensions") == TASK_EXTENSION}
    assert outcome["state"] == "CANCELED"
    assert methods == {"SendStreamingMessage", "SubscribeToTask", "GetTask", "CancelTask"}
    assert not [call for call in agent.calls() if "rule" in call]


def test_c061_an_extension_that_is_not_on_the_card_is_not_announced(it: Bench) -> None:
    """The same calls to an agent without it carry no such header, 1.0's name or 0.3's."""
    delegation = it.run("c061-plain", goal='{"states": [["WORKING", 0], ["COMPLETED", 0.2]]}')

    assert ended(delegation)["state"] == "COMPLETED"
    assert not [call for call in it.agents["c061-plain"].calls() if "a2a-extensions" in call["headers"]]


def test_c087_a_stream_that_ends_at_once_is_not_asked_for_in_a_loop(it: Bench) -> None:
    """A snapshot and an end each time: gaps of 2 s and more that grow, meanwhile looks, and COMPLETED by one."""
    agent = it.agents["c087"]
    delegation = it.run("c087", [working(), *script_of("C087", streams=True)])

    outcome = ended(delegation)

    subscribed = [call["at"] for call in agent.calls("SubscribeToTask")]
    gaps = [later - sooner for sooner, later in pairwise(subscribed)]
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert len(agent.calls("GetTask")) == 6
    assert len([at for at in subscribed if at < subscribed[0] + 10]) <= 5
    assert all(gap >= INTERVAL_OF_C087_S for gap in gaps)
    assert gaps == sorted(gaps)
    assert wait_until(lambda: not agent.streams_open(), what="no open stream")
