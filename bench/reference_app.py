"""The raw reference: plain Celery tasks under the product's own Celery settings, with nothing of ours around them.

It lives in another database of the same Redis, which ``DELEGATION_REDIS__URL`` names in its worker's environment.
Results are kept where ours are: of the chain's last task, of none before it.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import redis
from celery import Celery, Task, chain
from kombu import Exchange, Queue

from bench.app import DONE
from delegation.settings import Settings, load_settings
from workers.celery_settings import END_QUEUE, QUEUE, app_settings

#: Of one chain: three in it, and one that the second publishes.
TASKS = 4

FIRST, SECOND, BETWEEN, LAST = (f"reference.{name}" for name in ("first", "second", "between", "last"))
NOTE, HOP = "reference.note", "reference.hop"

_ran = itertools.count(1)


def make_reference_app(settings: Settings) -> Celery:
    """The same app in the worker and in the process that submits; nobody's current one."""
    app = Celery("bench.reference", set_as_current=False)
    app.conf.update(app_settings(settings))
    app.conf.task_queues = [Queue(name, Exchange(name), routing_key=name) for name in (QUEUE, END_QUEUE)]
    bodies: dict[str, Any] = {
        FIRST: _count,
        SECOND: _count_and_publish,
        BETWEEN: _count,
        LAST: _count,
        NOTE: _note,
        HOP: _hop,
    }
    for name, body in bodies.items():
        app.task(name=name, bind=True, shared=False, ignore_result=name != LAST)(body)
    return app


def submit(app: Celery, chains: int) -> None:
    """Publish one chain, of ``chains`` in this round; the task that ends the round says so in ``DONE``."""
    total = chains * TASKS
    chain(*(app.tasks[name].si(total) for name in (FIRST, SECOND, LAST))).apply_async()


def _count(self: Task[Any, Any], total: int) -> None:
    if next(_ran) % total == 0:
        _say_done(self.app)


def _count_and_publish(self: Task[Any, Any], total: int) -> None:
    self.app.tasks[BETWEEN].delay(total)
    _count(self, total)


def _hop(self: Task[Any, Any]) -> None:
    self.app.tasks[NOTE].delay()


def _note(self: Task[Any, Any]) -> None:
    _say_done(self.app)


def _say_done(app: Celery) -> None:
    _redis(app.conf.broker_url).rpush(DONE, "1")


@functools.cache
def _redis(url: str) -> redis.Redis:
    return redis.Redis.from_url(url)


app = make_reference_app(load_settings())
