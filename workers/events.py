"""What monitors are told beside Celery's own events: that a chain is parked, and that it went on."""

from __future__ import annotations

import os
from typing import Any

import structlog
from celery import Celery, Task
from celery.signals import worker_ready
from kombu.exceptions import OperationalError

log = structlog.get_logger("delegation")

#: The consumer of the worker whose process this is, and that process; a forked child finds another pid here.
_consumer: tuple[Any, int] | None = None


@worker_ready.connect
def _remember_consumer(sender: Any, **_: Any) -> None:
    """Its dispatcher sends many events at once; one of ours sends each by itself, for half a millisecond each."""
    global _consumer
    _consumer = (sender, os.getpid())


def announce_parked(task: Task[Any, Any]) -> None:
    """Flower shows no state that no event told, and Celery's own would call a parked task succeeded."""
    request = task.request
    family = {"root_id": request.root_id, "parent_id": request.parent_id}
    _send(task.app, request.hostname, "task-parked", uuid=request.id, name=task.name, args=repr(request.args), **family)


def announce_resumed(task: Task[Any, Any], parked_id: str) -> None:
    """The parked task has done what it was there for; nothing else will ever say so."""
    _send(task.app, task.request.hostname, "task-succeeded", uuid=parked_id, result="", runtime=0.0)


def _send(app: Celery, hostname: str | None, event: str, **fields: Any) -> None:
    if not app.conf.worker_send_task_events:
        return
    try:
        dispatcher = _dispatcher_of_worker()
        if dispatcher is not None:
            dispatcher.send(event, **fields)
            return
        with app.events.default_dispatcher(hostname=hostname) as own:
            own.send(event, retry=False, **fields)
    except OperationalError:
        log.info("delegation.event_not_sent", event_type=event)


def _dispatcher_of_worker() -> Any:
    if _consumer is None or _consumer[1] != os.getpid():
        return None
    return getattr(_consumer[0], "event_dispatcher", None)
