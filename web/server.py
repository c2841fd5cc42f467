"""gunicorn's settings, `gunicorn -c python:web.server`; a command line option beats each of them.

Put HAProxy or nginx in front (docs/push.md): gunicorn has no defence of its own against slow clients.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from flask import Flask

from delegation.errors import ConfigurationError
from web.app import create_app
from web.server_log import leave_out_requests
from workers.logs import configure_logging

wsgi_app = "web.wsgi:app"
worker_class = "gthread"
workers = 2
threads = 16
#: Longer than a proxy keeps its own idle connections, so that the proxy, not we, closes one it may be about to use.
keepalive = 75
graceful_timeout = 20
#: No push has more; the defaults would hold 100 fields of 8 KiB for each connection.
limit_request_fields = 64
limit_request_field_size = 4096
#: Path without query: a token that somebody put in the query must not reach a log.
access_log_format = '%(h)s "%(m)s %(U)s" %(s)s %(b)s %(M)sms'
#: By default gunicorn takes the header SCRIPT_NAME from a proxy on the same machine, and most proxies pass on what a
#: client sent: `/a2a/push/metrics` below `/a2a/push` would be our `/metrics`. `X-Forwarded-…` is ProxyFix's to judge.
forwarder_headers = ""
secure_scheme_headers: dict[str, str] = {}

#: A body that stops arriving gives its thread back after this long. A drip defeats it; a proxy that buffers does not.
_SILENCE_S = 5.0


def on_starting(server: object) -> None:  # noqa: ARG001  gunicorn checks the arity
    """Refuse a bad configuration before any process is forked, with the exit code of every other command."""
    logging.getLogger("gunicorn.error").addFilter(leave_out_requests)
    load_app(exit_code=ConfigurationError.exit_code)


def pre_request(worker: object, received: Any) -> None:  # noqa: ARG001  gunicorn checks the arity
    """Bound each wait for the rest of a request: gthread reads bodies from a socket without a timeout."""
    received.unreader.sock.settimeout(_SILENCE_S)


def load_app(exit_code: int) -> Flask:
    """The application, or one line on stderr and an exit: a traceback would hide which key is wrong."""
    try:
        configure_logging()
        return create_app()
    except ConfigurationError as error:
        sys.stderr.write(f"configuration error: {error}\n")
        raise SystemExit(exit_code) from None
