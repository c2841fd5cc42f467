"""This test process as a user of a deployment: settings from its file, and one Celery app that is the current one."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from celery import Celery, current_app

from tests.support.child import wait_until
from tests.support.deployment import Deployment
from tests.support.foreign_tasks import WITNESS_VARIABLE
from tests.support.redis_users import ADMIN
from tests.support.services import ValkeyProcess
from workers.app import make_app
from workers.runtime import reset_runtime, runtime


@contextmanager
def caller_in(deployment: Deployment, environment: Mapping[str, str] | None = None) -> Iterator[Celery]:
    """The project's own app, as a caller uses it; what this process had composed before is put aside."""
    previous = current_app._get_current_object()
    added = {**deployment.env, **(environment or {})}
    replaced = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    reset_runtime()
    app = make_app()
    try:
        yield app
    finally:
        runtime().store.close()
        # A result collected later would unsubscribe, at a server that is gone by then, with twenty retries.
        app.backend.result_consumer.subscribed_to.clear()
        app.backend.result_consumer.stop()
        app.backend.client.close()
        app.close()
        previous.set_current()
        reset_runtime()
        for name, value in replaced.items():
            os.environ.pop(name, None)
            os.environ.update({name: value} if value is not None else {})
        gc.collect()


class Witness:
    """What the user's tasks say they saw, by key."""

    def __init__(self, valkey: ValkeyProcess, db: int = 9) -> None:
        self.url = valkey.url(db, user=ADMIN)
        self._valkey = valkey
        self._db = db

    @property
    def environment(self) -> dict[str, str]:
        return {WITNESS_VARIABLE: self.url}

    def saw(self, key: str) -> list[dict[str, Any]]:
        with self._valkey.client(self._db) as client:
            return [json.loads(line) for line in client.lrange(key, 0, -1)]

    def wait_for(self, key: str, count: int = 1, timeout_s: float = 15.0) -> list[dict[str, Any]]:
        what = f"{count} × {key} in the witness"
        return wait_until(lambda: found if len(found := self.saw(key)) >= count else None, timeout_s, what=what)
