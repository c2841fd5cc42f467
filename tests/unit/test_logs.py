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


def test_what_does_not_apply_is_left_out() -> None:
    """A field without a value is no fact."""
    code = "from workers.logs import *; configure_logging(); structlog.get_logger('x').info('fact', a=None, b=0)"
    said = json.loads(run(code, DELEGATION_LOG="json").stderr)
    assert (said["event"], said["b"], "a" in said) == ("fact", 0, False)


@pytest.mark.parametrize("form", ["", "json"])
def test_a_traceback_never_shows_what_variables_hold(form: str) -> None:
    """They hold texts of agents, tokens and message bodies; who raised what, and where, is told."""
    code = """
from workers.logs import *
configure_logging()
def fail():
    text = "".join(["pri", "vate"])
    return 1 / 0
for log in (logging.getLogger("celery.worker.consumer"), structlog.get_logger("delegation")):
    try:
        fail()
    except ZeroDivisionError:
        log.exception("failed")
"""
    said = run(code, DELEGATION_LOG=form).stderr
    assert said.count("ZeroDivisionError: division by zero") == 2
    assert said.count("in fail") == 2
    assert "private" not in said


INSTALL = """
import logging, structlog
from celery import Celery
from workers import install
install(Celery("shop"))
log = structlog.get_logger("delegation")
"""


def test_in_an_app_that_is_not_ours_its_logging_decides() -> None:
    """Our facts are its log's records, at their level, in its format, once."""
    code = """
logging.basicConfig(level="INFO", format="<%(levelname)s %(name)s> %(message)s")
log.debug("not asked for")
log.info("delegation.settled", agent="flights", reason=None)
log.warning("delegation.agent_unavailable", code="agent.busy")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed", a=1)
"""
    done = run(INSTALL + code)
    lines = done.stderr.splitlines()
    assert done.stdout == ""
    assert lines[:3] == [
        "<INFO delegation> delegation.settled agent=flights",
        "<WARNING delegation> delegation.agent_unavailable code=agent.busy",
        "<ERROR delegation> failed a=1",
    ]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_structlog_as_they_have_set_it_up_stays() -> None:
    """Before or after `install`: theirs is the last word."""
    theirs = """
import structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(), processors=[lambda *a: f"theirs: {a[2]}"])
"""
    for code in (theirs + INSTALL, INSTALL + theirs):
        assert run(code + "log.info('fact')").stdout == "theirs: {'event': 'fact'}\n"


def test_urls_of_calls_are_not_logged_unless_asked_for() -> None:
    """httpx logs every request's URL at INFO."""
    level = "print(logging.getLevelName(logging.getLogger('httpx').level))"
    assert run(INSTALL + level).stdout == "WARNING\n"
    assert run("import logging; logging.getLogger('httpx').setLevel('INFO')" + INSTALL + level).stdout == "INFO\n"


def test_our_own_app_logs_in_our_format() -> None:
    """`install` changes nothing about it."""
    code = PROCESSES["worker"] + "import structlog; structlog.get_logger('delegation').info('fact', a=1)"
    said = run(code, DELEGATION_LOG="json")
    assert (said.stdout, json.loads(said.stderr)["a"]) == ("", 1)
