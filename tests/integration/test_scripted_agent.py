"""The scripted agent does what the other tests believe it does, seen over plain HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import ScriptedAgent
from tests.support.receiver import Receiver, RpcCaller, send_params


@pytest.fixture(scope="module")
def shared_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(tmp_path_factory.mktemp("agent")).start() as agent:
        yield agent


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(tmp_path).start() as agent:
        yield agent


@pytest.fixture
def client(agent: ScriptedAgent) -> Iterator[RpcCaller]:
    with RpcCaller(agent.url) as client:
        yield client


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


# ------------------------------------------------------------------ tasks


def test_the_script_in_the_goal_decides_the_states(agent: ScriptedAgent, client: RpcCaller) -> None:
    """A task passes the states of its script at their times and carries its artifact at the end."""
    task = client.send({"states": [["SUBMITTED", 0], ["WORKING", 0.01], ["COMPLETED", 0.02]], "artifact": "42"})["task"]
    assert task["status"]["state"] == "TASK_STATE_SUBMITTED"
    agent.wait_for(lambda entries: [e for e in entries if e.get("state") == "COMPLETED"])
    ended = client.call("GetTask", id=task["id"])
    assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
    assert ended["artifacts"][0]["parts"] == [{"text": "42"}]
    assert [e["state"] for e in agent.ledger("state")] == ["SUBMITTED", "WORKING", "COMPLETED"]


def test_a_blocking_send_waits_for_the_end(client: RpcCaller) -> None:
    """Without returnImmediately the answer to SendMessage is the terminal task."""
    task = client.send({"states": [["WORKING", 0], ["FAILED", 0.05, "no luck"]]}, return_immediately=False)["task"]
    assert task["status"]["state"] == "TASK_STATE_FAILED"
    assert task["status"]["message"]["parts"] == [{"text": "no luck"}]


def test_a_script_may_ask_for_a_message(agent: ScriptedAgent, client: RpcCaller) -> None:
    """A direct Message starts no task."""
    assert client.send({"message": "hello"})["message"]["parts"] == [{"text": "hello"}]
    assert agent.created() == []


def test_a_misspelt_script_is_refused(client: RpcCaller) -> None:
    """A key that means nothing is an error, not a silent default."""
    assert client.error("SendMessage", **send_params({"states": [], "artefact": "x"})) == -32602


def test_a_further_message_goes_on_with_the_task(client: RpcCaller) -> None:
    """A message that names an interrupted task brings the script of its next turn; a terminal task takes none."""
    task = client.send({"states": [["INPUT_REQUIRED", 0, "which month?"]]})["task"]
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    again = client.send({"states": [["COMPLETED", 0]]}, messageId="m2", taskId=task["id"])["task"]
    assert (again["id"], again["status"]["state"]) == (task["id"], "TASK_STATE_COMPLETED")
    assert client.error("SendMessage", **send_params("more", messageId="m3", taskId=task["id"])) == -32004


def test_two_sends_are_two_tasks_unless_it_dedups(agent: ScriptedAgent, client: RpcCaller) -> None:
    """By default a repeated messageId starts a second task, which is what a careless client would cause."""
    first, second = (client.send("anything")["task"]["id"] for _ in range(2))
    assert first != second
    agent.configure(dedup=True)
    assert client.send("anything")["task"]["id"] == second


def test_tasks_are_listed_by_context_with_the_message_that_made_them(agent: ScriptedAgent, client: RpcCaller) -> None:
    """ListTasks lets a client find the task of a send whose answer it never saw; it can be switched off."""
    client.send("one", messageId="m1", contextId="c1")
    client.send("two", messageId="m2", contextId="c2")
    listed = client.call("ListTasks", contextId="c2")
    assert [task["history"][0]["messageId"] for task in listed["tasks"]] == ["m2"]
    agent.configure(list_tasks=False)
    assert client.error("ListTasks", contextId="c2") == -32601


def test_cancel_has_many_manners(agent: ScriptedAgent, client: RpcCaller) -> None:
    """CancelTask cancels, is refused, unknown or ignored, as configured; a terminal task cannot be cancelled."""
    task_id = client.send({"states": [["WORKING", 0]]})["task"]["id"]
    agent.configure(cancel="unsupported")
    assert client.error("CancelTask", id=task_id) == -32004
    agent.configure(cancel="ignore")
    assert client.call("CancelTask", id=task_id)["status"]["state"] == "TASK_STATE_WORKING"
    agent.configure(cancel="refuse")
    assert client.error("CancelTask", id=task_id) == -32002
    agent.configure(cancel="accept")
    assert client.call("CancelTask", id=task_id)["status"]["state"] == "TASK_STATE_CANCELED"
    assert client.error("CancelTask", id=task_id) == -32002


def test_a_slow_cancel_may_lose_to_the_end(agent: ScriptedAgent, client: RpcCaller) -> None:
    """The task goes on while it is being cancelled, and is CANCELED only if it has not ended by then."""
    agent.configure(cancel="slow:0.1")
    states = [["WORKING", 0], ["COMPLETED", 0.05]]
    lasting, ending = (client.send({"states": each})["task"]["id"] for each in (states[:1], states))
    assert client.call("CancelTask", id=lasting)["status"]["state"] == "TASK_STATE_CANCELED"
    agent.configure(cancel="slow:0.5")
    assert client.error("CancelTask", id=ending) == -32002


def test_a_strict_agent_knows_only_who_began_a_task(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Nobody begins no task, a stranger finds none, and the message's word counts before the header."""
    agent.configure(strict_participant=True)
    assert client.error("SendMessage", **send_params("x")) == -32602
    script = {"states": [["INPUT_REQUIRED", 0]]}
    task_id = client.send(script, metadata={"participant_id": "us"})["task"]["id"]
    assert client.error("GetTask", id=task_id) == -32001
    assert client.call("ListTasks", contextId="c1")["tasks"] == []
    assert client.error("CancelTask", id=task_id) == -32001
    with RpcCaller(agent.url, {"X-Participant-Id": "us"}) as ours:
        assert ours.call("GetTask", id=task_id)["id"] == task_id
        forwarded = send_params(script, taskId=task_id, messageId="m2", metadata={"participant_id": "alice"})
        assert ours.error("SendMessage", **forwarded) == -32001
        assert ours.send(script, taskId=task_id, messageId="m3")["task"]["id"] == task_id


def test_extensions_are_added_to_the_card(agent: ScriptedAgent, client: RpcCaller) -> None:
    """URIs or objects, beside the other capabilities."""
    required = {"uri": "https://example.test/b", "required": True}
    agent.configure(extensions=["https://example.test/a", required], streaming=True)
    capabilities = client.get("/.well-known/agent-card.json").json()["capabilities"]
    assert capabilities["extensions"] == [{"uri": "https://example.test/a"}, required]
    assert capabilities["streaming"] is True


def test_the_ledger_tells_what_a_message_was_made_of(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Parts, data parts' media types, role and participant of each send, and the identity headers of each call."""
    parts = [{"text": "x"}, {"data": {}, "mediaType": "application/vnd.test+json"}]
    with RpcCaller(agent.url, {"X-Participant-Id": "us", "A2A-Extensions": "https://example.test/a"}) as ours:
        ours.send("x", parts=parts, metadata={"participant_id": "us"})
    (sent,) = agent.sends()
    assert (sent["parts"], sent["media_types"]) == (2, ["application/vnd.test+json"])
    assert (sent["role"], sent["participant_id"]) == ("ROLE_USER", "us")
    identity = {"x-participant-id": "us", "a2a-extensions": "https://example.test/a"}
    assert sent["headers"] == {"a2a-version": "1.0", **identity}


def test_the_ledger_witnesses_every_call(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Each request is in the file with its ids and the headers that matter, in order."""
    task_id = client.send("anything")["task"]["id"]
    client.call("GetTask", id=task_id)
    send, fetch = agent.calls()
    assert (send["method"], send["message_id"], send["context_id"]) == ("SendMessage", "m1", "c1")
    assert send["return_immediately"] is True
    assert send["headers"] == {"a2a-version": "1.0"}
    assert (fetch["method"], fetch["task_id"]) == ("GetTask", task_id)
    assert [entry["n"] for entry in agent.ledger()] == list(range(1, len(agent.ledger()) + 1))
    assert client.get("/_ledger?since=1").json() == agent.ledger()[1:]


# ------------------------------------------------------------------ pushes


def test_pushes_carry_both_headers_in_order(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """States after the answered one are pushed in order, each with token and Bearer, each attempt in the ledger."""
    client.send({"states": [["SUBMITTED", 0], ["WORKING", 0.01], ["COMPLETED", 0.02]]}, push_to=receiver.url)
    pushes = agent.wait_for_pushes(2)
    assert receiver.states() == ["WORKING", "COMPLETED"]
    assert [(push["state"], push["status"]) for push in pushes] == [("WORKING", 202), ("COMPLETED", 202)]
    headers, _body = receiver.received[0]
    assert (headers["x-a2a-notification-token"], headers["authorization"]) == ("t-1", "Bearer t-1")


def test_pushes_repeat_reverse_and_drop_as_told(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """Three times each, last state first, one state dropped and still in the ledger."""
    script = {
        "states": [["SUBMITTED", 0], ["WORKING", 0.01], ["INPUT_REQUIRED", 0.02], ["COMPLETED", 0.03]],
        "push_times": 3,
        "push_order": "reverse",
        "push_drop": ["INPUT_REQUIRED"],
    }
    client.send(script, push_to=receiver.url)
    pushes = agent.wait_for_pushes(7)
    assert receiver.states() == ["COMPLETED"] * 3 + ["WORKING"] * 3
    assert [push["state"] for push in pushes if push.get("dropped")] == ["INPUT_REQUIRED"]


def test_a_push_may_come_before_the_reply(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """The push is answered before SendMessage is, and may claim a state the task is not in."""
    script = {"states": [["WORKING", 0]], "push_before_reply": "COMPLETED"}
    task = client.send(script, push_to=receiver.url)["task"]
    assert task["status"]["state"] == "TASK_STATE_WORKING"
    assert receiver.states() == ["COMPLETED"]


def test_a_push_may_lie(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """Every push claims the state the script names, whatever the task's state is."""
    script = {"states": [["SUBMITTED", 0], ["WORKING", 0.01]], "push_lie": "FAILED", "push_headers": "token"}
    client.send(script, push_to=receiver.url)
    agent.wait_for_pushes(1)
    assert receiver.states() == ["FAILED"]
    assert "authorization" not in receiver.received[0][0]


def test_a_test_can_push_whatever_it_likes(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """With another token, another body, several times; a receiver that is not there is reported, not raised."""
    task_id = client.send({"states": [["WORKING", 0]]}, push_to=receiver.url)["task"]["id"]
    assert agent.push(task_id, token="forged", state="COMPLETED", times=2) == [202, 202]
    assert [headers["authorization"] for headers, _ in receiver.received] == ["Bearer forged"] * 2
    assert "Error" in str(agent.push(url="http://127.0.0.1:9/nobody")[0])


def test_push_configs_are_kept_listed_and_deleted(client: RpcCaller, receiver: Receiver) -> None:
    """Inline or created, a config is there until it is deleted; without push support the methods are refused."""
    task_id = client.send({"states": [["WORKING", 0]]}, push_to=receiver.url)["task"]["id"]
    made = client.call("CreateTaskPushNotificationConfig", taskId=task_id, id="p2", url=receiver.url, token="t")
    assert made["id"] == "p2"
    assert client.call("GetTaskPushNotificationConfig", taskId=task_id, id="p1")["token"] == "t-1"
    client.post("DeleteTaskPushNotificationConfig", taskId=task_id, id="p1")
    left = client.call("ListTaskPushNotificationConfigs", taskId=task_id)["configs"]
    assert [config["id"] for config in left] == ["p2"]


def test_moving_a_task_pushes_it(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """A test can drive a task by hand, with the pushes that belong to it; terminal stays terminal."""
    task_id = client.send({"states": [["WORKING", 0]]}, push_to=receiver.url)["task"]["id"]
    assert agent.move(task_id, "COMPLETED", artifact="by hand")["artifacts"][0]["parts"] == [{"text": "by hand"}]
    agent.wait_for_pushes(1)
    assert receiver.states() == ["COMPLETED"]
    assert agent.move(task_id, "FAILED")["status"]["state"] == "TASK_STATE_COMPLETED"


# ------------------------------------------------------------------ rules and faults


def test_rules_answer_in_order_and_run_out(agent: ScriptedAgent, client: RpcCaller) -> None:
    """The first rule that is not used up answers; after the last limited one the agent speaks for itself again."""
    working = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
    agent.script(
        [
            {"on": "GetTask", "times": 1, "reply": working},
            {"on": "GetTask", "times": 1, "error": {"code": -32001, "message": "not found"}},
            {"on": "GetTask", "times": 1, "http": {"status": 429, "headers": {"Retry-After": "4"}, "body": ""}},
            {"on": "GetTask", "times": 1, "reply": working, "id": "other"},
        ]
    )
    assert client.call("GetTask", id="t1") == working
    assert client.error("GetTask", id="t1") == -32001
    busy = client.post("GetTask", id="t1")
    assert (busy.status_code, busy.headers["Retry-After"]) == (429, "4")
    assert client.post("GetTask", id="t1").json()["id"] == "other"
    assert client.error("GetTask", id="t1") == -32001
    assert [call.get("rule") for call in agent.calls("GetTask")] == [0, 1, 2, 3, None]


def test_replies_come_one_per_call_and_the_last_stays(agent: ScriptedAgent, client: RpcCaller) -> None:
    """A list of replies is worked off; its last one answers every later call."""
    agent.script([{"on": "GetTask", "replies": [{"id": "t1"}, {"id": "t2"}]}])
    assert [client.call("GetTask", id="t")["id"] for _ in range(3)] == ["t1", "t2", "t2"]


def test_a_rule_can_be_bound_to_a_text(agent: ScriptedAgent, client: RpcCaller) -> None:
    """`match` looks into the message, for later calls into the message that started the named task."""
    agent.script([{"on": "GetTask", "match": "apples", "error": {"code": -32603, "message": "no"}}])
    apples, pears = (client.send(f"get {fruit}", messageId=fruit)["task"]["id"] for fruit in ("apples", "pears"))
    assert client.error("GetTask", id=apples) == -32603
    assert client.call("GetTask", id=pears)["id"] == pears


def test_rules_can_ask_for_a_header_and_a_task(agent: ScriptedAgent, client: RpcCaller) -> None:
    """A call without a named header is caught, and so is one for a named task or with a push config."""
    agent.script([{"on": "any", "unless_header": {"A2A-Version": "1.0"}, "error": {"code": -32009, "message": "no"}}])
    assert client.error("GetTask", id="t1") == -32001
    bare = httpx.post(f"{agent.url}/rpc", json={"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {}})
    assert bare.json()["error"]["code"] == -32009
    agent.script([{"on": "CancelTask for t2", "error": {"code": -32603, "message": "no"}}])
    assert [client.error("CancelTask", id=task_id) for task_id in ("t1", "t2")] == [-32001, -32603]
    agent.script([{"on": "SendMessage with push", "error": {"code": -32602, "message": "no"}}])
    assert client.error("SendMessage", **send_params("x", push_to="http://127.0.0.1:9/")) == -32602
    assert "task" in client.send("x")


def test_the_work_can_be_done_and_the_reply_lost(agent: ScriptedAgent, client: RpcCaller) -> None:
    """`work` with `end: reset` is the fault that tempts a client to send twice: the task exists, nobody was told."""
    agent.script([{"on": "SendMessage", "work": True, "end": "reset", "times": 1}])
    with pytest.raises(httpx.ReadError):
        client.send("anything")
    assert len(agent.created()) == 1
    assert client.call("ListTasks", contextId="c1")["tasks"][0]["history"][0]["messageId"] == "m1"


def test_connections_can_end_in_every_bad_way(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Closed without an answer, closed in the middle of one, or silent."""
    agent.script(
        [
            {"on": "GetTask", "end": "close", "times": 1},
            {"on": "GetTask", "http": {"status": 200, "body": "{}" * 50, "cut_after": 10}, "times": 1},
            {"on": "GetTask", "end": "hang", "times": 1},
        ]
    )
    for _ in range(2):
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("GetTask", id="t1")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{agent.url}/rpc", json={"method": "GetTask", "params": {}}, timeout=0.2)


def test_scripted_tasks_can_be_pushed_about(agent: ScriptedAgent, client: RpcCaller, receiver: Receiver) -> None:
    """A task that exists only in a scripted reply keeps the push config of its send; stand-ins are filled."""
    reply = {"task": {"id": "t1", "contextId": "{contextId}", "status": {"state": "TASK_STATE_WORKING"}}}
    agent.script([{"on": "SendMessage", "reply": reply}])
    assert client.send("x", push_to=receiver.url, contextId="c-9")["task"]["contextId"] == "c-9"
    assert agent.push("t1", state="COMPLETED") == [202]
    assert receiver.states() == ["COMPLETED"]


def test_http_rules_reach_the_card(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Any GET can be scripted; afterwards the agent's own card is back."""
    path = "/.well-known/agent-card.json"
    agent.script([{"on": f"GET {path}", "times": 1, "http": {"status": 401, "body": "no"}}])
    assert client.get(path).status_code == 401
    assert client.get(path).json()["capabilities"] == {"streaming": False, "pushNotifications": True}


@pytest.mark.parametrize(
    "rule", [{"on": "get task"}, {"on": "GetTask", "variants": []}, {"on": "GetTask", "reply": 1, "end": "close"}]
)
def test_a_rule_that_cannot_mean_anything_is_refused(shared_agent: ScriptedAgent, rule: dict[str, Any]) -> None:
    """A misspelt rule fails the test that wrote it."""
    with pytest.raises(ValueError, match="RuleError"):
        shared_agent.script([rule])


# ------------------------------------------------------------------ outages


def test_an_agent_can_answer_all_calls_with_a_status_or_not_at_all(agent: ScriptedAgent, client: RpcCaller) -> None:
    """Outages hit every call, the card's too, and never the control paths; what hangs is counted as in flight."""
    agent.configure(status=503)
    assert client.post("GetTask", id="t1").status_code == 503
    agent.configure(status=None, hang=True)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{agent.url}/.well-known/agent-card.json", timeout=0.2)
    assert agent.stats()["max_in_flight"] >= 1
    agent.configure(hang=False)
    assert client.error("GetTask", id="t1") == -32001


def test_a_frozen_agent_answers_when_it_is_thawed(agent: ScriptedAgent, client: RpcCaller) -> None:
    """SIGSTOP keeps the connection and the ledger readable; SIGCONT brings the answers."""
    agent.pause()
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{agent.url}/.well-known/agent-card.json", timeout=0.2)
    assert agent.ledger() == []
    agent.resume()
    assert client.get("/.well-known/agent-card.json").status_code == 200


def test_memory_survives_a_restart_only_when_kept(agent: ScriptedAgent, receiver: Receiver) -> None:
    """The same address after a kill, with the tasks, their push configs and timers, or without any of it."""
    with RpcCaller(agent.url) as client:
        task_id = client.send({"states": [["WORKING", 0], ["COMPLETED", 0.3]]}, push_to=receiver.url)["task"]["id"]
    agent.restart()
    agent.wait_for_pushes(1)
    assert receiver.states() == ["COMPLETED"]
    with RpcCaller(agent.url) as client:
        assert client.call("GetTask", id=task_id)["status"]["state"] == "TASK_STATE_COMPLETED"
    agent.restart(keep_memory=False)
    with RpcCaller(agent.url) as client:
        assert client.error("GetTask", id=task_id) == -32001
    assert [entry["n"] for entry in agent.ledger()] == list(range(1, len(agent.ledger()) + 1))


def test_open_connections_are_counted(agent: ScriptedAgent) -> None:
    """A client that leaves connections behind is found out."""
    with RpcCaller(agent.url) as client:
        client.get("/.well-known/agent-card.json")
        assert agent.open_connections() == 1
    agent.wait_until(lambda: agent.open_connections() == 0, what="closed connection")
