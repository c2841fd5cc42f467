"""Which Celery app carries delegations in this process: the current one, else the one that ``[celery] app`` names."""

from __future__ import annotations

from celery import Celery, current_app
from celery.app.utils import find_app

from delegation.errors import ConfigurationError
from workers.celery_settings import TASK_ROUTES
from workers.runtime import current_settings

#: The name of the app that Celery makes up when a process, or a thread, has none; it has no broker.
_MADE_UP = "default"


def carrying_app() -> Celery:
    """The app to publish in: the current one if ``workers.install`` was called for it, else the named one.

    A process may well have a current app of another purpose, and a thread has none at all; neither may get our
    messages. Raises ConfigurationError when the named app cannot be imported.
    """
    if current_app.main != _MADE_UP and is_installed(current_app):
        return current_app.tasks["delegation.delegate"].app
    is_free = current_app.main == _MADE_UP
    app = named_app(current_settings().celery.app)
    if is_free:
        app.set_current()  # as importing it in this thread would have done
    return app


def named_app(name: str) -> Celery:
    """The app at ``module:attribute``. Raises ConfigurationError."""
    try:
        app = find_app(name)
    except ConfigurationError:
        raise  # of our own app, or from `install` in theirs; it names its key
    except Exception as error:  # noqa: BLE001  the seam to a module of theirs: importing it may raise anything
        raise ConfigurationError(f"celery.app: cannot import {name!r}: {_one_line(error)}") from None
    if not isinstance(app, Celery):
        raise ConfigurationError(f"celery.app: {name!r} is not a Celery app but a {type(app).__name__}")
    if not is_installed(app):
        raise ConfigurationError(
            f"celery.app: {name!r} carries no delegations: call workers.install(app) where it is made"
        )
    return app


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def is_installed(app: Celery) -> bool:
    """Whether ``workers.install`` was called for this app."""
    routes = app.conf.task_routes
    return isinstance(routes, list) and any(route is TASK_ROUTES for route in routes)
