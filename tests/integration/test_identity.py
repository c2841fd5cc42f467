"""Secured agents, token servers and certificates do what the other tests believe they do, seen with plain httpx."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.identity import Authority, Identity
from tests.support.identity_tls import ServerTls
from tests.support.identity_tokens import (
    BASIC,
    CLIENT_ID,
    CLIENT_SECRET,
    DISCOVERY_PATH,
    POST,
    UNSAID,
    TokenServer,
    garbage,
    huge,
    redirect,
    refusal,
    token,
)
from tests.support.processes import ScriptedAgent
from tests.support.raw_server import RawServer, says
from tests.support.receiver import send_params

FORM = {"grant_type": "client_credentials", "scope": "a2a.read a2a.write", "audience": "https://agent.example"}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    with ScriptedAgent(tmp_path).start() as agent:
        yield agent


def ask_for_token(server: TokenServer, **options: Any) -> httpx.Response:
    options = {"data": FORM, "auth": (CLIENT_ID, CLIENT_SECRET), **options}
    return httpx.post(server.token_url, trust_env=False, timeout=30, **options)


def call(agent: ScriptedAgent, method: str = "SendMessage", params: Any = None, **options: Any) -> httpx.Response:
    body = {"jsonrpc": "2.0", "id": "1", "method": method, "params": params or send_params("hello")}
    return httpx.post(f"{agent.url}/rpc", json=body, trust_env=False, timeout=30, **options)


def trusting(authority: Authority, client: Identity | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.ca_bundle)
    if client is not None:
        context.load_cert_chain(*client.pair)
    return context


# ------------------------------------------------------------------ tokens


def test_each_token_request_gets_the_next_letter() -> None:
    """Without answers of a test's own, tokens are A, B, C…, and the log says who asked for what."""
    with TokenServer() as server:
        tokens = [ask_for_token(server).json()["access_token"] for _ in range(3)]
        assert tokens == ["A", "B", "C"]
        first = server.requests[0]
    assert (first.client_id, first.client_secret, first.auth_method) == (CLIENT_ID, CLIENT_SECRET, BASIC)
    assert (first.grant_type, first.scope, first.audience) == tuple(FORM.values())


def test_a_client_may_put_its_secret_into_the_form() -> None:
    """client_secret_post is logged as such, and refused by a server that does not take it."""
    form = {**FORM, "client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
    with TokenServer() as server:
        assert ask_for_token(server, data=form, auth=None).status_code == 200
        assert server.requests[-1].auth_method == POST
        server.auth_methods = [BASIC]
        assert ask_for_token(server, data=form, auth=None).json()["error"] == "invalid_client"


def test_a_wrong_secret_is_invalid_client() -> None:
    """Whatever the answers are, the secret comes first."""
    with TokenServer(token("A")) as server:
        answer = ask_for_token(server, auth=(CLIENT_ID, "wrong"))
        assert (answer.status_code, answer.json()["error"]) == (401, "invalid_client")
        assert answer.headers["www-authenticate"].startswith("Basic")


def test_answers_are_given_in_their_order_and_the_last_for_good() -> None:
    """Tokens as odd as a test wants them, errors, redirects and bodies that are none."""
    odd = token("A\r\nX-Evil: 1", expires_in="60")
    answers = [odd, token("B", expires_in=-1), token("C", expires_in=UNSAID), refusal(), refusal("server_error", 500)]
    with TokenServer(*answers, redirect("http://127.0.0.1:1/"), garbage()) as server:
        got = [ask_for_token(server) for _ in range(8)]
    assert [each.status_code for each in got] == [200, 200, 200, 401, 500, 307, 200, 200]
    assert (got[0].json()["access_token"], got[0].json()["expires_in"]) == ("A\r\nX-Evil: 1", "60")
    assert "expires_in" not in got[2].json()
    assert got[-1].text.startswith("<html>")


def test_huge_and_dripping_answers_last_as_long_as_the_client() -> None:
    """A client that hangs up ends them."""
    with TokenServer(huge()) as server:
        for answer in (None, server.drip(0.01)):
            server.answer_with(*([answer] if answer else [huge()]))
            with httpx.stream(
                "POST", server.token_url, data=FORM, auth=(CLIENT_ID, CLIENT_SECRET), trust_env=False, timeout=30
            ) as response:
                assert len(next(response.iter_raw(10))) == 10
            assert server.raw.wait_until_open(0, 30)


def test_held_answers_come_when_they_are_let_go() -> None:
    """Requests are counted before they are answered."""
    with TokenServer() as server, ThreadPoolExecutor(2) as pool:
        with server.held():
            asked = [pool.submit(ask_for_token, server) for _ in range(2)]
            assert len(server.wait_for_requests(2)) == 2
            assert not any(each.done() for each in asked)
        assert sorted(each.result().json()["access_token"] for each in asked) == ["A", "B"]


def test_the_issuer_is_right_or_wrong_on_demand() -> None:
    """The discovery document names the token endpoint, under a tenant's path as well; any member can be replaced."""
    with TokenServer() as server:
        document = httpx.get(server.issuer + DISCOVERY_PATH, trust_env=False).json()
        assert (document["issuer"], document["token_endpoint"]) == (server.issuer, server.token_url)
        assert httpx.get(f"{server.url}/t1{DISCOVERY_PATH}", trust_env=False).json()["issuer"] == f"{server.url}/t1"
        server.discovery = {"issuer": "https://elsewhere.example", "token_endpoint": None}
        document = httpx.get(server.issuer + DISCOVERY_PATH, trust_env=False).json()
        assert document["issuer"] == "https://elsewhere.example"
        assert "token_endpoint" not in document
        server.discovery_answer = says(500)
        assert httpx.get(server.issuer + DISCOVERY_PATH, trust_env=False).status_code == 500
        assert len(server.discoveries) == 4


def test_tokens_can_be_had_over_tls(authority: Authority) -> None:
    """For those who trust the authority."""
    with TokenServer(tls=authority.server().as_server()) as server:
        assert server.token_url.startswith("https://127.0.0.1:")
        assert ask_for_token(server, verify=trusting(authority)).json()["access_token"] == "A"
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            ask_for_token(server)


# ------------------------------------------------------------------ secured agents


def test_a_secured_agent_wants_one_of_the_alternatives(agent: ScriptedAgent) -> None:
    """All of one alternative: two headers, or a key in the query, or one in a cookie; else 401 with a challenge."""
    both = {"X-Team-Key": "k-1", "Authorization": "Bearer b-1"}
    agent.configure(credentials=[{"headers": both}, {"query": {"key": "k 2"}}, {"cookies": {"sid": "k3"}}])
    answers = [
        call(agent, headers={"X-Team-Key": "k-1"}),
        call(agent, headers=both),
        call(agent, params=send_params("again"), headers={"Cookie": "a=b; sid=k3"}),
    ]
    assert [each.status_code for each in answers] == [401, 200, 200]
    assert answers[0].headers["www-authenticate"].startswith("Bearer")
    refused, sent, other = agent.calls("SendMessage")
    assert (refused["refused"], sent["refused"]) == (True, False)
    assert agent.refused() == [refused]
    assert refused["credentials"] == {"x-team-key": "k-1"}
    assert sent["credentials"] == {"x-team-key": "k-1", "authorization": "Bearer b-1"}
    assert other["credentials"] == {"cookie": "a=b; sid=k3"}


def test_a_key_in_the_query_is_seen(agent: ScriptedAgent) -> None:
    """The ledger keeps the query beside the path."""
    agent.configure(credentials=[{"query": {"key": "k 2"}}])
    body = {"jsonrpc": "2.0", "id": "1", "method": "SendMessage", "params": send_params("hello")}
    answer = httpx.post(f"{agent.url}/rpc", params={"key": "k 2"}, json=body, trust_env=False)
    assert answer.status_code == 200
    (sent,) = agent.calls("SendMessage")
    assert (sent["http"], sent["query"]) == ("POST /rpc", "key=k+2")


def test_the_card_has_credentials_of_its_own(agent: ScriptedAgent) -> None:
    """Calls and the card are secured apart; the card's answer can be patched like any card."""
    schemes = {"tok": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}
    required = [{"schemes": {"tok": {"list": []}}}]
    agent.configure(
        card_credentials=[{"headers": {"Authorization": None}}],
        refusal={"status": 403, "body": "no"},
        card={"securitySchemes": schemes, "securityRequirements": required},
    )
    url = f"{agent.url}/.well-known/agent-card.json"
    assert (httpx.get(url, trust_env=False).status_code, call(agent).status_code) == (403, 200)
    card = httpx.get(url, trust_env=False, headers={"Authorization": "Bearer any"}).json()
    assert (card["securitySchemes"], card["securityRequirements"]) == (schemes, required)


def test_rules_go_by_what_a_call_carries(agent: ScriptedAgent) -> None:
    """A token is good for two calls, then another is wanted: what an expired bearer looks like to its owner."""
    gone = {"status": 401, "headers": {"WWW-Authenticate": 'Bearer error="invalid_token"'}}
    first, second = ({"headers": {"Authorization": f"Bearer {each}"}} for each in "AB")
    agent.script(
        [
            {"on": "GetTask", "with": first, "times": 2, "reply": {"id": "t1"}},
            {"on": "any", "without": second, "http": gone},
        ]
    )
    answers = [call(agent, "GetTask", {"id": "t1"}, headers=first["headers"]).status_code for _ in range(3)]
    assert answers == [200, 200, 401]
    assert "error" in call(agent, "GetTask", {"id": "t1"}, headers=second["headers"]).json()


def test_an_agent_may_want_a_client_certificate(tmp_path: Path, authority: Authority) -> None:
    """Over TLS the ledger names the client; without a certificate of the right authority there is no call at all."""
    tls = authority.server().as_server(clients_of=authority)
    stranger = Authority(tmp_path / "stranger").client()
    with ScriptedAgent(tmp_path, tls=tls).start() as agent:
        answer = call(agent, verify=trusting(authority, authority.client("us")))
        assert answer.status_code == 200
        for client in (None, stranger, authority.expired_client()):
            with pytest.raises((httpx.ReadError, httpx.ConnectError, httpx.RemoteProtocolError)):
                call(agent, verify=trusting(authority, client))
        (sent,) = agent.calls("SendMessage")
        assert sent["certificate"] == "us"
        agent.restart()
        card = httpx.get(f"{agent.url}/.well-known/agent-card.json", verify=trusting(authority, authority.client()))
        assert card.json()["supportedInterfaces"][0]["url"] == f"{agent.url}/rpc"


# ------------------------------------------------------------------ certificates


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [("wrong_host", "IP address mismatch"), ("expired", "expired"), ("self_signed", "self-signed certificate")],
)
def test_a_wrong_certificate_is_wrong_in_one_way(authority: Authority, kind: str, complaint: str) -> None:
    """Each is refused for its own reason."""
    identity: Identity = getattr(authority, kind)()
    with RawServer(says(200), tls=identity.as_server().context()) as server:
        with pytest.raises(httpx.ConnectError, match=complaint):
            httpx.get(server.url, verify=trusting(authority), trust_env=False)
        assert server.seen == []


def test_an_old_tls_version_can_be_served(authority: Authority) -> None:
    """A server that speaks TLS 1.0 and nothing newer finds no client of today."""
    tls = authority.server().as_server(version="1.0")
    assert ServerTls.from_json(tls.to_json()) == tls
    with RawServer(says(200), tls=tls.context()) as server, pytest.raises(httpx.ConnectError, match="SSL"):
        httpx.get(server.url, verify=trusting(authority), trust_env=False)
