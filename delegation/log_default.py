"""Where our events go in a program that has not set up structlog: to stderr. Its own default is stdout, which may carry
a protocol (an MCP server's, say)."""

from __future__ import annotations

import sys

import structlog

_TO_STDERR = structlog.PrintLoggerFactory(sys.stderr)


def log_to_stderr() -> None:
    """Unless somebody has decided otherwise; whoever does so later wins."""
    if not structlog.is_configured():
        structlog.configure(logger_factory=_TO_STDERR)


def is_undecided() -> bool:
    """Nobody but us has said where events go."""
    return not structlog.is_configured() or structlog.get_config()["logger_factory"] is _TO_STDERR
