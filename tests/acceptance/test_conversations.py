"""A delegation is a conversation: questions wait in the inbox, replies reach the agent task once, in order."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from delegation.agent_task import TaskState
from delegation.errors import DelegationEnded, InvalidArguments, UnknownDelegation
from delegation.state import Delegation, Outcome
from tests.support.invariants import check_at_rest
from tests.support.processes import ScriptedAgent, wait_until
from tests.support.survival import SHORT_LEASE, Scene, asks, ends_after, text_of
from workers import DelegationHandle, delegate, reply

AGENTS: dict[str, dict[str, Any]] = {
    "a": {},
    "off": {"updates": "off"},
    "polled": {"updates": "poll"},
    "busy": {"updates": "poll"},
}
ROUNDS, SAME_TURNS = 4, 3
DONE = text_of({"states": [["WORKING", 0], ["COMPLETED", 0.1]]})
#: More than one look by every rule there is.
LOOKS = 3

Rule = dict[str, Any]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("conversations")
    agents = {name: ScriptedAgent(directory, name=name) for name in AGENTS}
    limits = {"rounds": ROUNDS, "same_turns": SAME_TURNS}
    timing = {**SHORT_LEASE, "poll_max": 0.3, "lost_after": 4}
    with Scene(directory, agents=agents, agent_settings=AGENTS, timing=timing, config={"limits": limits}) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.renew()
    for agent in running.scripted.values():
        agent.configure(timestamps="real")
    return running


def open_asking(scene: Scene, agent: str = "a", **goal: Any) -> tuple[str, str]:
    """A delegation whose first question is out; its id, and that of its agent task, which rules can name."""
    task_id = f"t-{uuid4().hex}"
    delegation_id = scene.open_one(asks(**{"id": task_id, **goal}), agent=agent)
    scene.wait_for_question(delegation_id)
    return delegation_id, task_id


def to_task(task_id: str, **answer: Any) -> Rule:
    """A rule for what follows the first message."""
    return {"on": f"SendMessage with taskId='{task_id}'", **answer}


def old_answer(scene: Scene, delegation_id: str) -> dict[str, Any]:
    """The agent task as it is now, without its history: what a lagging agent goes on saying."""
    task = scene.task_of(delegation_id)
    return {name: task[name] for name in ("id", "contextId", "status")}


def outcome_at_rest(scene: Scene, delegation_id: str) -> Outcome:
    delegation = scene.wait_until_settled(delegation_id)
    check_at_rest(scene)
    assert delegation.outcome is not None
    return delegation.outcome


def texts(scene: Scene, delegation_id: str) -> list[str]:
    return [line["text"] for line in scene.records.history(delegation_id)]


def messages_of_ours(scene: Scene, delegation_id: str) -> list[dict[str, Any]]:
    return [each for each in scene.task_of(delegation_id)["history"] if each["role"] == "ROLE_USER"]


def number_of_question(delegation: Delegation) -> int:
    assert delegation.progress.question is not None
    return delegation.progress.question.number


# ---------------------------------------------------------------- questions


def test_a_question_is_answered_and_asked_again_and_done(scene: Scene) -> None:
    """Text, then data, then both: each reaches the agent task under its own messageId, and it completes."""
    first, second = {"turns": [asks("Which year?"), ends_after(0.1, artifact="booked")]}, {"month": 5, "days": [1, 2]}
    delegation_id, _ = open_asking(scene, turns=[asks("Which day?"), asks("Which year?"), ends_after(0.1)])
    handle = scene.handle(delegation_id)
    asked = handle.describe()
    assert asked["state"] == "INPUT_REQUIRED"
    assert (asked["question"]["number"], asked["question"]["text"]) == (1, "Which month?")
    assert delegation_id in scene.records.inbox()

    assert handle.reply("May") == 1
    scene.wait_for_question(delegation_id, 2)
    assert handle.reply(data=second) == 2
    scene.wait_for_question(delegation_id, 3)
    assert handle.describe()["replies"] == {"sent": 2, "waiting": 0}
    assert handle.reply("2027", data=first) == 3

    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert scene.accepted(delegation_id) == [
        f"{delegation_id}:goal",
        *(f"{delegation_id}:reply:{n}" for n in (1, 2, 3)),
    ]
    parts = [
        [part.get("text", part.get("data")) for part in said["parts"]]
        for said in messages_of_ours(scene, delegation_id)
    ]
    assert parts[1:] == [["May"], [second], ["2027", first]]
    assert delegation_id not in scene.records.inbox()
    assert handle.describe()["question"] is None


def test_an_authorization_goes_on_by_itself(scene: Scene) -> None:
    """AUTH_REQUIRED is in the inbox with what is asked; it stays watched, and completes without a reply."""
    goal = {"states": [["AUTH_REQUIRED", 0, "Open the link"], ["WORKING", 1.5], ["COMPLETED", 1.7]], "push": False}
    delegation_id = scene.open_one(goal, agent="polled")
    waiting = scene.wait_for_question(delegation_id)
    assert scene.handle(delegation_id).describe()["question"]["state"] == "AUTH_REQUIRED"
    assert waiting.id in scene.records.inbox()
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert not scene.replies_sent(delegation_id)


def test_an_authorization_may_be_replied_to(scene: Scene) -> None:
    """Whoever has a word for the agent meanwhile says it in the same agent task."""
    delegation_id = scene.open_one({"states": [["AUTH_REQUIRED", 0, "Open the link"]]})
    scene.wait_for_question(delegation_id)
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.replies_sent(delegation_id)) == 1


def begin_lagging(scene: Scene, agent: str, timestamps: str = "real", *, message_ids: bool = True) -> tuple[str, str]:
    """A delegation whose agent goes on showing the old question after the reply, in the answer to it too."""
    scene.scripted[agent].configure(timestamps=timestamps)
    delegation_id, task_id = open_asking(scene, agent)
    old = old_answer(scene, delegation_id)
    if not message_ids:
        del old["status"]["message"]["messageId"]
    lagging = [to_task(task_id, reply={"task": old}), {"on": f"GetTask for {task_id}", "reply": old}]
    scene.scripted[agent].script(lagging)
    scene.handle(delegation_id).reply("May")
    scene.wait_for(delegation_id, lambda it: it.progress.turn == 1 and it.waits_for_agent, what="sent reply")
    return delegation_id, task_id


@pytest.mark.parametrize(
    ("agent", "timestamps"),
    [("a", "real"), ("polled", "none"), ("off", "real"), ("off", "none"), ("polled", "skew:-3600")],
)
def test_the_old_question_after_a_reply_is_no_new_one(scene: Scene, agent: str, timestamps: str) -> None:
    """It is not in the inbox, sends nothing again, and is read on until the agent moves, with `updates = off` too."""
    delegation_id, task_id = begin_lagging(scene, agent, timestamps)
    looks = len(scene.calls("GetTask", agent))
    if agent != "a":  # behind a push the next look is the safety net's
        scene.wait_for_calls("GetTask", looks + LOOKS, agent=agent)
    shown = scene.load(delegation_id)
    assert (number_of_question(shown), shown.waits_for_agent) == (1, True)
    assert delegation_id not in scene.records.inbox()
    assert scene.handle(delegation_id).describe()["question"] is None
    scene.scripted[agent].script([])
    scene.scripted[agent].move(task_id, "COMPLETED")
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.replies_sent(delegation_id)) == 1


@pytest.mark.parametrize("said", ["state", "time"])
def test_a_question_without_any_mark_is_known_by_what_comes_between(scene: Scene, said: str) -> None:
    """No timestamp, no message id: the same words still shown are the old question, and after WORKING a new one."""
    delegation_id, task_id = begin_lagging(scene, "polled", "none", message_ids=False)
    scene.wait_for_calls("GetTask", len(scene.calls("GetTask", "polled")) + LOOKS, agent="polled")
    assert number_of_question(scene.load(delegation_id)) == 1
    agent = scene.scripted["polled"]
    if said == "state":
        agent.script([])
        agent.move(task_id, "WORKING")
        scene.wait_for_state(delegation_id, "WORKING")
    else:
        agent.script([])
        agent.configure(timestamps="real")
    agent.move(task_id, "INPUT_REQUIRED", "Which month?")
    scene.wait_for_question(delegation_id, 2)
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.replies_sent(delegation_id)) == 2


@pytest.mark.parametrize(
    ("agent", "clock"), [("a", "real"), ("a", "skew:3600"), ("off", "skew:-3600"), ("off", "none")]
)
def test_the_same_words_with_a_new_time_are_asked_anew(scene: Scene, agent: str, clock: str) -> None:
    """Asked once more, without a state in between: a second question, even if the clock was put back or taken away."""
    delegation_id, _ = open_asking(scene, agent)
    scene.scripted[agent].configure(timestamps=clock)
    scene.handle(delegation_id).reply(text_of(asks()))
    again = scene.wait_for_question(delegation_id, 2)
    assert again.progress.status_text == "Which month?"
    assert delegation_id in scene.records.inbox()
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.replies_sent(delegation_id)) == 2


def test_an_agent_that_is_off_is_not_asked_while_it_waits(scene: Scene) -> None:
    """While its question is open not one request leaves, however often others are looked at meanwhile."""
    delegation_id, _ = open_asking(scene, "off")
    before = len(scene.ledger("off", "call"))
    other = scene.open_one({"states": [["WORKING", 0]]}, agent="busy")
    scene.wait_for_calls("GetTask", 2 * LOOKS, agent="busy")
    assert len(scene.ledger("off", "call")) == before
    scene.handle(delegation_id).reply(DONE)
    scene.scripted["busy"].move(str(scene.load(other).progress.agent_task_id), "COMPLETED")
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED


# ---------------------------------------------------------------- replies


def test_two_replies_given_at_once_go_out_one_by_one(scene: Scene) -> None:
    """Given before the first question: each waits for its own, the second for the answer to the first."""
    delegation_id = scene.open_one(asks("Which month?", 0.8))
    handle = scene.handle(delegation_id)
    assert [handle.reply(text_of(asks("Which year?", 0.3))), handle.reply(DONE)] == [1, 2]
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1", f"{delegation_id}:reply:2"]
    states = [line["state"] for line in scene.records.history(delegation_id) if line["cause"] == "reply"]
    assert states[-1] in ("WORKING", "COMPLETED")


def test_a_reply_stays_in_the_agents_own_context(scene: Scene) -> None:
    """The agent put the task into a context of its own: the reply goes there, from the same participant."""
    task_id = f"t-{uuid4().hex}"
    status = {"state": "TASK_STATE_INPUT_REQUIRED", "timestamp": "2026-03-01T10:00:00Z"}
    task = {"id": task_id, "contextId": f"own-{task_id}", "status": status}
    scene.scripted["polled"].script([{"on": "SendMessage without taskId", "times": 1, "reply": {"task": task}}])
    delegation_id = scene.open_one("a goal without a script", agent="polled")
    scene.wait_for_question(delegation_id)
    scene.handle(delegation_id).reply(DONE)
    scene.wait_until_settled(delegation_id)
    (sent,) = scene.replies_sent(delegation_id)
    assert (sent["task_id"], sent["context_id"]) == (task_id, f"own-{task_id}")
    assert sent["participant_id"] == sent["headers"]["x-participant-id"] == "delegation"


def test_a_callers_metadata_cannot_say_who_speaks(scene: Scene) -> None:
    """participant_id and deadline_at are ours in every message; anything else travels along as it was given."""
    delegation_id, _ = open_asking(scene)
    before = scene.load(delegation_id)
    given = {"participant_id": "alice", "deadline_at": "never", "trace": "t1", "tries": 3}
    scene.handle(delegation_id).reply(DONE, metadata=given)
    outcome_at_rest(scene, delegation_id)
    first, reply = (said["metadata"] for said in messages_of_ours(scene, delegation_id))
    assert reply == {**first, "trace": "t1", "tries": 3}
    assert first["participant_id"] == before.participant_id == "delegation"
    assert all(call["headers"]["x-participant-id"] == "delegation" for call in scene.ledger(kind="call"))


def test_a_double_click_is_one_reply(scene: Scene) -> None:
    """The same reply to the same question from four threads at once: one number, one message."""
    delegation_id, _ = open_asking(scene)
    handle, app = scene.handle(delegation_id), scene.app
    assert app is not None

    def click(_: int) -> int:
        app.set_current()  # Celery's current app is each thread's own
        return handle.reply(DONE)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(click, range(4))) == [1, 1, 1, 1]
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.replies_sent(delegation_id)) == 1


def test_a_reply_to_what_has_ended_is_refused(scene: Scene) -> None:
    """DelegationEnded, and nothing leaves."""
    delegation_id = scene.open_one()
    outcome_at_rest(scene, delegation_id)
    with pytest.raises(DelegationEnded):
        scene.handle(delegation_id).reply("too late")
    assert not scene.replies_sent(delegation_id)


# ---------------------------------------------------------------- replies that fail


@pytest.mark.parametrize("agent", ["a", "off"])
@pytest.mark.parametrize("fault", ["reset", "hang", "500"])
def test_a_reply_that_was_taken_but_not_answered_is_not_sent_again(scene: Scene, agent: str, fault: str) -> None:
    """The agent took it and the answer was lost: its history says so, or that it moved on."""
    lost = {"500": {"http": {"status": 500}}}.get(fault, {"end": fault})
    delegation_id, task_id = open_asking(scene, agent)
    scene.scripted[agent].script([to_task(task_id, work=True, times=1, **lost)])
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]
    assert len(scene.replies_sent(delegation_id)) == 1


@pytest.mark.parametrize("agent", ["polled", "off"])
def test_a_reply_whose_work_goes_on_asking_is_found_in_the_history(scene: Scene, agent: str) -> None:
    """Taken, answer lost, and the old question still shown: the history has the messageId, so once is enough."""
    delegation_id, task_id = open_asking(scene, agent)
    scene.scripted[agent].script([to_task(task_id, work=True, times=1, end="reset")])
    scene.handle(delegation_id).reply(json.dumps({"states": [["COMPLETED", 5]]}))
    scene.wait_for(
        delegation_id, lambda it: it.waits_for_agent and it.progress.turn_intent_at is None, what="reply that was found"
    )
    scene.scripted[agent].move(task_id, "COMPLETED")
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert len(scene.replies_sent(delegation_id)) == 1


@pytest.mark.parametrize("agent", ["a", "off"])
def test_a_reply_that_was_lost_on_its_way_is_sent_again(scene: Scene, agent: str) -> None:
    """The agent's history lacks it, twice and late enough: the same messageId goes out once more."""
    delegation_id, task_id = open_asking(scene, agent)
    scene.scripted[agent].script([to_task(task_id, times=1, end="reset")])
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    first, second = scene.replies_sent(delegation_id)
    assert first["message_id"] == second["message_id"] == f"{delegation_id}:reply:1"
    assert second["at"] - first["at"] >= 2.5  # a lease and a call deadline
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]


def test_an_agent_that_keeps_no_history_may_be_told_again(scene: Scene) -> None:
    """It took the reply, still shows the old question and cannot say so: the same messageId again is its cue."""
    delegation_id, task_id = open_asking(scene, "polled")
    old = old_answer(scene, delegation_id)
    agent = scene.scripted["polled"]
    agent.configure(dedup=True)
    agent.script([to_task(task_id, work=True, times=1, end="reset"), {"on": f"GetTask for {task_id}", "reply": old}])
    scene.handle(delegation_id).reply(json.dumps({"states": [["WORKING", 0]]}))
    scene.wait_for_state(delegation_id, "WORKING")
    agent.script([])
    agent.move(task_id, "COMPLETED")
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert [sent["message_id"] for sent in scene.replies_sent(delegation_id)] == [f"{delegation_id}:reply:1"] * 2
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]


def test_a_reply_waits_for_an_agent_that_is_down(scene: Scene) -> None:
    """Nobody listens: it is kept, and goes out once when the agent is back."""
    delegation_id, _ = open_asking(scene)
    scene.scripted["a"].kill()
    scene.handle(delegation_id).reply(DONE)
    scene.wait_for(delegation_id, lambda it: it.progress.failures >= 2, what="failed attempts")
    assert scene.handle(delegation_id).describe()["replies"] == {"sent": 0, "waiting": 1}
    assert delegation_id not in scene.records.inbox()
    scene.scripted["a"].start()
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]


def test_a_busy_agent_gets_the_reply_after_the_wait(scene: Scene) -> None:
    """429 with Retry-After: nothing was taken, and the same messageId comes after it."""
    delegation_id, task_id = open_asking(scene)
    busy = {"http": {"status": 429, "headers": {"Retry-After": "1"}}}
    scene.scripted["a"].script([to_task(task_id, times=1, **busy)])
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    first, second = scene.replies_sent(delegation_id)
    assert second["at"] - first["at"] >= 0.99
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]


@pytest.mark.parametrize("agent", ["a", "off"])
def test_a_refused_reply_opens_its_question_again(scene: Scene, agent: str) -> None:
    """-32602: told in the history, the same question waits once more, and the next reply has the next number."""
    delegation_id, task_id = open_asking(scene, agent)
    error = {"code": -32602, "message": "not a month"}
    scene.scripted[agent].script([to_task(task_id, times=1, error=error)])
    handle = scene.handle(delegation_id)
    handle.reply("Smarch")
    again = scene.wait_for(delegation_id, lambda it: it.waits_for_reply and it.progress.turn == 1, what="open question")
    assert number_of_question(again) == 1
    assert any("refused" in text and "not a month" in text for text in texts(scene, delegation_id))
    wait_until(lambda: delegation_id in scene.records.inbox(), what="inbox")
    assert handle.reply(DONE) == 2
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:2"]


def test_a_reply_waits_while_the_agent_task_is_not_found(scene: Scene) -> None:
    """-32001 once, from another replica: the reply stays, and is taken once."""
    delegation_id, task_id = open_asking(scene)
    error = {"code": -32001, "message": "no such task"}
    scene.scripted["a"].script([to_task(task_id, times=1, error=error)])
    scene.handle(delegation_id).reply(DONE)
    assert outcome_at_rest(scene, delegation_id).state is TaskState.COMPLETED
    assert scene.accepted(delegation_id)[1:] == [f"{delegation_id}:reply:1"]


def test_a_reply_to_an_agent_that_lost_the_task_ends_it(scene: Scene) -> None:
    """-32001 at every call for longer than lost_after: FAILED/agent_task.lost, the reply is not kept for ever."""
    delegation_id, task_id = open_asking(scene, "off")
    error = {"code": -32001, "message": "no such task"}
    scene.scripted["off"].script([{"on": "any", "match": task_id, "error": error}])
    scene.handle(delegation_id).reply(DONE)
    outcome = outcome_at_rest(scene, delegation_id)
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "agent_task.lost")


def test_a_reply_that_comes_after_the_end_brings_the_end(scene: Scene) -> None:
    """-32004, as the task had ended meanwhile and nobody said so: its end is fetched and applied."""
    delegation_id, task_id = open_asking(scene, "off")
    scene.scripted["off"].move(task_id, "COMPLETED", artifact="without you")
    scene.handle(delegation_id).reply("May")
    outcome = outcome_at_rest(scene, delegation_id)
    assert (outcome.state, outcome.text) == (TaskState.COMPLETED, "without you")
    assert len(scene.replies_sent(delegation_id)) == 1


# ---------------------------------------------------------------- round and round


def test_a_conversation_that_never_ends_is_ended(scene: Scene) -> None:
    """One question more than limits.rounds: FAILED/conversation.too_long, and the agent task is cancelled."""
    delegation_id, task_id = open_asking(scene)
    for number in range(1, ROUNDS + 1):
        scene.wait_for_question(delegation_id, number)
        scene.handle(delegation_id).reply(text_of(asks(f"And {number}?")))
    outcome = outcome_at_rest(scene, delegation_id)
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "conversation.too_long")
    assert len(scene.replies_sent(delegation_id)) == ROUNDS
    assert [call["task_id"] for call in scene.calls("CancelTask")] == [task_id]


def test_a_conversation_that_goes_in_circles_is_ended(scene: Scene) -> None:
    """The same question got the same reply limits.same_turns times in a row: FAILED/conversation.repeats, cancelled."""
    delegation_id, task_id = open_asking(scene)
    for number in range(1, SAME_TURNS + 1):
        scene.wait_for_question(delegation_id, number)
        scene.handle(delegation_id).reply(text_of(asks()))
    outcome = outcome_at_rest(scene, delegation_id)
    assert (outcome.state, outcome.reason) == (TaskState.FAILED, "conversation.repeats")
    assert len(scene.replies_sent(delegation_id)) == SAME_TURNS
    assert [call["task_id"] for call in scene.calls("CancelTask")] == [task_id]


# ---------------------------------------------------------------- Celery ids


def test_a_celery_id_is_as_good_as_a_delegations(scene: Scene) -> None:
    """What `delegate.delay` returns names the delegation everywhere: handles, replies, the `reply` task."""
    asks_again = {"states": [["WORKING", 0], ["INPUT_REQUIRED", 0.05, "Which year?"]]}
    goal = asks("Which month?", turns=[asks_again, ends_after(0.05)])
    call = delegate.delay(agent="a", goal=text_of(goal))
    handle = DelegationHandle.get(call.id)
    assert call.id != handle.id
    scene.wait_for_question(handle.id)
    assert DelegationHandle(call.id).reply("May") == 1
    scene.wait_for(handle.id, lambda it: it.waits_for_reply and it.progress.turn == 1, what="second question")
    reply.s(delegation_id=call.id).apply_async(("2027",)).get(timeout=30)
    ended = DelegationHandle(call.id).wait(30)
    assert (ended["delegation_id"], ended["state"]) == (handle.id, "COMPLETED")
    again = DelegationHandle(call.id)
    assert (again.describe()["id"], again.id) == (handle.id, handle.id)
    assert again.history()[0]["cause"] == "opened"
    assert DelegationHandle(call.id).cancel() is None
    check_at_rest(scene)


def test_a_links_celery_id_names_its_delegation(scene: Scene) -> None:
    """In a chain the id of the link's result does, once the link has run."""
    chain = delegate.s(agent="a", goal=DONE) | delegate.s(
        agent="a", goal=text_of(asks("Which month?", turns=[ends_after(0.05)]))
    )
    result = chain.apply_async()

    def second() -> DelegationHandle | None:
        with contextlib.suppress(UnknownDelegation):
            return DelegationHandle.get(result.id)
        return None

    handle = wait_until(second, 30, what="second link")
    scene.wait_for_question(handle.id)
    assert DelegationHandle(result.id).reply("May") == 1
    assert result.get(timeout=30)["delegation_id"] == handle.id
    assert DelegationHandle(result.parent.id).describe()["state"] == "COMPLETED"
    check_at_rest(scene)


def test_an_unknown_id_is_told_what_is_accepted(scene: Scene) -> None:
    """One line for every method, with the id that was given."""
    handle = DelegationHandle("nobody")
    for ask in (
        handle.describe,
        handle.history,
        handle.artifacts,
        handle.cancel,
        handle.wait,
        lambda: handle.reply("x"),
    ):
        with pytest.raises(UnknownDelegation) as refused:
            ask()
        assert str(refused.value) == (
            "unknown delegation nobody: give a delegation's id, or the Celery id of its `delegate` call"
        )


# ---------------------------------------------------------------- which question


def test_a_reply_may_name_its_question(scene: Scene) -> None:
    """It answers that one or is not sent: an approval must not approve what is asked next."""
    delegation_id, _ = open_asking(scene, turns=[asks("And the hotel?"), ends_after(0.1)])
    handle = scene.handle(delegation_id)
    with pytest.raises(InvalidArguments, match="question: 2 is not open; question 1 is"):
        handle.reply("yes", question=2)
    assert [handle.reply("yes", question=1), handle.reply("yes again", question=1)] == [1, 2]
    asked = scene.wait_for_question(delegation_id, 2)
    scene.wait_for(delegation_id, lambda it: it.progress.turn == 2, what="the second reply, used up")
    assert "reply 2 was meant for another question, and is not sent" in texts(scene, delegation_id)
    assert len(messages_of_ours(scene, delegation_id)) == 2
    assert asked.id in scene.records.inbox()
    assert handle.reply("no", question=2) == 3
    assert handle.wait(20)["state"] == "COMPLETED"


@pytest.mark.parametrize(
    "said", [{"text": "half \ud800"}, {"data": {"x": "\udfff"}}, {"text": "  "}, {"data": float("nan")}]
)
def test_what_cannot_be_sent_is_refused_at_once(scene: Scene, said: dict[str, Any]) -> None:
    """Before anything is kept."""
    delegation_id, _ = open_asking(scene)
    with pytest.raises(InvalidArguments):
        scene.handle(delegation_id).reply(**said)
    with pytest.raises(InvalidArguments, match="reason"):
        scene.handle(delegation_id).cancel("\ud800")
    assert scene.load(delegation_id).replies == 0


def test_a_workflows_reason_is_one_that_its_children_can_take(scene: Scene) -> None:
    """What is refused for a child is refused for the workflow, and nothing of it ends."""
    workflow = scene.open_workflow([asks()], joins=False)
    for end in (workflow.cancel, workflow.fail):
        with pytest.raises(InvalidArguments, match="reason"):
            end("x" * 501)
    assert workflow.describe()["state"] == "OPEN"
