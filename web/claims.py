"""Which of the eight states a push body claims; nothing else of a body ever leaves this module."""

from __future__ import annotations

import json
import re
from typing import Any

from delegation.agent_task import read_state

#: Deeper nesting is no push of ours, and unbounded nesting exhausts the parser's stack.
MAX_DEPTH = 64

#: A2A 1.0 StreamResponse is a oneof of these four (spec section 3.2.3); the other two carry no state.
_STATEFUL_KINDS = ("task", "statusUpdate")
_STATELESS_KINDS = ("artifactUpdate", "message")

# Strings are skipped whole, so a bracket inside one does not count. Possessive, hence linear on hostile bytes:
# an unclosed string of escaped quotes would otherwise be scanned again from every quote in it.
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]++|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)


def claimed_state(body: bytes) -> str | None:
    """The state name a push body claims, or None when it claims none, is malformed or is no push at all.

    Shapes: a StreamResponse (``task``, ``statusUpdate``), a bare 0.3 Task or status update, and any of them inside a
    JSON-RPC ``result``. Never raises: whatever is wrong with a body, it then claims nothing.
    """
    if b'"state"' not in body or _is_too_deep(body):
        return None
    try:
        # Decoded here: given bytes, json.loads would guess UTF-16 and UTF-32 as well.
        payload = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    state = read_state(_state_spelling(payload))
    return None if state is None else state.value


def _is_too_deep(body: bytes) -> bool:
    if body.count(b"{") + body.count(b"[") <= MAX_DEPTH:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(body):
        first = match[0][:1]
        if first in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in b"]}":
            depth -= 1
    return False


def _state_spelling(payload: Any) -> object:
    envelope = _member(payload, "result")
    update = payload if envelope is None else envelope
    if not isinstance(update, dict):
        return None
    kinds = [kind for kind in _STATEFUL_KINDS + _STATELESS_KINDS if kind in update]
    if len(kinds) > 1 or (kinds and kinds[0] in _STATELESS_KINDS):
        return None
    holder = _member(update, kinds[0]) if kinds else update
    status = _member(holder, "status")
    return None if status is None else status.get("state")


def _member(payload: Any, name: str) -> dict[str, Any] | None:
    value = payload.get(name) if isinstance(payload, dict) else None
    return value if isinstance(value, dict) else None
