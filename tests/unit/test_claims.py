"""The claimed state of a push body: which shapes claim, and that no bytes can do more than that."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import TaskState
from web.claims import MAX_DEPTH, claimed_state


def body(payload: Any) -> bytes:
    return json.dumps(payload).encode()


STATUS = {"state": "TASK_STATE_COMPLETED"}
TASK = {"id": "t1", "contextId": "c1", "status": STATUS}
UPDATE = {"taskId": "t1", "contextId": "c1", "status": STATUS}


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param({"task": TASK}, id="1.0 task"),
        pytest.param({"statusUpdate": UPDATE}, id="1.0 status update"),
        pytest.param({"kind": "task"} | TASK, id="0.3 bare task"),
        pytest.param({"kind": "status-update", "final": True} | UPDATE, id="0.3 bare status update"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "result": {"task": TASK}}, id="1.0 in an envelope"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "result": {"statusUpdate": UPDATE}}, id="update in an envelope"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "result": TASK}, id="0.3 in an envelope"),
    ],
)
def test_each_shape_senders_use_claims_its_state(payload: object) -> None:
    """A StreamResponse, a bare 0.3 object and both inside a JSON-RPC envelope are read alike."""
    assert claimed_state(body(payload)) == "COMPLETED"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param({"artifactUpdate": {"taskId": "t1", "status": STATUS}}, id="artifact update"),
        pytest.param({"message": {"role": "ROLE_AGENT", "status": STATUS}}, id="message"),
        pytest.param({"task": TASK, "message": {}}, id="two kinds at once"),
        pytest.param({"result": {"result": {"task": TASK}}}, id="envelope in an envelope"),
        pytest.param({"task": [TASK]}, id="a list of tasks"),
        pytest.param({"task": {"status": [STATUS]}}, id="a list of statuses"),
        pytest.param({"status": {"state": 3}}, id="a number"),
        pytest.param({"status": {"state": None}}, id="null"),
        pytest.param({"status": {"state": "TASK_STATE_UNSPECIFIED"}}, id="unspecified"),
        pytest.param({"status": {"state": "done"}}, id="no state of A2A"),
        pytest.param({"state": "COMPLETED"}, id="state at the top"),
        pytest.param([{"task": TASK}], id="list"),
        pytest.param({}, id="empty object"),
        pytest.param("state", id="string"),
    ],
)
def test_other_shapes_claim_nothing(payload: object) -> None:
    """Artifacts and messages carry no state, and whatever is malformed claims none."""
    assert claimed_state(body(payload)) is None


@pytest.mark.parametrize("state", list(TaskState))
@pytest.mark.parametrize("spelling", ["TASK_STATE_{}", "{}"])
def test_all_eight_states_can_be_claimed_in_both_spellings(state: TaskState, spelling: str) -> None:
    """1.0 spells TASK_STATE_INPUT_REQUIRED, 0.3 input-required; the claim is our own name for it."""
    assert claimed_state(body({"task": {"status": {"state": spelling.format(state.value)}}})) == state.value
    old = state.value.lower().replace("_", "-")
    assert claimed_state(body({"status": {"state": old}})) == state.value


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-16-le"])
def test_a_body_that_is_not_utf8_claims_nothing(encoding: str) -> None:
    """The JSON parser would guess other encodings from the bytes; the content type promised UTF-8."""
    assert claimed_state(json.dumps({"task": TASK}).encode(encoding)) is None
    assert claimed_state(b'{"state": "\xff\xfe"}') is None


def test_a_byte_order_mark_does_not_hide_the_claim() -> None:
    """Some senders begin UTF-8 with a mark."""
    assert claimed_state(b"\xef\xbb\xbf" + body({"task": TASK})) == "COMPLETED"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_nesting_claims_nothing_and_raises_nothing(opening: bytes) -> None:
    """Depth is bounded before the parser sees the bytes."""
    assert claimed_state(b'{"state": ' + opening * 10_000) is None
    nested: object = "x"
    for _ in range(MAX_DEPTH):
        nested = [nested]
    assert claimed_state(body({"task": TASK | {"metadata": nested}})) is None


def test_brackets_in_texts_and_many_flat_objects_are_not_depth() -> None:
    """A long answer full of brackets is an honest push."""
    task = TASK | {"artifacts": [{"parts": [{"text": '[{"\\' * 500}]} for _ in range(200)]}
    assert claimed_state(body({"task": task})) == "COMPLETED"


@pytest.mark.parametrize(
    "hostile",
    [
        pytest.param(b'"state"' + b"[" * 100 + b'"' + b'\\"' * 32_000, id="unclosed string of escaped quotes"),
        pytest.param(b'"state"' + b"[" * 100 + b'"\\' * 32_000, id="escapes"),
        pytest.param(b'"state"' + b"{}" * 32_000, id="brackets"),
        pytest.param(b'{"state":' + b"9" * 65_000, id="a huge number"),
        pytest.param(b'{"state":' + b"[[],[]]," * 8_000, id="lists"),
    ],
)
def test_hostile_bytes_cost_milliseconds(hostile: bytes) -> None:
    """The claim is read before the credential is known to be right, so its cost must grow with length alone."""
    began = time.process_time()
    assert claimed_state(hostile) is None
    assert time.process_time() - began < 0.5


@given(st.binary(max_size=300).map(lambda tail: b'{"state":' + tail) | st.binary(max_size=300))
def test_no_bytes_raise_or_claim_anything_but_a_state(raw: bytes) -> None:
    """Whatever arrives, what leaves is one of eight names or nothing."""
    assert claimed_state(raw) in {None, *TaskState.__members__}
    assert claimed_state(raw + b'"state"') in {None, *TaskState.__members__}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(list(TaskState)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["task", "status", "state", "result", "statusUpdate", "message", "x"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_json_raises_or_claims_anything_but_a_state(payload: object) -> None:
    """Objects of the right names in wrong places are as harmless as noise."""
    assert claimed_state(body(payload)) in {None, *TaskState.__members__}
