"""Public bug reports about who is spoken to and how: cards, addresses, versions, extensions, refused credentials."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from delegation.state import Phase
from tests.support.agent_handle import ScriptedAgent
from tests.support.cases import (
    Bench,
    answer,
    bench,
    case_input,
    ended,
    on_get,
    on_send,
    record_of,
    script_of,
    wait_for_record,
)
from tests.support.processes import ValkeyProcess, wait_until
from tests.support.raw_server import Behaviour, RawServer, Seen, answers, hangs, http
from workers import DelegationHandle

SECRET = "SECRET-b-1-of-the-team"
CARD = "GET /.well-known/agent-card.json"
NOT_CARDS = ["{}", "null", '{"supportedInterfaces": []}']
AGENTS = (
    *(f"c021-{number}" for number in range(len(NOT_CARDS))),
    *("c022-interface", "c022-card", "c022-call", "decoy", "c015", "c029", "c032", "c044", "c045", "c046", "c048"),
    *("c058", "c062", "c062-error", "c084", "c085", "c085-alone", "c092"),
)


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench(
        tmp_path_factory.mktemp("agents"),
        AGENTS,
        paths={"c032": "/agents/alpha"},
        agent_settings={"c015": {"headers": {"X-Team-Key": SECRET}}},
        timing={"card_ttl": 1},
    ) as started:
        yield started


def serve(it: Bench, agent: str, card: Any, rules: list[dict[str, Any]] | None = None) -> ScriptedAgent:
    """Let the agent serve this card; {AGENT} and {DECOY} in it become addresses."""
    handle = it.agents[agent]
    text = card if isinstance(card, str) else json.dumps(card)
    decoy = it.agents["decoy"]
    text = text.replace("127.0.0.1:{DECOY}", f"127.0.0.1:{decoy.port}").replace("{DECOY}", decoy.url)
    text = text.replace("{AGENT}", handle.url)
    handle.script([{"on": CARD, "http": {"status": 200, "headers": {}, "body": text}}, *(rules or [])])
    return handle


def posts(agent: ScriptedAgent) -> list[str]:
    return [call["http"] for call in agent.calls() if call["http"].startswith("POST")]


def refusal(delegation: DelegationHandle, reason: str = "agent.refused") -> str:
    """What is said about a delegation to a refused agent."""
    outcome = ended(delegation)
    assert (outcome["state"], outcome["reason"]) == ("FAILED", reason)
    text: str = outcome["text"]
    return text


def done(text: str = "ok") -> dict[str, Any]:
    return on_send(answer("COMPLETED", text))


def test_c015_no_secret_and_no_text_is_in_logs_messages_or_results(it: Bench) -> None:
    """Header, push token and the user's text, echoed by the agent in a 500: in no log, no message, no error text."""
    agent = it.agents["c015"]
    echo = {**script_of("C015")[0], "on": "GetTask", "times": 1}
    echo["http"]["body"] = f"echo: {SECRET}"
    agent.script([on_send(answer("WORKING")), echo, on_get(answer("COMPLETED"))])
    with commands_to(it.deployment.valkey) as commands:
        delegation = it.run("c015", goal=case_input("C015")["message"])
        wait_for_record(delegation, lambda d: d.progress.agent_task_id, what="task id")
        ((config,),) = [task["push_configs"] for task in agent.tasks()]
        ended(delegation)
        wait_for_record(delegation, lambda d: d.phase is Phase.RELEASED, what="RELEASED")

    carried = "\n".join(command for command in commands if ":celery:" in command)
    assert f"{delegation.id}.start" in carried
    for place in (it.deployment.logs(), carried, repr(delegation.history())):
        assert SECRET not in place
        assert config["token"] not in place
        assert "0000-TEST" not in place
    assert SECRET not in repr(commands)
    assert config["token"] not in repr(commands)


@contextmanager
def commands_to(valkey: ValkeyProcess) -> Iterator[list[str]]:
    """Everything that every process sends to Redis meanwhile."""
    seen: list[str] = []
    client = valkey.client()

    def listen(monitor: Any) -> None:
        for command in monitor.listen():
            seen.append(command["command"])
            if command["command"] == "ECHO enough":
                return

    with client, client.monitor() as monitor:  # type: ignore[no-untyped-call]
        listener = threading.Thread(target=listen, args=(monitor,))
        listener.start()
        yield seen
        client.echo("enough")
        listener.join(10)


@pytest.mark.parametrize("number", range(len(NOT_CARDS)))
def test_c021_what_is_no_card_is_refused_with_everything_that_is_missing(it: Bench, number: int) -> None:
    """{} and other values in the place of a card: refused before anything is sent, after one GET."""
    agent = serve(it, f"c021-{number}", NOT_CARDS[number])
    text = refusal(it.run(f"c021-{number}"))

    assert text.startswith("card_invalid: ")
    if number == 0:
        assert all(field in text for field in ("name", "supportedInterfaces", "version", "skills"))
    assert len(agent.calls(CARD)) == 1
    assert posts(agent) == []


def test_c022_an_interface_at_another_origin_gets_nothing(it: Bench) -> None:
    """A card that names somebody else's address: refused, and the decoy hears nothing."""
    patch = case_input("C022")["variants"][0]["card_patch"]
    card = {**case_input("C046")["card"], **patch}
    serve(it, "c022-interface", card)

    assert "card_origin_refused" in refusal(it.run("c022-interface"))
    assert it.agents["decoy"].calls() == []


def test_c022_redirects_of_a_card_and_of_a_call_are_not_followed(it: Bench) -> None:
    """302 for the card, 307 for the send: neither message nor header reaches where they point."""
    decoy = it.agents["decoy"]
    elsewhere = {"status": 302, "headers": {"Location": f"{decoy.url}/card"}, "body": ""}
    it.agents["c022-card"].script([{"on": CARD, "http": elsewhere}])
    call = {"status": 307, "headers": {"Location": f"{decoy.url}/steal"}, "body": ""}
    it.agents["c022-call"].script([{"on": "SendMessage", "http": call}, {"on": "ListTasks", "error": {"code": -32601}}])

    assert "redirect" in refusal(it.run("c022-card"))
    assert ended(it.run("c022-call"))["reason"] == "send.outcome_unknown"
    assert len(it.agents["c022-call"].sends()) == 1
    assert decoy.calls() == []


def test_c025_a_tenant_is_in_every_call_and_only_where_the_card_names_one(tmp_path: Path) -> None:
    """From the send to the clean-up after the deadline: params.tenant is the interface's, or no key at all."""
    with RawServer(hangs()) as with_tenant, RawServer(hangs()) as without:
        for server in (with_tenant, without):
            card = case_input("C025")["card"]
            (interface,) = card["supportedInterfaces"]
            interface["url"] = f"{server.url}/rpc"
            if server is without:
                del interface["tenant"]
            server.behaviour = _works_for_ever(card)
        with bench(tmp_path, [], urls={"c025": with_tenant.url, "c025-without": without.url}) as it:
            delegations = [it.run(agent, deadline=timedelta(seconds=3)) for agent in ("c025", "c025-without")]
            for delegation in delegations:
                ended(delegation)
                wait_for_record(delegation, lambda d: d.timers.cleanup_at is None, what="clean-up")

    for server, tenant in ((with_tenant, "blue-7"), (without, "no key")):
        calls = [seen.rpc for seen in server.seen if seen.line.startswith("POST")]
        methods = {"SendStreamingMessage", "GetTask", "CancelTask", "DeleteTaskPushNotificationConfig"}
        assert {call["method"] for call in calls} == methods
        assert {call["params"].get("tenant", "no key") for call in calls} == {tenant}


def _works_for_ever(card: dict[str, Any]) -> Behaviour:
    task = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_WORKING"}}
    results = {"SendStreamingMessage": {"task": task}, "GetTask": task, "CancelTask": task}

    def behave(request: Seen, connection: socket.socket) -> bool:
        if request.line.startswith("GET"):
            connection.sendall(http(200, json.dumps(card).encode()))
            return True
        return answers(results.get(request.rpc["method"], {}))(request, connection)

    return behave


def test_c029_every_request_names_the_version(it: Bench) -> None:
    """A2A-Version: 1.0 on the card's GET and on every call, those of clean-up after the deadline included."""
    agent = it.agents["c029"]
    needs_version, *_ = script_of("C029")
    needs_version = {**needs_version, "on": "any", "unless_header": {"a2a-version": "1.0"}}
    agent.script([needs_version, on_send(answer("WORKING")), on_get(answer("WORKING"))])
    delegation = it.run("c029", deadline=timedelta(seconds=3))
    ended(delegation)
    wait_for_record(delegation, lambda d: d.timers.cleanup_at is None, what="clean-up")

    calls = agent.calls()
    assert {call["method"] for call in calls} >= {CARD, "SendMessage", "GetTask", "CancelTask"}
    assert {call["headers"].get("a2a-version") for call in calls} == {"1.0"}


def test_c032_an_agent_below_a_path_is_spoken_to_there(it: Bench) -> None:
    """The card below the path is used and its URL posted to exactly; nothing goes to the root."""
    agent = it.agents["c032"]
    alpha = case_input("C046")["card"] | {"name": "Alpha"}
    alpha["supportedInterfaces"][0]["url"] = f"{agent.url}/agents/alpha"
    card = {"on": f"GET /agents/alpha{CARD.removeprefix('GET ')}", "http": {"body": json.dumps(alpha)}}
    agent.script([card, done()])

    assert ended(it.run("c032"))["text"] == "ok"
    assert set(posts(agent)) == {"POST /agents/alpha"}
    assert agent.calls(CARD) == []


def test_c044_a_refused_card_is_never_used_and_a_good_one_is_seen_in_time(it: Bench) -> None:
    """Twice refused without a POST; once the agent serves a good card, and the refusal has aged (1 s), it completes."""
    card = case_input("C044")["card"]
    agent = serve(it, "c044", json.dumps(card).replace("{AGENT_HOST}", "127.0.0.1"))
    texts = [refusal(it.run("c044")) for _ in range(2)]
    assert all("supportedInterfaces[0].url" in text for text in texts)
    assert posts(agent) == []

    agent.script([done()])
    good = wait_until(lambda: outcome if (outcome := ended(it.run("c044")))["reason"] is None else None, what="success")

    assert good["text"] == "ok"
    assert 2 <= len(agent.calls(CARD)) <= 5


def test_c045_a_card_behind_a_login_is_an_error_of_authentication(it: Bench) -> None:
    """401 for the card is said to be one; no other path is tried."""
    agent = it.agents["c045"]
    agent.script(script_of("C045"))
    text = refusal(it.run("c045"), "agent.auth_failed")

    assert "401" in text
    assert "authentication" in text
    assert [call["method"] for call in agent.calls()] == [CARD]


def test_c046_a_card_without_empty_fields_is_a_good_one(it: Bench) -> None:
    """No tags, no pushNotifications, unknown fields: accepted, and no push config is made."""
    rules = [on_send(answer("WORKING")), on_get(answer("COMPLETED", "ok"))]
    agent = serve(it, "c046", case_input("C046")["card"], rules)

    assert ended(it.run("c046"))["text"] == "ok"
    assert agent.sends()[0]["push_config"] is None
    # Its card promises streams that it does not offer.
    assert {call["method"] for call in agent.calls()} == {CARD, "SendStreamingMessage", "SendMessage", "GetTask"}


def test_c048_a_relative_address_is_refused_in_words(it: Bench) -> None:
    """A URL without scheme and host: refused, named, no POST, no traceback."""
    agent = serve(it, "c048", case_input("C048")["card"])
    text = refusal(it.run("c048"))

    assert "supportedInterfaces[0].url must be an absolute" in text
    assert posts(agent) == []
    assert "Traceback" not in it.deployment.logs()


def test_c058_refused_credentials_are_said_to_be_the_reason(it: Bench) -> None:
    """401 with an empty HTML body: refused, the status named, one send, counted."""
    agent = it.agents["c058"]
    agent.script(script_of("C058"))
    records = it.deployment.store()
    before = records.metrics()["counters"].get("credentials_refused", 0)
    text = refusal(it.run("c058"), "agent.auth_failed")
    assert records.metrics()["counters"]["credentials_refused"] == before + 1

    assert "401" in text
    assert "authentication" in text
    assert len(agent.sends()) == 1


def test_c062_a_required_extension_is_refused_before_anything_is_sent(it: Bench) -> None:
    """The card requires what we do not implement: its URI is named, the optional one is not, no POST."""
    agent = serve(it, "c062", case_input("C062")["card"])
    text = refusal(it.run("c062"))

    assert "extension_required: https://ext.example.test/pay/v2" in text
    assert "fun/v1" not in text
    assert posts(agent) == []


@pytest.mark.parametrize("variant", range(3))
def test_c062_a_refusal_for_an_extension_is_shown_and_not_retried(it: Bench, variant: int) -> None:
    """Whatever code the agent uses for it: the agent's words, one send."""
    agent = it.agents["c062-error"]
    sends_before = len(agent.sends())
    error = script_of("C062")[0]["variants"][variant]["error"]
    agent.script([{"on": "SendMessage", "error": error}])

    assert error["message"] in refusal(it.run("c062-error"))
    assert len(agent.sends()) == sends_before + 1


def test_c084_http_json_has_no_version_in_its_paths(it: Bench) -> None:
    """HTTP+JSON 1.0 at /api: message:stream, which is not there, message:send, and tasks/t1."""
    card = case_input("C046")["card"]
    card["supportedInterfaces"] = [{"url": "{AGENT}/api", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}]
    working, completed = (json.dumps(each) for each in ({"task": answer("WORKING")}, answer("COMPLETED", "ok")))
    rules = [{"on": "POST /api/message:send", "http": {"body": working}}]
    agent = serve(it, "c084", card, [*rules, {"on": "GET /api/tasks/t1", "http": {"body": completed}}])

    assert ended(it.run("c084"))["text"] == "ok"
    sends = {"POST /api/message:stream", "POST /api/message:send"}
    assert {call["http"] for call in agent.calls()} == {CARD, *sends, "GET /api/tasks/t1"}


def test_c085_an_interface_we_do_not_speak_is_passed_over(it: Bench) -> None:
    """gRPC first, JSONRPC second: the second is used. gRPC alone: refused with what it offers and what we speak."""
    card = case_input("C085")["card"]
    grpc, jsonrpc = card["supportedInterfaces"]
    agent = serve(it, "c085", {**card, "supportedInterfaces": [grpc, jsonrpc]}, [done()])
    alone = serve(it, "c085-alone", {**card, "supportedInterfaces": [grpc]})

    assert ended(it.run("c085"))["text"] == "ok"
    assert set(posts(agent)) == {"POST /rpc"}
    text = refusal(it.run("c085-alone"))
    assert "no_supported_interface: the card offers GRPC 1.0; we speak JSONRPC" in text
    assert posts(alone) == []
    assert it.agents["decoy"].calls() == []


def test_c092_a_card_in_snake_case_is_recognised_and_refused(it: Bench) -> None:
    """supported_interfaces is named as what was found in the place of supportedInterfaces; no POST."""
    agent = serve(it, "c092", case_input("C092")["card"])
    delegation = it.run("c092")

    assert "supportedInterfaces missing (found supported_interfaces)" in refusal(delegation)
    assert posts(agent) == []
    assert record_of(delegation).progress.agent_task_id is None
