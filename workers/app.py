"""Our own Celery app: ``celery -A workers.app worker``. A project with an app of its own uses ``workers.install``."""

from __future__ import annotations

from celery import Celery
from celery.signals import setup_logging

from workers.celery_settings import app_settings
from workers.install import install
from workers.logs import configure_logging
from workers.runtime import current_settings


def make_app() -> Celery:
    """The app, configured from delegation.toml and the environment. Raises ConfigurationError."""
    app = Celery("delegation", set_as_current=True)
    app.conf.update(app_settings(current_settings()))
    install(app)
    return app


@setup_logging.connect
def _set_up_logging(loglevel: int | str | None = None, **_: object) -> None:
    """Celery would otherwise put its own handlers beside ours."""
    configure_logging(loglevel)


app = make_app()
