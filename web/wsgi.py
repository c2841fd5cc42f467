"""What a WSGI server imports: `web.wsgi:app`."""

from __future__ import annotations

from web.server import load_app
from workers.logs import configure_logging

#: gunicorn's own code for "the application cannot be loaded"; with any other it starts worker after worker.
_GUNICORN_LOAD_ERROR = 4

configure_logging()
app = load_app(exit_code=_GUNICORN_LOAD_ERROR)
