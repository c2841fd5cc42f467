"""How a delegation is laid out in its hash, and that reading gives back what was written."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.agent_task import AgentTaskId, ContextId, TaskState
from delegation.record import decode, dump_json, encode_change, encode_opened
from delegation.state import (
    Brief,
    CancelAnswer,
    Delegation,
    DelegationId,
    Outcome,
    Phase,
    Progress,
    Question,
    Timers,
    Watch,
    WorkflowId,
)
from tests.support.delegations import NOW, a_delegation

OPENED = Delegation(
    id=DelegationId("w1.1"),
    agent="flights",
    brief=Brief(goal="g"),
    call_id="c",
    participant_id="p",
    created_at=NOW,
    version=1,
)
BOOKKEEPING = {"created_at": f"{NOW:.3f}", "version": "1", "phase": "OPENED"}

times = st.none() | st.integers(0, 4_000_000_000_000).map(lambda ms: ms / 1000)
counts = st.integers(0, 10**6)
texts = st.text(st.characters(), max_size=40)  # lone surrogates included
jsons: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
questions = st.builds(
    Question,
    number=counts,
    state=st.sampled_from(TaskState),
    digest=texts,
    said_at=texts,
    message_id=texts,
    asked_at=st.floats(0, 4e9),
    turn=counts,
)
progresses = st.builds(
    Progress,
    question=st.none() | questions,
    turn=counts,
    turn_intent_at=st.none() | st.floats(0, 4e9),
    turn_key=texts,
    same_turns=counts,
    cancel_answer=st.sampled_from(CancelAnswer),
    artifact_names=st.lists(texts, max_size=2).map(tuple),
    can_follow=st.booleans(),
    state=st.sampled_from(TaskState),
    status_text=texts,
    status_parts=st.lists(st.dictionaries(texts, jsons, max_size=2), max_size=2).map(tuple),
    status_at=texts,
    watch=st.none() | st.sampled_from(Watch),
    agent_task_id=st.none() | texts.map(AgentTaskId),
    context_id=st.none() | texts.map(ContextId),
    intent_at=st.none() | st.floats(0, 4e9),
    empty_lookups=counts,
    failures=counts,
    failing_since=st.none() | st.floats(0, 4e9),
    lost_count=counts,
    attempts=counts,
    polls=counts,
    refetches=counts,
    push_config=st.booleans(),
    abandoned=st.booleans(),
    updated_at=st.floats(0, 4e9),
)


def written(before: Delegation, after: Delegation, raw: dict[str, str]) -> dict[str, str]:
    """The hash after a change, as the scripts write it: an empty value removes the field."""
    merged = {**raw, **encode_change(before, after)}
    return {name: value for name, value in merged.items() if value != ""}


def test_an_opened_one_is_read_back_as_it_was() -> None:
    """All that is written once: brief, identity, workflow, idempotency and what follows in the canvas."""
    full = replace(
        OPENED,
        brief=Brief(
            goal="g", name="n", description="d", acceptance_criteria=("a", "b"), inputs=("x", {"y": [1, None]}, None)
        ),
        workflow_id=WorkflowId("w1"),
        on_failure="return",
        idempotency="digest",
        step="3: book",
        canvas={"chain": [{"task": "next"}], "link": None},
    )
    assert decode("w1.1", {**encode_opened(full), **BOOKKEEPING}) == full


def test_a_plain_one_takes_few_fields() -> None:
    """What is empty is not stored: memory per parked delegation counts."""
    assert set(encode_opened(OPENED)) == {"fixed", "brief"}
    assert decode("w1.1", {**encode_opened(OPENED), **BOOKKEEPING}) == OPENED


@given(progress=progresses, wakes=times)
def test_any_progress_survives_the_round_trip(progress: Progress, wakes: float | None) -> None:
    """Whatever an agent wrote, lone surrogates included, and no field is forgotten."""
    after = replace(OPENED, progress=progress, fetched_at=wakes)
    raw = written(OPENED, after, {**encode_opened(OPENED), **BOOKKEEPING})
    assert decode("w1.1", raw) == after
    assert all(value.isascii() for value in raw.values())


#: Those that steps may set; scripts alone set lease and deadline.
TIMERS = ("poll_at", "refetch_at", "publish_at", "cleanup_at", "reply_at", "cancel_at")


@given(before=st.builds(Timers, **dict.fromkeys(TIMERS, times)), after=st.data())
def test_timers_are_written_where_they_differ(before: Timers, after: st.DataObject) -> None:
    """A timer that is taken away is an empty value; one that stays is not written over what a script set meanwhile."""
    kept = after.draw(st.sets(st.sampled_from(TIMERS)))
    changed = replace(before, **dict.fromkeys(set(TIMERS) - kept))
    encoded = encode_change(replace(OPENED, timers=before), replace(OPENED, timers=changed))
    assert encoded == {name: "" for name in TIMERS if name not in kept and getattr(before, name) is not None}


def test_scripts_alone_set_lease_and_deadline() -> None:
    """A step cannot prolong either."""
    after = replace(OPENED, timers=Timers(lease_until=NOW, deadline_at=NOW))
    assert encode_change(OPENED, after) == {}


def test_nothing_changed_is_nothing_written() -> None:
    """Neither does reading move anything."""
    assert encode_change(a_delegation(), a_delegation()) == {}


def test_every_other_field_is_written_and_removed() -> None:
    """Phase, digest, claim, who was heard and the time of the last fetch."""
    after = replace(
        OPENED, phase=Phase.WATCHING, push_digest="d", claimed=TaskState.WORKING, heard="push", fetched_at=NOW
    )
    raw = written(OPENED, after, {**encode_opened(OPENED), **BOOKKEEPING})
    assert decode("w1.1", raw) == after
    back = replace(after, push_digest="", claimed=None, heard="", fetched_at=None)
    assert decode("w1.1", written(after, back, raw)) == back


def test_an_outcome_is_read_back_as_it_was() -> None:
    """It travels to the next link and lies in the record under the same names."""
    outcome = Outcome(
        delegation_id="w1.1",
        agent="flights",
        state=TaskState.FAILED,
        text="no \ud800",
        truncated=True,
        artifacts=({"id": "a", "name": "", "media_type": "", "size": 3},),
        reason="poisoned",
        agent_task_id="t",
        context_id="x",
    )
    raw = written(OPENED, replace(OPENED, outcome=outcome), {**encode_opened(OPENED), **BOOKKEEPING})
    assert decode("w1.1", raw).outcome == outcome
    assert Outcome.from_dict(json.loads(dump_json(outcome.to_dict()))) == outcome
    assert set(outcome.to_dict()) == {field.name for field in fields(Outcome)}


def test_progress_of_a_later_version_is_read() -> None:
    """A field we do not know yet is left alone, so that workers can be replaced one by one."""
    raw = {**encode_opened(OPENED), **BOOKKEEPING, "progress": '{"state":"WORKING","invented_later":1}'}
    assert decode("w1.1", raw).progress == Progress(state=TaskState.WORKING)


def test_a_claim_we_cannot_read_is_no_claim() -> None:
    """A claim is a stranger's word: no spelling of it can make a record unreadable."""
    raw = {**encode_opened(OPENED), **BOOKKEEPING, "claimed": "DONE"}
    assert decode("w1.1", raw).claimed is None


@pytest.mark.parametrize("raw", [{}, {"fixed": "{}", "brief": "{}"}, {"fixed": "no json", "brief": "{}"}])
def test_a_hash_that_is_no_record_is_refused(raw: dict[str, str]) -> None:
    """KeyError or ValueError, never half a delegation."""
    with pytest.raises((KeyError, ValueError)):
        decode("w1.1", {**raw})
