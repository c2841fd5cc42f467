"""An answer that nobody wants any more is not waited for; one that is wanted comes whole, however often we look up."""

from __future__ import annotations

import json
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from delegation.errors import CallAmbiguous
from delegation.outbound import Exchange, GuardedTransport, drive, exchanging
from tests.support.identity import Authority
from tests.support.raw_server import RawServer, Seen, hangs, http, says

BODY = json.dumps({"text": "x" * 100_000}).encode()
LOOKS = 5


def exchange_with(server: RawServer, context: ssl.SSLContext | None, **options: Any) -> Exchange:
    transport = GuardedTransport([server.url], make_tls=None if context is None else lambda: context)
    exchange = Exchange(deadline_at=time.monotonic() + 30, max_bytes=1_000_000, **options)
    try:
        with exchanging(exchange):
            drive(transport.handle_async_request(httpx.Request("POST", f"{server.url}/", content=b"{}")))
    finally:
        transport.close()
    return exchange


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
def test_a_slow_answer_comes_whole(is_secure: bool, tmp_path: Path) -> None:
    """Each half only after we have looked up several times: within TLS's records too nothing is lost by it."""
    authority = Authority(tmp_path) if is_secure else None
    looks = threading.Semaphore(0)

    def answer_in_halves(_: Seen, connection: Any) -> bool:
        answer = http(200, BODY)
        for half in (answer[:50_000], answer[50_000:]):
            for _ in range(LOOKS):
                assert looks.acquire(timeout=30)
            connection.sendall(half)
        return True

    def look_up() -> bool:
        looks.release()
        return False

    tls = authority.server().as_server().context() if authority else None
    context = ssl.create_default_context(cafile=authority.ca_bundle) if authority else None
    with RawServer(answer_in_halves, tls=tls) as server:
        exchange = exchange_with(server, context, is_unwanted=look_up)
    assert (exchange.status, exchange.body) == (200, BODY)


def test_an_unwanted_answer_is_not_waited_for() -> None:
    """It may have happened: that is all that is known."""
    gone = threading.Event()

    def hang_and_tell(seen: Seen, connection: Any) -> bool:
        gone.set()
        return hangs()(seen, connection)

    with RawServer(hang_and_tell) as server, pytest.raises(CallAmbiguous):
        exchange_with(server, None, is_unwanted=gone.is_set)


def test_a_move_is_followed_by_those_who_want_it() -> None:
    """Within the origin, once; with `may_move` off the redirect is the answer."""
    with RawServer(says(308, b"", {"Location": "/there"})) as server:
        assert exchange_with(server, None, may_move=False).status == 308
        assert len(server.seen) == 1
        assert exchange_with(server, None).status == 308
        assert [seen.line.split()[1] for seen in server.seen[1:]] == ["/", "/there"]
