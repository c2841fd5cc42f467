"""One line per fact on stderr: readable on a terminal, JSON when ``DELEGATION_LOG=json``.

``DELEGATION_LOG_LEVEL`` beats what a process asks for, Celery's ``--loglevel`` included: one variable for all processes
of ours. In the worker or the program of an app that is not ours, that app's own logging decides.
Nothing is written before it went through ``delegation.redaction``, and no value begins a line of its own.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from types import TracebackType

import structlog

from delegation.errors import ConfigurationError
from delegation.log_default import is_undecided
from workers.log_records import (
    SafeFormatter,
    SafeHandler,
    exception_redacted,
    record_redacted,
    redact_event,
    values_in_one_line,
)

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Of these, `httpx` would print the URL of each call to an agent at INFO, `a2a` tracebacks of what agents answer.
QUIET_ANYWHERE = ("a2a", "httpx", "httpcore")
#: Loggers that would print cards, URLs or every request at INFO.
QUIET = (*QUIET_ANYWHERE, "amqp", "celery.redirected")
#: Loggers whose own handlers write, in their own format.
WITH_HANDLERS = ("gunicorn.error", "gunicorn.access")


def configure_logging(level: int | str | None = None) -> None:
    """Route structlog and the standard library through one formatter. Safe to call again.

    ``level`` holds unless DELEGATION_LOG_LEVEL is set; INFO without either. Raises ConfigurationError.
    """
    level = _level_of_environment() or level or "INFO"
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        drop_empty_fields,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = SafeHandler(sys.stderr)
    handler.setFormatter(
        SafeFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers()],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # Whoever starts a worker waits for its "ready" line, at any level.
    logging.getLogger("celery.apps.worker").setLevel(min(logging.INFO, root.level))
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # A line per received and per finished step, beside our own facts, says nothing new; at DEBUG the pool's holds the
    # arguments of tasks that are not ours.
    for name in ("celery.worker.strategy", "celery.app.trace", "celery.pool"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in WITH_HANDLERS:
        logging.getLogger(name).addFilter(record_redacted)
    _log_what_nobody_caught()


def log_in_their_app() -> None:
    """Send our facts to the standard library's logger of the same name, each at its level, unless structlog is set up.

    structlog's own default is to print: Celery redirects what is printed, and logs it once more, as a warning.
    """
    for name in QUIET_ANYWHERE:
        if logging.getLogger(name).level == logging.NOTSET:  # else they decided otherwise
            logging.getLogger(name).setLevel(logging.WARNING)
    if not is_undecided():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            drop_empty_fields,
            redact_event,
            values_in_one_line,
            _as_one_line,
        ],
        # Not structlog's own factory: that one replaces the class of all loggers that are made later.
        logger_factory=_logger_in_their_app,
    )


def drop_empty_fields(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What does not apply is left out."""
    return {name: value for name, value in event.items() if value is not None}


def _as_one_line(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, object]]:
    """``event field=value …``, whatever the formatter; tracebacks are the formatter's to print."""
    for_logging = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    fields = [f"{name}={value}" for name, value in event.items() if name != "event"]
    return (" ".join([str(event["event"]), *fields]),), for_logging


def _logger_in_their_app(name: str = "delegation") -> logging.Logger:
    """Ours by its name, so its filter sees our records alone; the handlers are theirs."""
    logger = logging.getLogger(name)
    logger.addFilter(exception_redacted)
    return logger


def _renderers() -> list[structlog.typing.Processor]:
    """Tracebacks without the values of variables, which hold texts and secrets."""
    as_text: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, redact_event]
    if os.environ.get("DELEGATION_LOG") == "json":
        return [*as_text, structlog.processors.JSONRenderer()]
    without_locals = structlog.dev.plain_traceback
    colors = sys.stderr.isatty()
    console = structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=32, exception_formatter=without_locals)
    return [*as_text, values_in_one_line, console]


def _log_what_nobody_caught() -> None:
    """Python would print such tracebacks itself. Somebody else's hook stays."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _uncaught
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _uncaught_in_thread


def _uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)
        return
    logging.getLogger("delegation").critical("process.crashed", exc_info=(kind, error, traceback))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None and not issubclass(args.exc_type, SystemExit):
        _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _level_of_environment() -> str:
    level = os.environ.get("DELEGATION_LOG_LEVEL", "").upper()
    if level and level not in LEVELS:
        raise ConfigurationError(f"DELEGATION_LOG_LEVEL: must be one of {', '.join(LEVELS)}")
    return level
