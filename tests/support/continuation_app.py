"""A Celery app as a user of ours has one: own tasks, own queue, delegations brought in by ``workers.install``.

Its tasks write down each of their runs, so that tests count links, errbacks, chord bodies and continuations by what
ran, not by what was said. What a test may do to the messages, through the environment:

- ``CONTINUATION_HOLD=delegation.watch,…``: these tasks' messages go to the queue ``held``, which only a worker that
  names it consumes; so a test can take a message out of the broker with nobody racing for it;
- ``CONTINUATION_TWICE=1``: every message of our own steps is published twice, byte for byte;
- ``CONTINUATION_VISIBILITY_S``: how soon the broker gives a dead worker's messages to another one.
"""

from __future__ import annotations

import json
import os
from typing import Any

from celery import Celery, Task, shared_task
from celery.signals import after_task_publish

from delegation.settings import CONFIG_VARIABLE
from workers import install
from workers.celery_settings import app_settings
from workers.logs import configure_logging
from workers.runtime import current_settings, runtime

APP = "tests.support.continuation_app:app"
OWN_QUEUE, HELD_QUEUE = "theirs", "held"
#: What a worker consumes that leaves held messages alone.
QUEUES = (OWN_QUEUE, "delegations", "delegations.end")


def make_app() -> Celery:
    """The app for the deployment that the environment names, and from now on this process's current one."""
    settings = current_settings()
    app = Celery("continuation", set_as_current=True)
    app.conf.update(app_settings(settings))
    app.conf.task_default_queue = OWN_QUEUE
    if visibility_s := os.environ.get("CONTINUATION_VISIBILITY_S"):
        app.conf.broker_transport_options["visibility_timeout"] = float(visibility_s)
        app.conf.broker_transport_options["unacked_restore_interval"] = 1
    install(app)
    app.finalize()
    for name in filter(None, os.environ.get("CONTINUATION_HOLD", "").split(",")):
        task: Any = app.tasks[name]
        task.queue = HELD_QUEUE
    return app


def runs(kind: str | None = None) -> list[dict[str, Any]]:
    """What ran, in order: ``kind``, ``task_id``, ``args``, ``kwargs`` and the Redis time ``at``."""
    found: Any = runtime().store.client.lrange(_runs_key(), 0, -1)
    return [run for run in map(json.loads, found) if kind in (None, run["kind"])]


def _runs_key() -> str:
    return runtime().store.key("test", "runs")


def _write_down(task: Task[Any, Any], kind: str, *args: Any, **kwargs: Any) -> None:
    store = runtime().store
    run = {"kind": kind, "task_id": task.request.id, "args": args, "kwargs": kwargs, "at": store.now()}
    store.client.rpush(_runs_key(), json.dumps(run))


@shared_task(bind=True, name="continuation.begin")
def begin(self: Task[Any, Any], value: str) -> str:
    """The first link of a canvas."""
    _write_down(self, "begin", value)
    return value


@shared_task(bind=True, name="continuation.proceed")
def proceed(self: Task[Any, Any], outcome: Any, tag: str = "") -> str:
    """The next link after a delegation."""
    _write_down(self, "link", outcome, tag=tag)
    return f"{tag}: {outcome['text']}"


@shared_task(bind=True, name="continuation.mourn")
def mourn(self: Task[Any, Any], failed_id: str) -> None:
    """An errback."""
    _write_down(self, "errback", failed_id)


@shared_task(bind=True, name="continuation.gather")
def gather(self: Task[Any, Any], outcomes: list[Any]) -> list[str]:
    """A chord's body."""
    _write_down(self, "body", outcomes)
    return [outcome["text"] for outcome in outcomes]


@shared_task(bind=True, name="continuation.resume")
def resume(self: Task[Any, Any], /, **release: Any) -> str:
    """A workflow's continuation."""
    _write_down(self, "continuation", **release)
    return str(release["release_id"])


@shared_task(bind=True, name="continuation.note")
def note(self: Task[Any, Any], /, **told: Any) -> int:
    """What a workflow's notes call: ids only."""
    _write_down(self, "note", **told)
    return int(told["note"])


@after_task_publish.connect
def _publish_again(sender: str = "", body: Any = None, headers: Any = None, routing_key: str = "", **_: Any) -> None:
    if not (sender.startswith("delegation.") and os.environ.get("CONTINUATION_TWICE")):
        return
    with begin.app.producer_pool.acquire(block=True) as producer:
        producer.publish(
            body, headers=headers, exchange="", routing_key=routing_key, serializer="json", correlation_id=headers["id"]
        )


# A worker's process belongs to one deployment; the tests' own process makes an app for each.
if CONFIG_VARIABLE in os.environ:
    configure_logging()
    app = make_app()
