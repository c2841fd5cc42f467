"""Say something to a delegation: reply to its question, cancel it. Kept first, then sent as soon as possible."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from celery import Celery, Task, shared_task
from celery.local import Proxy

from delegation.errors import InvalidArguments
from delegation.opening import GOAL_LIMIT
from delegation.state import Delegation, Phase
from delegation.store_talk import CancelVerdict
from workers.canvas import publish_step
from workers.carrier import carrying_app
from workers.finding import find_delegation
from workers.runtime import runtime

REASON_LIMIT = 500
#: Not given; null is a JSON value like any other.
NOTHING: Any = object()


def give_reply(
    delegation_id: str,
    text: str | None = None,
    *,
    data: Any = NOTHING,
    metadata: Mapping[str, Any] | None = None,
    key: str | None = None,
    question: int | None = None,
) -> int:
    """Answer an agent's question with a text, a JSON value, or both; returns the reply's number, counted from 1.

    The delegation is named by its id or by the Celery id of its ``delegate`` call.

    It is kept at once and sent when the agent waits for it, after any earlier one. The same reply to the same question
    again is not sent twice, nor one with the same ``key``. With ``question``, a number as ``describe()`` shows it, it
    answers that question or is not sent. Raises UnknownDelegation, DelegationEnded, InvalidArguments, StoreUnavailable.
    """
    reply, app = _checked(text, data, metadata), carrying_app()
    store = runtime().store
    delegation = find_delegation(store, delegation_id)
    if question is not None:
        _check_is_open(delegation, question)
        reply["question"] = question
    number, is_new = store.give_reply(delegation, reply, key=key)
    if is_new and delegation.phase is Phase.WATCHING:
        publish_step(app, "delegation.send_reply", delegation.id, task_id=f"{delegation.id}.reply.{number}")
    return number


def want_cancel(app: Celery, delegation_id: str, reason: str = "") -> CancelVerdict:
    """Have a delegation cancelled: durable when this returns. Raises UnknownDelegation, InvalidArguments."""
    check_reason(reason)
    return cancel_delegation(app, find_delegation(runtime().store, delegation_id), reason)


def cancel_delegation(app: Celery, delegation: Delegation, reason: str) -> CancelVerdict:
    """As :func:`want_cancel`, one that was loaded."""
    verdict = runtime().store.want_cancel(delegation, reason)
    if verdict is CancelVerdict.WANTED:
        publish_step(app, "delegation.cancel", delegation.id, task_id=f"{delegation.id}.cancel.{delegation.version}")
    return verdict


def check_reason(reason: str) -> None:
    """Raises InvalidArguments."""
    if len(reason) > REASON_LIMIT or not _is_unicode(reason):
        raise InvalidArguments(f"reason: a string of 0 to {REASON_LIMIT} characters")


def _is_unicode(text: str) -> bool:
    """Lone surrogates are no text: they cannot be sent."""
    return text.encode("utf-8", "replace").decode() == text


def _check_is_open(delegation: Delegation, number: int) -> None:
    """Raises InvalidArguments."""
    asked = delegation.progress.question
    if asked is None or asked.number != number or not delegation.state.is_interrupted:
        open_ = f"question {asked.number} is" if asked and delegation.state.is_interrupted else "none is"
        raise InvalidArguments(f"question: {number} is not open; {open_}")


@shared_task(bind=True, name="delegation.reply", ignore_result=False, max_retries=0, acks_late=True)
def _reply(self: Task[Any, Any], text: Any = None, *, delegation_id: str, data: Any = NOTHING) -> int:
    """``ask.s(question) | reply.s(delegation_id=…)``: what is piped in answers the question, a string as text, other
    JSON as data. The text travels in Celery's messages, as in any canvas."""
    if text is not None and not isinstance(text, str):
        text, data = None, text
    return give_reply(delegation_id, text, data=data, key=self.request.id)


#: The task in whatever app carries delegations here, as ``delegate`` is.
reply: Any = Proxy(lambda: carrying_app().tasks["delegation.reply"])


def _checked(text: object, data: Any, metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is kept of a reply. Raises InvalidArguments."""
    if text is not None and not isinstance(text, str):
        raise InvalidArguments("reply: the text is a string; other JSON is data")
    has_text = bool(text and text.strip())
    if not has_text and data is NOTHING:
        raise InvalidArguments("reply: give a text, or data")
    kept: dict[str, Any] = {"text": text} if has_text else {}
    if data is not NOTHING:
        kept["data"] = data
    if metadata:
        kept["metadata"] = dict(metadata)
    try:
        size = len(json.dumps(kept, allow_nan=False, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError):
        raise InvalidArguments("reply: data and metadata must be plain JSON") from None
    if not _is_unicode(json.dumps(kept, ensure_ascii=False)):
        raise InvalidArguments("reply: holds half a character (a lone surrogate), which cannot be sent")
    if size > GOAL_LIMIT:
        raise InvalidArguments(f"reply: larger than {GOAL_LIMIT} characters")
    return kept
