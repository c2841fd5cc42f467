"""Bring delegations into a Celery app: our steps, our queues, the sweeper."""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Exchange, Queue
from kombu.utils.functional import maybe_list

import workers.tasks  # noqa: F401  # registers the steps
from delegation.errors import ConfigurationError
from delegation.settings import Settings
from workers.celery_settings import END_QUEUE, QUEUE, TASK_ROUTES, app_settings, result_expires_s
from workers.logs import log_in_their_app
from workers.runtime import current_settings
from workers.sweeper import Sweeper


def install(app: Celery) -> Celery:
    """Make ``app`` carry delegations; call it once where the app is made, and return it.

    Its workers then consume our queues beside theirs (``-Q yours,delegations,delegations.end``, or all by default),
    run the sweeper, and publish what follows a delegation in *their* app, where their tasks are. Set ``[celery] app``
    to it, so that the web app and the command line find it. An app that names no broker gets the one of our settings,
    and its results are kept there, too. Raises ConfigurationError where the app's own settings cannot work.
    """
    settings = current_settings()
    if not (app.conf.broker_read_url or app.conf.broker_write_url):
        _give_our_broker(app, settings)
    if app.conf.task_always_eager:
        raise ConfigurationError("task_always_eager: a parked chain cannot run eagerly; use a worker in tests too")
    if "json" not in set(app.conf.accept_content):
        raise ConfigurationError("accept_content: must contain 'json', the form of our messages")
    if not app.conf.result_backend:
        name = app.main or ""
        raise ConfigurationError(
            f"result_backend: the app {name!r} has a broker and no result backend, by which a canvas goes on; "
            f"write Celery({name!r}, broker=…, backend=…), or name neither and both are taken from [redis] url"
        )
    log_in_their_app()
    app.conf.task_track_started = True  # how a release's continuation is seen to run
    if (app.conf.result_expires or 0) and _seconds(app.conf.result_expires) < result_expires_s(settings):
        app.conf.result_expires = result_expires_s(settings)
    app.conf.task_routes = [TASK_ROUTES, *maybe_list(app.conf.task_routes or [])]
    _consume_our_queues(app)
    app.steps["worker"].add(Sweeper)
    return app


def _give_our_broker(app: Celery, settings: Settings) -> None:
    """As our own app has it; what the app says of transports itself stays."""
    ours = app_settings(settings)
    app.conf["broker_url"] = ours["broker_url"]
    _complete(app, ours, "broker_transport_options")
    if app.conf.broker_connection_retry_on_startup is None:
        app.conf.broker_connection_retry_on_startup = True
    if not app.conf.result_backend:
        app.conf["result_backend"] = ours["result_backend"]
        _complete(app, ours, "result_backend_transport_options")


def _complete(app: Celery, ours: dict[str, Any], key: str) -> None:
    app.conf[key] = {**ours[key], **(app.conf[key] or {})}


def _consume_our_queues(app: Celery) -> None:
    """A worker started without -Q consumes what it did before, and ours."""
    queues = list(app.conf.task_queues or [_queue(app.conf.task_default_queue)])
    known = {queue.name for queue in queues}
    app.conf.task_queues = [*queues, *(_queue(name) for name in (QUEUE, END_QUEUE) if name not in known)]


def _queue(name: str) -> Queue:
    """With an exchange of its own: bare queues are all bound to the default one, and each gets every message."""
    return Queue(name, Exchange(name, type="direct"), routing_key=name)


def _seconds(value: object) -> float:
    total = getattr(value, "total_seconds", None)
    return float(total()) if total else float(value)  # type: ignore[arg-type]  # a number or a timedelta
