"""What a log record may show: no secret, no message body, and no line that is not its own."""

from __future__ import annotations

import copy
import logging
import re
import sys
import traceback
from typing import Any

import structlog

from delegation.redaction import redact_field, redact_text, text_of

#: Records in which Celery or kombu repeats a message, arguments and texts included; what is kept of each. Law 8.
BODIES = {
    "Received unregistered task of type": "Received unregistered task of type {0}; the message was discarded",
    "Received and deleted unknown message": "Received and deleted unknown message; is the destination wrong?",
    "Received invalid task message": "Received invalid task message; it was discarded",
    "Can't decode message body": "Can't decode message body ({0}, type {1}, encoding {2}); it was discarded",
    "Could not restore message": "Could not restore message",
}
_CARRIERS = ("celery.worker", "kombu")
#: Control characters, and what turns the writing direction or ends a line elsewhere (UAX #9, UAX #14).
_STEERS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STEERS_IN_LINES = re.compile(_STEERS.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
_FOR_LOGGING = ("exc_info", "stack_info")
_TEXTS_OF_LINES = ("exception", "stack", "stack_info")


class SafeFormatter(structlog.stdlib.ProcessorFormatter):
    """Also for records that logging itself cannot read: it would print their arguments instead."""

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record if isinstance(record.msg, dict) else with_plain_message(record))


class SafeHandler(logging.StreamHandler[Any]):
    """A record that cannot be written is not repeated on stderr, as logging's own way is."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        kind = type(sys.exc_info()[1]).__name__
        try:
            sys.stderr.write(f"a log record of {record.name} could not be written: {kind}\n")
        except (OSError, ValueError):
            return  # stderr is gone as well


def redact_event(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A structlog processor: every value without secrets. What logging makes a text of itself is left to it."""
    return {
        name: value if name in _FOR_LOGGING and not isinstance(value, str) else redact_field(name, value)
        for name, value in event.items()
    }


def values_in_one_line(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A structlog processor: no value begins a line, or steers a terminal; a traceback's lines are indented."""
    return {
        name: (indented(value) if name in _TEXTS_OF_LINES else in_one_line(value)) if isinstance(value, str) else value
        for name, value in event.items()
    }


def record_redacted(record: logging.LogRecord) -> bool:
    """A filter for loggers whose handlers are not ours: the record that passes holds no secret."""
    plain = with_plain_message(record)
    record.msg, record.args = in_one_line(redact_text(str(plain.msg))), ()
    record.exc_info = plain.exc_info
    exception_redacted(record)
    record.exc_text = record.exc_text and indented(record.exc_text)
    return True


def exception_redacted(record: logging.LogRecord) -> bool:
    """A filter: the traceback is formatted here, and every formatter of the standard library takes it as it is."""
    if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
        record.exc_text = redact_text("".join(traceback.format_exception(*record.exc_info)).rstrip("\n"))
    return True


def with_plain_message(record: logging.LogRecord) -> logging.LogRecord:
    """A copy with its arguments put in, whether they fit or not, and without the body of a message."""
    plain = copy.copy(record)
    plain.args = ()
    kept = _instead_of_a_body(record)
    if kept is not None:
        plain.msg, plain.exc_info, plain.exc_text = kept, None, None
        return plain
    try:
        plain.msg = record.getMessage()
    except Exception:  # noqa: BLE001  the objects of others; a log line must not fail
        plain.msg = f"{text_of(record.msg)} (with arguments that do not fit)"
    return plain


def in_one_line(text: str) -> str:
    """What would begin a line or steer a terminal is escaped, as Python writes it."""
    return _STEERS.sub(_escaped, text.strip("\r\n"))


def indented(text: str) -> str:
    """Lines that cannot be taken for records."""
    return "\n".join(f"  {line}" for line in _STEERS_IN_LINES.sub(_escaped, text).split("\n"))


def _escaped(char: re.Match[str]) -> str:
    return ascii(char[0])[1:-1]


def _instead_of_a_body(record: logging.LogRecord) -> str | None:
    if not record.name.startswith(_CARRIERS):
        return None
    text = text_of(record.msg)
    for beginning, kept in BODIES.items():
        if text.startswith(beginning):
            return kept.format(*map(_named, record.args or ()), "?", "?", "?") + _whose(record)
    return None


def _named(argument: object) -> str:
    """A task's name or a content type; of an error its type, as its text may hold the body."""
    if isinstance(argument, KeyError):
        return text_of(argument.args[0] if argument.args else "")[:256]
    return type(argument).__name__ if isinstance(argument, BaseException) else text_of(argument)[:256]


def _whose(record: logging.LogRecord) -> str:
    """The ids that the message's headers tell."""
    for argument in record.args or ():
        if isinstance(argument, dict) and "id" in argument:
            return f" [{text_of(argument['id'])[:256]}]"
    return ""
