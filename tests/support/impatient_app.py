"""The project's Celery app with a broker that takes a message for lost after two seconds, as operators set it."""

from __future__ import annotations

from celery.signals import task_prerun

from workers.app import app

app.conf.broker_transport_options = {
    **app.conf.broker_transport_options,
    "visibility_timeout": 2,
    "unacked_restore_interval": 1,
    "unacked_restore_throttle": 1,
}


@task_prerun.connect
def say_what_begins(task_id: str, **_: object) -> None:
    """So that a test sees a message come twice."""
    print(f"begins {task_id}", flush=True)
