"""What a step raises Celery repeats in its log, in events and in results: our own words alone (row B-06)."""

from __future__ import annotations

import traceback

import pytest
from celery import Celery
from celery.exceptions import Ignore

from delegation.errors import AgentRefused, AgentTaskFailed, ConfigurationError, StaleWrite, StepCrashed
from workers.tasks import hint

APP = Celery("steps", set_as_current=False)


@APP.task(bind=True, name="steps.test", shared=False)  # shared tasks join every other app
def a_task(_: object) -> None:
    """Something to be the step of."""


def raised(error: Exception) -> BaseException:
    """What leaves a step in which this is raised."""

    def words_of_an_agent(_self: object, _id: str) -> None:
        raise error

    with pytest.raises(BaseException) as caught:  # noqa: PT011  whatever it is
        hint(words_of_an_agent)(a_task, "f" * 32)
    return caught.value


@pytest.mark.parametrize(
    "error", [ValueError("c4n4ry"), AgentRefused("c4n4ry"), UnicodeDecodeError("utf-8", b"c4n4ry", 0, 1, "c4n4ry")]
)
def test_b06_of_what_was_not_foreseen_the_type_is_told_and_the_place(error: Exception) -> None:
    """Its text may be an agent's; the frames are ours."""
    left = raised(error)
    told = "".join(traceback.format_exception(left))
    assert (type(left), str(left)) == (StepCrashed, type(error).__name__)
    assert "c4n4ry" not in told
    assert "in words_of_an_agent" in told


@pytest.mark.parametrize(
    "error",
    [
        AgentTaskFailed("id", "a", "FAILED", None),
        ConfigurationError("key: wrong"),
        StaleWrite(),
        Ignore(),
        MemoryError(),
    ],
)
def test_b06_our_own_words_are_told_as_they_are(error: Exception) -> None:
    """Celery and users' errbacks go by the type."""
    assert raised(error) is error
