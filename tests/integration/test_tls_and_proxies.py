"""Who is at the other end of a connection, what it is shown of us, and by way of whom it is reached."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization

from delegation.errors import AgentError, AgentUnreachable, CallAmbiguous, CredentialUnavailable
from delegation.events import PreparedRequest
from delegation.outbound import Route
from tests.support.identity import Authority, Identity
from tests.support.identity_tokens import CLIENT_ID, CLIENT_SECRET, TokenServer
from tests.support.raw_server import RawServer, Seen, says
from tests.support.secured import T1, Way, carries_bearer, every_call, forwards, wants, works
from workers.follow_connection import Connections

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
EVENT = b'data: {"x": 1}\n\n'
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "b-1")
    monkeypatch.setenv("CLIENT_SECRET_OF_TEST", CLIENT_SECRET)


BEARER = {"type": "bearer", "token": "env:SECRET_OF_TEST"}


def oauth2(tokens: TokenServer) -> dict[str, Any]:
    return {
        "type": "oauth2",
        "token_url": tokens.token_url,
        "client_id": CLIENT_ID,
        "client_secret": "env:CLIENT_SECRET_OF_TEST",
    }


def mtls(identity: Identity) -> dict[str, Any]:
    return {"type": "mtls", **identity.references}


def trusting(authority: Authority) -> str:
    return f"file:{authority.ca_bundle}"


def read_stream(request: PreparedRequest, route: Route) -> bytes:
    """As the follower reads one; raises what its opening raises."""

    async def read() -> bytes:
        with ThreadPoolExecutor(2) as threads:
            connections = Connections(threads, answer_within_s=10, idle_s=10)
            body = b""
            async with connections.send(request, route) as answer, aclosing(answer.chunks()) as chunks:
                assert answer.is_stream, answer.status
                async for chunk in chunks:
                    body += chunk
            assert connections.open == 0
            return body

    return asyncio.run(read())


def stream_of(way: Way) -> bytes:
    return read_stream(way.client.subscription(T1), way.client.route())


def works_and_streams(seen: Seen, connection: Any) -> bool:
    if b"SubscribeToTask" not in seen.body:
        return works(seen, connection)
    connection.sendall(STREAM + EVENT)
    return False


# ------------------------------------------------------------------ TLS


def server_of(kind: str, authority: Authority, stranger: Authority) -> Any:
    identities = {
        "self-signed": authority.self_signed,
        "another host's": authority.wrong_host,
        "expired": authority.expired,
        "a stranger's": stranger.server,
        "old TLS": authority.server,
    }
    version = "1.1" if kind == "old TLS" else ""
    return identities[kind]().as_server(version=version).context()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("self-signed", "self-signed certificate"),
        ("another host's", "IP address mismatch"),
        ("expired", "certificate has expired"),
        ("a stranger's", "unable to get local issuer certificate"),
        ("old TLS", "TLS: "),
    ],
)
def test_a_server_that_is_not_proved_gets_no_request(
    authority: Authority, stranger: Authority, kind: str, reason: str
) -> None:
    """O-13: calls, card, token and stream; certainly not sent, and said why. There is no way to switch it off."""
    with RawServer(works, tls=server_of(kind, authority, stranger)) as server, TokenServer() as tokens:
        with Way(server.url, auth=[BEARER], card_auth=[BEARER], ca_bundle=trusting(authority)) as way:
            for call in (*every_call(way.client).values(), way.card):
                with pytest.raises(AgentUnreachable, match=reason) as raised:
                    call()
                assert raised.value.detail.startswith("no connection: TLS: ")
            with pytest.raises(AgentUnreachable):
                stream_of(way)
        at_issuer = {**oauth2(tokens), "token_url": f"{server.url}/token"}
        refused = pytest.raises(CredentialUnavailable, match=rf"^token endpoint: no connection: .*{reason}")
        with Way(tokens.url, auth=[at_issuer], ca_bundle=trusting(authority)) as way, refused:
            way.get()
        assert server.seen == []
        assert tokens.raw.connections == 0


def test_without_a_bundle_a_private_authority_is_nobody(authority: Authority) -> None:
    """The usual authorities count, and no file that an environment variable names."""
    with RawServer(works, tls=authority.server().as_server().context()) as server, Way(server.url) as way:
        with pytest.raises(AgentUnreachable, match="unable to get local issuer certificate"):
            way.get()
        assert server.seen == []


def test_a_bundle_vouches_for_calls_card_token_and_stream(authority: Authority) -> None:
    """`ca_bundle`; the name counts as well as the address."""
    tls = authority.server().as_server()
    with TokenServer(tls=tls) as tokens, RawServer(works_and_streams, tls=tls.context()) as server:
        for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
            with Way(url, auth=[oauth2(tokens)], ca_bundle=trusting(authority)) as way:
                for call in every_call(way.client).values():
                    call()
                assert way.card() == {"card": "yes"}
                assert stream_of(way) == EVENT
        assert server.seen[0].headers["authorization"] == "Bearer A"


def test_the_client_certificate_is_shown_where_it_is_asked_for(authority: Authority) -> None:
    """Mutual TLS for calls, card and stream, with a token beside it."""
    tls = authority.server().as_server(clients_of=authority).context()
    with RawServer(wants(carries_bearer("b-1"), works_and_streams), tls=tls) as server:
        auth = [mtls(authority.client()), BEARER]
        with Way(server.url, auth=auth, card_auth=[BEARER], ca_bundle=trusting(authority)) as way:
            for call in every_call(way.client).values():
                call()
            assert way.card() == {"card": "yes"}
            assert stream_of(way) == EVENT
        assert len(server.seen) == len(every_call(way.client)) + 2


@pytest.mark.parametrize("kind", ["none", "expired", "a stranger's"])
def test_a_certificate_that_is_refused_is_told_from_a_lost_answer(
    authority: Authority, stranger: Authority, kind: str
) -> None:
    """TLS 1.3 refuses it after the handshake, when the request may have left; the agent has not read it."""
    certificates = {
        "none": [],
        "expired": [mtls(authority.expired_client())],
        "a stranger's": [mtls(stranger.client())],
    }
    tls = authority.server().as_server(clients_of=authority).context()
    with RawServer(works, tls=tls) as server:
        with Way(server.url, auth=certificates[kind], ca_bundle=trusting(authority)) as way:
            # The alert may be lost to a reset; then it is not certain.
            with pytest.raises((AgentUnreachable, CallAmbiguous), match=r"^(no connection|the connection broke): "):
                way.get()
            with pytest.raises(AgentError):
                stream_of(way)
        assert server.seen == []


@pytest.mark.parametrize("broken", ["certificate", "key"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM", "another's"])
def test_a_certificate_that_cannot_be_read_is_our_trouble(
    authority: Authority, tmp_path: Path, broken: str, content: Any
) -> None:
    """Missing, empty, garbage, or of another pair: CredentialUnavailable, the files named, nothing sent."""
    references = authority.client().references
    path = tmp_path / "broken.pem"
    if content is not None:
        other = authority.client()
        theirs = other.certificate if broken == "certificate" else other.key
        path.write_bytes(theirs.read_bytes() if content == "another's" else content)
    references[broken] = f"file:{path}"
    with RawServer(works, tls=authority.server().as_server().context()) as server:
        with Way(server.url, auth=[{"type": "mtls", **references}], ca_bundle=trusting(authority)) as way:
            for call in (way.get, way.card, way.client.route):
                with pytest.raises(
                    CredentialUnavailable, match=r"^the client certificate .* cannot be used: "
                ) as raised:
                    call()
                assert str(path) in raised.value.detail
            path.write_bytes(b"")
        assert server.connections == 0


@pytest.mark.parametrize("content", [None, b"", b"no PEM"])
def test_a_bundle_that_cannot_be_read_is_our_trouble(tmp_path: Path, authority: Authority, content: Any) -> None:
    """Never the usual authorities in its place."""
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with RawServer(works, tls=authority.server().as_server().context()) as server:
        with Way(server.url, ca_bundle=f"file:{path}") as way:
            with pytest.raises(CredentialUnavailable, match=r"^ca_bundle .* cannot be used: "):
                way.get()
            path.write_bytes(authority.ca_bundle.read_bytes())
            way.get()  # it counts as soon as it is there
        assert server.connections == 1


def test_an_encrypted_key_is_refused_and_not_asked_for(tmp_path: Path, authority: Authority) -> None:
    """OpenSSL would ask on the terminal."""
    identity = authority.client()
    key = serialization.load_pem_private_key(identity.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.key"
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    encrypted.write_bytes(key.private_bytes(encoding, form, serialization.BestAvailableEncryption(b"password")))
    references = {**identity.references, "key": f"file:{encrypted}"}
    refused = pytest.raises(CredentialUnavailable, match="cannot be used")
    with Way("https://127.0.0.1:9", auth=[{"type": "mtls", **references}]) as way, refused:
        way.get()


# ------------------------------------------------------------------ proxies


@pytest.fixture
def proxy() -> Iterator[RawServer]:
    with RawServer(forwards) as server:
        yield server


def hosts(proxy: RawServer) -> set[str]:
    """Whom it was asked for: CONNECT's target, or the host of an absolute one."""
    targets = [seen.line.split(" ") for seen in proxy.seen]
    return {target if method == "CONNECT" else httpx.URL(target).netloc.decode() for method, target, _ in targets}


@pytest.mark.parametrize("is_secure", [False, True])
def test_with_a_proxy_everything_goes_through_it(authority: Authority, proxy: RawServer, is_secure: bool) -> None:
    """O-12: calls, card, token and stream. It sees the requests of http, and of https who is spoken to."""
    tls = authority.server().as_server() if is_secure else None
    with (
        TokenServer(tls=tls) as tokens,
        RawServer(wants(carries_bearer("A"), works_and_streams), tls=tls.context() if tls else None) as server,
        Way(
            server.url,
            auth=[oauth2(tokens)],
            card_auth=[oauth2(tokens)],
            ca_bundle=trusting(authority),
            proxy=proxy.url,
        ) as way,
    ):
        tokens.answer_with()
        tokens.expires_in = 3600
        way.client.get_task(T1, deadline_s=PATIENCE_S)
        server.behaviour = works_and_streams
        for call in every_call(way.client).values():
            call()
        assert way.card() == {"card": "yes"}
        assert stream_of(way) == EVENT
        reached = {url.partition("//")[2] for url in (server.url, tokens.url)}
        assert hosts(proxy) == reached
        assert server.connections == _connections_through(proxy, server)
        assert tokens.raw.connections == _connections_through(proxy, tokens.raw)
        assert is_secure is all(seen.line.startswith("CONNECT ") for seen in proxy.seen)
        assert not is_secure or all("authorization" not in seen.headers for seen in proxy.seen)


def _connections_through(proxy: RawServer, server: RawServer) -> int:
    """The proxy of these tests opens one for each request it is asked for."""
    host = server.url.partition("//")[2]
    return sum(host in seen.line for seen in proxy.seen)


@pytest.mark.parametrize("status", [403, 407, 502])
def test_a_proxy_that_lets_nothing_through_is_no_answer_of_the_agent(proxy: RawServer, status: int) -> None:
    """Certainly not sent."""
    proxy.behaviour = says(status)
    with Way("https://127.0.0.1:9", auth=[BEARER], proxy=proxy.url) as way:
        with pytest.raises(AgentUnreachable, match=rf"the proxy lets nothing through: .*{status}"):
            way.get()
        with pytest.raises(AgentUnreachable, match=str(status)):
            stream_of(way)


def test_what_only_the_proxy_heard_was_not_sent(authority: Authority, stranger: Authority, proxy: RawServer) -> None:
    """Behind CONNECT a server that is not proved, and one that never answers it: the agent has read nothing."""
    with RawServer(works, tls=stranger.server().as_server().context()) as server:
        with Way(server.url, auth=[BEARER], ca_bundle=trusting(authority), proxy=proxy.url) as way:
            with pytest.raises(AgentUnreachable, match="unable to get local issuer certificate"):
                way.get()
            proxy.behaviour = lambda _seen, connection: bool(connection.recv(1))
            with pytest.raises(AgentUnreachable, match="no connection within the time allowed"):
                way.get(1.0)
        assert server.seen == []


def test_a_proxy_that_is_away_is_said_to_be_unreachable() -> None:
    """Nobody is reached around it."""
    with RawServer(works) as server:
        with Way(server.url, auth=[BEARER], proxy="http://127.0.0.1:9") as way:
            with pytest.raises(AgentUnreachable, match="no connection"):
                way.get()
            with pytest.raises(AgentUnreachable, match="no connection"):
                stream_of(way)
        assert server.connections == 0


def test_the_environment_names_no_proxy_and_no_authority(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-12: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR change nothing."""
    with RawServer(says(502)) as decoy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, decoy.url)
        monkeypatch.setenv("NO_PROXY", "")
        monkeypatch.setenv("SSL_CERT_FILE", str(stranger.ca_bundle))
        monkeypatch.setenv("SSL_CERT_DIR", str(stranger.directory))
        tls = authority.server().as_server()
        with (
            TokenServer(tls=tls) as tokens,
            RawServer(works_and_streams, tls=tls.context()) as server,
            Way(server.url, auth=[oauth2(tokens)], ca_bundle=trusting(authority)) as way,
        ):
            way.get()
            way.card()
            assert stream_of(way) == EVENT
        with RawServer(works_and_streams) as plain, Way(plain.url) as way:
            way.get()
            assert stream_of(way) == EVENT
        refused = pytest.raises(AgentUnreachable, match="unable to get local issuer certificate")
        tls = stranger.server().as_server()
        with RawServer(works, tls=tls.context()) as theirs, Way(theirs.url) as way, refused:
            way.get()
        assert decoy.connections == 0


def test_no_proxy_in_the_environment_leads_around_the_configured_one(
    proxy: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NO_PROXY is not for us either."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with RawServer(works) as server, Way(server.url, auth=[BEARER], proxy=proxy.url) as way:
        way.get()
        assert hosts(proxy) == {server.url.partition("//")[2]}
