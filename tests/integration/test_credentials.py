"""Credentials where they belong, on every call, and nowhere else."""

from __future__ import annotations

import base64
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from delegation.errors import (
    AgentError,
    AgentRefused,
    AuthenticationRefused,
    CallAmbiguous,
    CredentialUnavailable,
)
from delegation.redaction import redact_text
from tests.support.clients import DEADLINE_S, message
from tests.support.identity_tokens import BASIC, CLIENT_ID, CLIENT_SECRET, POST, TokenServer, token
from tests.support.raw_server import Behaviour, RawServer, Seen, says
from tests.support.secured import T1, Way, carries_bearer, every_call, wants, works

SECRET = "s3cret-of-the-team"
BINDINGS = ["JSONRPC", "HTTP+JSON"]
PAIR = base64.b64encode(f"us:{SECRET}".encode()).decode()


def bearer(reference: str = "env:SECRET_OF_TEST") -> dict[str, Any]:
    return {"type": "bearer", "token": reference}


def key(place: str, name: str, reference: str = "env:SECRET_OF_TEST") -> dict[str, Any]:
    return {"type": "api_key", "in": place, "name": name, "key": reference}


def client_credentials(tokens: TokenServer, **more: Any) -> dict[str, Any]:
    return {
        "type": "oauth2",
        "token_url": tokens.token_url,
        "client_id": CLIENT_ID,
        "client_secret": "env:CLIENT_SECRET_OF_TEST",
        **more,
    }


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", SECRET)
    monkeypatch.setenv("CLIENT_SECRET_OF_TEST", CLIENT_SECRET)


def query_of(seen: Seen) -> list[tuple[str, str]]:
    return parse_qsl(urlsplit(seen.line.split(" ")[1]).query, keep_blank_values=True)


def has_header(name: str, value: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.headers.get(name) == value


STATIC: list[tuple[dict[str, Any], Callable[[Seen], bool]]] = [
    (bearer(), has_header("authorization", f"Bearer {SECRET}")),
    (
        {"type": "basic", "username": "us", "password": "env:SECRET_OF_TEST"},
        has_header("authorization", f"Basic {PAIR}"),
    ),
    (key("header", "X-Team-Key"), has_header("x-team-key", SECRET)),
    (key("cookie", "session"), has_header("cookie", f"session={SECRET}")),
    (key("query", "key"), lambda seen: ("key", SECRET) in query_of(seen)),
]


# ------------------------------------------------------------------ where they go


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("number", range(len(STATIC)))
def test_every_call_carries_the_credential_in_its_place(binding: str, number: int) -> None:
    """In header, query or cookie; once each; the agent's own cookies come back on none."""
    credential, is_right = STATIC[number]
    with RawServer(works) as server, Way(server.url, binding=binding, auth=[credential]) as way:
        calls = every_call(way.client)
        for call in calls.values():
            call()
        assert len(server.seen) == len(calls)
        assert all(is_right(seen) for seen in server.seen)
        assert {seen.headers.get("cookie", "").count("theirs") for seen in server.seen} == {0}


@pytest.mark.parametrize("binding", BINDINGS)
def test_every_call_carries_all_of_a_combination(binding: str) -> None:
    """C036: two headers, a query parameter and two cookies, each with its own value."""
    auth = [bearer(), key("header", "X-Team-Key"), key("query", "key"), key("cookie", "a"), key("cookie", "b")]
    with RawServer(works) as server, Way(server.url, binding=binding, auth=auth) as way:
        for call in every_call(way.client).values():
            call()
        for seen in server.seen:
            assert seen.headers["authorization"] == f"Bearer {SECRET}"
            assert seen.headers["x-team-key"] == SECRET
            assert seen.headers["cookie"] == f"a={SECRET}; b={SECRET}"
            assert query_of(seen).count(("key", SECRET)) == 1


@pytest.mark.parametrize("method", [BASIC, POST])
@pytest.mark.parametrize("binding", BINDINGS)
def test_every_call_carries_the_token_that_was_asked_for_once(binding: str, method: str) -> None:
    """OAuth 2.0 client credentials, in the header or in the form; scopes and audience go to the token endpoint."""
    with TokenServer() as tokens, RawServer(wants(carries_bearer("A"))) as server:
        credential = client_credentials(
            tokens, auth_method=method, scopes=["read", "write"], audience="https://a.example"
        )
        with Way(server.url, binding=binding, auth=[credential]) as way:
            calls = every_call(way.client)
            for call in calls.values():
                call()
        assert len(server.seen) == len(calls)
        (asked,) = tokens.requests
        assert (asked.grant_type, asked.client_id, asked.client_secret) == (
            "client_credentials",
            CLIENT_ID,
            CLIENT_SECRET,
        )
        assert (asked.auth_method, asked.scope, asked.audience) == (method, "read write", "https://a.example")
        assert "user-agent" in asked.headers


def test_a_token_endpoint_is_found_by_the_issuer() -> None:
    """OpenID Connect Discovery below the issuer's path, then the same."""
    with TokenServer() as tokens, RawServer(wants(carries_bearer("A"))) as server:
        credential = client_credentials(tokens) | {"type": "oidc", "issuer": f"{tokens.issuer}/t1"}
        del credential["token_url"]
        with Way(server.url, auth=[credential]) as way:
            way.get()
            way.get()
        (discovery,) = tokens.discoveries
        assert discovery.line == "GET /t1/.well-known/openid-configuration HTTP/1.1"
        assert len(tokens.requests) == 1


def test_the_scopes_a_card_asks_for_are_asked_for() -> None:
    """Where the operator names none; the operator's word counts first."""
    schemes = {"o": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "https://theirs.example"}}}}}
    card = {"securitySchemes": schemes, "securityRequirements": [{"schemes": {"o": {"list": ["read", "write"]}}}]}
    with TokenServer() as tokens, RawServer(works) as server:
        for more in ({}, {"scopes": ["mine"]}):
            with Way(server.url, auth=[client_credentials(tokens, **more)], card=card) as way:
                way.get()
        assert [asked.scope for asked in tokens.requests] == ["read write", "mine"]


def test_the_card_is_shown_the_credentials_of_the_card_alone() -> None:
    """`card_auth` for the card, `auth` for calls, neither in the other's place."""
    auth, card_auth = [key("header", "X-Call-Key")], [key("header", "X-Card-Key")]
    with RawServer(works) as server, Way(server.url, auth=auth, card_auth=card_auth) as way:
        assert way.card() == {"card": "yes"}
        way.get()
        card, call = server.seen
        assert ("x-card-key" in card.headers, "x-call-key" in card.headers) == (True, False)
        assert ("x-card-key" in call.headers, "x-call-key" in call.headers) == (False, True)


def test_the_card_is_shown_one_credential_for_each_place() -> None:
    """No card says yet which is meant: the first of those that go to the same header, and the others."""
    card_auth = [bearer(), {"type": "basic", "username": "us", "password": "env:SECRET_OF_TEST"}, key("query", "key")]
    with RawServer(works) as server, Way(server.url, card_auth=card_auth) as way:
        way.card()
        assert server.seen[0].headers["authorization"] == f"Bearer {SECRET}"
        assert query_of(server.seen[0]) == [("key", SECRET)]


def test_a_refused_token_for_the_card_is_replaced_once() -> None:
    """As for calls: 401, one new token, and the card."""
    with TokenServer() as tokens, RawServer(wants(carries_bearer("B"))) as server:
        with Way(server.url, card_auth=[client_credentials(tokens)]) as way:
            assert way.card() == {"card": "yes"}
            assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer A", "Bearer B"]
            server.behaviour = says(401)
            with pytest.raises(AuthenticationRefused):
                way.card()
        assert len(server.seen) == 3
        assert len(tokens.requests) == 2


@pytest.mark.parametrize(
    ("binding", "path", "target"),
    [
        ("JSONRPC", "/a%2Fb/rpc?x=1&y=a%20b&x=2", "/a%2Fb/rpc"),
        ("JSONRPC", "/rpc", "/rpc"),
        ("HTTP+JSON", "/a%2Fb", "/a%2Fb/tasks/t1"),
    ],
)
def test_a_key_in_the_query_leaves_path_and_query_alone(binding: str, path: str, target: str) -> None:
    """What the interface's URL and the SDK put there stays, and an escaped slash stays one."""
    with RawServer(works) as server:
        with Way(server.url, binding=binding, interface=server.url + path, auth=[key("query", "key")]) as way:
            way.get()
        (seen,) = server.seen
        assert urlsplit(seen.line.split(" ")[1]).path == target
        expected = [("x", "1"), ("y", "a b"), ("x", "2")] if "?" in path else []
        expected += [("historyLength", "2")] if binding != "JSONRPC" else []
        assert query_of(seen) == [*expected, ("key", SECRET)]


def test_a_key_takes_the_place_of_what_stood_there() -> None:
    """The interface's URL names the parameter already, `headers` the header: one value each, ours."""
    auth = [key("query", "key"), bearer()]
    with RawServer(works) as server:
        interface = f"{server.url}/rpc?key=theirs"
        with Way(server.url, interface=interface, auth=auth, headers={"Authorization": "Basic old"}) as way:
            way.get()
        (seen,) = server.seen
        assert query_of(seen) == [("key", SECRET)]
        assert seen.headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("b-1", "Bearer b-1"),
        ("Bearer b-1", "Bearer b-1"),
        ("bearer  b-1\n", "Bearer b-1"),
        ("xbearer y", "Bearer xbearer y"),
    ],
)
def test_the_scheme_is_written_once(monkeypatch: pytest.MonkeyPatch, given: str, sent: str) -> None:
    """C095: `Bearer`, one space, the token, however it was stored."""
    monkeypatch.setenv("SECRET_OF_TEST", given)
    with RawServer(works) as server, Way(server.url, auth=[bearer()]) as way:
        way.get()
        assert server.seen[0].headers["authorization"] == sent


def test_what_was_shown_is_masked_in_every_log_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets as they are sent, not only as they are stored; tokens too."""
    monkeypatch.setenv("SECRET_OF_TEST", "Bearer b-1-with-a-word-before-it")
    monkeypatch.setenv("KEY_OF_TEST", "Bearer key-with-a-word-before-it")
    odd_key = key("header", "X-Team-Key", "env:KEY_OF_TEST")
    with TokenServer(token("t0ken-of-the-team")) as tokens, RawServer(works) as server:
        for auth in ([bearer(), odd_key], [client_credentials(tokens)]):
            with Way(server.url, auth=auth) as way:
                way.get()
                shown = way.access.credentials(way.client.card.credentials).present(time.monotonic() + 10).secrets
                assert all(shown)
                assert len(shown) == len(auth)
    said = "b-1-with-a-word-before-it Bearer key-with-a-word-before-it t0ken-of-the-team"
    assert set(redact_text(said).split()) <= {"***", "Bearer"}


# ------------------------------------------------------------------ secrets by reference


def test_a_rotated_secret_counts_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and variable are read for each call."""
    file = tmp_path / "key"
    auth = [bearer(), key("header", "X-Team-Key", f"file:{file}")]
    with RawServer(works) as server, Way(server.url, auth=auth) as way:
        for number in range(3):
            file.write_text(f"key-{number}\n")
            monkeypatch.setenv("SECRET_OF_TEST", f"token-{number}")
            way.get()
        sent = [(seen.headers["authorization"], seen.headers["x-team-key"]) for seen in server.seen]
        assert sent == [(f"Bearer token-{n}", f"key-{n}") for n in range(3)]


def test_a_secret_that_was_rotated_meanwhile_is_tried_once_more(tmp_path: Path) -> None:
    """401 with the old one; the new one is in the file by then: the same message again."""
    file = tmp_path / "key"
    file.write_text("old-token")

    def rotate(seen: Seen, connection: Any) -> bool:
        file.write_text("new-token")
        return wants(carries_bearer("new-token"))(seen, connection)

    with RawServer(rotate) as server, Way(server.url, auth=[bearer(f"file:{file}")]) as way:
        way.client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S)
        first, second = (seen.rpc["params"]["message"]["messageId"] for seen in server.seen)
        assert first == second
        server.behaviour = says(401)
        with pytest.raises(AuthenticationRefused):
            way.get()
        assert len(server.seen) == 3  # no other secret, so no other try


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two\nlines", b"a\r\nX-Evil: 1", "gehe\u00edm".encode(), b"a\x00b", b"x" * 20_000]
)
def test_a_secret_that_cannot_be_sent_is_not_sent(tmp_path: Path, content: bytes) -> None:
    """No header injection, no empty credential: said without the secret, and the agent hears nothing."""
    file = tmp_path / "key"
    file.write_bytes(content)
    with RawServer(works) as server:
        for auth in (
            [bearer(f"file:{file}")],
            [key("query", "k", f"file:{file}")],
            [key("cookie", "k", f"file:{file}")],
        ):
            with Way(server.url, auth=auth) as way, pytest.raises(CredentialUnavailable) as raised:
                way.get()
            assert f"file:{file}" in raised.value.detail
            assert "Evil" not in raised.value.detail
        assert server.connections == 0


def test_a_missing_secret_names_its_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable or the file, so that the operator knows what to set; it counts as soon as it is there."""
    monkeypatch.delenv("SECRET_OF_TEST")
    with RawServer(works) as server:
        for reference in (
            "env:SECRET_OF_TEST",
            f"file:{tmp_path / 'none'}",
            f"file:{tmp_path}",
            "file:~nobody-is-this/x",
        ):
            with Way(server.url, auth=[bearer(reference)]) as way:
                for call in every_call(way.client).values():
                    with pytest.raises(CredentialUnavailable) as raised:
                        call()
                    assert raised.value.detail.startswith(reference)
                with pytest.raises(CredentialUnavailable):
                    way.client.subscription(T1)
        assert server.connections == 0
        monkeypatch.setenv("SECRET_OF_TEST", SECRET)
        with Way(server.url, auth=[bearer()]) as way:
            way.get()


def test_a_cookie_holds_only_what_a_cookie_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """A semicolon would begin another cookie."""
    monkeypatch.setenv("SECRET_OF_TEST", "a; admin=1")
    with RawServer(works) as server, Way(server.url, auth=[key("cookie", "k")]) as way:
        with pytest.raises(CredentialUnavailable, match="no cookie may hold"):
            way.get()
        assert server.connections == 0


def test_any_printable_key_arrives_in_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Escaped on the way."""
    odd = "a&b=c #%+/?\"'<>~"
    monkeypatch.setenv("SECRET_OF_TEST", odd)
    with RawServer(works) as server, Way(server.url, auth=[key("query", "key")]) as way:
        way.get()
        assert query_of(server.seen[0]) == [("key", odd)]


# ------------------------------------------------------------------ never to anybody else


ALL_PLACES = [bearer(), key("header", "X-Team-Key"), key("query", "key"), key("cookie", "session")]


def redirects(to: str, status: int) -> Behaviour:
    return says(status, b"", {"Location": to})


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_nothing_follows_a_redirect_to_another_origin(status: int, binding: str) -> None:
    """Neither message nor credential; nor does the decoy hear of it for the card."""
    with RawServer(works) as decoy, RawServer(redirects(f"{decoy.url}/rpc", status)) as server:
        with Way(server.url, binding=binding, auth=ALL_PLACES, card_auth=ALL_PLACES) as way:
            for call in every_call(way.client).values():
                with pytest.raises(CallAmbiguous, match="redirect, not followed"):
                    call()
            with pytest.raises(AgentError, match="redirect, not followed"):
                way.card()
        assert decoy.connections == 0


@pytest.mark.parametrize(
    "location",
    ["//{DECOY}/rpc", "https://{SELF}/rpc", "http://user:pw@{SELF}/rpc", "file:///etc/passwd", "http://{SELF}:x/", ""],
)
def test_a_redirect_that_only_looks_like_the_same_origin_is_not_followed(location: str) -> None:
    """Another scheme, host, port or a user name."""
    with RawServer(works) as decoy, RawServer(says(307)) as server:
        hosts = {"{DECOY}": decoy.url.removeprefix("http://"), "{SELF}": server.url.removeprefix("http://")}
        for name, host in hosts.items():
            location = location.replace(name, host)
        server.behaviour = redirects(location, 307)
        with Way(server.url, auth=ALL_PLACES) as way, pytest.raises(CallAmbiguous, match="redirect, not followed"):
            way.get()
        assert decoy.connections == 0
        assert len(server.seen) == 1


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("status", [307, 308])
def test_a_redirect_at_the_same_origin_is_followed_once(status: int, binding: str) -> None:
    """C083: the same method, body, messageId and credentials, and no second time."""

    def moved(seen: Seen, connection: Any) -> bool:
        target = seen.line.split(" ")[1]
        path, _, query = target.partition("?")
        if path.endswith("/"):
            return works(seen, connection)
        return redirects(f"{path}/?{query}" if query else f"{path}/", status)(seen, connection)

    with RawServer(moved) as server, Way(server.url, binding=binding, auth=ALL_PLACES) as way:
        way.client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S)
        first, second = server.seen
        assert first.body == second.body
        assert b'"m1"' in second.body
        assert second.line.startswith("POST ")
        for seen in (first, second):
            assert seen.headers["authorization"] == f"Bearer {SECRET}"
            assert seen.headers["x-team-key"] == SECRET
            assert seen.headers["cookie"] == f"session={SECRET}"
            assert query_of(seen).count(("key", SECRET)) == 1
        server.behaviour = redirects("/again", status)
        with pytest.raises(CallAmbiguous, match="redirect, not followed"):
            way.client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S)
        assert len(server.seen) == 4


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_that_may_change_the_method_is_not_followed(status: int) -> None:
    """Not even at the same origin: a POST would become a GET somewhere."""
    with RawServer(redirects("/rpc/", status)) as server, Way(server.url, auth=ALL_PLACES) as way:
        with pytest.raises(CallAmbiguous, match="redirect, not followed"):
            way.client.send_message(message("hi"), push=None, deadline_s=DEADLINE_S)
        assert [seen.line.split(" ")[0] for seen in server.seen] == ["POST"]


def test_credentials_leave_for_the_agents_origins_alone() -> None:
    """An interface elsewhere is refused before anything is signed; one at a listed origin is the operator's word."""
    with RawServer(works) as listed, RawServer(works) as server, RawServer(works) as decoy:
        for interface in (f"{decoy.url}/rpc", f"http://localhost:{server.url.rpartition(':')[2]}/rpc"):
            with Way(server.url, interface=interface, auth=ALL_PLACES, origins=[listed.url]) as way:
                with pytest.raises(AgentRefused, match="not an allowed origin"):
                    way.get()
                with pytest.raises(AgentRefused, match="not an allowed origin"):
                    way.client.subscription(T1)
        assert (server.connections, decoy.connections) == (0, 0)
        with Way(server.url, interface=f"{listed.url}/rpc", auth=ALL_PLACES, origins=[listed.url]) as way:
            way.get()
        assert listed.seen[0].headers["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize("binding", BINDINGS)
def test_no_secret_is_in_what_is_said_of_a_failed_call(binding: str, caplog: pytest.LogCaptureFixture) -> None:
    """An agent that repeats all it was shown: no detail, no log line, no repr has it."""
    caplog.set_level(logging.INFO)
    auth = [{"type": "basic", "username": "us", "password": "env:SECRET_OF_TEST"}, *ALL_PLACES[1:]]
    said: list[str] = []

    def echoes(seen: Seen, connection: Any) -> bool:
        echo = f"{seen.line} {seen.headers}"
        error = {"code": -32602, "message": echo, "status": "INVALID_ARGUMENT"}
        status = 401 if len(said) % 2 else 400
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        return says(status, body, {"WWW-Authenticate": f"Basic {echo}"[:900]})(seen, connection)

    with RawServer(echoes) as server, Way(server.url, binding=binding, auth=auth, card_auth=auth) as way:
        for call in (*every_call(way.client).values(), way.card, way.card):
            with pytest.raises(AgentError) as raised:
                call()
            said += [raised.value.detail, repr(raised.value)]
        said += [
            repr(way.client.subscription(T1)),
            repr(way.access.credentials(way.client.card.credentials).present(time.monotonic() + 10)),
        ]
        assert any("GetTask: error -32602" in each for each in said)
    for text in (*said, caplog.text):
        assert SECRET not in text
        assert PAIR not in text


def test_a_streams_request_is_signed_like_every_call() -> None:
    """The follower sends what the client has built: credentials, and the secrets that no detail may repeat."""
    with RawServer(works) as server, Way(server.url, auth=ALL_PLACES) as way:
        request = way.client.subscription(T1)
        assert server.connections == 0
    headers = {name.lower(): value for name, value in request.headers}
    assert headers[b"authorization"] == f"Bearer {SECRET}".encode()
    assert headers[b"x-team-key"] == SECRET.encode()
    assert headers[b"cookie"] == f"session={SECRET}".encode()
    assert request.url.endswith(f"/rpc?key={SECRET}")
    assert SECRET in request.question.secrets
    assert SECRET not in repr(request)


@pytest.mark.parametrize(
    "body", [b"", b"<html>login</html>", b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32602, "message": "no"}}']
)
@pytest.mark.parametrize(("status", "certain"), [(401, True), (403, False)])
def test_refused_credentials_are_an_error_of_their_own(status: int, certain: bool, body: bytes) -> None:
    """401 whatever the body says; 403 where no error of the agent's own explains it. Never one try more in vain."""
    with RawServer(says(status, body)) as server, Way(server.url, auth=[bearer()]) as way:
        calls: Mapping[str, Callable[[], object]] = every_call(way.client)
        for call in calls.values():
            with pytest.raises(AgentError) as raised:
                call()
            is_own_word = body.startswith(b"{") and not certain
            assert isinstance(raised.value, AuthenticationRefused) is not is_own_word
            assert is_own_word or "authentication" in raised.value.detail
        assert len(server.seen) == len(calls)
