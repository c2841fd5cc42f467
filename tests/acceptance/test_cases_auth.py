"""Public bug reports about credentials, and what becomes of a delegation while an agent refuses ours."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.state import Delegation, Phase
from tests.support.agent_handle import ScriptedAgent
from tests.support.cases import (
    Bench,
    Rule,
    answer,
    bench,
    case_input,
    ended,
    on_send,
    record_of,
    script_of,
    wait_for_record,
)
from tests.support.identity import Authority
from tests.support.identity_tokens import CLIENT_ID, CLIENT_SECRET, TokenServer, token
from tests.support.processes import wait_until
from tests.support.raw_server import RawServer, Seen, answers, http
from tests.support.survival import asks, ends_after, text_of
from workers import DelegationHandle

CARD = "GET /.well-known/agent-card.json"
KEY, TOKEN = "key-of-the-team-k-1", "SECRET-b-1-of-the-team"
#: Long enough that looks before it are told from looks after it; and shorter than a minute.
LONG_GAP_S = 2.0
UNAVAILABLE_AFTER_S = 3.0
NEVER = {"states": [["WORKING", 0]]}
POLLED, STREAMS = {"push": False}, {"streaming": True}
#: Agents whose secret is in a file that a test rewrites.
CHANGING = ("reply", "cancel")
AGENTS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("c016", "c016-many", "c016-refused", *CHANGING), POLLED),
    **dict.fromkeys(("c036", "c036-or", "c036-missing"), STREAMS),
    "c036-follow": {"streaming": True, "push": False},
    **{name: {} for name in ("c095", "c095-word", "c095-line", "unset")},
}


def bearer(reference: str) -> dict[str, Any]:
    return {"type": "bearer", "token": reference}


def oauth2(tokens: TokenServer) -> dict[str, Any]:
    secret = {"client_id": CLIENT_ID, "client_secret": "env:CLIENT_SECRET_OF_TEST"}
    return {"type": "oauth2", "token_url": tokens.token_url, **secret}


def carrying(token_value: str) -> dict[str, Any]:
    return {"headers": {"Authorization": f"Bearer {token_value}"}}


@pytest.fixture(scope="module")
def tokens() -> Iterator[dict[str, TokenServer]]:
    with TokenServer(token("A"), token("B", expires_in=60)) as one, TokenServer() as many, TokenServer() as refused:
        yield {"c016": one, "c016-many": many, "c016-refused": refused}


@pytest.fixture(scope="module")
def it(tmp_path_factory: pytest.TempPathFactory, tokens: dict[str, TokenServer]) -> Iterator[Bench]:
    directory = tmp_path_factory.mktemp("auth")
    key = {"type": "api_key", "name": "X-Team-Key", "key": "env:KEY_OF_TEST"}
    both = [key, bearer("env:TOKEN_OF_TEST")]
    auth: dict[str, list[dict[str, Any]]] = {
        **{name: [oauth2(server)] for name, server in tokens.items()},
        **dict.fromkeys(("c036", "c036-follow", "c036-or"), both),
        "c036-missing": [key],
        "c095": [bearer("env:PLAIN_OF_TEST")],
        "c095-word": [bearer("env:WORD_OF_TEST")],
        "c095-line": [bearer("env:LINE_OF_TEST")],
        "unset": [bearer("env:UNSET_OF_TEST")],
        **{name: [bearer(f"file:{directory / name}")] for name in CHANGING},
    }
    settings: dict[str, dict[str, Any]] = {name: {"auth": entries} for name, entries in auth.items()}
    settings["c036-follow"]["follow_interval"] = 1
    with bench(
        directory,
        AGENTS,
        agent_settings=settings,
        timing={"recheck_first": LONG_GAP_S, "unavailable_after": UNAVAILABLE_AFTER_S, "cancel_deadline": 20},
        env={
            "CLIENT_SECRET_OF_TEST": CLIENT_SECRET,
            "KEY_OF_TEST": KEY,
            "TOKEN_OF_TEST": TOKEN,
            "PLAIN_OF_TEST": "b-1",
            "WORD_OF_TEST": "Bearer b-1",
            "LINE_OF_TEST": "b-1\r\nX-Evil: 1",
        },
        follower=True,
        concurrency=24,
    ) as started:
        yield started


def serve(it: Bench, agent: str, card: dict[str, Any], rules: list[Rule] | None = None) -> ScriptedAgent:
    """Let the agent serve this card; {AGENT} in it becomes its address."""
    handle = it.agents[agent]
    body = json.dumps(card).replace("{AGENT}", handle.url)
    handle.script([{"on": CARD, "http": {"status": 200, "headers": {}, "body": body}}, *(rules or [])])
    return handle


def posts(agent: ScriptedAgent) -> list[dict[str, Any]]:
    return [call for call in agent.calls() if call["http"].startswith("POST")]


def watched(delegation: DelegationHandle) -> Delegation:
    return wait_for_record(delegation, lambda d: d.phase is Phase.WATCHING, what="WATCHING")


def secret_of(it: Bench, agent: str, value: str) -> None:
    """What stands in the file that the agent's credential names."""
    path = it.deployment.directory / agent
    path.with_suffix(".new").write_text(f"{value}\n", encoding="ascii")
    path.with_suffix(".new").replace(path)


# ------------------------------------------------------------------ a token that expires


def by_token(rule: Rule) -> Rule:
    """`GetTask with Bearer A` as our rules say it."""
    method, value = re.fullmatch(r"(\w+) with Bearer (\w)", rule["on"]).groups()  # type: ignore[union-attr]
    return {**rule, "on": method, "with": carrying(value)}


def test_c016_a_token_that_expires_is_renewed_once(it: Bench, tokens: dict[str, TokenServer]) -> None:
    """401 for a look under A: one request for B, the same look again, COMPLETED; one send."""
    agent = it.agents["c016"]
    agent.script([by_token(rule) for rule in script_of("C016") if rule["on"] != "token endpoint"])

    assert ended(it.run("c016"))["text"] == "ok"
    assert len(tokens["c016"].requests) == 2
    assert len(agent.sends()) == 1
    assert [call["credentials"]["authorization"] for call in agent.calls("GetTask")] == [*["Bearer A"] * 3, "Bearer B"]


def test_c016_twenty_delegations_share_the_new_token(it: Bench, tokens: dict[str, TokenServer]) -> None:
    """All are polled while A ends: one request for B in the one worker there is, and all complete."""
    agent = it.agents["c016-many"]
    agent.configure(credentials=[carrying("A")])
    delegations = [it.run("c016-many", goal=text_of({**NEVER, "id": f"many-{n}"})) for n in range(20)]
    for delegation in delegations:
        watched(delegation)
    agent.configure(credentials=[carrying("B")])
    wait_until(lambda: len(_seen_by_token(agent, "B")) == 20, 60, what="looks at all of them under B")
    for number in range(20):
        agent.move(f"many-{number}", "COMPLETED", "done")

    assert {ended(delegation, 60)["state"] for delegation in delegations} == {"COMPLETED"}
    assert len(tokens["c016-many"].requests) == 2
    assert len(agent.sends()) == 20


def _seen_by_token(agent: ScriptedAgent, value: str) -> set[str]:
    """The agent tasks that were looked at with this token."""
    looks = agent.calls("GetTask")
    return {look["task_id"] for look in looks if look["credentials"].get("authorization") == f"Bearer {value}"}


def test_c016_refused_again_it_waits_and_says_why_and_goes_on(it: Bench, tokens: dict[str, TokenServer]) -> None:
    """The new token gets 401 too: WORKING as before, looks at long gaps, no third token; accepted, it completes."""
    agent = it.agents["c016-refused"]
    agent.configure(credentials=[carrying("A")])
    delegation = it.run("c016-refused", goal=text_of({**NEVER, "id": "refused"}))
    watched(delegation)
    agent.configure(credentials=[carrying("nothing that we have")])

    record = wait_for_record(delegation, lambda d: d.progress.failures >= 2, 60, what="second refused look")
    assert (record.phase, record.state) == (Phase.WATCHING, "WORKING")
    looks = [call["at"] for call in agent.refused() if call["method"] == "GetTask"]
    assert looks[-1] - looks[1] >= 0.9 * LONG_GAP_S  # the first look was made twice
    assert len(looks) <= 4
    shown = it.deployment.command("show", delegation.id)
    assert "authentication" in shown.stdout
    assert "WORKING" in shown.stdout
    assert len(tokens["c016-refused"].requests) == 2

    agent.configure(credentials=[carrying("B")])
    agent.move("refused", "COMPLETED", "done")
    assert ended(delegation, 60)["state"] == "COMPLETED"
    assert len(agent.sends()) == 1
    assert not any("c016" in line and "Traceback" in line for line in it.deployment.logs().splitlines())


# ------------------------------------------------------------------ where credentials go


def test_c031_no_credential_goes_from_https_to_http(tmp_path: Path) -> None:
    """The card, by https, names http on the same host: refused, and the plain port hears nothing."""
    authority = Authority(tmp_path / "authority")
    card = case_input("C031")["card"]
    with RawServer(answers({})) as plain:
        text = json.dumps(card).replace("127.0.0.1:{PLAIN}", plain.url.removeprefix("http://"))

        def serves_card(_: Seen, connection: socket.socket) -> bool:
            connection.sendall(http(200, text.encode()))
            return True

        with RawServer(serves_card, tls=authority.server().as_server().context()) as secured:
            settings = {"auth": [bearer("env:TOKEN_OF_TEST")], "ca_bundle": f"file:{authority.ca_bundle}"}
            with bench(
                tmp_path,
                [],
                urls={"c031": secured.url},
                agent_settings={"c031": settings},
                env={"TOKEN_OF_TEST": TOKEN},
            ) as it:
                outcome = ended(it.run("c031"))
            assert [seen.line.split(" ")[0] for seen in secured.seen] == ["GET"]
            assert "authorization" not in secured.seen[0].headers
        assert outcome["reason"] == "agent.refused"
        assert "card_origin_refused" in outcome["text"]
        assert plain.connections == 0


def carries_both(call: dict[str, Any]) -> bool:
    shown = call["credentials"]
    return bool(shown.get("x-team-key") == KEY and shown.get("authorization") == f"Bearer {TOKEN}")


def test_c036_every_call_carries_both_of_a_combination(it: Bench) -> None:
    """Send, look, cancel, clean-up of the push config, and subscribe: each value in its own header."""
    wanted = [{"headers": {"X-Team-Key": KEY, "Authorization": f"Bearer {TOKEN}"}}]
    card = case_input("C036")["card"]
    pushed = serve(it, "c036", card)
    followed = serve(it, "c036-follow", card | {"capabilities": {"streaming": True, "pushNotifications": False}})
    for agent in (pushed, followed):
        agent.configure(credentials=wanted)
    delegations = [it.run(agent, goal=text_of(NEVER)) for agent in ("c036", "c036-follow")]
    pushed.wait_for_calls("GetTask", timeout_s=30)
    followed.wait_for_calls("SubscribeToTask", timeout_s=30)
    for delegation in delegations:
        delegation.cancel()
        assert ended(delegation)["state"] == "CANCELED"
    pushed.wait_for_calls("DeleteTaskPushNotificationConfig", timeout_s=30)

    calls = [*posts(pushed), *posts(followed)]
    expected = {"SendStreamingMessage", "GetTask", "CancelTask", "SubscribeToTask", "DeleteTaskPushNotificationConfig"}
    assert {call["method"] for call in calls} >= expected
    assert all(carries_both(call) for call in calls)
    assert not any(call["credentials"] for agent in (pushed, followed) for call in agent.calls(CARD))


def test_c036_of_two_alternatives_one_complete_set_is_sent(it: Bench) -> None:
    """Two outer entries: the first that we have, and nothing of the other."""
    card = case_input("C036")["card"]
    card["securityRequirements"] = [{"schemes": {"tok": {"list": []}}}, {"schemes": {"key": {"list": []}}}]
    agent = serve(it, "c036-or", card)

    assert ended(it.run("c036-or", goal=text_of(ends_after(0.1))))["state"] == "COMPLETED"
    shown = [{**call["credentials"]} for call in posts(agent)]
    assert {each["authorization"] for each in shown} == {f"Bearer {TOKEN}"}
    assert not any("x-team-key" in each for each in shown)


def test_c036_a_missing_credential_is_named_before_anything_is_sent(it: Bench) -> None:
    """The key is there and the token not: `auth_missing: tok`, its cure, and no POST; commands say the same."""
    agent = serve(it, "c036-missing", case_input("C036")["card"])
    outcome = ended(it.run("c036-missing"))

    said = 'auth_missing: tok: add [[agents.auth]] type = "bearer"'
    assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent.refused")
    assert said in outcome["text"]
    assert posts(agent) == []
    rows = {row["id"]: row for row in json.loads(it.deployment.command("agents", "--json").stdout)}
    assert said in rows["c036-missing"]["reason"]
    assert rows["c016"]["auth"] == "oauth2"
    lines = it.deployment.command("doctor").stdout.splitlines()
    expected = {"c036-missing": "auth_missing: tok", "c016": "shown oauth2", "unset": "env:UNSET_OF_TEST is empty"}
    for name, said in expected.items():
        assert any(line.startswith(f"agent {name} ") and said in line for line in lines)


def test_c078_the_secret_is_at_the_agent_and_nowhere_else(tmp_path: Path) -> None:
    """By reference: the plain value on send, look, look after a worker's restart, and cancel; in no key of Redis."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="ascii")
    settings = {"c078": {"auth": [bearer(f"file:{file}")]}}
    with bench(tmp_path, {"c078": {"push": False}}, agent_settings=settings) as it:
        agent = it.agents["c078"]
        agent.configure(credentials=[carrying(TOKEN)])
        delegation = it.run("c078", goal=text_of(NEVER))
        watched(delegation)
        agent.wait_for_calls("GetTask")
        it.deployment.workers[0].kill()
        looks = len(agent.calls("GetTask"))
        it.deployment.start_worker()
        agent.wait_for_calls("GetTask", looks + 2, timeout_s=30)
        delegation.cancel()
        assert ended(delegation)["state"] == "CANCELED"

        assert {call["credentials"].get("authorization") for call in posts(agent)} == {f"Bearer {TOKEN}"}
        assert {"SendMessage", "GetTask", "CancelTask"} <= {call["method"] for call in posts(agent)}
        with it.deployment.valkey.client() as client:
            client.config_set("rdbcompression", "no")
            kept = {key: client.dump(key) for key in client.scan_iter()}
        assert any(delegation.id.encode() in (value or b"") for value in kept.values())
        assert [key for key, value in kept.items() if TOKEN.encode() in (value or b"")] == []
        assert TOKEN not in it.deployment.logs()
        assert TOKEN not in it.deployment.config_path.read_text(encoding="utf-8")


@pytest.mark.parametrize("agent", ["c095", "c095-word"])
def test_c095_the_scheme_is_written_once_and_as_it_should_be(it: Bench, agent: str) -> None:
    """`bearer` on the card, the token stored with the word or without: `Authorization: Bearer b-1`."""
    handle = serve(it, agent, case_input("C095")["card"], [on_send(answer("COMPLETED", "ok"))])

    assert ended(it.run(agent))["text"] == "ok"
    assert {call["credentials"]["authorization"] for call in posts(handle)} == {"Bearer b-1"}


def test_c095_a_line_break_in_a_credential_is_no_second_header(it: Bench) -> None:
    """Refused before anything is sent; the reference is named, what stands behind it is not."""
    handle = serve(it, "c095-line", case_input("C095")["card"])
    outcome = ended(it.run("c095-line"))

    assert outcome["reason"] == "agent.auth_failed"
    assert "env:LINE_OF_TEST is not one line of printable ASCII" in outcome["text"]
    assert "Evil" not in outcome["text"]
    assert posts(handle) == []


@pytest.mark.parametrize("status", [303, 307, 308])
def test_c083_only_a_redirect_that_keeps_the_message_is_followed(tmp_path: Path, status: int) -> None:
    """Same-origin 307 and 308: once, as POST, with the same body and messageId; others never, and no GET."""
    with RawServer(answers({})) as server:
        card = json.dumps(case_input("C083")["card"]).replace("{AGENT}", server.url)

        def behave(seen: Seen, connection: socket.socket) -> bool:
            if seen.line.startswith("GET"):
                connection.sendall(http(200, card.encode()))
            elif seen.line.startswith("POST /rpc "):
                connection.sendall(http(status, b"", {"Location": "/rpc/"}))
            else:
                task = {"id": "t1", "contextId": "c1", "status": {"state": "TASK_STATE_COMPLETED"}}
                result = {"task": {**task, "artifacts": [{"artifactId": "r1", "parts": [{"text": "ok"}]}]}}
                return answers(result)(seen, connection)
            return True

        server.behaviour = behave
        with bench(
            tmp_path, [], urls={"c083": f"{server.url}/cards/alpha.json"}, timing={"unavailable_after": 2}
        ) as it:
            outcome = ended(it.run("c083"))

        gets = [seen.line.split(" ")[1] for seen in server.seen if seen.line.startswith("GET")]
        assert gets == ["/cards/alpha.json"]
        sends = [seen for seen in server.seen if seen.line.startswith("POST") and b'"Send' in seen.body]
        if status in (307, 308):
            assert outcome["text"] == "ok"
            first, second = sends
            assert first.body == second.body
            assert first.rpc["params"]["message"]["messageId"] == second.rpc["params"]["message"]["messageId"]
        else:
            assert outcome["reason"] == "send.outcome_unknown"
            assert len(sends) == 1
            assert not any("/rpc/" in seen.line for seen in server.seen)


# ------------------------------------------------------------------ while our credentials are missing, or refused


def test_an_unset_secret_is_waited_for_and_then_said_to_be_the_reason(it: Bench) -> None:
    """Nothing is sent; it may be set meanwhile. After `unavailable_after`: FAILED, agent.auth_failed, the reference."""
    delegation = it.run("unset")
    waiting = wait_for_record(delegation, lambda d: d.progress.failures >= 1, what="first try")
    assert waiting.phase in (Phase.OPENED, Phase.STARTING)
    outcome = ended(delegation)

    assert (outcome["state"], outcome["reason"]) == ("FAILED", "agent.auth_failed")
    assert "env:UNSET_OF_TEST is empty or not set" in outcome["text"]
    causes = [entry for entry in delegation.history() if "env:UNSET_OF_TEST" in (entry["text"] or "")]
    assert causes
    assert posts(it.agents["unset"]) == []


def test_a_reply_that_is_refused_for_its_credentials_is_not_used_up(it: Bench) -> None:
    """401: it waits, and arrives once when the secret has been rotated; the question is the same."""
    agent = it.agents["reply"]
    secret_of(it, "reply", "k-1")
    agent.configure(credentials=[carrying("k-1")])
    delegation = it.run("reply", goal=text_of(asks(id="asking")))
    wait_for_record(delegation, lambda d: d.progress.question is not None, what="question")
    agent.configure(credentials=[carrying("k-2")])
    delegation.reply(text_of(ends_after(0.1)))
    wait_until(lambda: [call for call in agent.refused() if call["task_id"] == "asking"], 30, what="refused call")
    record = wait_for_record(delegation, lambda d: d.progress.failures >= 1, what="refused reply")
    assert record.has_reply_waiting
    assert record.phase is Phase.WATCHING

    secret_of(it, "reply", "k-2")
    assert ended(delegation, 60)["state"] == "COMPLETED"
    arrived = [sent for sent in agent.sends() if not sent["refused"] and sent["task_id"] == "asking"]
    assert len(arrived) == 1
    assert len(agent.created()) == 1


def test_a_cancel_that_is_refused_for_its_credentials_is_tried_again(it: Bench) -> None:
    """401 is not "cannot be cancelled": it is pending until the secret is right, and then cancelled."""
    agent = it.agents["cancel"]
    secret_of(it, "cancel", "k-1")
    agent.configure(credentials=[carrying("k-1")])
    delegation = it.run("cancel", goal=text_of(NEVER))
    watched(delegation)
    agent.configure(credentials=[carrying("k-2")])
    delegation.cancel()
    wait_until(lambda: [call for call in agent.refused() if call["method"] == "CancelTask"], 30, what="refused cancel")
    assert record_of(delegation).outcome is None

    secret_of(it, "cancel", "k-2")
    outcome = ended(delegation, 60)
    assert (outcome["state"], outcome["reason"]) == ("CANCELED", None)
    assert [call for call in agent.calls("CancelTask") if not call["refused"]]


def test_a_cancel_that_stays_refused_is_unconfirmed_at_its_deadline(tmp_path: Path) -> None:
    """Retried until then; CANCELED here, cancel.unconfirmed, and never "refused"; the clean-up waits for us as well."""
    secret = tmp_path / "secret"
    secret.write_text("k-1", encoding="ascii")
    settings = {"a": {"auth": [bearer(f"file:{secret}")]}}
    with bench(tmp_path, {"a": {"push": False}}, agent_settings=settings, timing={"cancel_deadline": 3}) as it:
        agent = it.agents["a"]
        delegation = it.run("a", goal=text_of(NEVER))
        watched(delegation)
        agent.configure(credentials=[carrying("k-2")])
        delegation.cancel()
        outcome = ended(delegation)
        assert (outcome["state"], outcome["reason"]) == ("CANCELED", "cancel.unconfirmed")
        assert len([call for call in agent.refused() if call["method"] == "CancelTask"]) >= 2
        record = wait_for_record(delegation, lambda d: d.phase is Phase.RELEASED and d.progress.failures >= 1, 30)
        assert record.progress.abandoned
        assert record.timers.cleanup_at is not None

        secret.write_text("k-2", encoding="ascii")
        wait_for_record(delegation, lambda d: d.timers.cleanup_at is None, 60, what="clean-up")
        assert [call for call in agent.calls("CancelTask") if not call["refused"]]


def test_a_card_that_wants_no_anonymous_caller_is_shown_its_own_credential(tmp_path: Path) -> None:
    """`card_auth` for the card; the rest with `auth`; an extended card too, where it is offered."""
    env = {"CARD_KEY_OF_TEST": "card-key-1", "TOKEN_OF_TEST": TOKEN}
    card_auth = [{"type": "api_key", "in": "query", "name": "key", "key": "env:CARD_KEY_OF_TEST"}]
    settings = {"a": {"auth": [bearer("env:TOKEN_OF_TEST")], "card_auth": card_auth}}
    agent = {"push": False, "credentials": [carrying(TOKEN)], "card_credentials": [{"query": {"key": "card-key-1"}}]}
    with bench(tmp_path, {"a": agent}, agent_settings=settings, env=env) as it:
        assert ended(it.run("a", goal=text_of(ends_after(0.1))))["state"] == "COMPLETED"
        handle = it.agents["a"]
        assert handle.refused() == []
        assert {call["query"] for call in handle.calls(CARD)} == {"key=card-key-1"}
        assert not any("authorization" in call["credentials"] for call in handle.calls(CARD))
        assert not any(call["query"] for call in posts(handle))


def test_an_agent_behind_mutual_tls_is_followed_with_certificate_and_token(tmp_path: Path) -> None:
    """Workers and follower show both on every call; the card is behind the certificate as well."""
    authority = Authority(tmp_path / "authority")
    auth = [{"type": "mtls", **authority.client("our-team").references}, bearer("env:TOKEN_OF_TEST")]
    settings = {"auth": auth, "ca_bundle": f"file:{authority.ca_bundle}", "follow_interval": 1}
    wanted = {"certificate": "our-team", **carrying(TOKEN)}
    agent = {
        "streaming": True,
        "push": False,
        "tls": authority.server().as_server(clients_of=authority),
        "credentials": [wanted],
        "card_credentials": [{"certificate": "our-team"}],
    }
    with bench(
        tmp_path, {"a": agent}, agent_settings={"a": settings}, env={"TOKEN_OF_TEST": TOKEN}, follower=True
    ) as it:
        handle = it.agents["a"]
        delegation = it.run("a", goal=text_of({**NEVER, "id": "followed"}))
        handle.wait_for_calls("SubscribeToTask", timeout_s=30)
        wait_for_record(delegation, lambda d: d.followed, 30, what="stream")
        handle.move("followed", "COMPLETED", "done")
        assert ended(delegation)["state"] == "COMPLETED"
        assert handle.refused() == []
        assert {call["certificate"] for call in handle.calls()} == {"our-team"}


def test_a_stream_whose_token_has_expired_is_opened_again_under_a_new_one(tmp_path: Path) -> None:
    """401 for the subscription: the follower asks for another token, once, and goes on; so do the workers."""
    with TokenServer() as tokens:
        settings = {"a": {"auth": [oauth2(tokens)], "follow_interval": 1}}
        first, second = ([carrying(value) for value in pair] for pair in (("A", "B"), ("C", "D")))
        agent = {"streaming": True, "push": False, "credentials": first}
        env = {"CLIENT_SECRET_OF_TEST": CLIENT_SECRET}
        with bench(tmp_path, {"a": agent}, agent_settings=settings, env=env, follower=True) as it:
            handle = it.agents["a"]
            delegation = it.run("a", goal=text_of({**NEVER, "id": "followed"}))
            handle.wait_for_streams(1, 30)
            handle.configure(credentials=second)
            handle.cut_streams("followed")
            wait_until(lambda: any(each["method"] == "SubscribeToTask" for each in handle.refused()), 30, what="401")
            handle.wait_for_streams(1, 30)
            handle.move("followed", "COMPLETED", "done")
            assert ended(delegation)["state"] == "COMPLETED"
            assert len(tokens.requests) <= 4
            assert sum(each["method"] == "SubscribeToTask" for each in handle.refused()) == 1
