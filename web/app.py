"""The application factory: composes the doors, and makes every answer they do not give empty and constant."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import structlog
from flask import Flask, Response
from werkzeug.exceptions import HTTPException, MethodNotAllowed
from werkzeug.middleware.proxy_fix import ProxyFix

from delegation.settings import Settings
from web.answers import SECURITY_HEADERS, empty, not_found
from web.failed_credentials import FailedCredentials
from web.health import HealthStore, QueueLengths, health_door
from web.push import PushDoor, PushStore
from web.wake import WakeSender
from workers.queues import queue_lengths as lengths_of
from workers.runtime import current_settings, make_store

log = structlog.get_logger(__name__)

#: Connecting and one operation may each take this long, and the 503 must be out within 5 s.
_REDIS_TIMEOUT_S = 1.5


class WebStore(PushStore, HealthStore, Protocol):
    """What the web room needs of the store."""


def create_app(
    settings: Settings | None = None,
    store: WebStore | None = None,
    send_wake: Callable[[str], None] | None = None,
    queue_lengths: QueueLengths | None = None,
) -> Flask:
    """The WSGI application. Opens no connection; raises ConfigurationError when the configuration cannot be used."""
    settings = settings or current_settings()
    store = store or make_store(settings, timeout_s=_REDIS_TIMEOUT_S)
    sender = WakeSender(settings)
    app = Flask("web", static_folder=None)
    # A redirect loses the push: Python senders fail on it, the JS sender follows it 20 times.
    app.url_map.merge_slashes = False
    app.url_map.strict_slashes = True
    failures = FailedCredentials(settings.limits.failed_credentials)
    PushDoor(
        store=store, send_wake=send_wake or sender, max_bytes=settings.limits.push_bytes, failures=failures
    ).register(app)
    health_door(store, queue_lengths or partial(lengths_of, sender.app)).register(app)
    _answer_nothing_else(app)
    _trust_proxies(app, settings.server.trusted_proxies)
    return app


def _answer_nothing_else(app: Flask) -> None:
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unforeseen_error)
    app.after_request(_add_security_headers)


def _http_error(error: HTTPException) -> Response:
    if error.code == 404:
        return not_found()
    if isinstance(error, MethodNotAllowed):
        return empty(405, {"Allow": ", ".join(sorted(error.valid_methods or ()))})
    return empty(error.code or 500)


def _unforeseen_error(error: Exception) -> Response:
    # The type alone: an exception's text and the request's path, headers and body may hold what must not be logged.
    log.error("web.request_failed", error=type(error).__name__)
    return empty(500)


def _add_security_headers(answer: Response) -> Response:
    answer.headers.update(SECURITY_HEADERS)
    return answer


def _trust_proxies(app: Flask, hops: int) -> None:
    """Believe the last ``hops`` entries of `X-Forwarded-For` and `-Proto`, and nobody's `-Host` or `-Prefix`.

    No address we hand out is built from the request: the push URL comes from `server.base_url`.
    """
    if hops:
        app.wsgi_app = ProxyFix(  # type: ignore[method-assign]  # Flask documents replacing it
            app.wsgi_app, x_for=hops, x_proto=hops, x_host=0, x_port=0, x_prefix=0
        )
