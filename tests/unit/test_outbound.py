"""What never leaves this machine, and coroutines that never wait."""

from __future__ import annotations

import asyncio
import os
import socket
import time

import httpcore
import httpx
import pytest

from delegation.errors import AgentRefused, AgentUnreachable
from delegation.origins import Origin, read_origin, refused_address, resolve
from delegation.outbound import Exchange, GuardedTransport, drive, exchanging

HOME = "http://127.0.0.1:9"


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens one fails the test."""

    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", opened)
    monkeypatch.setattr(socket, "create_connection", opened)
    monkeypatch.setattr(socket, "getaddrinfo", opened)


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://agent.example/rpc", Origin("https", "agent.example", 443)),
        ("https://AGENT.example:443", Origin("https", "agent.example", 443)),
        ("http://agent.example:8080/x?y", Origin("http", "agent.example", 8080)),
        ("http://[::1]:9/", Origin("http", "::1", 9)),
    ],
)
def test_an_origin_is_scheme_host_and_port(url: str, origin: Origin) -> None:
    """Default ports and letter case make no other origin."""
    assert read_origin(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "/rpc",
        "rpc",
        "",
        "//agent.example/rpc",
        "file:///etc/passwd",
        "unix:/tmp/socket",
        "agent.example:443",
        "ftp://agent.example/",
        "http://",
        "http:///rpc",
        "http://user@agent.example/",
        "http://user:secret@agent.example/",
        "http://@agent.example/",
        "http://agent.example\\@evil.example/",
        "http://agent.example /",
        "http://agent.example/\r\nX: y",
        "http://127。0。0。1/",
        "http://agent.example:99999/",
        "http://[::1/",
    ],
)
def test_what_is_no_plain_web_url_has_no_origin(url: str) -> None:
    """The reason does not repeat it, since it may hold a password."""
    with pytest.raises(ValueError, match=r"URL|user name") as refusal:
        read_origin(url)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "fe80::1%eth0",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "fd00:ec2::254",
        "fd20:ce::254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "64:ff9b:1::7f00:1",
        "2001:0:7f00:1::1",
        "::127.0.0.1",
        "::ffff:0:0",
    ],
)
def test_addresses_that_no_agent_has_are_refused(address: str) -> None:
    """Link-local, metadata, and forms that disguise another address, configured or not."""
    assert refused_address(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.9", "8.8.8.8", "2001:db8::1"])
def test_operators_may_run_agents_anywhere_else(address: str) -> None:
    """Private and loopback addresses are an operator's right."""
    assert refused_address(address) is None


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:10/rpc",
        "https://127.0.0.1:9/rpc",
        "http://localhost:9/rpc",
        "http://127.1:9/rpc",
        "http://2130706433:9/rpc",
        "http://0x7f000001:9/rpc",
        "http://169.254.169.254/latest",
        "http://localhost.:9/rpc",
        "http://127.0.0.1.nip.example:9/rpc",
    ],
)
@pytest.mark.usefixtures("no_sockets")
def test_nothing_is_opened_to_another_origin(url: str) -> None:
    """The refusal comes before any name is looked up."""
    transport = GuardedTransport([HOME])
    with pytest.raises(AgentRefused, match="not an allowed origin"):
        transport.get(url, headers={}, deadline_s=1, max_bytes=10)
    assert transport.connections == 0


def test_a_configured_name_that_resolves_to_metadata_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that is checked is the address that is connected to, at each connection."""
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    )
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("connected"))
    transport = GuardedTransport(["http://agent.example"])
    with pytest.raises(AgentUnreachable, match="link-local"):
        transport.get("http://agent.example/", headers={}, deadline_s=1, max_bytes=10)
    assert transport.connections == 0


def test_a_resolver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's resolver has no time limit of ours."""
    import threading

    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(10) and [])
    transport = GuardedTransport(["http://agent.example"])
    began = time.monotonic()
    try:
        with pytest.raises(AgentUnreachable):
            transport.get("http://agent.example/", headers={}, deadline_s=0.2, max_bytes=10)
        assert time.monotonic() - began < 1
    finally:
        released.set()


def test_an_unknown_host_is_certainly_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the reason says so in words."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(AgentUnreachable, match="Name or service not known"):
        GuardedTransport(["http://agent.example"]).get("http://agent.example/", headers={}, deadline_s=1, max_bytes=10)


def test_addresses_are_taken_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """No lookup for what is an address already."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("looked up"))
    assert resolve("127.0.0.1", 1, 1.0) == ["127.0.0.1"]
    assert resolve("::1", 1, 1.0) == ["::1"]


async def _two() -> int:
    return 2


async def _waits() -> None:
    await asyncio.sleep(0)


def test_a_coroutine_that_does_not_wait_is_run_in_one_step() -> None:
    """Its value comes back, its exceptions come through."""

    async def fails() -> None:
        raise KeyError("x")

    assert drive(_two()) == 2
    with pytest.raises(KeyError):
        drive(fails())


def test_a_coroutine_that_waits_is_an_error_and_never_a_hang() -> None:
    """Nothing here could resume it; it is closed, so nothing of it stays behind."""
    waiting = _waits()
    with pytest.raises(RuntimeError, match="suspended"):
        drive(waiting)
    with pytest.raises(RuntimeError, match="cannot reuse"):
        waiting.send(None)


def test_a_request_outside_an_exchange_is_a_programming_error() -> None:
    """No request goes out without a deadline and a cap."""
    client = httpx.AsyncClient(transport=GuardedTransport([HOME]), trust_env=False)
    with pytest.raises(LookupError):
        drive(client.get(HOME))


@pytest.mark.usefixtures("no_sockets")
def test_a_request_may_be_built_without_being_sent() -> None:
    """Under the same guards, with its final headers."""
    transport = GuardedTransport([HOME])
    client = httpx.AsyncClient(transport=transport, trust_env=False)
    exchange = Exchange(deadline_at=float("inf"), max_bytes=1, only_build=True, stand_in=b"{}")
    with exchanging(exchange):
        drive(client.post(f"{HOME}/rpc?x=1", content=b"body", headers={"Accept-Encoding": "gzip"}))
    assert exchange.request is not None
    assert (exchange.request.method, exchange.url, exchange.request_body) == (b"POST", f"{HOME}/rpc?x=1", b"body")
    names = [name.lower() for name, _ in exchange.request.headers]
    assert sorted(names) == sorted(set(names))
    assert (b"Accept-Encoding", b"identity") in exchange.request.headers
    assert (exchange.sent, exchange.status, transport.connections) == (0, 0, 0)
    with exchanging(exchange), pytest.raises(AgentRefused):
        drive(client.post("http://127.0.0.1:10/rpc"))


@pytest.mark.usefixtures("no_sockets")
def test_a_deadline_that_has_passed_opens_nothing() -> None:
    """Certain: nothing was sent."""
    with pytest.raises(AgentUnreachable):
        GuardedTransport([HOME]).get(HOME, headers={}, deadline_s=0, max_bytes=10)


def test_a_forked_child_starts_with_a_pool_of_its_own() -> None:
    """It must neither write to its parent's sockets nor wait for its parent's locks."""
    transport = GuardedTransport([HOME])
    pool = transport._pool()
    with pool._optional_thread_lock:  # as if another thread of the parent were at work
        child = os.fork()
        if child == 0:
            own = transport._pool()
            own.close()
            os._exit(0 if own is not pool and list(transport._pools) == [os.getpid()] else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert transport._pool() is pool


def test_an_exchange_is_seen_by_its_own_thread_only() -> None:
    """So threads can share a transport."""
    import threading

    exchange = Exchange(deadline_at=time.monotonic() + 1, max_bytes=1)
    seen: list[type[BaseException]] = []

    def elsewhere() -> None:
        try:
            drive(httpx.AsyncClient(transport=GuardedTransport([HOME]), trust_env=False).get(HOME))
        except BaseException as error:  # noqa: BLE001  told to the test
            seen.append(type(error))

    with exchanging(exchange):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen == [LookupError]
    with pytest.raises(httpcore.ReadTimeout):
        Exchange(deadline_at=time.monotonic(), max_bytes=1).seconds_left()
