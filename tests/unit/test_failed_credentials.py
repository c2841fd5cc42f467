"""Counting failed credentials: by source, for a minute, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from structlog.testing import capture_logs

from web.failed_credentials import MOST_SOURCES, REST, FailedCredentials, source_of


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_source_is_over_its_limit_after_as_many_failures_and_nobody_else_is() -> None:
    """The limit is what a source may fail in a minute; the next minute begins at none."""
    clock = Clock()
    failures = FailedCredentials(3, clock)
    for _ in range(3):
        assert not failures.is_over("1.1.1.1")
        failures.count("1.1.1.1")
    assert failures.is_over("1.1.1.1")
    assert not failures.is_over("2.2.2.2")
    clock.now = 59.9
    assert failures.is_over("1.1.1.1")
    clock.now = 60.0
    assert not failures.is_over("1.1.1.1")


def test_a_failing_source_is_one_warning_a_minute() -> None:
    """However many follow: a log that grows with a flood is a second flood."""
    clock = Clock()
    failures = FailedCredentials(3, clock)
    with capture_logs() as logged:
        for clock.now in (0.0, 1.0, 60.0):
            for _ in range(50):
                failures.count("1.1.1.1")
        for _ in range(3):
            failures.count("2.2.2.2")
    warning = {"event": "push.credentials_failing", "log_level": "warning", "source": "1.1.1.1", "failures": 4}
    assert logged == [warning, warning]


def test_a_flood_from_many_sources_takes_bounded_memory_and_one_more_warning() -> None:
    """Those beyond the first are counted as one; what was counted already goes on being told apart."""
    failures = FailedCredentials(3, Clock())
    for _ in range(3):
        failures.count("1.1.1.1")
    with capture_logs() as logged:
        for number in range(MOST_SOURCES * 10):
            failures.count(f"source-{number}")
    assert len(failures._counts) == MOST_SOURCES + 1
    assert [entry["source"] for entry in logged] == [REST]
    assert failures.is_over("1.1.1.1")
    assert failures.is_over("never seen")
    assert not failures.is_over("source-1")


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        (None, "unknown"),
        ("", "unknown"),
        ("unknown", "unknown"),
        ("10.0.0.1:5555", "unknown"),
        ("1.2.3.4\nforged log line", "unknown"),
    ],
)
def test_a_source_is_an_address_or_a_network_and_never_a_text(address: str | None, source: str) -> None:
    """One customer has 2^64 addresses of IPv6; what is no address at all is not repeated."""
    assert source_of(address) == source
