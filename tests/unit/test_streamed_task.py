"""A task put together from what a stream says."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import AgentMessage, AgentTask, TaskState
from delegation.answers import MAX_ARTIFACTS
from delegation.errors import CallAmbiguous
from delegation.events import read_stream_response
from delegation.streamed_task import StreamedTask


def task(state: str = "WORKING", task_id: str = "t1", **fields: Any) -> dict[str, Any]:
    return {"task": {"id": task_id, "contextId": "c1", "status": {"state": f"TASK_STATE_{state}"}, **fields}}


def status(state: str, text: str = "", task_id: str = "t1") -> dict[str, Any]:
    message = {"messageId": f"m-{text}", "role": "ROLE_AGENT", "parts": [{"text": text}]} if text else None
    return {"statusUpdate": {"taskId": task_id, "contextId": "c1", "status": {"state": state, "message": message}}}


def artifact(artifact_id: str, text: str, append: bool | None = None, **fields: Any) -> dict[str, Any]:
    update: dict[str, Any] = {"taskId": "t1", "contextId": "c1"}
    update["artifact"] = {"artifactId": artifact_id, "parts": [{"text": text}], **fields}
    return {"artifactUpdate": update if append is None else {**update, "append": append}}


def after(*events: Any) -> StreamedTask:
    heard = StreamedTask()
    for event in events:
        heard.hear(read_stream_response(event))
    return heard


def built(*events: Any) -> AgentTask:
    result = after(*events).result
    assert isinstance(result, AgentTask)
    return result


def texts(read: AgentTask) -> dict[str, str]:
    return {made.id: made.text for made in read.artifacts}


def test_nothing_heard_is_nothing_known() -> None:
    """Unknown payloads included."""
    heard = after({"poll": {}}, {})
    assert (heard.is_known, heard.has_begun, heard.result) == (False, False, None)


@pytest.mark.parametrize(
    ("state", "has_begun"),
    [
        ("SUBMITTED", False),
        ("UNSPECIFIED", False),
        ("PAUSED", False),
        ("WORKING", True),
        ("AUTH_REQUIRED", True),
        ("REJECTED", True),
    ],
)
def test_a_task_past_submitted_has_begun(state: str, has_begun: bool) -> None:
    """An interrupted or ended one as well; a state that is none of A2A's tells nothing."""
    for heard in (after(task(state)), after(task("SUBMITTED"), status(state))):
        assert heard.is_known
        assert heard.has_begun is has_begun


def test_updates_change_what_the_first_task_said() -> None:
    """The status is the last one's, with its text and message id; the context stays."""
    read = built(task("SUBMITTED"), status("working", "half"), status("TASK_STATE_INPUT_REQUIRED", "which?"))
    assert (read.id, read.context_id, read.state) == ("t1", "c1", TaskState.INPUT_REQUIRED)
    assert (read.status_text, read.status_message_id) == ("which?", "m-which?")
    assert read.is_whole


def test_parts_are_appended_or_replaced_by_what_the_update_says() -> None:
    """Case C065: a missing `append` replaces; artifacts keep their order."""
    read = built(
        task(),
        artifact("a", "A1", False),
        artifact("b", "B1"),
        artifact("a", "A2", True),
        artifact("b", "B2", False, lastChunk=True),
        artifact("a", "A3", True, name="late", description="d"),
        status("completed"),
    )
    assert [made.id for made in read.artifacts] == ["a", "b"]
    assert texts(read) == {"a": "A1\nA2\nA3", "b": "B2"}
    assert (read.artifacts[0].name, read.artifacts[0].description) == ("late", "d")
    assert read.is_whole


def test_a_tail_without_its_head_is_kept_and_has_gaps() -> None:
    """Case C064: never nothing, and never called whole."""
    read = built(task(), artifact("r1", "tail only", True), status("completed"))
    assert texts(read) == {"r1": "tail only"}
    assert not read.is_whole


def test_a_later_task_replaces_what_was_put_together() -> None:
    """Case C010: not appended to it, and the gaps are filled."""
    read = built(
        task(),
        artifact("r1", "two", True),
        task(artifacts=[{"artifactId": "r1", "parts": [{"text": "one two"}]}]),
        artifact("r1", "three", True),
    )
    assert texts(read) == {"r1": "one two\nthree"}
    assert read.is_whole


def test_a_later_task_without_artifacts_loses_none() -> None:
    """Some agents leave them out of snapshots; GetTask tells."""
    read = built(task(), artifact("r1", "one"), task("COMPLETED"))
    assert (texts(read), read.state, read.is_whole) == ({"r1": "one"}, TaskState.COMPLETED, False)


@pytest.mark.parametrize("late", [status("WORKING"), status("FAILED"), task("WORKING"), task("CANCELED")])
def test_terminal_is_final_within_a_stream(late: Any) -> None:
    """Case C005."""
    read = built(task("COMPLETED", artifacts=[{"artifactId": "r1", "parts": [{"text": "x"}]}]), late)
    assert (read.state, texts(read)) == (TaskState.COMPLETED, {"r1": "x"})


@pytest.mark.parametrize(
    ("events", "is_whole"),
    [
        ([task("COMPLETED")], True),
        ([task("SUBMITTED"), status("COMPLETED")], False),
        ([status("FAILED", "no")], False),
        ([task(), artifact("r1", "x"), status("COMPLETED")], True),
        ([task(), status("WORKING")], True),
        ([task(), status("COMPLETED"), task("COMPLETED")], True),
    ],
)
def test_an_end_heard_by_an_update_alone_is_not_whole(events: list[Any], is_whole: bool) -> None:
    """The artifacts may have been made where the stream did not tell of them."""
    assert built(*events).is_whole is is_whole


ASKED_BEFORE = [{"role": "ROLE_AGENT", "parts": [{"text": "Which month?"}]}]


@pytest.mark.parametrize(
    ("events", "is_whole"),
    [
        ([task(), status("INPUT_REQUIRED", "Which year?")], True),
        ([task(), status("INPUT_REQUIRED")], False),
        ([task(history=ASKED_BEFORE), status("INPUT_REQUIRED")], False),
        ([task("INPUT_REQUIRED")], True),
        ([task("INPUT_REQUIRED", history=ASKED_BEFORE)], True),
    ],
)
def test_a_question_without_words_in_its_update_is_not_whole(events: list[Any], is_whole: bool) -> None:
    """They may be in the task's history; a task that has none there has none."""
    assert built(*events).is_whole is is_whole


def test_a_stream_that_broke_is_not_whole() -> None:
    """Whatever it told."""
    heard = after(task(), artifact("r1", "x"), status("COMPLETED"))
    heard.break_off()
    assert isinstance(heard.result, AgentTask)
    assert not heard.result.is_whole


def test_updates_may_come_before_any_task() -> None:
    """The Python SDK's server begins a follow-up so; the id is in each update."""
    read = built(artifact("r1", "x"), status("WORKING"))
    assert (read.id, read.context_id, read.state, texts(read)) == ("t1", "c1", TaskState.WORKING, {"r1": "x"})


def test_an_update_without_any_id_names_no_task() -> None:
    """It is about the task that is known, or about none."""
    assert not after(status("WORKING", task_id="")).is_known
    assert built(task("SUBMITTED"), status("WORKING", task_id="")).state is TaskState.WORKING


@pytest.mark.parametrize("event", [task(task_id="t2"), status("WORKING", task_id="t2"), status("COMPLETED", "", "\n")])
def test_a_stream_is_about_one_task(event: Any) -> None:
    """Another's news is nobody's; what was known stays."""
    heard = after(task("SUBMITTED"))
    with pytest.raises(CallAmbiguous):
        heard.hear(read_stream_response(event))
    assert isinstance(heard.result, AgentTask)
    assert (heard.result.id, heard.result.state) == ("t1", TaskState.SUBMITTED)


def test_an_id_that_cannot_be_used_is_no_task() -> None:
    """Said as clearly as for a plain answer."""
    with pytest.raises(CallAmbiguous):
        after(status("WORKING", task_id="\x00"))


def test_a_message_is_an_answer_only_where_there_is_no_task() -> None:
    """Beside a task it is something the agent says."""
    message = {"message": {"messageId": "a1", "parts": [{"text": "hi"}]}}
    heard = after(message)
    assert heard.has_begun
    assert isinstance(heard.result, AgentMessage)
    assert isinstance(after(task("SUBMITTED"), message).result, AgentTask)


def test_artifacts_without_ids_are_kept_apart() -> None:
    """Those of a snapshot; nothing is lost by lacking a name."""
    twice = [{"artifactId": "x", "parts": []}, {"artifactId": "x", "parts": [{"text": "b"}]}]
    made = [{"parts": [{"text": "a"}]}, *twice, 3]
    assert built(task(artifacts=made)).text == "a\nb"


def test_too_much_of_it_is_left_to_get_task() -> None:
    """The id was told, so the task is known, whatever else was."""
    heard = after(task("COMPLETED"), *(artifact(f"r{n}", "x") for n in range(MAX_ARTIFACTS + 1)))
    assert isinstance(heard.result, AgentTask)
    assert (heard.result.state, heard.result.artifacts, heard.result.is_whole) == (TaskState.COMPLETED, (), False)


def test_many_small_chunks_take_linear_time() -> None:
    """A result may come word by word."""
    chunk = read_stream_response(artifact("r1", "x", True))
    heard = after(task("SUBMITTED"), artifact("r1", "x"))
    began = time.monotonic()
    for _ in range(200_000):
        heard.hear(chunk)
    assert time.monotonic() - began < 30


made = st.fixed_dictionaries(
    {"artifactId": st.sampled_from(["a", 3]), "parts": st.sampled_from([None, [], "x", [{"text": "y"}]])}
)
states = st.sampled_from(["SUBMITTED", "WORKING", "COMPLETED", "?"])
payloads = st.one_of(
    st.builds(task, states, st.sampled_from(["t1", "t2"])),
    st.builds(status, states, st.text(max_size=3), st.sampled_from(["t1", "", "t2"])),
    st.builds(artifact, st.sampled_from(["a", "b", ""]), st.text(max_size=3), st.sampled_from([True, False, None])),
    st.builds(task, artifacts=st.lists(st.none() | made)),
)


@given(st.lists(payloads, max_size=12))
def test_no_order_of_events_breaks_it(events: list[Any]) -> None:
    """Only ambiguous is raised; once known, the id and a terminal state stay."""
    heard = StreamedTask()
    ended: TaskState | None = None
    for event in events:
        try:
            heard.hear(read_stream_response(event))
        except CallAmbiguous:
            continue
        if isinstance(heard.result, AgentTask):
            assert heard.result.id in ("t1", "t2")
            assert ended is None or heard.result.state is ended
            ended = heard.result.state if heard.result.state and heard.result.state.is_terminal else None
