"""Where nothing of ours goes, whoever names it: a card, a resolver, an answer (O-01, O-02, O-11)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpcore
import httpx
import pytest

from delegation.cards import check_card
from delegation.errors import AgentError, AgentRefused
from delegation.events import PreparedRequest
from delegation.origins import origin_of, read_origin
from delegation.outbound import GuardedTransport, Route
from delegation.replies import Question
from delegation.settings import AgentSettings
from tests.support.child import child_environment, free_port
from tests.support.clients import DEADLINE_S, client_of, message
from tests.support.measured_client import T1, WAYS
from tests.support.raw_server import RawServer, answers, says, tells
from workers.follow_connection import Connections

HOME = "http://127.0.0.1:9"
#: Every other spelling of this machine, of a private network, of a cloud's metadata, and of what is no web address.
FORMS = (
    "http://169.254.169.254/latest/meta-data",
    "http://10.0.0.1:9/",
    "http://172.16.0.1:9/",
    "http://192.168.0.1:9/",
    "http://100.64.0.1:9/",
    "http://127.0.0.2:9/",
    "http://127.0.0.1:10/",
    "https://127.0.0.1:9/",
    "http://127.1:9/",
    "http://0:9/",
    "http://0.0.0.0:9/",
    "http://2130706433:9/",
    "http://017700000001:9/",
    "http://0177.0.0.1:9/",
    "http://0x7f000001:9/",
    "http://0x7f.0.0.1:9/",
    "http://127.0.0.1.:9/",
    "http://localhost:9/",
    "http://localhost.:9/",
    "http://localhost.localdomain:9/",
    "http://127.0.0.1.nip.example:9/",
    "http://[::1]:9/",
    "http://[::]:9/",
    "http://[::ffff:127.0.0.1]:9/",
    "http://[::ffff:7f00:1]:9/",
    "http://[::127.0.0.1]:9/",
    "http://[64:ff9b::7f00:1]:9/",
    "http://[64:ff9b:1::7f00:1]:9/",
    "http://[2002:7f00:1::]:9/",
    "http://[fe80::1]:9/",
    "http://[fe80::1%25eth0]:9/",
    "http://[fd00:ec2::254]/latest",
    "http://127。0。0。1:9/",
    "http://１２７.0.0.1:9/",
    "http://①②⑦.0.0.1:9/",
    "http://127.0.0.1%2f:9/",
    "http://127.0.0.1:9@evil.example/",
    "http://evil.example#@127.0.0.1:9/",
    "http://evil.example\\@127.0.0.1:9/",
    "http://user@127.0.0.1:9/",
    "http://user:secret@127.0.0.1:9/",
    "http://127.0.0.1:9:80/",
    "http://127.0.0.1:65545/",
    "http://127.0.0.1 :9/",
    "http:///127.0.0.1:9/",
    "//127.0.0.1:10/",
    "file:///etc/passwd",
    "unix:/var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "gopher://127.0.0.1:9/_x",
    "ftp://127.0.0.1:9/",
    "ws://127.0.0.1:9/",
    "javascript:alert(1)",
    "data:application/json,{}",
    "127.0.0.1:9",
    "agent.example:50051",
    "",
)


def _is_read_as_home(url: str) -> bool:
    """Odd spellings that httpx reads as the agent's own address lead there and nowhere else."""
    try:
        return origin_of(httpx.URL(url)) == read_origin(HOME)
    except (httpx.InvalidURL, ValueError):
        return False


ELSEWHERE = [url for url in FORMS if not _is_read_as_home(url)]


@pytest.fixture
def no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks up a name or connects to an address fails the test. Nothing really connects."""

    def connects(*_: object, **__: object) -> None:
        raise AssertionError("a name was looked up, or a connection opened")

    monkeypatch.setattr(socket, "getaddrinfo", connects)
    monkeypatch.setattr(socket, "create_connection", connects)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connects)


def card_with(url: str) -> dict[str, Any]:
    interface = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    return {"name": "n", "description": "d", "version": "1", "supportedInterfaces": [interface]}


@pytest.mark.parametrize("url", FORMS)
@pytest.mark.usefixtures("no_connections")
def test_a_card_cannot_name_an_address_beyond_the_origins(url: str) -> None:
    """O-01: refused as the card is checked, by comparing origins: no name is looked up, no list of networks asked."""
    with pytest.raises(AgentRefused, match=r"card_origin_refused|url") as refusal:
        check_card(AgentSettings(id="agent", url=HOME), card_with(url))
    assert "secret" not in refusal.value.detail


@pytest.mark.parametrize("url", ELSEWHERE)
@pytest.mark.usefixtures("no_connections")
def test_no_request_leaves_for_an_address_beyond_the_origins(url: str) -> None:
    """O-01: should a URL get past the card's check all the same, the transport is the second wall."""
    transport = GuardedTransport([HOME])
    with pytest.raises((AgentRefused, ValueError, httpx.InvalidURL)):
        transport.get(url, headers={}, deadline_s=1, max_bytes=10)
    assert transport.connections == 0


@pytest.mark.parametrize("url", ELSEWHERE)
@pytest.mark.usefixtures("no_connections")
def test_no_stream_leaves_for_an_address_beyond_the_origins(url: str) -> None:
    """O-01: the follower's connections have the same wall."""
    question = Question(method="SubscribeToTask", binding="JSONRPC")
    request = PreparedRequest(method="POST", url=url, headers=[], content=b"", question=question)

    async def subscribe(connections: Connections) -> None:
        async with connections.send(request, Route(origins=frozenset([read_origin(HOME)]))):
            raise AssertionError("sent")

    with ThreadPoolExecutor(1) as threads:
        connections = Connections(threads, answer_within_s=1, idle_s=1)
        with pytest.raises((AgentRefused, ValueError, httpx.InvalidURL)):
            asyncio.run(subscribe(connections))
        assert connections.open == 0


class Resolver:
    """Answers for `agent.example` with each of `addresses` in turn, the last of them for ever; counts the questions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
        self.asked = 0
        self._addresses = addresses
        self._real = socket.getaddrinfo
        monkeypatch.setattr(socket, "getaddrinfo", self)

    def __call__(self, host: Any, port: Any, *arguments: Any, **options: Any) -> Any:
        if host != "agent.example":
            return self._real(host, port, *arguments, **options)
        address = self._addresses[min(self.asked, len(self._addresses) - 1)]
        self.asked += 1
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer(says(200, b"{}")) as server:
        yield server


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Callable[[str, float], int]:
    return WAYS[request.param]


def named(server: RawServer) -> str:
    return server.url.replace("127.0.0.1", "agent.example")


def test_an_address_that_was_refused_is_not_asked_for_again(
    server: RawServer, way: Callable[[str, float], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-02: the second answer, which would have led to a server, is never heard of."""
    resolver = Resolver(monkeypatch, "169.254.169.254", "127.0.0.1")
    with pytest.raises(AgentError, match="link-local"):
        way(named(server), 2.0)
    assert (resolver.asked, server.connections) == (1, 0)


def test_the_address_that_was_checked_is_the_address_connected_to(
    server: RawServer, way: Callable[[str, float], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """O-02: one question for each connection; what the resolver says a moment later has no effect on it."""
    resolver = Resolver(monkeypatch, "127.0.0.1", "169.254.169.254")
    with contextlib.suppress(AgentError):  # most ways want another answer than the server's
        way(named(server), 5.0)
    assert (resolver.asked, server.connections) == (1, 1)


def test_a_host_is_pinned_as_it_is_connected_to() -> None:
    """O-02: a name with letters beyond ASCII has one spelling here, the one that goes over the wire."""
    with pytest.raises(ValueError, match="ASCII"):
        read_origin("https://bücher.example/")
    pinned = AgentSettings(id="agent", url="https://xn--bcher-kva.example")
    assert check_card(pinned, card_with("https://xn--bcher-kva.example/rpc")).interface.url.isascii()
    with pytest.raises(AgentRefused):
        check_card(pinned, card_with("https://bücher.example/rpc"))
    assert read_origin("https://XN--BCHER-KVA.example").host == "xn--bcher-kva.example"


def test_what_an_answer_names_is_never_fetched(server: RawServer) -> None:
    """O-11: the URLs in its parts, its extensions and its metadata are text; a file name is no path."""
    with RawServer(answers({})) as canary:
        places = [canary.url, f"{canary.url}/x.json", "http://169.254.169.254/", "javascript:alert(1)", "file:///etc/x"]
        parts = [{"url": place, "filename": "../../etc/x", "mediaType": "text/html"} for place in places]
        parts += [{"file": {"uri": canary.url, "name": "/etc/passwd"}}, {"url": "data:text/plain," + "x" * 1_000_000}]
        parts += [{"data": {"$ref": canary.url, "@context": canary.url}, "metadata": {"url": canary.url}}]
        status = {"state": "TASK_STATE_COMPLETED", "message": {"messageId": "m", "role": "ROLE_AGENT", "parts": parts}}
        task = {"id": "t1", "contextId": "c", "status": status, "artifacts": [{"artifactId": "a", "parts": parts}]}
        client, transport = client_of(server.url, answer_bytes=1 << 23, event_bytes=1 << 23, can_stream=True)
        server.behaviour = answers(task)
        read = client.get_task(T1, deadline_s=DEADLINE_S)
        server.behaviour = tells({"task": task})
        client.start_task(message("hi"), push=None, deadline_s=DEADLINE_S)
        transport.close()
        assert json.dumps(read.artifacts[0].parts) == json.dumps(parts)
        assert canary.connections == 0


def test_the_doctor_asks_our_own_web_app_and_nobody_else(server: RawServer, tmp_path: Path) -> None:
    """No proxy of the environment hears of it, and a redirect leads nowhere."""
    with RawServer(says(200)) as other:
        config = f'[redis]\nurl = "redis://127.0.0.1:{free_port()}/0"\n[server]\nbase_url = "{server.url}"\n'
        (tmp_path / "delegation.toml").write_text(config, encoding="utf-8")
        server.behaviour = says(302, headers={"Location": other.url})
        env = child_environment(dict.fromkeys(("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"), other.url))
        command = [sys.executable, "-m", "workers.cli", "doctor"]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert "/healthz answers 302" in done.stdout
        assert (len(server.seen), other.connections) == (1, 0)
