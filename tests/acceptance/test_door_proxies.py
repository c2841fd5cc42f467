"""The shipped proxy examples in front of the shipped web server: what they keep out, and that good pushes pass."""

from __future__ import annotations

import json
import re
import secrets
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from delegation.store import Store
from tests.support.child import wait_until
from tests.support.door import Target, chunked, exchange, open_watching, push_of, request, statuses
from tests.support.processes import ValkeyProcess, Web
from tests.support.proxies import PROXIES, Proxy
from tests.support.slow_senders import HALF_BODY, HALF_HEADER, LARGE_HALF_BODY, SILENT_BODY, SlowSenders

SLOW = {HALF_HEADER: 100, HALF_BODY: 75, LARGE_HALF_BODY: 50, SILENT_BODY: 75}
GOOD_PUSHES = 50
#: Good pushes are measured again when the machine was busy with something else.
ATTEMPTS = 3


@dataclass
class Site:
    """One deployment's door, from the street to the store."""

    proxy: Proxy
    web: Web
    store: Store

    def watching(self) -> Target:
        return open_watching(self.store)

    def exchange(self, raw: bytes, *, source: str = "127.0.0.1") -> bytes:
        return exchange(self.proxy.port, raw, source=source)

    def codes(self, raw: bytes, *, source: str = "127.0.0.1") -> list[int]:
        return statuses(self.exchange(raw, source=source))

    def wakes_of(self, target: Target) -> int:
        return self.store.load(target.id).delegation.wakes

    def served_by_web(self, path: str = "", status: str = r"\d+") -> int:
        """How many such requests web has answered; it logs each, a moment after its answer."""
        line = rf'^\S+ "[A-Z]+ {re.escape(path)}\S*" {status} '
        return len(re.findall(line, self.web.output(), re.MULTILINE))

    def wait_until_web_logged(self, path: str, count: int) -> None:
        """And no more than that: what came before it would be in the log by now."""
        wait_until(lambda: self.served_by_web(path) >= count, what=f"request for {path} in web's log")
        assert self.served_by_web(path) == count


@pytest.fixture(scope="module", params=PROXIES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory: Path = tmp_path_factory.mktemp(request.param)
    with ValkeyProcess(directory / "valkey").start() as valkey:
        env = {"DELEGATION_REDIS__URL": valkey.url(), "DELEGATION_SERVER__TRUSTED_PROXIES": "1"}
        web = Web(log=directory / "web.log", env=env, workers=2, threads=16, options=["--access-logfile", "-"])
        with web, Proxy(request.param, directory, web_port=web.port) as proxy:
            web.start()
            proxy.start()
            wait_until(lambda: _answers(proxy.port), what=f"answer of {proxy.name}")
            store = Store.connect(valkey.url())
            yield Site(proxy, web, store)
            store.close()


def _answers(port: int) -> bool:
    try:
        return statuses(exchange(port, request("/", []))) == [404]
    except OSError:
        return False


# ------------------------------------------------------------ slow clients


def test_good_pushes_stay_fast_under_300_slow_connections(site: Site) -> None:
    """P-08: half headers and half bodies, a byte each half second; the slow wait at the proxy, not in our threads."""
    target = site.watching()
    worst_s = 0.0
    for _ in range(ATTEMPTS):
        refused = site.served_by_web(status=r"4\d\d")
        with SlowSenders(site.proxy.port, SLOW) as slow:
            took_s = [_push_time_s(site, target) for _ in range(GOOD_PUSHES)]
            worst_s = max(took_s)
            assert slow.still_open(), "the slow ones were gone before the good ones were measured"
            _check_they_are_cut(site, slow)
        assert site.served_by_web(status=r"4\d\d") == refused, "an unfinished request reached web"
        if worst_s < 0.25:
            break
    assert worst_s < 0.25


def _push_time_s(site: Site, target: Target) -> float:
    began = time.monotonic()
    assert site.codes(push_of(target)) == [202]
    return time.monotonic() - began


def _check_they_are_cut(site: Site, slow: SlowSenders) -> None:
    """HAProxy counts from the first byte, nginx a body's silence only: there a drip keeps its connection, no more."""
    kinds = tuple(SLOW) if site.proxy.name == "haproxy" else (HALF_HEADER, SILENT_BODY)
    wait_until(lambda: not slow.still_open(*kinds), timeout_s=20, what="end of every slow connection")
    assert max(each.cut_after_s or 0 for each in slow.senders if each.kind in kinds) < 10


# ------------------------------------------------------------ size


def test_oversized_bodies_end_at_the_proxy(site: Site) -> None:
    """P-07: declared or chunked, above 64 KiB is 413; a chunked body within it arrives whole."""
    target = site.watching()
    path, right = f"/a2a/push/{target.id}", f"Authorization: Bearer {target.token}"
    declared = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{right}\r\nContent-Length: 100000000\r\n\r\n"
    assert site.codes(declared.encode()) == [413]
    assert site.codes(request(path, [right], b"x" * 65_537)) == [413]
    assert site.codes(chunked(path, [right], [b"x" * 65_536] * 32)) in ([413], [])  # [] when it was cut
    assert site.codes(chunked(path, [right], [b"x" * 65_537])) == [413]
    assert site.wakes_of(target) == 0
    assert site.codes(request(path, [right], b"x" * 65_536)) == [202]
    site.wait_until_web_logged(path, 1)
    assert site.codes(chunked(path, [right, "Content-Type: application/json"], [b'{"a":', b" 1}"])) == [202]
    assert site.codes(chunked(path, [right], [b"x"] * 5_000)) == [202]


# ------------------------------------------------------------ paths and methods


def test_only_the_push_path_is_forwarded_and_nothing_redirects(site: Site) -> None:
    """P-12: what operators see stays inside, however the path is spelt."""
    target = site.watching()
    right = f"Authorization: Bearer {target.token}"
    for path in ("/", "/healthz", "/readyz", "/metrics", "/a2a/push", "/a2a/pushy/x", "/a2a", "/%61dmin"):
        for method in ("GET", "POST"):
            assert site.codes(request(path, [right], b"", method)) == [404], (method, path)
    assert not [path for path in ("/readyz", "/metrics", "/a2a/pushy", "/admin") if site.served_by_web(path)]
    push = f"/a2a/push/{target.id}"
    odd = [f"{push}/", f"/a2a/push/..%2f{target.id}", "/a2a/push/..%2f..%2fmetrics", "/a2a/push/../../metrics"]
    odd += [f"{push}%2f..", f"/a2a/push//{target.id}", f"/healthz/..{push}", f"/a2a/./push/{target.id}", "//metrics"]
    odd += [f"{push}%0d%0aX:%20y", "/a2a/push/%2e%2e/%2e%2e/metrics", f"{push};/../../../metrics", "/a2a/push/"]
    for path in odd:
        answer = site.exchange(request(path, [right]))
        assert set(statuses(answer)) <= {400, 404}, path
        assert b"\r\nlocation:" not in answer.lower(), path
    assert site.wakes_of(target) == 0
    doubled = site.exchange(request(f"/{push}", [right]))
    assert set(statuses(doubled)) <= {202, 404}  # gunicorn reads two slashes as one


def test_dot_segments_end_at_the_proxy(site: Site) -> None:
    """P-12: plain or encoded, whatever they would lead to; dots that are none pass. Web hears of none of them."""
    target = site.watching()
    right = f"Authorization: Bearer {target.token}"
    push = f"/a2a/push/{target.id}"
    dotted = [
        f"/a2a/push/{dots}{slash}{target.id}" for dots in ("..", ".", "%2e%2E", ".%2e", "%2e") for slash in ("/", "%2f")
    ]
    dotted += [
        "/a2a/push/../../metrics",
        "/a2a/push/%2e%2e/%2e%2e/metrics",
        "/a2a/push/..%2f..%2fmetrics",
        f"{push}/..",
    ]
    dotted += [
        f"/healthz/..{push}",
        f"/a2a/./push/{target.id}",
        f"{push}%2f.",
        f"{push}/..?x=1",
        "/a2a/push/x%2F..%2Fy",
    ]
    for path in dotted:
        for method in ("POST", "GET"):
            assert site.codes(request(path, [right], b"", method)) == [404], (method, path)
    assert site.codes(request("/a2a/push/..a", [right])) == [404]
    assert site.codes(request(f"{push}?next=/../x", [right])) == [202]
    site.wait_until_web_logged("/a2a/push/..a", 1)
    site.wait_until_web_logged(push, 1)
    # What other tests asked for may be logged as late as now: only what is asked for here alone is looked for.
    heard = [line for line in site.web.output().splitlines() if '"POST ' in line or '"GET ' in line]
    assert len([line for line in heard if target.id in line]) == 1
    assert not [line for line in heard if "metrics" in line or "%2Fy" in line]


def test_a_header_cannot_move_the_path(site: Site) -> None:
    """gunicorn would take SCRIPT_NAME from a proxy on its own machine, and with it a path of the client's choice."""
    for name in ("SCRIPT_NAME", "Script-Name", "PATH_INFO", "X-Forwarded-Prefix", "X-Original-URL", "X-Rewrite-URL"):
        for value in ("/a2a/push", "/metrics"):
            answer = site.exchange(request("/a2a/push/metrics", [f"{name}: {value}"], b"", "GET"))
            assert statuses(answer) == [405], (name, value)
            assert b"delegation_" not in answer


def test_wrong_methods_are_refused_alike(site: Site) -> None:
    """P-13: by us or by the proxy, and the same for known and unknown ids."""
    target = site.watching()
    right = f"Authorization: Bearer {target.token}"
    for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "FROB"):
        known, unknown = (
            site.codes(request(f"/a2a/push/{name}", [right], b"", method))
            for name in (target.id, f"{secrets.token_hex(16)}.1")
        )
        assert known == unknown
        assert set(known) <= {400, 404, 405, 501}, method
    options = site.exchange(request(f"/a2a/push/{target.id}", [right, "Origin: https://evil.example"], b"", "OPTIONS"))
    assert statuses(options) == [200]
    assert b"access-control" not in options.lower()
    assert site.wakes_of(target) == 0


# ------------------------------------------------------------ framing


def test_no_framing_smuggles_a_request_past_the_proxy(site: Site) -> None:
    """P-15: proxy and web see the same requests; a push hidden in another one's body is not served."""
    target = site.watching()
    hidden = push_of(target)
    head = f"POST /a2a/push/{'f' * 34} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    ambiguous = [
        f"Content-Length: {len(hidden) + 5}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        f"Transfer-Encoding: chunked\r\nContent-Length: {len(hidden) + 5}\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 6\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "Content-Length: +0\r\n\r\n",
        "Content-Length: 0x0\r\n\r\n",
        "X: 1\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0\n\r\n",
    ]
    for framing in ambiguous:
        answer = site.exchange(f"{head}{framing}".encode() + hidden)
        assert len(statuses(answer)) <= 1, framing
        assert set(statuses(answer)) <= {400, 404, 408, 413, 501}, framing
    assert site.wakes_of(target) == 0
    assert site.codes(hidden) == [202]
    site.wait_until_web_logged(f"/a2a/push/{target.id}", 1)


def test_kept_connections_do_not_mix_their_answers(site: Site) -> None:
    """Right and wrong pushes in turn on one connection each get their own answer, also past an idle while."""
    target = site.watching()
    keep = [push_of(target, token).replace(b"Connection: close\r\n", b"") for token in (None, "wrong")]
    with socket.create_connection(("127.0.0.1", site.proxy.port), timeout=10) as connection:
        for turn in range(20):
            connection.sendall(keep[turn % 2])
            assert statuses(connection.recv(65_536)) == [202 if turn % 2 == 0 else 404]


# ------------------------------------------------------------ who is asking, and what is written down


def test_what_a_client_says_about_its_address_is_not_believed(site: Site) -> None:
    """P-16: forged hops are overwritten, so failed credentials are counted for the address they came from."""
    target = site.watching()
    for number in range(70):  # more than the limit of both processes
        forged = [f"X-Forwarded-For: 6.6.6.{number}, 7.7.7.7", "X-Forwarded-Proto: https", "Forwarded: for=8.8.8.8"]
        forged.append(f"X_Forwarded_For: 9.9.9.{number}")
        assert site.codes(push_of(target, "wrong", b"{}", *forged), source="127.0.0.4") == [404]
    line = site.web.wait_for_output(r"push\.credentials_failing.*").group()
    assert "source=127.0.0.4" in re.sub(r"\x1b\[[0-9;]*m", "", line)
    assert not re.search(r"6\.6\.6\.|7\.7\.7\.7|8\.8\.8\.8|9\.9\.9\.", site.web.output())
    assert site.codes(push_of(target), source="127.0.0.4") == [202]
    assert site.codes(push_of(target), source="127.0.0.5") == [202]


def test_no_query_string_reaches_a_log(site: Site) -> None:
    """P-10: of the proxy or of web, also for requests that are refused, too large, malformed or cut off."""
    target = site.watching()
    canary = f"canary-{secrets.token_hex(8)}"
    path = f"/a2a/push/{target.id}?token={canary}"
    assert site.codes(request(path, [])) == [404]
    site.codes(request(f"/metrics?token={canary}", [], b"", "GET"))
    site.codes(request(path, [], b"x" * 65_537))
    site.codes(chunked(path, [f"Authorization: Bearer {target.token}"], [b"x" * 65_537]))
    site.codes(request(path, [f"Authorization Bearer {canary}"]))
    site.codes(f"POST {path} HTTP/9.9\r\nHost: x\r\n\r\n".encode())
    site.codes(f"POST {path} x HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    with socket.create_connection(("127.0.0.1", site.proxy.port), timeout=10) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n".encode())
    last = f"/a2a/push/{secrets.token_hex(20)}"
    assert site.codes(request(last, [])) == [404]
    site.proxy.wait_for_line(last)
    assert f'"POST /a2a/push/{target.id}"' in site.proxy.output()
    assert canary not in site.proxy.output()
    assert canary not in site.web.output()


def test_an_outage_of_web_is_an_error_and_no_redirect(site: Site) -> None:
    """While web is away the sender hears a 5xx, and the next push after it is taken."""
    target = site.watching()
    site.web.stop()
    try:
        answer = site.exchange(push_of(target))
    finally:
        site.web.start()
    assert statuses(answer) in ([502], [503], [504])
    assert b"\r\nlocation:" not in answer.lower()

    def taken() -> bool:
        return site.codes(push_of(target, None, json.dumps({}).encode())) == [202]

    wait_until(taken, timeout_s=20, what="a push taken")


def test_the_tls_lines_of_the_examples_work(site: Site, tmp_path: Path) -> None:
    """Uncommented, with a certificate, and with the plain port gone: a push goes through, and plain http does not."""
    target = site.watching()
    authority = trustme.CA()
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with Proxy(site.proxy.name, tmp_path, web_port=site.web.port, authority=authority) as proxy:
        proxy.start()
        wait_until(lambda: _is_listening(proxy.port), what=f"port of {proxy.name}")
        with (
            socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain,
            trusting.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
        ):
            connection.sendall(push_of(target))
            assert statuses(connection.recv(65_536)) == [202]
        assert set(statuses(exchange(proxy.port, push_of(target)))) <= {400}
    assert site.wakes_of(target) == 1


def _is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
