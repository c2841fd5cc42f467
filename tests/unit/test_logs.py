"""One variable sets the log level of every process; each runs in a process of its own here, as logging is global."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEVEL = "import logging; print(logging.getLevelName(logging.getLogger().level))"
PROCESSES = {
    "worker": "from workers.app import app; app.log.setup('INFO'); ",
    "web": "import web.wsgi; ",
    "command": "from workers.cli import run; import io, contextlib\n"
    "with contextlib.redirect_stdout(io.StringIO()): run(['list', '--help'])\n",
}


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DELEGATION_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("process", "unset"), [("worker", "INFO"), ("web", "INFO"), ("command", "WARNING")], ids=list(PROCESSES)
)
def test_the_variable_beats_what_the_process_asks_for(process: str, unset: str) -> None:
    """Celery always passes a level of its own."""
    assert run(PROCESSES[process] + LEVEL).stdout.split() == [unset]
    assert run(PROCESSES[process] + LEVEL, DELEGATION_LOG_LEVEL="error").stdout.split() == ["ERROR"]


def test_a_worker_says_that_it_is_ready_at_any_level() -> None:
    """Whoever started it waits for that line."""
    said = run(
        PROCESSES["worker"] + "import logging\n"
        "for name in ('celery.apps.worker', 'celery.beat'): logging.getLogger(name).info('%s ready.', name)",
        DELEGATION_LOG_LEVEL="ERROR",
    ).stderr
    assert "celery.apps.worker ready." in said
    assert "celery.beat" not in said


@pytest.mark.parametrize(("code", "exit_code"), [("from workers.cli import main; main()", 2), ("import web.wsgi", 4)])
def test_an_unknown_level_is_refused_in_one_line(code: str, exit_code: int) -> None:
    """A misspelt level must not end in a traceback, or in silence."""
    done = run(f"import sys; sys.argv = ['delegation', 'list']; {code}", DELEGATION_LOG_LEVEL="LOUD")
    assert (done.returncode, len(done.stderr.splitlines())) == (exit_code, 1)
    assert "DELEGATION_LOG_LEVEL: must be one of DEBUG, INFO, " in done.stderr


def test_json_is_one_object_per_line() -> None:
    """For whoever collects logs by machine."""
    said = run(
        "from workers.logs import *; configure_logging(); logging.warning('a\\nb')", DELEGATION_LOG="json"
    ).stderr
    assert json.loads(said)["event"] == "a\nb"
