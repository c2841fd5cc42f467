"""The messages that make wakes happen now, sent from the follower's threads; each wake is in the due index anyway."""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import Executor

import structlog
from celery import Celery

log = structlog.get_logger("delegation")

_WAKE_TASK = "delegation.wake"
_TIMEOUT_S = 2.0
#: More than that wait only while the broker does not answer; the sweeper sends theirs.
_MOST_WAITING = 500


class WakeSender:
    """Callable from the loop: never blocks, never raises."""

    def __init__(self, app: Celery, threads: Executor) -> None:
        options = dict(app.conf.broker_transport_options or {})
        impatient = {"socket_timeout": _TIMEOUT_S, "socket_connect_timeout": _TIMEOUT_S, "max_retries": 0}
        # This process uses the app for nothing else.
        app.conf.update(broker_transport_options=options | impatient, broker_connection_timeout=_TIMEOUT_S)
        self._app = app
        self._threads = threads
        self._lock = threading.Lock()
        self._waiting = 0

    def __call__(self, delegation_id: str) -> None:
        if self._count(0) < _MOST_WAITING:
            self._count(+1)
            self._threads.submit(self._send, delegation_id)

    def _count(self, by: int) -> int:
        with self._lock:
            self._waiting += by
            return self._waiting

    def _send(self, delegation_id: str) -> None:
        try:
            self._app.tasks[_WAKE_TASK].apply_async(
                (delegation_id,),
                task_id=f"{delegation_id}.wake.{secrets.token_hex(4)}",
                add_to_parent=False,
                ignore_result=True,
                retry=False,
            )
        except Exception as error:  # noqa: BLE001  the broker's seam: kombu leaks its transports' errors
            log.warning("follower.wake_not_sent", delegation_id=delegation_id, error=type(error).__name__)
        finally:
            self._count(-1)
