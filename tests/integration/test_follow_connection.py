"""Connections of streams: the guards of every other call, and closed however they end."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from pathlib import Path

import pytest

from delegation.errors import AgentRefused, AgentUnreachable, CallAmbiguous
from delegation.events import PreparedRequest
from delegation.origins import read_origin
from delegation.outbound import Route
from delegation.replies import Question
from tests.support.raw_server import Behaviour, RawServer, Seen, closes, drips, hangs, resets, says
from workers.follow_connection import MOST_ERROR_BYTES, Connections, Silence

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
EVENT = b'data: {"x": 1}\r\n\r\n'


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def connections(threads: ThreadPoolExecutor) -> Connections:
    return Connections(threads, answer_within_s=3, idle_s=1)


def to(url: str, content: bytes = b'{"id": 1}', **headers: str) -> PreparedRequest:
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    question = Question(method="SubscribeToTask", binding="JSONRPC")
    framed = [(b"Host", b"agent"), (b"Content-Length", str(len(content)).encode()), *sent]
    return PreparedRequest(method="POST", url=url, headers=framed, content=content, question=question)


def route(*urls: str) -> Route:
    return Route(origins=frozenset(read_origin(url) for url in urls))


async def read_all(connections: Connections, url: str, **headers: str) -> bytes:
    body = b""
    async with connections.send(to(url, **headers), route(url)) as answer, aclosing(answer.chunks()) as chunks:
        assert answer.is_stream
        async for chunk in chunks:
            body += chunk
    return body


def streams(body: bytes, then: Behaviour) -> Behaviour:
    def behave(request: Seen, connection: socket.socket) -> bool:
        connection.sendall(HEAD + body)
        return then(request, connection)

    return behave


def run(work: Callable[[], Awaitable[object]]) -> object:
    async def main() -> object:
        return await work()

    return asyncio.run(main())


def test_a_stream_is_read_to_its_end_and_its_connection_is_gone(connections: Connections) -> None:
    """Sent as it was prepared, credentials included."""
    with RawServer(streams(EVENT, closes())) as server:
        assert run(lambda: read_all(connections, server.url, Accept_Encoding="identity", Cookie="a=b")) == EVENT
        assert server.wait_until_open(0)
    (seen,) = server.seen
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["cookie"] == "a=b"
    assert json.loads(seen.body) == {"id": 1}
    assert connections.open == 0


def test_an_origin_that_is_not_the_agents_is_not_spoken_to(connections: Connections) -> None:
    """Refused before any socket is opened."""

    async def send(url: str) -> None:
        async with connections.send(to(url), route("http://127.0.0.1:9")):
            raise AssertionError("sent")

    with RawServer(hangs()) as server:
        with pytest.raises(AgentRefused, match="not an allowed origin"):
            run(lambda: send(server.url))
        assert server.connections == 0


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "0.0.0.0", "[fd00:ec2::254]", "[::ffff:127.0.0.1]"])
def test_no_stream_goes_to_an_address_that_no_agent_has(connections: Connections, host: str) -> None:
    """Not even when the operator pinned it."""
    with pytest.raises(AgentUnreachable, match="link-local, multicast, unspecified or disguised"):
        run(lambda: read_all(connections, f"http://{host}:8080/rpc"))
    assert connections.open == 0


def test_a_closed_port_and_an_unknown_host_are_unreachable(
    connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certainly not sent."""

    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr("delegation.origins.socket.getaddrinfo", look_up)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid"):
        with pytest.raises(AgentUnreachable):
            run(lambda: read_all(connections, url))  # noqa: B023  runs at once
    assert connections.open == 0


@pytest.mark.parametrize(
    ("behaviour", "error"),
    [
        (hangs(), CallAmbiguous),
        (resets(), CallAmbiguous),
        (closes(), CallAmbiguous),
        (says(200, b"x", {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}), CallAmbiguous),
        (streams(EVENT, resets()), CallAmbiguous),
        (streams(EVENT, hangs()), Silence),
        (
            resets(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nda"),
            CallAmbiguous,
        ),
    ],
    ids=["no answer", "reset", "closed", "compressed", "reset within", "silent", "cut chunk"],
)
def test_whatever_goes_wrong_has_one_of_our_names_and_leaves_nothing_open(
    connections: Connections, behaviour: Behaviour, error: type[Exception]
) -> None:
    """No exception of httpcore, anyio or h11 leaves the module; the agent sees the connection close."""
    with RawServer(behaviour) as server:
        with pytest.raises(error):
            run(lambda: read_all(connections, server.url))
        assert connections.open == 0
        assert server.wait_until_open(0)


def test_a_redirect_is_an_answer_like_any_other(connections: Connections) -> None:
    """Its target is not asked."""

    async def status(url: str) -> int:
        async with connections.send(to(url), route(url)) as answer:
            return answer.status

    with RawServer(hangs()) as other, RawServer(says(307, b"", {"Location": other.url})) as server:
        assert run(lambda: status(server.url)) == 307
        assert other.connections == 0


def test_the_body_of_an_error_is_read_as_far_as_it_matters(connections: Connections) -> None:
    """64 KiB, and no longer than an answer may take."""

    async def read(url: str, within_s: float) -> bytes:
        async with connections.send(to(url), route(url)) as answer:
            return await answer.read(within_s)

    with RawServer(says(500, b"x" * 1_000_000)) as server:
        assert run(lambda: read(server.url, 5)) == b"x" * MOST_ERROR_BYTES
        assert server.wait_until_open(0)
    head = b"HTTP/1.1 500 X\r\nContent-Length: 1000\r\n\r\n"
    slow = RawServer(drips(lambda: slow, head, 0.1))
    with slow:
        with pytest.raises(CallAmbiguous):
            run(lambda: read(slow.url, 0.5))
        assert slow.wait_until_open(0)
    assert connections.open == 0


@pytest.mark.parametrize(
    "behaviour", [hangs(), streams(EVENT, hangs()), streams(b"", hangs())], ids=["waiting", "reading", "nothing yet"]
)
def test_cancelled_anywhere_every_connection_is_closed(threads: ThreadPoolExecutor, behaviour: Behaviour) -> None:
    """A hundred streams cancelled once, at whatever they are about: none stays open on either side."""
    patient = Connections(threads, answer_within_s=60, idle_s=60)

    async def work(url: str, server: RawServer, wait_for: int) -> None:
        tasks = [asyncio.create_task(read_all(patient, url)) for _ in range(100)]
        for _ in range(2000):
            if len(server.seen) >= wait_for:
                break
            await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        assert patient.open == 0

    for wait_for in (0, 10, 30):
        with RawServer(behaviour) as server:
            run(lambda: work(server.url, server, wait_for))  # noqa: B023  runs at once
            assert server.wait_until_open(0, 15)


def test_streams_of_one_agent_are_opened_in_turns(threads: ThreadPoolExecutor) -> None:
    """An agent that comes back is not met by a thousand connections at once; those that are open do not count."""
    waiting = Connections(threads, answer_within_s=60, idle_s=60)

    async def work(server: RawServer) -> int:
        tasks = [asyncio.create_task(read_all(waiting, server.url)) for _ in range(60)]
        for _ in range(2000):
            if len(server.seen) >= 32:
                break
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.2)
        seen = len(server.seen)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        return seen

    with RawServer(hangs()) as server:
        assert run(lambda: work(server)) == 32


def test_asyncio_is_in_the_follower_alone() -> None:
    """No event loop anywhere else in the product."""
    root = Path(__file__).resolve().parents[2]
    using = {
        path.relative_to(root).as_posix()
        for room in ("delegation", "workers", "web")
        for path in (root / room).rglob("*.py")
        if "import asyncio" in path.read_text(encoding="utf-8")
    }
    assert using
    assert all(name.startswith("workers/follow") for name in using)
