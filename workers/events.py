"""What monitors are told beside Celery's own events: that a chain is parked, and that it went on."""

from __future__ import annotations

from typing import Any

import structlog
from celery import Celery, Task
from kombu.exceptions import OperationalError

log = structlog.get_logger("delegation")


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
        with app.events.default_dispatcher(hostname=hostname) as dispatcher:
            dispatcher.send(event, retry=False, **fields)
    except OperationalError:
        log.info("delegation.event_not_sent", event_type=event)
