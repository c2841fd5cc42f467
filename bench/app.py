"""The product's own app with the tasks that the benchmarks let follow a delegation: ``celery -A bench.app worker``."""

from __future__ import annotations

from celery import Celery

from workers.app import make_app
from workers.runtime import runtime

#: A list beside the product's keys: one element for each task that ran.
DONE = "bench:done"
NOTE = "bench.note"


def make_bench_app() -> Celery:
    """A new app by the settings of now; it becomes the current one. Raises ConfigurationError."""
    app = make_app()
    app.task(name=NOTE, shared=False)(_note)
    return app


def _note(**_: object) -> None:
    """Do nothing, and say so: a continuation, and the sign that a worker is ready."""
    runtime().store.client.rpush(DONE, "1")


app = make_bench_app()
