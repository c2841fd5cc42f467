"""The push endpoint under gunicorn with a real Valkey, spoken to over raw sockets as strangers do."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import socket
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
import redis

from delegation.settings import Settings
from delegation.store import Store
from tests.support.door import COMPLETED, Target, chunked, exchange, open_watching, push_of, request, statuses
from tests.support.processes import ChildProcess, ValkeyProcess, free_port
from tests.support.redis_users import ADMIN
from workers.celery_settings import QUEUE, celery_prefix

MESSAGES = f"{celery_prefix(Settings())}{QUEUE}"
CONSTANT_404 = (
    b"HTTP/1.1 404 NOT FOUND\r\n"
    b"X-Content-Type-Options: nosniff\r\nContent-Security-Policy: default-src 'none'; frame-ancestors 'none'\r\n"
    b"Referrer-Policy: no-referrer\r\nCache-Control: no-store\r\nContent-Length: 0\r\n\r\n"
)


class Web(ChildProcess):
    """gunicorn with the settings we ship, on a port of its own; two processes, as any deployment has."""

    def __init__(self, log: Path, redis_url: str, *, processes: int = 2, **variables: str) -> None:
        self.processes = processes
        self.port = free_port()
        command = [sys.executable, "-m", "gunicorn", "-c", "python:web.server", "-b", f"127.0.0.1:{self.port}"]
        env = {"DELEGATION_REDIS__URL": redis_url} | variables
        super().__init__([*command, "--workers", str(processes), "--access-logfile", "-"], log=log, env=env)

    def start(self) -> Self:
        super().start()
        self.wait_until(lambda: self.output().count("Booting worker") == self.processes, what="its processes")
        assert self.get("/healthz")[0] == 200
        return self

    def exchange(self, raw: bytes, **options: Any) -> bytes:
        return exchange(self.port, raw, **options)

    def push(self, target: Target, token: str | None = None, body: bytes = COMPLETED, **options: Any) -> bytes:
        return self.exchange(push_of(target, token, body), **options)

    def get(self, path: str) -> tuple[int, bytes]:
        answer = self.exchange(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return statuses(answer)[0], answer.partition(b"\r\n\r\n")[2]


def without_server_headers(answer: bytes) -> bytes:
    """What we answer: gunicorn adds Server, Date and Connection to every answer."""
    return re.sub(rb"(Server|Date|Connection): [^\r]*\r\n", b"", answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    with ValkeyProcess(tmp_path_factory.mktemp("valkey")).start() as running:
        yield running


@pytest.fixture(scope="module")
def web(server: ValkeyProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """Its tests fail on purpose again and again; what a limited source meets has a web app of its own below."""
    unlimited = {"DELEGATION_LIMITS__FAILED_CREDENTIALS": "1000000"}
    with Web(tmp_path_factory.mktemp("web") / "log", server.url(), **unlimited).start() as running:
        yield running


@pytest.fixture
def client(server: ValkeyProcess) -> Iterator[redis.Redis]:
    """Looks into Redis beside the product; every test begins with an empty one."""
    with redis.Redis.from_url(server.url(user=ADMIN)) as connection:
        connection.flushall()
        yield connection


@pytest.fixture
def store(server: ValkeyProcess, client: redis.Redis) -> Iterator[Store]:
    opened = Store.connect(server.url())
    yield opened
    opened.close()


@pytest.fixture
def watching(store: Store) -> Callable[[], Target]:
    return lambda: open_watching(store)


@pytest.fixture
def target(watching: Callable[[], Target]) -> Target:
    return watching()


def messages(client: redis.Redis) -> list[dict[str, Any]]:
    raw: Any = client.lrange(MESSAGES, 0, -1)
    return [json.loads(line) for line in raw]


# ------------------------------------------------------------ what is accepted


def test_a_push_is_answered_at_once_and_becomes_one_durable_wake_and_one_message(
    web: Web, client: redis.Redis, target: Target
) -> None:
    """No worker runs here: the answer waits for nobody, and the message carries an id and no news."""
    began = time.monotonic()
    answer = web.push(target)
    assert time.monotonic() - began < 0.5
    assert statuses(answer) == [202]
    assert answer.endswith(b"\r\n\r\n")
    (message,) = messages(client)
    assert message["headers"]["task"] == "delegation.wake"
    assert message["headers"]["argsrepr"] == f"('{target.id}',)"
    assert message["headers"]["id"].startswith(f"{target.id}.wake.")
    assert message["headers"]["ignore_result"] is True
    assert client.hget(f"delegation:d:{target.id}", "claimed") == b"COMPLETED"
    assert client.zscore("delegation:due", f"delegation:{target.id}") is not None


def test_a_thousand_replays_are_one_message(web: Web, client: redis.Redis, target: Target) -> None:
    """Every one is answered 202 (a refusal could lose the last), and one look is enough for all."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: statuses(web.push(target)), range(300)))
    assert answers == [[202]] * 300
    assert len(messages(client)) == 1
    assert client.hget(f"delegation:d:{target.id}", "wakes") == b"300"
    assert client.hget("delegation:counters", "pushes_accepted") == b"300"


def test_a_lying_push_leaves_one_state_name_behind(web: Web, client: redis.Redis, target: Target) -> None:
    """No key, message or log holds anything else of a body."""
    lie = {
        "task": {
            "id": "canary-task",
            "status": {"state": "TASK_STATE_COMPLETED", "message": {"parts": [{"text": "canary-text"}]}},
            "artifacts": [{"artifactId": "canary-artifact", "parts": [{"text": "canary " * 100}]}] * 20,
        }
    }
    assert statuses(web.push(target, body=json.dumps(lie).encode())) == [202]
    keys: Any = client.keys("*")
    assert keys
    assert not [key for key in keys if b"canary" in (client.dump(key) or b"")]
    assert "canary" not in web.output()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Content-Type: application/json"], 202),
        (["Content-Type: application/a2a+json; charset=utf-8"], 202),
        ([], 202),
        (["Content-Type: text/plain"], 202),
        (["Content-Type: application/octet-stream"], 202),
        (["Content-Type: application/x-www-form-urlencoded"], 415),
        (["Content-Type: multipart/form-data; boundary=x"], 415),
        (["Content-Type: application/json; charset=utf-16"], 415),
        (["Content-Type: application/json", "Content-Type: application/json"], 400),  # gunicorn's own answer
    ],
)
def test_content_types(web: Web, client: redis.Redis, target: Target, headers: list[str], status: int) -> None:
    """Checked after the credential; what is refused wakes nobody, and without the credential it is the 404."""
    right, wrong = f"Authorization: Bearer {target.token}", "Authorization: Bearer x"
    assert statuses(web.exchange(request(f"/a2a/push/{target.id}", [right, *headers]))) == [status]
    assert len(messages(client)) == (1 if status == 202 else 0)
    assert statuses(web.exchange(request(f"/a2a/push/{target.id}", [wrong, *headers]))) == [
        400 if status == 400 else 404
    ]


# ------------------------------------------------------------ what is not


def test_forged_and_enumerating_requests_get_one_constant_404(
    web: Web, client: redis.Redis, watching: Callable[[], Target], store: Store
) -> None:
    """Byte for byte the same, whatever is wrong with the credential, the id or the path; nothing is woken."""
    target, other = watching(), watching()
    sibling = open_watching(store, f"{target.id.partition('.')[0]}.2")
    right = f"Authorization: Bearer {target.token}"
    notification = "X-A2A-Notification-Token: "
    digest = hashlib.sha256(target.token.encode()).hexdigest()
    attempts: list[tuple[str, list[str]]] = [
        (target.id, []),
        (target.id, ["Authorization: Bearer"]),
        (target.id, ["Authorization: Bearer "]),
        (target.id, ["Authorization: Bearer x"]),
        (target.id, [f"Authorization: Bearer {digest}"]),
        (target.id, [f"Authorization: Bearer {target.token[:-1]}"]),
        (target.id, [f"Authorization: Bearer {target.token.swapcase()}"]),
        (target.id, [f"Authorization: Bearer {target.token}\xff\xfe"]),
        (target.id, [f"Authorization: Bearer {other.token}"]),
        (target.id, [f"Authorization: Bearer {sibling.token}"]),
        (target.id, [right, right]),
        (target.id, [notification + target.token, notification + target.token]),
        (target.id, [right, notification + "x"]),
        (target.id, ["Authorization: Bearer x", notification + target.token]),
        (target.id, ["Authorization: Basic x", notification + target.token]),
        (target.id, [f"Proxy-Authorization: Bearer {target.token}"]),
        (f"{target.id}?token={target.token}", []),
        (f"{target.id}?access_token={target.token}", []),
        (f"{target.id}/{target.token}", []),
        (f"{target.id}/", [right]),
        (f"{target.id}%00", [right]),
        (f"{target.id}%0a", [right]),
        (f"..%2f{target.id}", [right]),
        (f"{target.id}%2f..", [right]),
        (f"./{target.id}", [right]),
        (f"/{target.id}", [right]),
        (f"{target.id}..1", [right]),
        (sibling.id, [right]),
        (f"{target.id.partition('.')[0]}.3", [right]),
        (secrets.token_hex(16) + ".1", [right]),
        ("%c3%bc" * 30, [right]),
        ("a" * 3_000, [right]),
        ("x", [right]),
        ("", [right]),
    ]
    for path, headers in attempts:
        answer = web.exchange(request(f"/a2a/push/{path}", headers))
        assert without_server_headers(answer) == CONSTANT_404, (path[:200], headers)
    double_slash = request(f"//a2a/push/{target.id}", ["Authorization: Bearer x"])  # gunicorn reads it as one
    assert without_server_headers(web.exchange(double_slash)) == CONSTANT_404
    assert messages(client) == []
    assert client.hget("delegation:counters", "pushes_accepted") is None


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param(["X_A2A_Notification_Token: {token}"], id="underscores"),
        pytest.param(["X-A2A-Notification-Token : {token}"], id="space before the colon"),
        pytest.param(["X-A2A-Notification-Token:\r\n {token}"], id="obsolete folding"),
        pytest.param(["Authorization: Bearer {token}\x00"], id="NUL"),
        pytest.param(["Authorization: Bearer {token}", *[f"X-H{n}: 1" for n in range(200)]], id="200 headers"),
        pytest.param(["Authorization: Bearer {token}", "X-Long: " + "x" * 300_000], id="300 KB header"),
        pytest.param(["Authorization: Bearer " + "x" * 10_000_000], id="10 MB token"),
    ],
)
def test_header_games_are_never_accepted(web: Web, client: redis.Redis, target: Target, headers: list[str]) -> None:
    """Some end at gunicorn, some at us, none in a wake; and the next request is served."""
    filled = [header.replace("{token}", target.token) for header in headers]
    codes = statuses(web.exchange(request(f"/a2a/push/{target.id}", filled)))
    assert set(codes) <= {400, 404, 431}
    assert messages(client) == []
    assert statuses(web.push(target)) == [202]


def test_methods_are_405_alike_for_known_and_unknown(web: Web, client: redis.Redis, target: Target) -> None:
    """An override header or parameter changes nothing."""
    headers = [f"Authorization: Bearer {target.token}", "X-HTTP-Method-Override: POST"]
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE"):
        known, unknown = (
            without_server_headers(web.exchange(request(f"/a2a/push/{name}?_method=POST", headers, method=method)))
            for name in (target.id, secrets.token_hex(16) + ".1")
        )
        assert known == unknown
        assert statuses(known) == [405]
        assert b"\r\nAllow: OPTIONS, POST\r\n" in known
        assert known.endswith(b"\r\n\r\n")
    options = web.exchange(
        request(f"/a2a/push/{target.id}", [*headers, "Origin: https://evil.example"], method="OPTIONS")
    )
    assert statuses(options) == [200]
    assert b"access-control" not in options.lower()
    assert messages(client) == []


def test_forwarded_headers_change_nothing(web: Web, client: redis.Redis, target: Target) -> None:
    """No proxy is trusted by default, and nothing we store or send is built from a request's Host."""
    spoofed = ["X-Forwarded-For: 6.6.6.6", "X-Forwarded-Host: evil.example", "X-Forwarded-Prefix: /evil"]
    raw = request(f"/a2a/push/{target.id}", [f"Authorization: Bearer {target.token}", *spoofed])
    assert statuses(web.exchange(raw.replace(b"Host: x", b"Host: evil.example"))) == [202]
    keys: Any = client.keys("*")
    assert not [key for key in keys if b"evil" in (client.dump(key) or b"")]
    assert "6.6.6.6" not in web.output()


def test_a_header_cannot_move_the_path(web: Web, target: Target) -> None:
    """gunicorn would take SCRIPT_NAME from a proxy on its own machine, and with it a path of the client's choice."""
    for name in ("SCRIPT_NAME", "PATH_INFO", "REMOTE_USER"):
        moved = request("/a2a/push/healthz", [f"{name}: /a2a/push"], b"", "GET")
        assert statuses(web.exchange(moved)) == [405]
    assert statuses(web.exchange(request("/healthz", ["SCRIPT_NAME: /elsewhere"], b"", "GET"))) == [200]


# ------------------------------------------------------------ a source that keeps failing


@pytest.fixture
def alone(server: ValkeyProcess, tmp_path: Path) -> Iterator[Web]:
    """One process, so that its count is the whole count."""
    with Web(tmp_path / "log", server.url(), processes=1).start() as running:
        yield running


def fail_until_warned(web: Web, source: str) -> int:
    """Wrong credentials from one address until the log speaks of it once more; how many that took."""
    wrong = request(f"/a2a/push/{'f' * 34}", ["Authorization: Bearer x"])
    warned = len(warned_sources(web))
    for sent in range(1, 121):  # a minute may end in between
        assert without_server_headers(web.exchange(wrong, source=source)) == CONSTANT_404
        if len(warned_sources(web)) > warned:
            return sent
    raise AssertionError("no warning")


def warned_sources(web: Web) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", web.output())
    return re.findall(r"push\.credentials_failing.* source=(\S+)", plain)


def test_a_noisy_source_changes_no_answer_and_starves_nobody(alone: Web, client: redis.Redis, target: Target) -> None:
    """P-06: past 30 wrong credentials in a minute the 404 stays the 404, and right ones are taken from everywhere."""
    sent = fail_until_warned(alone, "127.0.0.2")
    assert sent >= 31
    before = script_calls(client)
    wrong = request(f"/a2a/push/{target.id}", ["Authorization: Bearer x"])
    for _ in range(20):
        assert without_server_headers(alone.exchange(wrong, source="127.0.0.2")) == CONSTANT_404
    assert script_calls(client) - before == 20
    for source in ("127.0.0.2", "127.0.0.3"):
        answers = [statuses(alone.push(target, source=source)) for _ in range(40)]
        assert answers == [[202]] * 40
    assert client.hget("delegation:counters", "pushes_accepted") == b"80"
    assert client.hget("delegation:counters", "pushes_rejected") == str(sent + 20).encode()
    assert len(messages(client)) == 1
    assert set(warned_sources(alone)) == {"127.0.0.2"}


def test_a_noisy_source_is_not_read(alone: Web, target: Target) -> None:
    """Its wrong credential is refused while its body is still on the way, so it holds no thread by sending slowly."""
    head = f"POST /a2a/push/{target.id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nContent-Length: 10\r\n\r\n{{"

    def refused_at_once() -> bool:
        fail_until_warned(alone, "127.0.0.2")
        address = ("127.0.0.1", alone.port)
        with socket.create_connection(address, timeout=20, source_address=("127.0.0.2", 0)) as connection:
            connection.sendall(head.encode())
            return statuses(connection.recv(65_536)) == [404]  # 400 once the body has been silent for 5 s

    assert refused_at_once() or refused_at_once()  # a new minute may begin between the two steps


def test_behind_a_proxy_the_source_is_the_hop_it_added(server: ValkeyProcess, tmp_path: Path, target: Target) -> None:
    """P-16: with one trusted hop the last entry counts, with none the connection's own address; forged ones never."""
    forged = ("X-Forwarded-For: 6.6.6.6, 10.1.2.3", "X-Forwarded-Proto: https", "X-Forwarded-Host: evil.example")
    for hops, source in (("1", "10.1.2.3"), ("0", "127.0.0.2")):
        log = tmp_path / hops
        with Web(log, server.url(), processes=1, DELEGATION_SERVER__TRUSTED_PROXIES=hops).start() as web:
            wrong = request(f"/a2a/push/{target.id}", ["Authorization: Bearer x", *forged])
            for _ in range(70):
                assert statuses(web.exchange(wrong, source="127.0.0.2")) == [404]
            assert set(warned_sources(web)) == {source}
            right = push_of(target, None, COMPLETED, *forged)
            assert statuses(web.exchange(right, source="127.0.0.2")) == [202]
            assert "6.6.6.6" not in web.output()


# ------------------------------------------------------------ size and framing


def test_oversized_bodies(web: Web, client: redis.Redis, target: Target) -> None:
    """A declared length is refused before reading, an undeclared one only to somebody with the credential."""
    path, right = f"/a2a/push/{target.id}", f"Authorization: Bearer {target.token}"
    declared = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{right}\r\nContent-Length: 100000000\r\n\r\n"
    assert statuses(web.exchange(declared.encode())) == [413]
    assert statuses(web.exchange(declared.replace(target.id, "f" * 34).encode())) == [413]
    two_megabytes = [b"x" * 65_536] * 32
    assert statuses(web.exchange(chunked(path, [right], two_megabytes))) in ([413], [])  # [] when it was cut
    assert statuses(web.exchange(chunked(path, ["Authorization: Bearer x"], two_megabytes))) in ([404], [])
    assert statuses(web.exchange(chunked(path, [right], [b"x" * 65_537]))) == [413]
    assert messages(client) == []
    in_two = chunked(path, [right, "Content-Type: application/json"], [COMPLETED[:20], COMPLETED[20:]])
    assert statuses(web.exchange(in_two)) == [202]
    assert client.hget(f"delegation:d:{target.id}", "claimed") == b"COMPLETED"


def test_a_body_without_end_costs_no_memory(web: Web, target: Target) -> None:
    """The server stops listening soon after the limit, however long the sender goes on."""
    before = resident_kib(web.pid)
    head = chunked(f"/a2a/push/{target.id}", [f"Authorization: Bearer {target.token}"], []).partition(b"\r\n\r\n")[0]
    chunk = b"10000\r\n" + b"x" * 65_536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as connection:
        connection.sendall(head + b"\r\n\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(chunk * 2_000)
    assert resident_kib(web.pid) - before < 32 * 1024


def resident_kib(pid: int) -> int:
    """Resident memory of gunicorn's processes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    status = "".join(Path(f"/proc/{each}/status").read_text() for each in [str(pid), *children])
    return sum(int(kib) for kib in re.findall(r"VmRSS:\s+(\d+) kB", status))


def test_half_a_body_is_cut_off_and_wakes_nobody(web: Web, client: redis.Redis, target: Target) -> None:
    """A sender that goes silent, or away, in the middle of a body has pushed nothing."""
    head = f"POST /a2a/push/{target.id} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {target.token}\r\n"
    began = time.monotonic()
    assert set(statuses(web.exchange(f"{head}Content-Length: 10\r\n\r\n{{}}".encode(), timeout_s=15))) <= {400}
    assert time.monotonic() - began < 10
    chunked_head = "Transfer-Encoding: chunked\r\n\r\n"
    for framing in ("Content-Length: 10\r\n\r\n{}", f"{chunked_head}5\r\n{{}}", f"{chunked_head}zz\r\n"):
        with socket.create_connection(("127.0.0.1", web.port), timeout=10) as connection:
            connection.sendall(f"{head}{framing}".encode())
            connection.shutdown(socket.SHUT_WR)
            assert set(statuses(connection.recv(65_536))) <= {400}
    assert messages(client) == []


def test_no_framing_smuggles_a_second_request(web: Web, client: redis.Redis, target: Target) -> None:
    """Whatever the lengths say, a push hidden in somebody else's body is not served."""
    hidden = request(f"/a2a/push/{target.id}", [f"Authorization: Bearer {target.token}"])
    head = f"POST /a2a/push/{'f' * 34} HTTP/1.1\r\nHost: x\r\n"
    ambiguous = [
        f"Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 6\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "Content-Length: +0\r\n\r\n",
        "Content-Length: 0x0\r\n\r\n",
        "X: 1\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ]
    for framing in ambiguous:
        codes = statuses(web.exchange(f"{head}{framing}".encode() + hidden, timeout_s=15))
        assert codes, framing
        assert set(codes) <= {400, 404, 501}, framing
        assert len(codes) == 1, framing
    assert messages(client) == []


# ------------------------------------------------------------ cost and time


def test_a_request_costs_one_redis_operation_accepted_or_not(web: Web, client: redis.Redis, target: Target) -> None:
    """A flood without tokens cannot make Redis work harder than that."""
    web.push(target)  # opens connections, loads the script
    headers = [[], ["Authorization: Bearer x"], [f"Authorization: Bearer {target.token}"]]
    before = script_calls(client)
    for each in headers * 10:
        web.exchange(request(f"/a2a/push/{target.id}", each))
    assert script_calls(client) - before == 30
    web.exchange(request("/a2a/push/malformed", headers[2]))
    assert script_calls(client) - before == 30


def script_calls(client: redis.Redis) -> int:
    statistics_by_command: Any = client.info("commandstats")
    return sum(int(statistics_by_command.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


def test_time_does_not_tell_a_known_id_from_an_unknown_one(web: Web, target: Target) -> None:
    """The medians of both refusals agree; interleaved, so that load on the machine meets both alike."""
    known = keep_alive(request(f"/a2a/push/{target.id}", [f"Authorization: Bearer {target.token[:-1]}x"]))
    unknown = keep_alive(request(f"/a2a/push/{secrets.token_hex(16)}.1", [f"Authorization: Bearer {target.token}"]))
    took: dict[bytes, list[float]] = {known: [], unknown: []}
    with socket.create_connection(("127.0.0.1", web.port), timeout=10) as connection:
        for _ in range(600):
            for raw, times in took.items():
                began = time.perf_counter()
                connection.sendall(raw)
                assert connection.recv(65_536).startswith(b"HTTP/1.1 404 ")
                times.append(time.perf_counter() - began)
    assert abs(statistics.median(took[known]) - statistics.median(took[unknown])) < 250e-6


def keep_alive(raw: bytes) -> bytes:
    return raw.replace(b"Connection: close\r\n", b"")


# ------------------------------------------------------------ Redis away


@contextmanager
def frozen(server: ValkeyProcess) -> Iterator[None]:
    """The server holds its connections and answers nobody."""
    server.pause()
    try:
        yield
    finally:
        server.resume()


def test_while_redis_is_frozen_every_push_is_503_within_5_s_and_afterwards_accepted(
    web: Web, server: ValkeyProcess, client: redis.Redis, watching: Callable[[], Target]
) -> None:
    """Never 202 and lost, also with more senders than threads; the first push after the thaw is taken."""
    target, other = watching(), watching()
    assert statuses(web.push(target)) == [202]

    def push(number: int) -> tuple[list[int], bool, float]:
        began = time.monotonic()
        answer = web.push(target, token="x" if number % 3 == 0 else None)
        return statuses(answer), b"Retry-After: 5\r\n" in answer, time.monotonic() - began

    with frozen(server), ThreadPoolExecutor(80) as pool:
        answers = list(pool.map(push, range(160)))
        assert web.get("/healthz")[0] == 200
        assert web.get("/readyz")[0] == 503
        assert web.get("/metrics")[0] == 503
    assert {(*codes, told) for codes, told, _ in answers} == {(503, True)}
    assert max(took for *_, took in answers) < 5
    assert statuses(web.push(other)) == [202]
    assert client.hget(f"delegation:d:{other.id}", "wakes") == b"1"


def test_without_redis_the_door_starts_and_says_503(tmp_path: Path, target: Target) -> None:
    """The process comes up first in an outage too, and tells senders when to try again."""
    with Web(tmp_path / "log", f"redis://127.0.0.1:{free_port()}/0").start() as web:
        assert statuses(web.push(target)) == [503]
        assert web.get("/healthz")[0] == 200
        status, body = web.get("/readyz")
        assert (status, json.loads(body)) == (503, {"ready": False, "reasons": ["redis: does not answer"]})
        assert "Traceback" not in web.output()


def test_a_broker_that_is_away_delays_the_message_and_not_the_answer(
    tmp_path: Path, server: ValkeyProcess, watching: Callable[[], Target], client: redis.Redis
) -> None:
    """The wake is in the due index, so the push is accepted; and messages flow again when the broker is back."""
    with (
        ValkeyProcess(tmp_path / "broker").start() as broker,
        Web(tmp_path / "log", server.url(), DELEGATION_CELERY__BROKER_URL=broker.url()).start() as web,
    ):
        assert statuses(web.push(watching())) == [202]
        with frozen(broker):
            began = time.monotonic()
            target = watching()
            assert statuses(web.push(target)) == [202]
            assert time.monotonic() - began < 5
            assert client.zscore("delegation:due", f"delegation:{target.id}") is not None
        assert "push.wake_not_sent" in web.output()
        with redis.Redis.from_url(broker.url(user=ADMIN)) as connection:
            connection.flushall()
            for _ in range(8):  # several connections went stale
                assert statuses(web.push(watching())) == [202]
            assert connection.llen(MESSAGES) == 8


# ------------------------------------------------------------ operators


def test_no_query_string_reaches_a_log(web: Web, target: Target) -> None:
    """Somebody who puts the token into the URL does not put it into our logs."""
    web.exchange(request(f"/a2a/push/{target.id}?token={target.token}", []))
    web.get(f"/healthz?token={target.token}")
    web.exchange(f"POST /a2a/push/{target.id}?token={target.token} x HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    malformed = web.exchange(request(f"/a2a/push/{target.id}", [f"Authorization Bearer {target.token}"]))
    assert statuses(malformed) == [400]
    log = web.output()
    assert f"POST /a2a/push/{target.id}" in log
    assert "Invalid request from ip=127.0.0.1\n" in log
    assert target.token not in log


def test_metrics_and_readiness_of_a_live_deployment(web: Web, store: Store, target: Target) -> None:
    """Counted in Redis by all processes, shown by any of them."""
    web.push(target)
    web.push(target, token="wrong")
    status, body = web.get("/metrics")
    assert status == 200
    assert b"\ndelegation_pushes_accepted_total 1.0\n" in body
    assert b"\ndelegation_pushes_rejected_total 1.0\n" in body
    assert b'\ndelegation_queue_length{queue="delegations"} 1.0\n' in body
    store.make_epoch()
    assert web.get("/readyz")[0] == 503
    store.sweep(0)
    assert web.get("/readyz")[0] == 200
