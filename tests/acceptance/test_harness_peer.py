"""A peer as strict as tiny-harness, through all processes: participants, contexts, a log that it replays, streams that
end when it waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from delegation.task_extension import TASK_EXTENSION
from tests.support.processes import Deployment, HarnessAgent, wait_until
from workers import DelegationHandle, Workflow
from workers.runtime import reset_runtime, runtime

TWO_QUESTIONS = "work: 0.3 | ask: Which month? | ask: Which year? | say: done"
WATCHES = ("follow", "push", "poll", "off")
WAIT_S = 20


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HarnessAgent]:
    with HarnessAgent(tmp_path_factory.mktemp("peer"), requires_extension=True).start() as peer:
        yield peer


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, peer: HarnessAgent) -> Iterator[Deployment]:
    """The peer under one id for each way to hear back."""
    settings: dict[str, Any] = {watch: {"updates": watch, "follow_interval": 0.5} for watch in WATCHES}
    agents = dict.fromkeys(WATCHES, peer.url)
    directory = tmp_path_factory.mktemp("harness")
    with (
        pytest.MonkeyPatch.context() as patch,
        Deployment(directory, agents=agents, agent_settings=settings, follower=True) as it,
    ):
        for name, value in it.env.items():
            patch.setenv(name, value)
        reset_runtime()
        yield it
        runtime().store.close()
    reset_runtime()


def question(handle: DelegationHandle, number: int) -> str:
    def look() -> str | None:
        asked = handle.describe()["question"]
        return asked["text"] if asked and asked["number"] == number else None

    return wait_until(look, WAIT_S, what=f"question {number}")


@pytest.mark.parametrize("watch", WATCHES)
def test_two_questions_are_answered_and_it_completes(deployment: Deployment, peer: HarnessAgent, watch: str) -> None:
    """However it is heard: the replayed log asks nothing again, each reply reaches the one task as its reporter's."""
    workflow = Workflow.open("harness")
    handle = workflow.delegate(watch, TWO_QUESTIONS)
    assert question(handle, 1) == "Which month?"
    assert handle.reply("June", metadata={"participant_id": "alice"}) == 1
    assert question(handle, 2) == "Which year?"
    assert handle.reply("2026") == 2
    outcome = handle.wait(WAIT_S)
    assert (outcome["state"], outcome["text"]) == ("COMPLETED", "done: June, 2026")
    assert [note["state"] for note in workflow.notes()] == ["INPUT_REQUIRED", "INPUT_REQUIRED", "COMPLETED"]
    about_it = [call for call in peer.calls() if is_about(call, handle)]
    sent = [call["params"]["message"] for call in about_it if "message" in call["params"]]
    assert [each["messageId"].removeprefix(f"{handle.id}:") for each in sent] == ["goal", "reply:1", "reply:2"]
    assert {each["metadata"]["participant_id"] for each in sent} == {"delegation"}
    assert {each["contextId"] for each in sent} == {outcome["context_id"]}
    for call in about_it:
        assert call["headers"]["x-participant-id"] == "delegation"
        assert call["headers"]["a2a-extensions"] == TASK_EXTENSION
    peer.wait_for_streams(0)


def test_it_is_cancelled_while_it_waits(deployment: Deployment, peer: HarnessAgent) -> None:
    """By its reporter, whom it knows; the stream that was held for it is gone."""
    handle = Workflow.open("harness").delegate("follow", TWO_QUESTIONS, on_failure="return")
    question(handle, 1)
    handle.cancel("enough")
    assert handle.wait(WAIT_S)["state"] == "CANCELED"
    assert handle.describe()["cancel"] == "cancelled"
    peer.wait_for_streams(0)


def is_about(call: dict[str, Any], handle: DelegationHandle) -> bool:
    """Every A2A call for one delegation names its agent task or its context."""
    params = call["params"] or {}
    message = params.get("message", {})
    ids = {params.get("id"), params.get("taskId"), message.get("taskId"), message.get("contextId")}
    known = handle.describe()
    return bool(ids & {known["agent_task_id"], known["context_id"]})
