"""What an agent's JSON is read as."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import AgentMessage, AgentTask, TaskState
from delegation.answers import (
    MAX_ARTIFACTS,
    MAX_VALUES,
    count_values,
    find_tasks,
    history_message_ids,
    load_json,
    one_line,
    read_send_answer,
    read_task,
    read_timestamp,
)
from delegation.errors import AnswerTooLarge, CallAmbiguous


def task(state: Any = "TASK_STATE_WORKING", **fields: Any) -> dict[str, Any]:
    return {"id": "t1", "contextId": "c1", "status": {"state": state}, **fields}


@pytest.mark.parametrize(
    ("spelling", "state"),
    [
        ("TASK_STATE_COMPLETED", TaskState.COMPLETED),
        ("completed", TaskState.COMPLETED),
        ("input-required", TaskState.INPUT_REQUIRED),
        ("TASK_STATE_CANCELLED", TaskState.CANCELED),
        ("cancelled", TaskState.CANCELED),
        ("canceled", TaskState.CANCELED),
    ],
)
def test_a_state_is_known_by_any_of_its_spellings(spelling: str, state: TaskState) -> None:
    """Case C012: prefix, case, hyphens and British English do not matter."""
    assert read_task(task(spelling)).state is state


@pytest.mark.parametrize("spelling", ["TASK_STATE_PAUSED", "TASK_STATE_UNSPECIFIED", "", 3, None, ["x"]])
def test_an_unknown_state_is_none_and_keeps_its_spelling(spelling: object) -> None:
    """Case C012: unknown is neither terminal nor an error."""
    read = read_task(task(spelling))
    assert read.state is None
    assert read.raw_state == (spelling if isinstance(spelling, str) else "")


def test_a_task_without_status_is_a_task() -> None:
    """Case C094: everything but the id may be absent."""
    assert read_task({"id": "t1"}) == AgentTask(id="t1", context_id="", state=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("2026-03-01T10:00:00Z", "2026-03-01T10:00:00.000000Z"),
        ("2026-03-01T10:00:00.100Z", "2026-03-01T10:00:00.100000Z"),
        ("2026-03-01T10:00:00.123456789Z", "2026-03-01T10:00:00.123456Z"),
        ("2026-03-01T12:30:00+02:00", "2026-03-01T10:30:00.000000Z"),
        ("2026-03-01T04:30:00-0530", "2026-03-01T10:00:00.000000Z"),
        ("2026-03-01T10:00:02", "2026-03-01T10:00:02.000000Z"),
        ("2026-03-01 10:00:03", "2026-03-01T10:00:03.000000Z"),
        ("2026-03-01t10:00z", "2026-03-01T10:00:00.000000Z"),
        (1772359204, "2026-03-01T10:00:04.000000Z"),
        (1772359204000, "2026-03-01T10:00:04.000000Z"),
        (1772359204.25, "2026-03-01T10:00:04.250000Z"),
        ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
    ],
)
def test_a_readable_time_becomes_utc_with_microseconds(written: object, read: str) -> None:
    """Cases C011 and C074: so that texts sort as instants."""
    assert read_timestamp(written) == read


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("yesterday", "yesterday"),
        ("", ""),
        ("2026-13-01T10:00:00Z", "2026-13-01T10:00:00Z"),
        ("0001-01-01T00:00:00+02:00", "0001-01-01T00:00:00+02:00"),
        ("2026-03-01T10:00:00+99:99", "2026-03-01T10:00:00+99:99"),
        (10**30, str(10**30)),
        (float("inf"), "inf"),
        (True, ""),
        (None, ""),
        ({"seconds": 1}, ""),
    ],
)
def test_an_unreadable_time_is_kept_as_written(written: object, kept: str) -> None:
    """Case C011: a time nobody can read loses nothing else."""
    assert read_timestamp(written) == kept


def test_good_parts_survive_bad_neighbours() -> None:
    """Case C068: each malformed part is recorded by its index."""
    parts: list[Any] = [{"text": "good"}, {"text": {"v": 1}}, {"text": None}, {}, {"text": "a", "data": {"b": 1}}]
    parts += [{"raw": "not base64!!"}, "just a string", None, {"raw": "aGk="}, {"url": "file:///etc/passwd"}]
    read = read_task(task("TASK_STATE_COMPLETED", artifacts=[{"artifactId": "r1", "parts": parts}]))
    assert read.state is TaskState.COMPLETED
    bad = [{"invalid_part": index} for index in range(1, 8)]
    assert list(read.artifacts[0].parts) == [{"text": "good"}, *bad, {"raw": "aGk="}, {"url": "file:///etc/passwd"}]
    assert read.text == "good"


def test_numbers_in_data_stay_what_they_are() -> None:
    """Case C066: no float where the agent wrote an integer, however large."""
    body = b'{"id":"t1","artifacts":[{"parts":[{"data":{"qty":3,"id":9007199254740993,"price":0.1,"none":null}}]}]}'
    data = read_task(load_json(body)).artifacts[0].parts[0]["data"]
    assert json.dumps(data) == '{"qty": 3, "id": 9007199254740993, "price": 0.1, "none": null}'


def test_data_may_be_null() -> None:
    """`data` is any JSON value."""
    assert read_task(task(artifacts=[{"parts": [{"data": None}]}])).artifacts[0].parts == ({"data": None},)


def test_numbers_that_json_cannot_hold_become_strings() -> None:
    """Infinity and NaN are spelled as protobuf's JSON spells them, so that what is kept is JSON."""
    body = b'{"id":"t1","artifacts":[{"parts":[{"data":[NaN,Infinity,-1e999]}]}]}'
    part = read_task(load_json(body)).artifacts[0].parts[0]
    assert part == {"data": ["NaN", "Infinity", "-Infinity"]}


def test_lone_surrogates_become_question_marks() -> None:
    """What is read can be encoded."""
    read = read_task(load_json(b'{"id":"t1","contextId":"\\ud800","artifacts":[{"parts":[{"text":"a\\udc00"}]}]}'))
    assert (read.context_id, read.text) == ("?", "a?")


def test_data_deeper_than_allowed_is_an_invalid_part() -> None:
    """Depth is bounded where it is kept, since others must be able to walk it."""
    data: Any = 1
    for _ in range(70):
        data = [data]
    assert read_task(task(artifacts=[{"parts": [{"data": data}]}])).artifacts[0].parts == ({"invalid_part": 0},)


def test_texts_are_joined_by_newlines() -> None:
    """Between the parts of an artifact, and between artifacts."""
    artifacts = [{"artifactId": "a", "parts": [{"text": "1"}, {"text": "2"}]}, {"parts": [{"text": "3"}]}]
    assert read_task(task(artifacts=artifacts)).text == "1\n2\n3"


def test_an_artifact_says_its_name_kind_and_size() -> None:
    """Size counts the bytes of its JSON."""
    raw = {"artifactId": "a", "name": "n", "description": "d", "parts": [{"text": "ä", "mediaType": "text/plain"}]}
    artifact = read_task(task(artifacts=[raw])).artifacts[0]
    assert (artifact.id, artifact.name, artifact.description, artifact.media_type) == ("a", "n", "d", "text/plain")
    assert artifact.size == len(json.dumps(raw, ensure_ascii=False, separators=(",", ":")).encode())


def test_a_question_is_read_from_the_status() -> None:
    """Case C089: text, parts and the message's own id."""
    status = {
        "state": "TASK_STATE_INPUT_REQUIRED",
        "message": {"messageId": "q1", "role": "ROLE_AGENT", "parts": [{"text": "Which?"}, {"data": {"options": [1]}}]},
    }
    read = read_task({"id": "t1", "status": status})
    assert read.status_text == "Which?"
    assert read.status_parts == ({"text": "Which?"}, {"data": {"options": [1]}})


def test_the_last_word_of_the_agent_is_read_from_the_history() -> None:
    """Messages of ours do not count."""
    history = [
        {"role": "ROLE_AGENT", "parts": [{"text": "early"}]},
        {"role": "agent", "parts": [{"text": "late"}]},
        {"role": "ROLE_USER", "parts": [{"text": "ours"}]},
    ]
    assert read_task(task(history=history)).text == "late"


@pytest.mark.parametrize(
    ("status", "asked"),
    [
        ({"state": "TASK_STATE_INPUT_REQUIRED"}, "late"),
        ({"state": "TASK_STATE_AUTH_REQUIRED", "message": {}}, "late"),
        ({"state": "TASK_STATE_INPUT_REQUIRED", "message": {"messageId": "m9", "parts": [{"text": "now"}]}}, "now"),
        ({"state": "TASK_STATE_INPUT_REQUIRED", "message": {"messageId": "m9", "parts": []}}, ""),
        ({"state": "TASK_STATE_WORKING"}, ""),
    ],
)
def test_a_question_may_be_in_the_history_alone(status: dict[str, Any], asked: str) -> None:
    """fasta2a's workers have no other place for it; a status with a message speaks for itself."""
    history = [
        {"role": "ROLE_AGENT", "messageId": "m1", "parts": [{"text": "late"}]},
        {"role": "ROLE_USER", "messageId": "m2", "parts": [{"text": "ours"}]},
    ]
    read = read_task({"id": "t1", "status": status, "history": history})
    assert read.status_text == asked
    assert read.status_message_id == {"late": "m1", "now": "m9"}.get(
        asked, status.get("message", {}).get("messageId", "")
    )


@pytest.mark.parametrize("bad_id", ["", "a b", "a\nb", "é", "x" * 257, 7, None, ["t1"]])
def test_a_task_without_a_usable_id_is_ambiguous(bad_id: object) -> None:
    """Ids go into URL paths unescaped."""
    with pytest.raises(CallAmbiguous):
        read_task({"id": bad_id, "status": {"state": "TASK_STATE_WORKING"}})


@pytest.mark.parametrize(
    "result",
    [
        {},
        None,
        [],
        "text",
        7,
        {"Task": task()},
        {"task": task(), "message": {"messageId": "m", "parts": []}},
        {"task": "t1"},
        {"message": "hi"},
        {"id": "t1"},
    ],
)
def test_an_answer_to_a_message_that_is_neither_is_ambiguous(result: object) -> None:
    """Case C100: never a task without id, never a crash."""
    with pytest.raises(CallAmbiguous):
        read_send_answer(result)


def test_a_bare_task_or_message_is_taken_for_what_it_is() -> None:
    """Case C100: some agents leave the wrapper out."""
    assert isinstance(read_send_answer(task()), AgentTask)
    message = {"messageId": "m1", "role": "ROLE_AGENT", "contextId": "c1", "parts": [{"text": "hi"}, {"text": "you"}]}
    expected = AgentMessage(text="hi\nyou", context_id="c1", parts=({"text": "hi"}, {"text": "you"}))  # type: ignore[arg-type]
    assert read_send_answer(message) == read_send_answer({"message": message}) == expected


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' + b"9" * 5000 + b"}", b'{"a":1} x', b"\x00"],
)
def test_what_is_not_json_is_ambiguous(body: bytes) -> None:
    """One kind of error for all of it."""
    with pytest.raises(CallAmbiguous):
        load_json(body)


def test_a_byte_order_mark_is_no_obstacle() -> None:
    """Some servers write one."""
    assert load_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_a_million_artifacts_are_too_many() -> None:
    """Small in bytes, large in memory."""
    with pytest.raises(AnswerTooLarge):
        read_task(task(artifacts=[{}] * (MAX_ARTIFACTS + 1)))


def test_lists_of_tasks_skip_what_is_no_task() -> None:
    """One malformed entry does not hide the others."""
    assert list(find_tasks({"tasks": [None, "x", task()]})) == [task()]
    assert list(find_tasks({})) == []
    shapeless: list[Any] = [[], None, {"tasks": {}}, {"tasks": "x"}]
    for bad in shapeless:
        with pytest.raises(CallAmbiguous):
            find_tasks(bad)


def test_a_task_names_the_messages_it_knows() -> None:
    """By them a question is told from the one before, and a reply of ours from one that never arrived."""
    status = {"state": "TASK_STATE_INPUT_REQUIRED", "message": {"messageId": "q1", "parts": []}}
    history = [{"messageId": f"m{number}"} for number in range(5_000)]
    read = read_task({"id": "t1", "status": status, "history": history})
    assert read.status_message_id == "q1"
    assert read.history_message_ids == {f"m{number}" for number in range(5_000)}
    assert read_task({"id": "t1", "status": {"message": {"messageId": 7}}}).status_message_id == ""


def test_message_ids_of_a_history_tolerate_anything() -> None:
    """An absent or malformed history holds no ids."""
    assert history_message_ids({"history": [{"messageId": "m1"}, {"messageId": 2}, None, "x"]}) == {"m1"}
    assert history_message_ids({"history": "x"}) == history_message_ids({}) == set()


def test_a_line_for_people_holds_no_secret_no_query_and_no_control_character() -> None:
    """Details end up in logs."""
    said = "bad\x1b[31m url\nhttps://us.example/a2a/push/1?token=abc hunter2"
    assert one_line(said, secrets=("hunter2",)) == "bad[31m url https://us.example/a2a/push/1 ***"
    assert len(one_line("x" * 10_000)) == 200
    assert one_line({"not": "text"}) == ""


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
task_like = st.fixed_dictionaries(
    {"id": st.just("t1") | json_values},
    optional={
        "contextId": json_values,
        "status": st.fixed_dictionaries({}, optional=dict.fromkeys(("state", "message", "timestamp"), json_values))
        | json_values,
        "artifacts": st.lists(st.fixed_dictionaries({"parts": st.lists(json_values)}) | json_values) | json_values,
        "history": json_values,
    },
)


@given(task_like | json_values)
def test_no_shape_raises_anything_but_ambiguous(raw: object) -> None:
    """Whatever an agent writes is read or refused, and what is read can be stored as JSON."""
    for read in (read_task, read_send_answer):
        try:
            found = read(raw)
        except CallAmbiguous:
            continue
        parts = found.parts if isinstance(found, AgentMessage) else [a.parts for a in found.artifacts]
        json.dumps([found.text, found.context_id, parts], allow_nan=False, ensure_ascii=False).encode()


_JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('",:[]{}\\\\\n\xe9 a', max_size=8),
    lambda inner: st.lists(inner) | st.dictionaries(st.text('",:[]{}\\\\a', max_size=4), inner),
)


def _number_of_values(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(_number_of_values, value.values()))
    return 1 + (sum(map(_number_of_values, value)) if isinstance(value, list) else 0)


@given(value=_JSON, limit=st.integers(0, 20), spaced=st.booleans())
def test_values_are_counted_exactly_where_there_are_too_many(value: Any, limit: int, spaced: bool) -> None:
    """Without parsing: keys are counted, what stands in a text is not."""
    body = json.dumps(value, ensure_ascii=False, indent=1 if spaced else None).encode()
    counted, is_most = count_values(body, limit), _number_of_values(value) > limit
    assert (counted > limit) == is_most
    assert counted <= limit + 1


@pytest.mark.parametrize(
    ("unit", "values"), [("[]", 1), ("{}", 1), ('""', 1), ("0", 1), ('{"a":0}', 3), ("[" * 50 + "]" * 50, 50)]
)
def test_more_values_than_fit_are_refused_before_they_take_memory(unit: str, values: int) -> None:
    """O-05: 8 MiB of these would be 80 to 380 MB."""
    most = (MAX_VALUES - 1) // values
    assert len(load_json(f"[{','.join([unit] * most)}]".encode())) == most
    with pytest.raises(AnswerTooLarge, match="values"):
        load_json(f"[{','.join([unit] * (most + 1))}]".encode())


def test_a_text_is_one_value_however_many_commas_are_in_it() -> None:
    """A CSV file or source code of megabytes is an answer like any other."""
    text = 'a,"b",{c:[d]}\n' * 300_000
    assert load_json(json.dumps({"text": text}).encode()) == {"text": text}
