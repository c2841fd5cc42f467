"""A caller's arguments: what becomes of them, and that whatever cannot be used is named."""

from __future__ import annotations

from dataclasses import replace
from datetime import MAXYEAR, MINYEAR, UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delegation.errors import InvalidArguments
from delegation.opening import (
    GOAL_LIMIT,
    Deadline,
    arguments_digest,
    check_arguments,
    make_delegation,
    new_workflow_id,
    read_deadline,
)
from delegation.state import Brief, Delegation, DelegationId, Phase


def made(inputs: tuple[Any, ...] = (), call_id: str | None = "call-1", **arguments: Any) -> Delegation:
    return make_delegation(
        {"agent": "flights", "goal": "go", **arguments},
        inputs=inputs,
        call_id=call_id,
        participant_id="delegation",
        canvas={},
        number=7,
    )


# ---------------------------------------------------------------- deadlines


@pytest.mark.parametrize(
    ("value", "deadline"),
    [
        (None, Deadline()),
        (timedelta(minutes=10), Deadline(after_s=600)),
        (600, Deadline(after_s=600)),
        (0.5, Deadline(after_s=0.5)),
        ("PT10M", Deadline(after_s=600)),
        ("P1DT1S", Deadline(after_s=86_401)),
        ("+PT10M", Deadline(after_s=600)),
        (datetime(2030, 1, 1, tzinfo=UTC), Deadline(at=1_893_456_000)),
        (datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), Deadline(at=1_893_456_000)),
        ("2030-01-01T00:00:00Z", Deadline(at=1_893_456_000)),
        ("2030-01-01T02:00:00+02:00", Deadline(at=1_893_456_000)),
    ],
)
def test_a_deadline_is_a_duration_or_a_time(value: Any, deadline: Deadline) -> None:
    """timedelta, seconds, aware datetime, or the ISO 8601 spelling of one of them."""
    assert read_deadline(value) == deadline


@pytest.mark.parametrize(
    "value",
    [
        datetime(2030, 1, 1),  # noqa: DTZ001  the mistake under test
        "2030-01-01T00:00:00",
        "2030-01-01",
        timedelta(0),
        timedelta(seconds=-1),
        0,
        -5,
        "PT0S",
        "-PT5M",
        "P",
        "PT",
        "PT5X",
        "Pony",
        "10 minutes",
        "tomorrow",
        "",
        "\ud800",
        "P" * 10_000,
        "P99999999999999999999D",
        "PT" + "9" * 400 + "S",
        float("nan"),
        float("inf"),
        float("-inf"),
        10**400,
        [],
        {},
        object(),
    ],
)
def test_a_deadline_that_is_none_is_refused(value: Any) -> None:
    """Naive times, nothing and the past, and whatever else people write: one line that names the argument."""
    with pytest.raises(InvalidArguments, match=r"^deadline: ") as refused:
        read_deadline(value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("offset_h", [-14, 0, 14])
@pytest.mark.parametrize("year", [MINYEAR, MAXYEAR])
def test_the_ends_of_the_calendar_are_deadlines_like_others(year: int, offset_h: int) -> None:
    """No overflow for the first and the last time there is."""
    month_and_day = (1, 1) if year == MINYEAR else (12, 31)
    deadline = read_deadline(datetime(year, *month_and_day, tzinfo=timezone(timedelta(hours=offset_h))))
    assert deadline.at is not None


@given(st.text(max_size=30) | st.from_regex(r"[+-]?P[0-9YMDTHS.,W-]{0,20}", fullmatch=True))
def test_no_string_makes_a_deadline_but_a_good_one(text: str) -> None:
    """Any other is InvalidArguments, not an error of whoever read it."""
    try:
        deadline = read_deadline(text)
    except InvalidArguments:
        return
    assert (deadline.after_s or 1) > 0


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agent", None),
        ("agent", 5),
        ("goal", None),
        ("goal", ""),
        ("goal", " \n\t"),
        ("goal", 5),
        ("goal", "x" * (GOAL_LIMIT + 1)),
        ("name", 5),
        ("name", "x" * (GOAL_LIMIT + 1)),
        ("description", ["x"]),
        ("acceptance_criteria", "one string"),
        ("acceptance_criteria", ["fine", 5]),
        ("acceptance_criteria", 5),
        ("acceptance_criteria", {"a": 1}),
        ("acceptance_criteria", ["x" * GOAL_LIMIT, "x"]),
        ("idempotency_key", ""),
        ("idempotency_key", 5),
        ("idempotency_key", "k" * 257),
        ("workflow", ""),
        ("workflow", 5),
        ("workflow", "w" * 257),
        ("step", 5),
        ("step", "s" * 257),
        ("on_failure", "ignore"),
        ("on_failure", ["raise"]),
        ("gaol", "typo"),
        ("countdown", 5),
    ],
)
def test_an_argument_that_cannot_be_used_is_named(name: str, value: Any) -> None:
    """The line begins with the argument, so that a model can correct itself."""
    with pytest.raises(InvalidArguments, match=f"^{name}: ") as refused:
        check_arguments({"agent": "flights", "goal": "go", name: value})
    assert len(str(refused.value)) < 300


def test_an_unknown_argument_is_answered_with_the_known_ones() -> None:
    """A typo is corrected without a look at the docs."""
    with pytest.raises(InvalidArguments, match=r"known: agent, goal, name, .*on_failure"):
        check_arguments({"agent": "flights", "goal": "go", "gaol": "x"})


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", datetime.now(UTC), float("nan"), float("inf")])
def test_a_result_that_is_no_json_cannot_be_piped_in(value: Any) -> None:
    """Celery carries dates and bytes from link to link; an agent can be told plain JSON only."""
    with pytest.raises(InvalidArguments, match=r"^inputs: "):
        made(inputs=({"result": value},))


@pytest.mark.parametrize("call_id", ["", "with space", "new\nline", "tail\n", "ü", "x" * 257])
def test_a_call_id_that_makes_no_good_celery_id_is_refused(call_id: str) -> None:
    """It becomes a key and a message id."""
    with pytest.raises(InvalidArguments, match=r"^task_id: "):
        made(call_id=call_id)


def test_a_delegation_is_made_from_its_arguments() -> None:
    """The brief is what the caller said; nothing was sent and nothing stored yet."""
    delegation = made(
        inputs=("earlier",),
        name="Trip",
        description="Cheap",
        acceptance_criteria=["one", "two"],
        on_failure="return",
        step="3",
    )
    assert delegation.brief == Brief(
        goal="go", name="Trip", description="Cheap", acceptance_criteria=("one", "two"), inputs=("earlier",)
    )
    assert (delegation.phase, delegation.version, delegation.on_failure) == (Phase.OPENED, 0, "return")
    assert (delegation.step, made().step) == ("3", "")
    assert (delegation.call_id, delegation.workflow_id) == ("call-1", None)


def test_a_child_is_numbered_below_its_workflow() -> None:
    """``<workflow>.<n>``; a lone one has an id like a workflow's."""
    assert made(workflow="w" * 32).id == f"{'w' * 32}.7"
    assert len(made().id) == 32
    assert made().id != made().id


def test_a_call_without_an_id_is_named_after_its_delegation() -> None:
    """A handle's delegation has a Celery id too."""
    delegation = made(call_id=None)
    assert delegation.call_id == f"{delegation.id}.delegate"


def test_workflow_ids_are_32_hex_digits() -> None:
    """128 random bits; no dash in front that a command line would read as an option."""
    ids = {new_workflow_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(len(one) == 32 and set(one) <= set("0123456789abcdef") for one in ids)


# ---------------------------------------------------------------- idempotency


def test_an_idempotency_key_counts_for_one_agent_in_one_workflow() -> None:
    """The same word elsewhere is another key; without a key there is no digest."""
    digests = {
        made(idempotency_key="k").idempotency,
        made(idempotency_key="k", agent="hotels").idempotency,
        made(idempotency_key="k", workflow="w1").idempotency,
        made(idempotency_key="k", workflow="w2").idempotency,
        made(idempotency_key="l").idempotency,
    }
    assert len(digests) == 5
    assert made(idempotency_key="k").idempotency in digests
    assert made().idempotency == ""


def test_the_key_of_a_redriven_delegation_is_in_a_scope_no_caller_can_name() -> None:
    """One per ancestor, whatever keys callers give."""

    def redriven(ancestor: str) -> str:
        arguments = {"agent": "flights", "goal": "go", "idempotency_key": "redrive"}
        given: dict[str, Any] = {"call_id": None, "participant_id": "delegation", "canvas": {}}
        return make_delegation(arguments, ancestor=DelegationId(ancestor), **given).idempotency

    assert redriven("w.1") == redriven("w.1")
    others = {made(idempotency_key=key).idempotency for key in ("redrive", "redrive:w.1", 'redrive", "w.1')}
    assert len({redriven("w.1"), redriven("w.2"), *others}) == 5


@pytest.mark.parametrize(
    "other",
    [
        {"goal": "stay"},
        {"name": "n"},
        {"description": "d"},
        {"acceptance_criteria": ["a"]},
        {"inputs": ("x",)},
        {"agent": "hotels"},
    ],
)
def test_two_uses_of_a_key_must_say_the_same(other: dict[str, Any]) -> None:
    """All that the agent is told counts; how long it may take and what follows do not."""
    assert arguments_digest(made(**other)) != arguments_digest(made())
    assert arguments_digest(made(deadline="PT5M", on_failure="return", step="2")) == arguments_digest(made())
    assert arguments_digest(replace(made(), call_id="x")) == arguments_digest(made())
