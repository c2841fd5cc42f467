"""One line per fact on stderr: readable on a terminal, JSON when ``DELEGATION_LOG=json``.

``DELEGATION_LOG_LEVEL`` beats what a process asks for, Celery's ``--loglevel`` included: one variable for all.
"""

from __future__ import annotations

import logging
import os
import sys

import structlog

from delegation.errors import ConfigurationError

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
#: Loggers that would print cards, URLs or every request at INFO.
QUIET = ("a2a", "httpx", "httpcore", "amqp", "celery.redirected")


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
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if os.environ.get("DELEGATION_LOG") == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=32)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level)
    # Whoever starts a worker waits for its "ready" line, at any level.
    logging.getLogger("celery.apps.worker").setLevel(min(logging.INFO, root.level))
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    # A line per received and per finished step, beside our own facts, says nothing new.
    for name in ("celery.worker.strategy", "celery.app.trace"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _level_of_environment() -> str:
    level = os.environ.get("DELEGATION_LOG_LEVEL", "").upper()
    if level and level not in LEVELS:
        raise ConfigurationError(f"DELEGATION_LOG_LEVEL: must be one of {', '.join(LEVELS)}")
    return level
