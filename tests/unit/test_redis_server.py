"""Which servers may run our scripts, by what they say of themselves."""

from __future__ import annotations

from typing import Any

import pytest

from workers.redis_server import ServerVersion


@pytest.mark.parametrize(
    ("version", "is_patched"),
    [
        ("6.2.19", False),
        ("6.2.20", True),
        ("7.0.15", False),  # this line got no release of its own
        ("7.2.10", False),
        ("7.2.11", True),
        ("7.4.5", False),
        ("7.4.6", True),
        ("8.0.3", False),
        ("8.0.4", True),
        ("8.2.1", False),
        ("8.2.2", True),
        ("8.4.0", True),
        ("10.0.0", True),
        ("", False),
    ],
)
def test_redis_is_judged_by_its_line(version: str, is_patched: bool) -> None:
    """B-05: a newer number in an older line may lack the patch that an older number has."""
    server = ServerVersion.of({"redis_version": version})
    assert (str(server), server.is_patched) == (f"Redis {version}", is_patched)


@pytest.mark.parametrize(
    ("version", "is_patched"),
    [("7.2.10", False), ("7.2.11", True), ("8.0.5", False), ("8.0.6", True), ("8.1.3", False), ("9.1.2", True)],
)
def test_valkey_is_judged_by_its_own_number(version: str, is_patched: bool) -> None:
    """Every Valkey says that it is compatible with one Redis, which tells nothing of its patches."""
    server = ServerVersion.of({"redis_version": "7.2.4", "valkey_version": version})
    assert (str(server), server.is_patched, server.is_too_old) == (f"Valkey {version}", is_patched, False)


@pytest.mark.parametrize("info", [{"redis_version": "6.0.16"}, {"redis_version": "5.0"}, {}])
def test_what_lacks_our_commands_is_too_old(info: dict[str, Any]) -> None:
    """6.2 is the oldest on which the scripts run."""
    assert ServerVersion.of(info).is_too_old
