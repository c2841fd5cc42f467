"""What importing the tools costs: an HTTP client, and neither a2a, Celery nor Redis before an agent is there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.child import ROOT, child_environment


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import delegation", ["httpx", "a2a", "celery", "redis"]),
        ("from delegation import Toolkit, parse_agents_config, remote_agent", ["a2a", "celery", "redis"]),
        ("from workers import delegate", ["httpcore", "a2a"]),
        ("from workers import durable_agent", ["a2a"]),
    ],
)
def test_an_import_takes_along_what_it_needs(statement: str, absent: list[str]) -> None:
    """Commands and callers start fast."""
    code = f"import sys\n{statement}\nprint(*sorted(set({absent}) & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=child_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr
