"""The sample agents: one answers at once, one pushes, one has to be asked, one asks back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demo_work import answer_to
from tests.support.processes import SampleAgent, wait_until
from tests.support.receiver import Receiver, RpcCaller, send_params


@pytest.fixture(scope="module", params=["instant", "pushing", "quiet"])
def any_agent(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleAgent]:
    with SampleAgent(request.param, log=tmp_path_factory.mktemp("agents") / "log").start() as agent:
        yield agent


@pytest.fixture
def caller(any_agent: SampleAgent) -> Iterator[RpcCaller]:
    with RpcCaller(any_agent.url) as caller:
        yield caller


def ended(caller: RpcCaller, task: dict[str, Any]) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = caller.call("GetTask", id=task["id"])
        return found if found["status"]["state"] in ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED") else None

    return wait_until(look, what="terminal state", every_s=0.1)


def test_a_goal_that_asks_for_it_fails_with_a_reason(caller: RpcCaller) -> None:
    """Every kind ends FAILED on purpose and says so."""
    task = ended(caller, caller.send("find a hotel, but fail on purpose")["task"])
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert "on purpose" in task["status"]["message"]["parts"][0]["text"]


def test_the_same_goal_gets_the_same_text(caller: RpcCaller) -> None:
    """The demo's answers are computed from the goal alone."""
    tasks = [ended(caller, caller.send("book a flight to Rome", messageId=each)["task"]) for each in ("m1", "m2")]
    texts = [task["artifacts"][0]["parts"][0]["text"] for task in tasks]
    assert texts[0] == texts[1]
    assert texts[0].startswith("Best flight: ")


@pytest.mark.parametrize(
    ("goal", "answer"),
    [
        ("Cheapest way to Oslo on Friday", "Best flight: "),
        ("A quiet room near the harbour", "Best hotel: "),
        ("Trains and weather", "Forecast: "),
    ],
)
def test_goals_of_the_documentation_get_an_answer_to_the_point(goal: str, answer: str) -> None:
    """A first try should not end in "nothing further to do"."""
    assert answer_to(goal).startswith(answer)


def test_a_task_is_found_by_the_message_that_made_it(caller: RpcCaller) -> None:
    """ListTasks gives the history with our messageId, over HTTP+JSON as well."""
    task = caller.send("summarise the ledger", messageId="m-list", contextId="c-list")["task"]
    listed = caller.call("ListTasks", contextId="c-list")["tasks"]
    assert [each["history"][0]["messageId"] for each in listed] == ["m-list"]
    assert caller.get(f"/rest/tasks/{task['id']}").json()["id"] == task["id"]


def test_instant_answers_with_a_message_or_a_terminal_task(tmp_path: Path) -> None:
    """Asked for the weather it starts no task; asked for anything else the first answer is the last."""
    with SampleAgent("instant", log=tmp_path / "log").start() as agent, RpcCaller(agent.url) as caller:
        assert caller.send("weather in Oslo")["message"]["parts"][0]["text"].startswith("Forecast: ")
        assert caller.send("flights to Oslo")["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


def test_pushing_answers_first_and_pushes_its_end_twice(tmp_path: Path) -> None:
    """SUBMITTED, then WORKING, then a duplicate of the terminal push, each with both credentials."""
    log = tmp_path / "log"
    with Receiver() as receiver, SampleAgent("pushing", log=log).start() as agent, RpcCaller(agent.url) as caller:
        task = caller.send("flights to Rome", push_to=receiver.url)["task"]
        assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
        wait_until(lambda: receiver.states().count("COMPLETED") == 2, what="second push of the end")
        assert receiver.states() == ["SUBMITTED", "WORKING", "COMPLETED", "COMPLETED"]
        headers = [(head["x-a2a-notification-token"], head["authorization"]) for head, _ in receiver.received]
        assert set(headers) == {("t-1", "Bearer t-1")}


def test_a_running_task_can_be_cancelled(tmp_path: Path) -> None:
    """CancelTask stops the work, and a second one is refused."""
    with SampleAgent("quiet", log=tmp_path / "log").start() as agent, RpcCaller(agent.url) as caller:
        task_id = caller.send("flights to Rome")["task"]["id"]
        assert caller.call("CancelTask", id=task_id)["status"]["state"] == "TASK_STATE_CANCELED"
        assert caller.error("CancelTask", id=task_id) == -32002


def test_quiet_neither_pushes_nor_streams(tmp_path: Path) -> None:
    """Its card says so, and a push config created for a task is refused."""
    with SampleAgent("quiet", log=tmp_path / "log").start() as agent, RpcCaller(agent.url) as caller:
        card = caller.get("/.well-known/agent-card.json").json()
        assert not any(card["capabilities"].values())
        task_id = caller.call("SendMessage", **send_params("hotel in Rome"))["task"]["id"]
        config = {"taskId": task_id, "id": "p1", "url": "http://127.0.0.1:9/hook"}
        assert caller.error("CreateTaskPushNotificationConfig", **config) == -32003


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        ([{"text": "Friday"}], "Friday it is."),
        ([{"data": {"day": "Friday", "hour": 7.5}}], "Friday, 7.5 it is."),
        ([{"data": "Friday"}], "Friday it is."),
    ],
)
def test_asking_asks_once_and_ends_with_the_answer(tmp_path: Path, parts: list[dict[str, Any]], answer: str) -> None:
    """A message for its task that waits is the answer to its question, as text or as data."""
    with SampleAgent("asking", log=tmp_path / "log").start() as agent, RpcCaller(agent.url) as caller:
        asked = caller.send("find a flight")["task"]

        def state() -> str:
            found: str = caller.call("GetTask", id=asked["id"])["status"]["state"]
            return found

        wait_until(lambda: state() == "TASK_STATE_INPUT_REQUIRED", what="question", every_s=0.1)
        caller.send("", taskId=asked["id"], contextId=asked["contextId"], messageId="m2", parts=parts)
        wait_until(lambda: state() == "TASK_STATE_COMPLETED", what="end", every_s=0.1)
        task = caller.call("GetTask", id=asked["id"])
        assert task["artifacts"][0]["parts"] == [{"text": answer}]
