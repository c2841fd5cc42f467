"""What on a stream makes a wake: nothing that is replayed, everything that is new."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import AgentTaskId, Artifact, ContextId, TaskState
from delegation.answers import read_timestamp
from delegation.events import StreamEvent, read_stream_response
from delegation.state import Progress, Question
from workers.follow_news import Heard, News, begin_hearing, hear, hear_unreadable

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
WORKING, ASKING, DONE = TaskState.WORKING, TaskState.INPUT_REQUIRED, TaskState.COMPLETED


def at(seconds: float) -> str:
    return read_timestamp((NOW + timedelta(seconds=seconds)).isoformat())


def status(state: TaskState | str, when: str = "", text: str = "", message_id: str = "") -> StreamEvent:
    return read_stream_response({"statusUpdate": {"taskId": "t1", "status": _status(state, when, text, message_id)}})


def snapshot(
    state: TaskState | str, when: str = "", text: str = "", message_id: str = "", artifacts: tuple[str, ...] = ()
) -> StreamEvent:
    sent = [{"artifactId": each, "parts": [{"text": each}]} for each in artifacts]
    task = {"id": "t1", "contextId": "c1", "status": _status(state, when, text, message_id), "artifacts": sent}
    return read_stream_response({"task": task})


def _status(state: TaskState | str, when: str, text: str, message_id: str) -> dict[str, Any]:
    made: dict[str, Any] = {"state": f"TASK_STATE_{state.value}" if isinstance(state, TaskState) else state}
    if when:
        made["timestamp"] = when
    if text or message_id:
        made["message"] = {"messageId": message_id, "role": "ROLE_AGENT", "parts": [{"text": text}]}
    return made


def artifact(artifact_id: str) -> StreamEvent:
    made = {"artifactId": artifact_id, "parts": [{"text": "x"}]}
    return read_stream_response({"artifactUpdate": {"taskId": "t1", "artifact": made}})


def knowing(state: TaskState = WORKING, when: str = "", text: str = "", **more: Any) -> Heard:
    return begin_hearing(Progress(state=state, status_at=when, status_text=text, **more), NOW)


def listen(heard: Heard, *events: StreamEvent) -> tuple[Heard, list[News]]:
    told = []
    for event in events:
        heard, news = hear(heard, event, NOW)
        if news is not None:
            told.append(news)
    return heard, told


# ------------------------------------------------------------ the first snapshot


def test_a_snapshot_of_what_is_known_is_no_news() -> None:
    """The record and the agent say the same, with a time and without."""
    assert listen(knowing(WORKING, at(0), "half way"), snapshot(WORKING, at(0), "half way"))[1] == []
    assert listen(knowing(WORKING, "", "half way"), snapshot(WORKING, at(0), "half way"))[1] == []


@pytest.mark.parametrize(
    ("known", "event", "claimed"),
    [
        (knowing(WORKING, at(0)), snapshot(ASKING, at(1)), "INPUT_REQUIRED"),
        (knowing(WORKING, at(0)), snapshot(WORKING, at(1)), "WORKING"),
        (knowing(WORKING, at(1)), snapshot(WORKING, at(0)), "WORKING"),  # back in time is a change as well
        (knowing(WORKING), snapshot(ASKING), "INPUT_REQUIRED"),
        (knowing(ASKING, "", "Which day?"), snapshot(ASKING, "", "Which month?"), "INPUT_REQUIRED"),
        (knowing(ASKING, at(0), "Which day?"), snapshot(ASKING, at(0), "Which month?"), "INPUT_REQUIRED"),
        (knowing(WORKING, at(0)), snapshot(DONE, at(0)), "COMPLETED"),
        (knowing(WORKING, at(0)), snapshot("TASK_STATE_DREAMING", at(1)), ""),
    ],
)
def test_a_snapshot_that_differs_is_news(known: Heard, event: StreamEvent, claimed: str) -> None:
    """Whatever changed while nobody listened is heard with the first event."""
    assert listen(known, event)[1] == [News(claimed=claimed)]


def test_the_same_instant_in_another_zone_is_the_same() -> None:
    """Times are compared, not their spelling."""
    known = knowing(WORKING, read_timestamp("2030-01-01T10:00:00Z"))
    assert listen(known, snapshot(WORKING, "2030-01-01T12:00:00+02:00"))[1] == []


def test_an_unknown_state_that_is_known_already_is_no_news() -> None:
    """The record keeps its spelling, in quotes."""
    known = knowing(WORKING, unknown_state=repr("DREAMING"))
    assert listen(known, snapshot("DREAMING"))[1] == []


def test_a_question_is_known_by_its_message_id() -> None:
    """The same words asked anew are a new question; other words of the same message are not."""
    question = Question(number=1, state=ASKING, digest="d", message_id="m1")
    known = knowing(ASKING, "", "Which day?", question=question)
    assert listen(known, snapshot(ASKING, "", "Which day? (shortened)", "m1"))[1] == []
    assert listen(known, snapshot(ASKING, "", "Which day?", "m2"))[1] == [News(claimed="INPUT_REQUIRED")]


def test_texts_are_compared_as_far_as_the_record_keeps_them() -> None:
    """A long status text is shortened in the record; that alone is no difference."""
    assert listen(knowing(WORKING, "", "x" * 1999 + "…"), snapshot(WORKING, "", "x" * 5000))[1] == []


# ------------------------------------------------------------ updates


def test_a_replayed_log_is_no_news_and_leaves_no_doubt() -> None:
    """A tiny-harness-like peer tells everything from the beginning again; it ends with what the snapshot said."""
    known = knowing(ASKING, at(3), "Which day?")
    log = [
        status(WORKING, at(0)),
        status(ASKING, at(1), "Where?"),
        status(WORKING, at(2)),
        status(ASKING, at(3), "Which day?"),
    ]
    heard, told = listen(known, snapshot(ASKING, at(3), "Which day?"), *log)
    assert told == []
    assert not heard.is_in_doubt


def test_what_comes_after_the_replay_is_news() -> None:
    """Later than what is known, so it moves what is known: its own replay is none."""
    known = knowing(ASKING, at(1))
    heard, told = listen(known, snapshot(ASKING, at(1)), status(WORKING, at(0)), status(WORKING, at(2)))
    assert told == [News(claimed="WORKING")]
    assert listen(heard, status(ASKING, at(1)), status(WORKING, at(2)))[1] == []


@pytest.mark.parametrize("state", [DONE, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED])
def test_the_end_is_always_news(state: TaskState) -> None:
    """However old its time says it is."""
    assert listen(knowing(WORKING, at(5)), snapshot(WORKING, at(5)), status(state, at(-3600)))[1] == [
        News(claimed=state.value)
    ]


@pytest.mark.parametrize("when", ["", "soon", "0001-01-01T00:00:00Z", "2099-01-01T00:00:00Z", "99999-01-01"])
def test_without_a_time_to_be_trusted_state_and_message_decide(when: str) -> None:
    """None, unreadable, year 1, far in the future: equal is skipped, different is news."""
    known = knowing(WORKING, at(0), "on it")
    start = snapshot(WORKING, at(0), "on it")
    assert listen(known, start, status(WORKING, when, "on it"))[1] == []
    assert listen(known, start, status(WORKING, when, "nearly"))[1] == [News(claimed="WORKING")]
    assert listen(known, start, status(ASKING, when, "on it"))[1] == [News(claimed="INPUT_REQUIRED")]


def test_a_time_in_the_far_future_does_not_hide_what_follows() -> None:
    """It is taken for none, so the next status is not older than it."""
    heard, _ = listen(knowing(WORKING, at(0)), snapshot(WORKING, at(0)), status(ASKING, "2099-01-01T00:00:00Z"))
    assert listen(heard, status(WORKING, at(1)))[1] == [News(claimed="WORKING")]


def test_a_clock_that_went_back_leaves_a_doubt() -> None:
    """Skipped as if replayed, but it is the last word and differs: to be looked at a little later."""
    heard, told = listen(knowing(WORKING, at(0)), snapshot(WORKING, at(0)), status(ASKING, at(-3600), "Which day?"))
    assert told == []
    assert heard.is_in_doubt
    assert not listen(heard, status(ASKING, at(1), "Which day?"))[0].is_in_doubt


def test_two_states_of_the_same_second_leave_a_doubt() -> None:
    """Times with whole seconds cannot say which was first."""
    heard, told = listen(knowing(WORKING, at(0)), snapshot(WORKING, at(0)), status(ASKING, at(0)))
    assert told == []
    assert heard.is_in_doubt


def test_a_later_snapshot_is_an_update_like_any_other() -> None:
    """Some agents send whole tasks all along (and a2a-js at the begin of each turn)."""
    heard, told = listen(knowing(WORKING, at(0)), snapshot(WORKING, at(0)), snapshot(WORKING, at(-5)))
    assert told == []
    assert listen(heard, snapshot(ASKING, at(1)))[1] == [News(claimed="INPUT_REQUIRED")]


def test_without_a_snapshot_the_record_is_what_is_known() -> None:
    """Some agents begin with an update."""
    assert listen(knowing(WORKING, at(0)), status(WORKING, at(0)))[1] == []
    assert listen(knowing(WORKING, at(0)), status(ASKING, at(1)))[1] == [News(claimed="INPUT_REQUIRED")]


# ------------------------------------------------------------ other events


def test_the_first_chunk_of_an_artifact_is_news_and_no_other() -> None:
    """Those of the snapshot are known; a long one is not told chunk by chunk."""
    heard, told = listen(knowing(), snapshot(WORKING, artifacts=("a",)), artifact("a"), artifact("b"), artifact("b"))
    assert told == [News()]
    assert listen(heard, artifact(""))[1] == [News()]


def test_artifacts_without_end_are_not_remembered_without_end() -> None:
    """An agent that makes up an id for each chunk wakes a thousand times on one stream, and then no more."""
    heard, told = listen(knowing(), *(artifact(f"a{n}") for n in range(1500)))
    assert len(told) == len(heard.artifact_ids) == 1000


def test_a_message_is_news_and_what_nobody_knows_is_none() -> None:
    """A message may be anything; an event of another kind says nothing about the task."""
    message = read_stream_response({"message": {"messageId": "m", "role": "ROLE_AGENT", "parts": [{"text": "hi"}]}})
    assert listen(knowing(), message, StreamEvent(kind="other"))[1] == [News()]


def test_a_row_of_unreadable_events_is_one_wake() -> None:
    """The first tells to look; the row ends with an event that can be read."""
    heard, news = hear_unreadable(knowing())
    assert news == News()
    heard, news = hear_unreadable(heard)
    assert news is None
    heard, _ = hear(heard, status(WORKING), NOW)
    assert hear_unreadable(heard)[1] == News()


# ------------------------------------------------------------ properties

states = st.sampled_from([WORKING, ASKING, TaskState.AUTH_REQUIRED, TaskState.SUBMITTED])
words = st.sampled_from(["", "Which day?", "Which month?"])


@st.composite
def logs(draw: st.DrawFn) -> list[tuple[TaskState, int, str]]:
    """What an agent said, in the order it did, at strictly later times."""
    said = draw(st.lists(st.tuples(states, words), min_size=1, max_size=8))
    return [(state, number, text) for number, (state, text) in enumerate(said)]


@given(log=logs(), repeats=st.integers(1, 3))
def test_no_replayed_state_is_ever_a_wake(log: list[tuple[TaskState, int, str]], repeats: int) -> None:
    """However often an agent tells its past, in whole or from anywhere on, nobody is woken and no doubt remains."""
    state, when, text = log[-1]
    known = knowing(state, at(when), text)
    past = [status(s, at(w), t) for s, w, t in log] * repeats
    heard, told = listen(known, snapshot(state, at(when), text), *past)
    assert told == []
    assert not heard.is_in_doubt


@given(
    log=logs(), known=st.integers(0, 7), clock=st.lists(st.integers(-5, 5), min_size=8, max_size=8), timed=st.booleans()
)
def test_no_new_state_is_ever_missed(
    log: list[tuple[TaskState, int, str]], known: int, clock: list[int], timed: bool
) -> None:
    """Whatever the agent's clock does: what it said last was told, is what was known, or is in doubt."""
    first = min(known, len(log) - 1)
    said = [(s, at(w + clock[n]) if timed else "", t) for n, (s, w, t) in enumerate(log)]
    base_state, base_at, base_text = said[first]
    heard = knowing(base_state, base_at, base_text)
    looked_at = (base_state, base_text)  # what a GetTask would have shown at the last wake
    heard, told = listen(heard, snapshot(base_state, base_at, base_text))
    assert told == []
    for state, when, text in said[first + 1 :]:
        heard, told = listen(heard, status(state, when, text))
        looked_at = (state, text) if told else looked_at
    assert looked_at == (said[-1][0], said[-1][2]) or heard.is_in_doubt


def test_the_artifacts_of_a_snapshot_are_bounded() -> None:
    """A task with very many artifacts does not make every one of them be kept."""
    made = tuple(Artifact(id=f"a{n}", name="") for n in range(3000))
    event = snapshot(WORKING)
    assert event.task is not None
    task = type(event.task)(id=AgentTaskId("t1"), context_id=ContextId("c"), state=WORKING, artifacts=made)
    heard, _ = hear(knowing(), StreamEvent(kind="task", task=task), NOW)
    assert len(heard.artifact_ids) == 1000
