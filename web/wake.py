"""Publishes the message that makes a recorded wake happen now: by task name, with short timeouts, without waiting."""

from __future__ import annotations

import secrets
import time
from typing import Any

from celery import Celery
from kombu.exceptions import OperationalError

from delegation.settings import CelerySettings, Settings
from workers.carrier import named_app
from workers.celery_settings import QUEUE, broker_transport_options, url_for_celery

WAKE_TASK = "delegation.wake"

#: Long enough for a busy broker, short enough that the sender of a push still gets its 202 within seconds.
_TIMEOUT_S = 2.0
_STALE_WITHIN_S = 0.5
#: Connecting is not tried again either: `retry=False` covers publishing only.
_IMPATIENT = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S, "max_retries": 0}
#: How to reach the broker, beside its address and the transport's options.
_BROKER_SETTINGS = ("broker_use_ssl", "broker_login_method", "broker_failover_strategy", "broker_heartbeat")
#: More than the threads of a web process, so that nobody waits for a connection; only those in use are opened.
_MAX_CONNECTIONS = 128


class WakeSender:
    """Callable: publishes one wake, or raises what the broker's transport raises.

    The Celery app here produces only: it carries no task, is nobody's current app, and has no result backend. It opens
    no connection before the first wake, so a fork before that shares none; afterwards its pool serves all threads.
    """

    def __init__(self, settings: Settings) -> None:
        self.app = _producing_app(settings)

    def __call__(self, delegation_id: str) -> None:
        began = time.monotonic()
        try:
            self._publish(delegation_id)
        except OperationalError:
            # A connection that went stale while idle fails at once, and the next attempt opens a new one. A frozen
            # broker fails late and is not asked twice. Published twice is harmless: a wake carries no news.
            if time.monotonic() - began > _STALE_WITHIN_S:
                raise
            self._publish(delegation_id)

    def _publish(self, delegation_id: str) -> None:
        with self.app.producer_pool.acquire(block=True, timeout=_TIMEOUT_S) as producer:
            self.app.send_task(
                WAKE_TASK,
                args=(delegation_id,),
                task_id=f"{delegation_id}.wake.{secrets.token_hex(4)}",
                queue=QUEUE,
                producer=producer,
                retry=False,
                ignore_result=True,
            )


def _producing_app(settings: Settings) -> Celery:
    broker = _broker(settings)
    options = broker.pop("broker_transport_options")
    app = Celery("delegation.web", set_as_current=False)
    app.conf.update(
        **broker,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        broker_connection_timeout=_TIMEOUT_S,
        broker_pool_limit=_MAX_CONNECTIONS,
        broker_transport_options=options | _IMPATIENT,
    )
    return app


def _broker(settings: Settings) -> dict[str, Any]:
    """Where the workers listen. That of our own app follows from the settings; somebody else's app has to say it."""
    if settings.celery.app == CelerySettings.model_fields["app"].default:
        url = settings.celery.broker_url or url_for_celery(settings.redis.url)
        return {"broker_url": url, "broker_transport_options": broker_transport_options(settings)}
    theirs = named_app(settings.celery.app).conf
    return {name: theirs[name] for name in _BROKER_SETTINGS} | {
        "broker_url": theirs.broker_write_url or theirs.broker_url,
        "broker_transport_options": dict(theirs.broker_transport_options or {}),
    }
