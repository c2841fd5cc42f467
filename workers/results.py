"""The one place that asks the result backend, whatever it is made of."""

from __future__ import annotations

from celery import Celery

from delegation.errors import StoreUnavailable


def state_of(app: Celery, celery_task_id: str) -> str:
    """Celery's state of a task; PENDING where nothing is known of it. Raises StoreUnavailable.

    A backend's own exceptions must not become the result of whoever asked.
    """
    try:
        return str(app.AsyncResult(celery_task_id).state)
    except Exception as error:  # the seam to the backend: each raises its own library's kinds
        raise StoreUnavailable(f"the result backend does not answer: {type(error).__name__}") from error
