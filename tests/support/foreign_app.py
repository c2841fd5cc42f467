"""A user's project with a Celery app of its own: own broker database and key prefix, own queue, own tasks."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

import tests.support.foreign_tasks as _tasks  # noqa: F401  registers the shared tasks
import workers

APP = "tests.support.foreign_app:app"
#: Names the Redis URL of this app's broker and results, which is not where delegations are kept.
BROKER_VARIABLE = "SHOP_BROKER_URL"
QUEUE = "shop"
PREFIX = "shop:"


def make_app(broker_url: str) -> Celery:
    app = Celery("shop", broker=broker_url, backend=broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        broker_connection_retry_on_startup=True,
        broker_transport_options={"global_keyprefix": PREFIX},
        result_backend_transport_options={"global_keyprefix": PREFIX},
    )

    @app.task(name="shop.shout")
    def shout(outcome: dict[str, Any]) -> str:
        """Known to this app alone: a worker without it could not run it."""
        return str(outcome["text"]).upper()

    return app


# In a test's own process, which imports this module for its names, there is no such project.
if BROKER_VARIABLE in os.environ:
    app = workers.install(make_app(os.environ[BROKER_VARIABLE]))
    app.set_current()
