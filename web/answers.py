"""The answers every route shares: empty, constant, and the same whoever asks."""

from __future__ import annotations

from flask import Response

#: Set on every answer, errors included.
SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}

#: What a sender is told while Redis does not answer. A sender that retries then does so when it may be back.
RETRY_AFTER_S = 5


class EmptyAnswer(Response):
    """An answer without a body, so without a content type to describe it."""

    default_mimetype = None


def empty(status: int, headers: dict[str, str] | None = None) -> Response:
    """An answer that says nothing beyond its status."""
    return EmptyAnswer(status=status, headers=headers)


def not_found() -> Response:
    """The one 404: no route, malformed id, unknown id, wrong credential and ended delegation look alike.

    A2A spec section 3.3.2: an answer SHOULD NOT tell "does not exist" from "not authorized".
    """
    return empty(404)


def unavailable() -> Response:
    """Redis does not answer: nothing was recorded, so nothing may be promised."""
    return empty(503, {"Retry-After": str(RETRY_AFTER_S)})
