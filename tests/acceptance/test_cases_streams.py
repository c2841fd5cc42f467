"""Public bug reports about the stream that answers a send: cut, broken, odd, in pieces, or no stream at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import chain
from celery.result import AsyncResult

from delegation.agent_task import TaskState
from delegation.errors import AgentTaskFailed
from tests.support.agent_handle import ScriptedAgent
from tests.support.cases import (
    Bench,
    Rule,
    answer,
    beginning,
    bench,
    case_input,
    ended,
    message_ids,
    outcome_in,
    pausing,
    pushes_of,
    record_of,
    script_of,
    wait_for_record,
)
from workers import DelegationHandle, Workflow, delegate

STREAMS = {"streaming": True, "push": False}
#: As the reports have it, and with the work not begun, so that the stream is read to its end.
WAYS = ("WORKING", "SUBMITTED")
REFUSALS = (-32004, -32601, -32602, -32603)
#: 300,003 characters stay below limits.event_bytes, this many do not.
TOO_MANY = 1_100_000
AGENTS: dict[str, dict[str, Any]] = {
    **{f"{case}-{way}": STREAMS for case in ("c004", "c010", "c017", "c018", "c027", "c051") for way in WAYS},
    **{f"{case}-{way}": STREAMS for case in ("c064", "c065", "c086") for way in WAYS},
    **{f"c049{code}": {**STREAMS, "list_tasks": False} for code in REFUSALS},
    "c005": {"streaming": True},
    "c019": STREAMS,
    "c064-nothing": STREAMS,
    "c086-large": STREAMS,
    "c093": STREAMS,
}
#: Ten times as fast as by default, where a report counts seconds.
TIMING = {"poll_first": 1, "poll_max": 1, "recheck_first": 1.5, "stream_start": 2, "follow_idle": 3}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    follows = {name: {"follow_interval": 1} for name in AGENTS}
    directory = tmp_path_factory.mktemp("streams")
    with bench(directory, AGENTS, agent_settings=follows, timing=TIMING, follower=True) as started:
        yield started


def methods(agent: ScriptedAgent) -> list[str]:
    return [call["method"] for call in agent.calls() if not call["method"].startswith("GET /")]


def assert_sent_once(agent: ScriptedAgent) -> None:
    assert [sent["method"] for sent in agent.sends()] == ["SendStreamingMessage"]


def parts_of(delegation: DelegationHandle) -> dict[str, list[Any]]:
    """The artifacts' parts by the artifact's id, in order."""
    return {artifact["id"]: artifact["parts"] for artifact in delegation.artifacts()}


@pytest.mark.parametrize("way", WAYS)
def test_c004_the_end_of_a_stream_is_not_the_end_of_the_work(it: Bench, way: str) -> None:
    """EOF at WORKING, or before any work: still open, asked about, COMPLETED with the whole text; one send."""
    agent = it.agents[f"c004-{way}"]
    stream, *rest = script_of("C004", streams=True)
    stream["sse"][1]["statusUpdate"]["status"]["state"] = f"TASK_STATE_{way}"
    delegation = it.run(agent.name, [stream, *rest])
    begun = wait_for_record(delegation, lambda d: d.progress.agent_task_id, what="task id")

    outcome = ended(delegation)

    assert not begun.phase.is_settled
    assert begun.progress.status_text == "half an answ"
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "full answer")
    assert len(agent.calls("GetTask")) == 3
    assert agent.calls("SubscribeToTask")
    assert_sent_once(agent)


def test_c005_nothing_that_comes_after_the_streams_end_changes_it(it: Bench) -> None:
    """COMPLETED by the stream: its late WORKING, a stale GetTask, pushes of WORKING and FAILED change nothing."""
    agent = it.agents["c005"]
    stream, stale = script_of("C005", streams=True)
    agent.script([pausing(beginning(stream, "SUBMITTED"), 1), stale])
    workflow = Workflow.open("c005")
    delegation = workflow.delegate("c005", "the work of c005")
    workflow.join()
    agent.wait_for(lambda ledger: any(entry["kind"] == "config_created" for entry in ledger), what="push config")
    (config,) = agent.tasks()[0]["push_configs"]
    workflow.wait(20)

    (late,) = pushes_of("C005", "then_push")
    other_end = json.loads(json.dumps(late).replace("WORKING", "FAILED"))
    answers = [agent.push(url=config["url"], body=body, token=config["token"]) for body in (late, other_end)]

    assert answers == [[404], [404]]
    assert outcome_in(workflow, delegation)["text"] == "ok"
    assert record_of(delegation).state is TaskState.COMPLETED
    assert workflow.describe()["round"] == 1
    assert agent.calls("GetTask") == []
    assert_sent_once(agent)


@pytest.mark.parametrize("way", WAYS)
def test_c010_a_snapshot_takes_the_place_of_what_was_heard(it: Bench, way: str) -> None:
    """The stream breaks, a subscription begins with a snapshot: one, two, three, none of it twice or missing."""
    agent = it.agents[f"c010-{way}"]
    stream, subscription = script_of("C010", streams=True)
    delegation = it.run(agent.name, [beginning(stream, way), subscription])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "one two three")
    assert parts_of(delegation) == {"r1": [{"text": "one two "}, {"text": "three"}]}
    assert agent.calls("SubscribeToTask")
    assert_sent_once(agent)


def test_c017_a_quiet_stream_is_no_failure(it: Bench) -> None:
    """Seven silent seconds (for 70), longer than the call's, the start's and the idle limit: COMPLETED, one send."""
    stream = script_of("C017", streams=True)[-1]
    stream["sse"][1]["delay_s"] = 7
    running = [it.run(f"c017-{way}", [beginning(stream, way)]) for way in WAYS]

    with ThreadPoolExecutor(len(running)) as pool:
        outcomes = list(pool.map(ended, running))

    for way, delegation, outcome in zip(WAYS, running, outcomes, strict=True):
        agent = it.agents[f"c017-{way}"]
        assert (outcome["state"], outcome["text"]) == ("COMPLETED", "slow but right")
        assert len(agent.calls("SubscribeToTask")) >= 2
        assert {line["state"] for line in delegation.history()} <= {"SUBMITTED", "WORKING", "COMPLETED"}
        assert_sent_once(agent)


@pytest.mark.parametrize("way", WAYS)
def test_c018_an_event_that_cannot_be_read_never_sends_again(it: Bench, way: str) -> None:
    """Half a JSON object in the middle of the stream: GetTask tells the end, the message is not sent again."""
    agent = it.agents[f"c018-{way}"]
    stream, *rest = script_of("C018", streams=True)

    outcome = ended(it.run(agent.name, [beginning(stream, way), *rest]))

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert agent.calls("GetTask")
    assert_sent_once(agent)


def test_c019_a_message_in_the_stream_ends_the_delegation(it: Bench) -> None:
    """COMPLETED with its text, no task to look for, subscribe to or cancel, and a cancel afterwards is a no-op."""
    agent = it.agents["c019"]
    delegation = it.run("c019", script_of("C019", streams=True))

    outcome = ended(delegation)
    wishes = [delegation.cancel(), delegation.cancel("once more")]

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "Hello, 42")
    assert (outcome["agent_task_id"], outcome["context_id"]) == (None, "c9")
    assert wishes == [None, None]
    wait_for_record(delegation, lambda d: d.timers.cleanup_at is None and d.timers.cancel_at is None, what="rest")
    assert methods(agent) == ["SendStreamingMessage"]


@pytest.mark.parametrize("way", WAYS)
def test_c027_a_failure_in_the_stream_stops_the_chain(it: Bench, way: str) -> None:
    """FAILED as an event is a failure with the agent's reason; what was produced is kept, and is no result."""
    agent = it.agents[f"c027-{way}"]
    (stream,) = script_of("C027", streams=True)
    agent.script([beginning(stream, way)])
    works = delegate.s(agent=agent.name, goal="the work of c027")
    never = delegate.s(agent=agent.name, goal="what must not be begun")

    result = chain(works, never).apply_async()

    first = result.parent
    assert isinstance(first, AsyncResult)
    with pytest.raises(AgentTaskFailed) as raised:
        first.get(timeout=20)
    delegation = DelegationHandle(raised.value.delegation_id)
    outcome = delegation.describe()["outcome"]
    assert (outcome["state"], outcome["text"]) == ("FAILED", "quota used up")
    assert parts_of(delegation) == {"r1": [{"text": "partial"}]}
    assert (agent.calls("GetTask") == []) is (way == "SUBMITTED")
    assert_sent_once(agent)


@pytest.mark.parametrize("code", REFUSALS)
def test_c049_an_error_instead_of_a_stream_is_that_error(it: Bench, code: int) -> None:
    """-32004 and -32601: the same messageId once by SendMessage; any other code is told, and nothing sent again."""
    agent = it.agents[f"c049{code}"]
    (rule,) = script_of("C049", streams=True)
    rule["http"]["body"] = rule["http"]["body"].replace("-32004", str(code))

    delegation = it.run(agent.name, [rule])
    outcome = ended(delegation)

    sent = [call["method"] for call in agent.sends()]
    if code in (-32004, -32601):
        assert outcome["state"] == "COMPLETED"
        assert sent == ["SendStreamingMessage", "SendMessage"]
        assert len(message_ids(agent)) == len(agent.created()) == 1
        told = f"streaming refused, so SendMessage: SendStreamingMessage: error {code}: streaming off"
        assert told in [entry["text"] for entry in delegation.history()]
        return
    assert sent == ["SendStreamingMessage"]
    if code == -32602:
        assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent.refused")
        assert "streaming off" in outcome["text"]
    else:  # it broke at work, and cannot be asked whether it has the task
        assert (outcome["state"], outcome["reason"]) == ("FAILED", "send.outcome_unknown")


@pytest.mark.parametrize("way", WAYS)
def test_c051_characters_that_look_like_line_ends_are_kept(it: Bench, way: str) -> None:
    """U+2028, U+0085 and U+2029 unescaped in an event: all 22 characters arrive."""
    agent = it.agents[f"c051-{way}"]
    (stream,) = script_of("C051", streams=True)
    stream.pop("note")

    outcome = ended(it.run(agent.name, [beginning(stream, way)]))

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "alpha\u2028beta\u0085gamma\u2029delta")
    assert (agent.calls("GetTask") == []) is (way == "SUBMITTED")
    assert_sent_once(agent)


@pytest.mark.parametrize("way", WAYS)
def test_c064_a_piece_without_its_beginning_is_made_up_for_by_a_look(it: Bench, way: str) -> None:
    """append:true for an artifact never seen: the stream has gaps, so the agent is asked, and its whole text counts."""
    stream, get = script_of("C064", streams=True)
    outcome = ended(it.run(f"c064-{way}", [beginning(stream, way), get]))

    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "head tail only")


def test_c064_where_the_agent_shows_no_artifact_the_story_names_what_was_heard(it: Bench) -> None:
    """GetTask is the last word, so nothing incomplete is called a result; the piece that was heard is in the story."""
    stream, get = script_of("C064", streams=True)
    get["reply"].pop("artifacts")
    delegation = it.run("c064-nothing", [beginning(stream, "SUBMITTED"), get])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["artifacts"]) == ("COMPLETED", [])
    assert any("artifacts: r1" in line["text"] for line in delegation.history())


@pytest.mark.parametrize("way", WAYS)
def test_c065_pieces_of_two_artifacts_find_their_places(it: Bench, way: str) -> None:
    """append adds, its absence replaces, lastChunk ends nothing: a is A1 A2 A3 in order, b is B2, a before b."""
    agent = it.agents[f"c065-{way}"]
    (stream,) = script_of("C065", streams=True)
    # Where the stream is read to its end, nobody else may tell what it held.
    broken: list[Rule] = [{"on": "GetTask", "error": {"code": -32603, "message": "broken"}}]
    delegation = it.run(agent.name, [beginning(stream, way), *(broken if way == "SUBMITTED" else [])])

    outcome = ended(delegation)

    assert outcome["state"] == "COMPLETED"
    assert parts_of(delegation) == {"a": [{"text": "A1"}, {"text": "A2"}, {"text": "A3"}], "b": [{"text": "B2"}]}
    assert [artifact["id"] for artifact in outcome["artifacts"]] == ["a", "b"]
    assert_sent_once(agent)


def long_stream(length: int, way: str) -> tuple[Rule, str]:
    """The report's stream with so many characters in one event."""
    (stream,) = script_of("C086", streams=True)
    text = "x" * (length - 3) + "END"
    stream["sse"][1]["artifactUpdate"]["artifact"]["parts"] = [{"text": text}]
    return beginning(stream, way), text


@pytest.mark.parametrize("way", WAYS)
def test_c086_a_long_event_is_whole(it: Bench, way: str) -> None:
    """300,003 characters in one event: the outcome says it is truncated, what is kept has every one of them."""
    agent = it.agents[f"c086-{way}"]
    stream, text = long_stream(300_003, way)
    delegation = it.run(agent.name, [stream])

    outcome = ended(delegation)

    assert (outcome["state"], outcome["truncated"]) == ("COMPLETED", True)
    assert parts_of(delegation)["r1"] == [{"text": text}]
    assert (agent.calls("GetTask") == []) is (way == "SUBMITTED")
    assert_sent_once(agent)


def test_c086_an_event_and_an_artifact_above_the_caps_are_never_cut(it: Bench) -> None:
    """Over limits.event_bytes: the agent is asked instead; over limits.artifact_bytes: left out, and said to be."""
    agent = it.agents["c086-large"]
    stream, _ = long_stream(TOO_MANY, "SUBMITTED")
    delegation = it.run("c086-large", [stream])

    outcome = ended(delegation)

    (artifact,) = delegation.artifacts()
    assert (outcome["state"], outcome["truncated"]) == ("COMPLETED", True)
    assert outcome["artifacts"][0]["omitted"] is True
    assert (artifact["parts"], artifact["omitted"]) == ([], True)
    assert artifact["size"] > TOO_MANY
    assert agent.calls("GetTask")
    assert_sent_once(agent)


def test_c093_every_form_of_an_event_stream_is_read(it: Bench) -> None:
    """Comments, retry, event, id, CRLF, no space, one JSON over two data lines: one event, COMPLETED, one send."""
    agent = it.agents["c093"]
    (rule,) = script_of("C093", streams=True)
    completed = json.dumps({"task": answer("COMPLETED", "ok")})
    delegation = it.run("c093", [{**rule, "raw": rule["raw"].replace("<task COMPLETED>", completed)}])

    outcome = ended(delegation)

    assert case_input("C093")["script"][0]["raw"].count("data:") == 2
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "ok")
    assert [line["cause"] for line in delegation.history()] == ["opened", "sent"]
    assert methods(agent) == ["SendStreamingMessage"]
