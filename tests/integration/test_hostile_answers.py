"""Answers that explode, lie or never end: bounded time, little memory, and one of our errors (O-05 to O-09).

Each is asked for in a process of its own (`tests/support/measured_client.py`) under the limits that are in force where
nobody sets any: 1 MiB for a card or an event, 8 MiB for an answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import delegation.errors
from delegation.errors import AgentError
from tests.support.child import ROOT
from tests.support.hostile_answers import ENVELOPES, LARGE, STREAMS, VALUES, WIRE, in_text, with_envelope, with_value
from tests.support.raw_server import Behaviour, RawServer, answers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by Linux's /proc")

DEADLINE_S = 0.5
#: How much later an answer may be given up on a machine that is busy with other things.
SLACK_S = 10.0
#: However hostile the answer.
MOST_MB = 32.0

_ERRORS = vars(delegation.errors).items()
OURS = {name for name, kind in _ERRORS if isinstance(kind, type) and issubclass(kind, AgentError)}
ONE_ANSWER = ("call", "call by HTTP+JSON", "card", "token", "keys")
ONE_STREAM = ("stream start", "subscription")
ONE_STREAM_BARE = ("stream start by HTTP+JSON", "subscription by HTTP+JSON")
#: Odd, and yet a task that can be read.
READABLE = {"1e999", "NaN", "keys twice", "a byte order mark", "the most values allowed"}
#: A stream that has named its task is an answer, whatever comes after.
BEGUN = {"artifacts that are kept", "another task"}
#: Streams whose events are other ones without an envelope.
WITH_EVENTS = ("events without end", "errors without end", "artifacts that are kept")
#: A subscription may be quiet, or full of what says nothing, for as long as the agent's work takes.
OPEN = {name for name in STREAMS if "compressed" not in name}


class MeasuredClient:
    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.measured_client"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, way: str, hostile: RawServer, good: RawServer) -> dict[str, Any]:
        """What it was told, and what that took. The good agent is asked before and after."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        question = {"way": way, "url": hostile.url, "good": good.url, "deadline_s": DEADLINE_S}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert len(found) > 1, found["outcome"]
        return found

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(60)


@pytest.fixture(scope="module")
def client() -> Iterator[MeasuredClient]:
    client = MeasuredClient()
    yield client
    client.close()


@pytest.fixture(scope="module")
def good() -> Iterator[RawServer]:
    with RawServer(answers({"id": "t1", "status": {}})) as server:
        yield server


@pytest.fixture
def hostile() -> Iterator[RawServer]:
    with RawServer(answers(None)) as server:
        yield server


def _cases() -> Iterator[tuple[str, str, Callable[[], Behaviour]]]:
    for way in (*ONE_ANSWER, *ONE_STREAM):
        yield from ((way, name, lambda it=it: it) for name, it in WIRE.items())
        yield from ((way, name, lambda it=it: with_value(it())) for name, it in VALUES.items())
    for way in ("call", *ONE_STREAM):
        yield from ((way, name, lambda it=it: with_envelope(it)) for name, it in ENVELOPES.items())
    for way in ONE_STREAM:
        yield from ((way, name, lambda it=it: it) for name, it in STREAMS.items())
    for way in ONE_STREAM_BARE:
        yield from ((way, name, lambda it=it: it) for name, it in STREAMS.items() if name in WITH_EVENTS)


def _allowed(way: str, name: str) -> set[str]:
    if name in READABLE | BEGUN:
        return OURS | {"answer", "TimeoutError"}
    return OURS | {"Silence", "TimeoutError"} if way.startswith("subscription") and name in OPEN else OURS


CASES = [pytest.param(*case, id=f"{case[0]}: {case[1]}") for case in _cases()]


@pytest.mark.parametrize(("way", "name", "make"), CASES)
def test_a_hostile_answer_costs_little_and_ends_in_one_of_our_errors(
    client: MeasuredClient,
    good: RawServer,
    hostile: RawServer,
    way: str,
    name: str,
    make: Callable[[], Behaviour],
) -> None:
    """It leaves no connection half read, and the next agent is called as if nothing had been."""
    hostile.behaviour = make()
    found = client.ask(way, hostile, good)
    assert found["outcome"] in _allowed(way, name), found
    assert found["grown_mb"] < MOST_MB, found
    assert found["seconds"] < DEADLINE_S + SLACK_S, found
    assert found["left_open"] == 0, found
    assert hostile.wait_until_open(0)


@pytest.mark.parametrize(("text", "most_mb"), [*zip(LARGE.values(), (40, 128, 40), strict=True)], ids=LARGE)
def test_the_largest_answer_is_read_in_a_small_multiple_of_its_size(
    client: MeasuredClient, good: RawServer, hostile: RawServer, text: bytes, most_mb: int
) -> None:
    """Python keeps a text with one emoji in it at four bytes a character: `limits.answer_bytes` is what bounds that."""
    hostile.behaviour = with_value(in_text(text))
    found = client.ask("call", hostile, good)
    assert found["outcome"] in ("answer", "CallAmbiguous"), found  # a slow machine may not be done in time
    assert found["grown_mb"] < most_mb, found
