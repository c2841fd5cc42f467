"""Which Celery app carries delegations in this process: the current one, else the one that ``[celery] app`` names."""

from __future__ import annotations

from celery import Celery, current_app
from celery.app.utils import find_app

from delegation.errors import ConfigurationError
from workers.runtime import current_settings

#: The name of the app that Celery makes up when a process has none; it has no broker.
_MADE_UP = "default"


def carrying_app() -> Celery:
    """The app to publish in. One that is named by the settings becomes the current one, as importing it would do.

    Raises ConfigurationError when the named app cannot be imported.
    """
    if current_app.main != _MADE_UP:
        return current_app.tasks["delegation.delegate"].app
    name = current_settings().celery.app
    try:
        app: Celery = find_app(name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"celery.app: cannot import {name!r}: {error}") from None
    app.set_current()
    return app
