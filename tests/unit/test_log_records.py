"""What reaches a log, from whoever logs: no secret, no message body, one line each (rows D-01, D-04)."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from celery.exceptions import NotRegistered
from celery.worker.consumer import consumer as celery_consumer
from hypothesis import given
from hypothesis import strategies as st
from kombu.exceptions import ContentDisallowed

from tests.unit.test_logs import run
from workers.log_records import BODIES, SafeFormatter, SafeHandler, record_redacted, with_plain_message
from workers.logs import configure_logging

FORMS = ["", "json"]
FOREIGN = ["celery.worker.consumer", "kombu.connection", "httpx", "a2a.client", "werkzeug", "anything"]
SECRET = "c4n4ry-of-the-token"


class Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Said(io.StringIO):
    """What our own handler wrote, and loggers for it alone: pytest's handlers hang at the registered ones."""

    handler: logging.Handler

    def logger(self, name: str) -> logging.Logger:
        logger = logging.Logger(name)  # noqa: LOG001  no registered one, see above
        logger.addHandler(self.handler)
        return logger

    @property
    def ours(self) -> Any:
        return structlog.wrap_logger(self.logger("delegation.test"))

    def lines(self) -> list[str]:
        return self.getvalue().splitlines()


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Said]:
    """In the form that is asked for; logging is as it was afterwards."""
    said = Said()
    root = logging.getLogger()
    before = root.level, root.handlers, sys.excepthook, structlog.get_config()
    monkeypatch.setenv("DELEGATION_LOG", request.param)
    monkeypatch.setattr(sys, "stderr", said)
    configure_logging("DEBUG")
    (said.handler,) = root.handlers
    yield said
    root.level, root.handlers, sys.excepthook, configuration = before
    structlog.configure(**configuration)


def fail(text: str) -> None:
    raise ValueError(text)


@pytest.mark.parametrize("said", FORMS, indirect=True)
@pytest.mark.parametrize("name", FOREIGN)
def test_records_of_other_libraries_lose_their_secrets(said: Said, name: str) -> None:
    """In the message, in its arguments, and in the text of an exception."""
    log = said.logger(name)
    log.warning("HTTP Request: POST https://a.example/rpc?api_key=%s", SECRET)
    log.warning("headers %s", {"Authorization": f"Bearer {SECRET}"})
    log.warning("headers %(token)s", {"token": f"token={SECRET}"})
    try:
        fail(f"refused https://user:{SECRET}@a.example")
    except ValueError:
        log.exception("failed with token=%s", SECRET)
    assert SECRET not in said.getvalue()
    assert said.getvalue().count("***") >= 5
    assert "ValueError: refused https://***@a.example" in said.getvalue()


@pytest.mark.parametrize("said", FORMS, indirect=True)
def test_our_own_facts_lose_their_secrets(said: Said) -> None:
    """Fields by their name, texts by their form, however deep."""
    log = said.ours
    log.info("fact", authorization=SECRET, error=ValueError(f"Bearer {SECRET}"), more=[{"password": SECRET}])
    event = f"a fact with api_key={SECRET}"
    log.info(event, url=f"redis://:{SECRET}@127.0.0.1", raw=f"token={SECRET}".encode())
    try:
        fail(f'{{"client_secret": "{SECRET}"}}')
    except ValueError:
        log.exception("failed")
    assert SECRET not in said.getvalue()
    assert said.getvalue().count("***") >= 7


@pytest.mark.parametrize("said", FORMS, indirect=True)
def test_no_value_begins_a_line_or_steers_a_terminal(said: Said) -> None:
    """A forged record would be somebody else's words as ours."""
    forged = "x\n2026-01-01T00:00:00Z [info] all is well\r\x1b[2Jgone\u2028\x9b\u202e"
    log = said.ours
    log.info(forged, text=forged, deep=[forged])
    said.logger("anything").warning("said %s", forged)
    try:
        fail(forged)
    except ValueError:
        log.exception("failed")
    begun = [line for line in said.lines() if not line.startswith("  ")]
    assert len(begun) == 3
    assert not any(line.startswith("2026-01-01") for line in said.lines())
    assert set("\r\x1b\x9b\u2028\u202e") & set(said.getvalue()) == set()


@pytest.mark.parametrize("said", FORMS, indirect=True)
@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("%d", ("x",)),
        ("%s %s", ("one",)),
        ("nothing", ("too", "many")),
        ("%(name)s", ({"other": 1},)),
        ("%r", (Unspeakable(),)),
        (Unspeakable(), ()),
        (b"token=c4n4ry-of-the-token", ()),
        (None, (1,)),
    ],
)
def test_odd_records_are_one_line_all_the_same(said: Said, message: Any, arguments: tuple[Any, ...]) -> None:
    """logging's own way is to print the record's arguments and a traceback."""
    said.logger("anything").warning(message, *arguments)
    said.ours.info("fact", odd=Unspeakable(), **{"a b": b"\xff"})
    assert len(said.lines()) == 2
    assert "Traceback" not in said.getvalue()
    assert SECRET not in said.getvalue()


def test_a_record_that_cannot_be_written_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """A closed stream; its arguments would be on stderr."""
    stream = io.StringIO()
    handler = SafeHandler(stream)
    stream.close()
    record = logging.LogRecord("odd", logging.INFO, "", 0, "token %s", (SECRET,), None)
    handler.handle(record)
    assert capsys.readouterr().err == "a log record of odd could not be written: ValueError\n"


RECORDS = st.builds(
    lambda name, message, arguments: logging.LogRecord(name, 30, "", 0, message, arguments, None),
    st.sampled_from([*FOREIGN, "celery.worker.consumer.consumer"]),
    st.text(max_size=20) | st.sampled_from(["%s", "%d %s", "%(a)s", *BODIES]) | st.none() | st.binary(max_size=5),
    st.tuples()
    | st.tuples(st.text(max_size=5) | st.integers() | st.builds(Unspeakable))
    | st.tuples(st.dictionaries(st.text(max_size=2), st.builds(Unspeakable), max_size=2)),
)


@given(RECORDS)
def test_every_record_can_be_formatted(record: logging.LogRecord) -> None:
    """Nothing that is logged anywhere raises, and it stays one line."""
    formatter = SafeFormatter(processor=structlog.processors.JSONRenderer())
    assert len(formatter.format(record).splitlines()) == 1
    assert record_redacted(record)
    assert "\n" not in record.getMessage()


# ---------------------------------------------------------------- bodies of messages

HEADERS = {"id": "celery-id-1", "task": "shop.gone", "argsrepr": "('c4n4ry',)", "kwargsrepr": "{'goal': 'c4n4ry'}"}
BODY = "b'[[\"c4n4ry\"], {}, {}]' (77b)"
LOGGED = {
    "unknown task": (celery_consumer.UNKNOWN_TASK_ERROR, (NotRegistered("shop.gone"), BODY, HEADERS, {"routing": "q"})),
    "unknown message": (celery_consumer.UNKNOWN_FORMAT, (celery_consumer.MESSAGE_REPORT.format(BODY, "", "", "", ""),)),
    "invalid task": (celery_consumer.INVALID_TASK_ERROR, (ValueError("c4n4ry"), BODY)),
    "undecodable": (
        celery_consumer.MESSAGE_DECODE_ERROR,
        (UnicodeDecodeError("utf-8", b"c4n4ry", 0, 1, "c4n4ry"), "application/json", "utf-8", str(HEADERS), BODY),
    ),
    "disallowed": (
        celery_consumer.MESSAGE_DECODE_ERROR,
        (ContentDisallowed("c4n4ry"), "application/x-python-serialize", "binary", str(HEADERS), BODY),
    ),
}


@pytest.mark.parametrize("case", LOGGED)
def test_a_message_that_celery_cannot_use_is_not_repeated(case: str) -> None:
    """Its name and id are kept; its body, arguments and the error's text are not. In Celery's own words of today."""
    message, arguments = LOGGED[case]
    name = "celery.worker.consumer.consumer"
    try:
        fail("c4n4ry")
    except ValueError:
        record = logging.LogRecord(name, 40, "", 0, message, arguments, sys.exc_info())
    shown = SafeFormatter(processor=structlog.processors.JSONRenderer()).format(record)
    assert "c4n4ry" not in shown
    kept = {"unknown task": ["shop.gone", "celery-id-1"], "disallowed": ["x-python-serialize", "ContentDisallowed"]}
    assert all(
        word in shown for word in kept.get(case, ["eceived " if "un" not in case or "message" in case else "Can't"])
    )


def test_only_celerys_own_records_are_cut() -> None:
    """Somebody else may begin a sentence with the same words."""
    record = logging.LogRecord("shop", 30, "", 0, "Received invalid task message: %s", ("mine",), None)
    assert with_plain_message(record).msg == "Received invalid task message: mine"


# ---------------------------------------------------------------- in whole processes

THEIRS = """
import logging, structlog
from celery import Celery
from workers import install
logging.basicConfig(level="INFO", format="<%(levelname)s %(name)s> %(message)s")
install(Celery("shop"))
log = structlog.get_logger("delegation")
"""


def test_in_an_app_that_is_not_ours_our_records_are_clean_as_well() -> None:
    """Fields and tracebacks of ours, through handlers that are theirs; their own records are their own."""
    code = f"""
log.warning("fact 100%", push_token="{SECRET}", text="x\\nforged")
try:
    raise ValueError("token={SECRET}")
except ValueError:
    log.exception("failed")
logging.getLogger("shop").warning("token=theirs")
"""
    said = run(THEIRS + code).stderr
    assert SECRET not in said
    assert "<WARNING delegation> fact 100% push_token=*** text=x\\nforged" in said.splitlines()
    assert "ValueError: token=***" in said.splitlines()
    assert said.splitlines()[-1] == "<WARNING shop> token=theirs"


def test_tracebacks_that_nobody_caught_are_records_too() -> None:
    """In the main thread and in others; Python itself would print them as they are."""
    code = f"""
import threading
from workers.logs import *
configure_logging()
def fail():
    raise ValueError("token={SECRET}")
thread = threading.Thread(target=fail)
thread.start()
thread.join()
fail()
"""
    done = run(code)
    assert done.returncode == 1
    assert done.stderr.count("process.crashed") == 2
    assert done.stderr.count("ValueError: token=***") == 2
    assert SECRET not in done.stderr


def test_the_web_servers_own_log_is_clean_as_well() -> None:
    """gunicorn's loggers have handlers of their own."""
    code = f"""
import logging
from workers.logs import *
log = logging.getLogger("gunicorn.error")
log.addHandler(logging.StreamHandler())
log.propagate = False
configure_logging()
try:
    raise ValueError("token={SECRET}")
except ValueError:
    log.exception("Exception in worker\\nforged %s", "Bearer {SECRET}")
"""
    said = run(code).stderr
    assert SECRET not in said
    assert said.splitlines()[0] == "Exception in worker\\nforged Bearer ***"
    assert said.splitlines()[-1] == "  ValueError: token=***"


def test_json_stays_json() -> None:
    """Whatever the values are."""
    code = """
from workers.logs import *
configure_logging()
structlog.get_logger("x").info("fact", when=object, who={"a": (1, b"2")}, n=1.5)
"""
    said = json.loads(run(code, DELEGATION_LOG="json").stderr)
    assert (said["who"], said["n"]) == ({"a": [1, "2"]}, 1.5)
