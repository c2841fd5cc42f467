"""Tokens: asked for once for everybody, renewed in time and once after a 401; and token endpoints that misbehave."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import delegation.token_endpoint as token_endpoint
from delegation.access import MOST_KEPT, AgentAccess
from delegation.credentials import Credentials
from delegation.errors import AuthenticationRefused, CredentialUnavailable
from delegation.security import CredentialUse
from tests.support.clients import DEADLINE_S, message
from tests.support.identity_tokens import (
    CLIENT_ID,
    CLIENT_SECRET,
    UNSAID,
    TokenServer,
    garbage,
    huge,
    redirect,
    refusal,
    token,
)
from tests.support.raw_server import Behaviour, RawServer, closes, drips, resets, says
from tests.support.secured import Way, carries_bearer, every_call, wants, works

PATIENCE_S = 30.0


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLIENT_SECRET_OF_TEST", CLIENT_SECRET)


@pytest.fixture
def agent() -> Iterator[RawServer]:
    with RawServer(works) as server:
        yield server


def oauth2(tokens: TokenServer, **more: Any) -> dict[str, Any]:
    secret = {"client_id": CLIENT_ID, "client_secret": "env:CLIENT_SECRET_OF_TEST"}
    return {"type": "oauth2", "token_url": tokens.token_url, **secret, **more}


def oidc(tokens: TokenServer, path: str = "") -> dict[str, Any]:
    secret = {"client_id": CLIENT_ID, "client_secret": "env:CLIENT_SECRET_OF_TEST"}
    return {"type": "oidc", "issuer": tokens.issuer + path, **secret}


def shown(server: RawServer) -> list[str]:
    return [seen.headers.get("authorization", "") for seen in server.seen]


# ------------------------------------------------------------------ once for everybody


def test_twenty_threads_ask_for_one_token(agent: RawServer) -> None:
    """They wait for the one that asks, and all use what it got."""
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way, ThreadPoolExecutor(20) as threads:
        with tokens.held():
            looks = [threads.submit(way.get, PATIENCE_S) for _ in range(20)]
            tokens.wait_for_requests(1)
        for look in looks:
            look.result()
        assert len(tokens.requests) == 1
        assert set(shown(agent)) == {"Bearer A"}


def test_twenty_threads_whose_token_is_refused_ask_for_one_other(agent: RawServer) -> None:
    """C016: each call is made once more, under the same new token."""
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way, ThreadPoolExecutor(20) as threads:
        way.get()
        agent.behaviour = wants(carries_bearer("B"))
        for look in [threads.submit(way.get, PATIENCE_S) for _ in range(20)]:
            look.result()
        assert len(tokens.requests) == 2
        assert shown(agent).count("Bearer A") <= 21
        assert shown(agent).count("Bearer B") == 20


def test_refused_again_is_refused(agent: RawServer) -> None:
    """The new token gets 401 as well: one call more and no third token, for everybody who asks for a while."""
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        way.get()
        agent.behaviour = says(401)
        with pytest.raises(AuthenticationRefused):
            way.client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S)
        assert shown(agent) == ["Bearer A", "Bearer A", "Bearer B"]
        for _ in range(10):
            with pytest.raises(AuthenticationRefused):
                way.get()
        assert len(tokens.requests) == 2
        assert shown(agent)[3:] == ["Bearer B"] * 10
        agent.behaviour = wants(carries_bearer("B"))  # the agent has changed its mind
        way.get()


def test_after_a_while_a_refused_token_is_replaced_again(agent: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wrong may have been put right at the token endpoint."""
    monkeypatch.setattr(token_endpoint, "REPLACED_S", 0.0)
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        agent.behaviour = wants(carries_bearer("C"))
        with pytest.raises(AuthenticationRefused):
            way.get()
        way.get()
        assert len(tokens.requests) == 3


def test_a_server_that_gives_the_same_token_again_is_no_reason_to_ask_again(agent: RawServer) -> None:
    """Never twice with one rejected token in a row."""
    agent.behaviour = says(401)
    with TokenServer(token("A")) as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        with pytest.raises(AuthenticationRefused):
            way.get()
        assert len(agent.seen) == 1
        assert len(tokens.requests) == 2


def test_a_stream_that_is_refused_has_its_token_replaced(agent: RawServer) -> None:
    """`forget_credentials` is what a follower says after a 401; secrets of others change nothing."""
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        way.get()
        way.client.forget_credentials(("other", ""))
        way.get()
        way.client.forget_credentials(("other", "A"))
        way.get()
        assert shown(agent) == ["Bearer A", "Bearer A", "Bearer B"]


@pytest.mark.parametrize(
    ("expires_in", "good_for_s"),
    [
        (3600, 3540.0),
        (60, 54.0),
        ("60", 54.0),
        (UNSAID, 3540.0),
        (None, 3540.0),
        (0, 5.0),
        (-1, 5.0),
        (1, 5.0),
        (10**12, 7 * 86_400.0 - 60),
    ],
)
def test_a_token_is_renewed_shortly_before_it_ends(expires_in: Any, good_for_s: float) -> None:
    """A minute, or a tenth of its life, before; never more often than every five seconds, at least once a week."""
    with TokenServer(token("A", expires_in=expires_in)) as tokens:
        source = source_of(oauth2(tokens))
        before = time.monotonic()
        assert source.token(until=time.monotonic() + 10) == "A"
        kept = source._kept
        assert kept is not None
        assert before + good_for_s - 1 <= kept.until <= time.monotonic() + good_for_s


def test_an_old_token_is_replaced_before_it_is_refused(agent: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call leaves with a token that is over."""
    monkeypatch.setattr(token_endpoint, "LEAST_S", 0.0)
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        tokens.expires_in = -1
        way.get()
        tokens.expires_in = 3600
        way.get()
        way.get()
        assert shown(agent) == ["Bearer A", "Bearer B", "Bearer B"]


def test_a_process_that_was_forked_meanwhile_asks_for_itself() -> None:
    """The parent's thread that is asking does not exist in the child, its lock does."""
    with TokenServer() as tokens:
        source = source_of(oauth2(tokens))
        with tokens.held():
            parent = threading.Thread(target=lambda: source.token(until=time.monotonic() + 10))
            parent.start()
            tokens.wait_for_requests(1)
            fork = multiprocessing.get_context("fork")
            queue = fork.SimpleQueue()
            child = fork.Process(target=lambda: queue.put(source.token(until=time.monotonic() + 10)))
            child.start()
            tokens.wait_for_requests(2)
        child.join(PATIENCE_S)
        parent.join(PATIENCE_S)
        assert {queue.get(), source.token(until=time.monotonic() + 10)} == {"A", "B"}


def test_one_agents_tokens_are_shared_by_all_its_clients(agent: RawServer) -> None:
    """Other participants have clients of their own, and the same tokens; a card that asks for others has others, and
    what was chosen before keeps its own for a while, not for ever."""
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        choices = [(CredentialUse(position=0, scopes=(f"s{number}",)),) for number in range(100)]
        first = way.access.credentials(choices[0])
        assert way.access.credentials(choices[1]) is not first
        assert way.access.credentials(choices[0]) is first
        for choice in choices:
            way.access.credentials(choice)
        assert len(way.access._by_use) == MOST_KEPT
        assert tokens.requests == []


def test_no_connection_to_a_token_endpoint_is_kept(agent: RawServer) -> None:
    """Tokens last; connections for them need not."""
    with TokenServer() as tokens:
        for auth in (oauth2(tokens), oidc(tokens)):
            with Way(agent.url, auth=[auth]) as way:
                way.get()
        assert tokens.raw.wait_until_open(0, PATIENCE_S)


def test_no_secret_is_in_the_repr_of_a_source() -> None:
    """Nor in that of what it keeps."""
    with TokenServer(token("t0ken-of-the-team")) as tokens:
        source = source_of(oauth2(tokens))
        source.token(until=time.monotonic() + 10)
        said = repr((source, source._kept))
    assert "t0ken" not in said
    assert CLIENT_SECRET not in said


def source_of(entry: dict[str, Any]) -> token_endpoint.TokenSource:
    way = Way("http://127.0.0.1:9", auth=[entry])
    ((_, source),) = _credentials_of(way.access)._used
    assert source is not None
    return source


def _credentials_of(access: AgentAccess) -> Credentials:
    return access.credentials((CredentialUse(position=0),))


# ------------------------------------------------------------------ when there is none


def compressed() -> Behaviour:
    body = gzip.compress(json.dumps({"access_token": "A", "token_type": "Bearer"}).encode())
    return says(200, body, {"Content-Encoding": "gzip"})


def as_json(value: Any, status: int = 200) -> Behaviour:
    return says(status, value if isinstance(value, bytes) else json.dumps(value).encode())


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (refusal("invalid_client", 401), "HTTP 401: invalid_client"),
        (refusal("invalid_scope", 400), "HTTP 400: invalid_scope"),
        (refusal(f"no {CLIENT_SECRET} is known", 400), "HTTP 400: no *** is known"),
        (refusal("x\r\n\x1b[31m" + "y" * 500, 400), "HTTP 400: x"),
        (as_json({"error": {"code": 7}}, 400), "HTTP 400"),
        (refusal("server_error", 500), "HTTP 500: server_error"),
        (garbage(b"<html>", 502), "HTTP 502"),
        (garbage(), "not JSON"),
        (as_json({"error": "slow_down"}), "it answers slow_down"),
        (as_json({"error": None}), "it answers an error"),
        (as_json(b""), "not JSON"),
        (as_json([]), "not readable"),
        (as_json("text"), "not readable"),
        (as_json(None), "not readable"),
        (as_json(7), "not readable"),
        (as_json(b"[" * 60_000), "not JSON"),
        (as_json(b'{"access_token": "A", "expires_in": NaN}'), "not readable"),
        (as_json(b'{"access_token": "A", "expires_in": 1e999}'), "not readable"),
        (token("A", expires_in="soon"), "not readable"),
        (token("A", expires_in=[]), ""),
        (as_json({}), "no usable access_token"),
        (as_json({"access_token": ["A"], "token_type": "Bearer"}), "no usable access_token"),
        (token(""), "no usable access_token"),
        (token("A B"), "no usable access_token"),
        (token("A\r\nX-Evil: 1"), "no usable access_token"),
        (token("é"), "no usable access_token"),
        (token("x" * 10_000), "no usable access_token"),
        (token("A", token_type="mac"), "not a bearer token"),
        (as_json({"access_token": "A", "token_type": None}), "not a bearer token"),
        (redirect("http://127.0.0.1:9/", 307), "HTTP 307: a redirect, not followed"),
        (redirect("/token/", 302), "HTTP 302: a redirect, not followed"),
        (says(201), "HTTP 201"),
        (huge(), "larger than"),
        (compressed(), "compressed"),
        (resets(), "the connection broke"),
        (closes(), "the connection broke"),
    ],
)
def test_no_token_is_no_call(agent: RawServer, answer: Behaviour, said: str) -> None:
    """Whatever the token endpoint says: one line without the secret, and the agent hears nothing."""
    with TokenServer(answer) as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        if not said:  # an odd end of life alone does not matter
            way.get()
            return
        with pytest.raises(CredentialUnavailable) as raised:
            way.get()
        detail = raised.value.detail
        assert detail.startswith("token endpoint: ")
        assert said in detail
        assert CLIENT_SECRET not in repr(raised.value)
        assert detail.isprintable()
        assert len(detail) <= 250
        assert len(tokens.requests) == 1
    assert agent.connections == 0


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"issuer": "https://other.example"}, "of another issuer"),
        ({"issuer": None}, "of another issuer"),
        ({"token_endpoint": None}, "token_endpoint must be an absolute"),
        ({"token_endpoint": 7}, "token_endpoint must be an absolute"),
        ({"token_endpoint": "file:///etc/passwd"}, "token_endpoint must be an absolute"),
        ({"token_endpoint": "http://169.254.169.254/token"}, "token_endpoint must be https"),
        ({"token_endpoint": "http://127.0.0.1:9/token"}, "token_endpoint must be https"),
        ({"token_endpoint": "https://169.254.169.254/token"}, "link-local"),
        ({"token_endpoint": "https://u:p@issuer.example/token"}, "must not hold a user name"),
    ],
)
def test_discovery_leads_to_no_endpoint_that_it_must_not(agent: RawServer, document: dict[str, Any], said: str) -> None:
    """Another issuer's document; an endpoint without https elsewhere, or at an address that is never connected to."""
    with TokenServer() as tokens, Way(agent.url, auth=[oidc(tokens)]) as way:
        tokens.discovery = document
        with pytest.raises(CredentialUnavailable, match=said) as raised:
            way.get()
        assert raised.value.detail.startswith("token endpoint: ")
        assert len(raised.value.detail) <= 250
        assert tokens.requests == []
    assert agent.connections == 0


@pytest.mark.parametrize(
    "answer", [says(404), says(500), redirect("/x"), garbage(), says(200, b"[]"), huge(), compressed()]
)
def test_discovery_that_fails_is_no_call(agent: RawServer, answer: Behaviour) -> None:
    """Bounded like every other answer."""
    with TokenServer() as tokens, Way(agent.url, auth=[oidc(tokens)]) as way:
        tokens.discovery_answer = answer
        with pytest.raises(CredentialUnavailable, match=r"^token endpoint: "):
            way.get()
        assert tokens.requests == []
    assert agent.connections == 0


def test_a_token_endpoint_that_never_ends_costs_its_deadline(agent: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then: discovery and token have one deadline together, and whoever waits no longer than that."""
    monkeypatch.setattr(token_endpoint, "DEADLINE_S", 1.0)
    with TokenServer() as tokens, Way(agent.url, auth=[oidc(tokens)]) as way:
        tokens.answer_with(drips(lambda: tokens.raw, b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", 0.05))
        began = time.monotonic()
        with pytest.raises(CredentialUnavailable, match="no answer within the deadline"):
            way.get()
        assert time.monotonic() - began < 5
        assert tokens.raw.wait_until_open(0, PATIENCE_S)
    assert agent.connections == 0


def test_an_endpoint_that_is_away_is_said_to_be_that(agent: RawServer) -> None:
    """Not the agent: its token endpoint."""
    with TokenServer() as tokens:
        credential = oauth2(tokens)
    no_connection = pytest.raises(CredentialUnavailable, match=r"^token endpoint: no connection: ")
    with Way(agent.url, auth=[credential]) as way, no_connection:
        way.get()
    assert agent.connections == 0


def test_a_missing_client_secret_names_its_reference(agent: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """And nobody is asked."""
    monkeypatch.delenv("CLIENT_SECRET_OF_TEST")
    with TokenServer() as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        with pytest.raises(CredentialUnavailable, match="env:CLIENT_SECRET_OF_TEST is empty or not set"):
            way.get()
        assert tokens.requests == []
    assert agent.connections == 0


def test_a_failure_is_remembered_so_that_a_hundred_do_not_hammer(agent: RawServer) -> None:
    """Everybody who needs the token within five seconds hears the same."""
    with TokenServer(refusal()) as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        with ThreadPoolExecutor(20) as threads:
            failures = [look.exception() for look in [threads.submit(way.get, PATIENCE_S) for _ in range(100)]]
        assert {type(failure) for failure in failures} == {CredentialUnavailable}
        assert len(tokens.requests) <= 2  # more than one on a machine that takes more than five seconds for this
    assert agent.connections == 0


def test_a_failure_is_forgotten_in_time(agent: RawServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint is asked again, and calls go on."""
    monkeypatch.setattr(token_endpoint, "FAILURE_S", 0.0)
    answers = refusal("temporarily_unavailable", 503), token("A")
    with TokenServer(*answers) as tokens, Way(agent.url, auth=[oauth2(tokens)]) as way:
        with pytest.raises(CredentialUnavailable):
            way.get()
        way.get()
    assert shown(agent) == ["Bearer A"]


def test_a_401_while_no_token_can_be_had_is_our_trouble(agent: RawServer) -> None:
    """The agent refused the old token, and the endpoint gives no other: nothing was started, said as such."""
    with (
        TokenServer(token("A"), refusal("invalid_client", 401)) as tokens,
        Way(agent.url, auth=[oauth2(tokens)]) as way,
    ):
        way.get()
        agent.behaviour = says(401)
        for call in every_call(way.client).values():
            with pytest.raises(CredentialUnavailable, match="HTTP 401: invalid_client"):
                call()
        assert len(agent.seen) == 2
        assert len(tokens.requests) == 2


def test_the_token_endpoint_is_shown_no_credential_of_the_agent(
    agent: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key for calls and one for the card: neither is in a request for a token; nor are the agent's headers."""
    monkeypatch.setenv("KEY_OF_TEST", "key-of-the-team")
    key = {"type": "api_key", "name": "X-Team-Key", "key": "env:KEY_OF_TEST"}
    with TokenServer() as tokens:
        with Way(agent.url, auth=[oidc(tokens), key], card_auth=[key], headers={"X-Team": "travel"}) as way:
            way.get()
            way.card()
        for headers in (tokens.requests[0].headers, tokens.discoveries[0].headers):
            assert {"x-team-key", "x-team", "cookie"}.isdisjoint(headers)
        assert len(agent.seen) == 2
