"""What a WSGI server imports: `web.wsgi:app`."""

from __future__ import annotations

from web.server import load_app

#: gunicorn's own code for "the application cannot be loaded"; with any other it starts worker after worker.
_GUNICORN_LOAD_ERROR = 4

app = load_app(exit_code=_GUNICORN_LOAD_ERROR)
