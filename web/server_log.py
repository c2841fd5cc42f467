"""gunicorn's own log without what a request said: its lines about bad requests quote them, tokens included."""

from __future__ import annotations

import logging

_UNREADABLE = "Invalid request from ip="
_UNANSWERED = "Error handling request"


def leave_out_requests(record: logging.LogRecord) -> bool:
    """A filter that lets every line through, cut before the quotation.

    A traceback ends with the exception's text, which may quote the request again: its type alone is kept.
    """
    text = record.getMessage()
    if text.startswith(_UNREADABLE):
        record.msg, record.args = text.partition(": ")[0], ()
    elif text.startswith(_UNANSWERED):
        kind = record.exc_info[0] if record.exc_info else None
        record.msg, record.args, record.exc_info = f"{_UNANSWERED}: {kind and kind.__name__}", (), None
    return True
