"""What is said of a configuration that cannot be used: the dotted key first, then what it should be, in one line."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from delegation.auth_settings import CREDENTIAL_TYPES

ENV_PREFIX = "DELEGATION_"
MOST_ERRORS_SHOWN = 5

_TYPES = f"type must be {', '.join(CREDENTIAL_TYPES[:-1])} or {CREDENTIAL_TYPES[-1]}"
#: By pydantic's type of an error.
_PLAIN = {
    "extra_forbidden": "unknown key",
    "missing": "is missing",
    "union_tag_invalid": _TYPES,
    "union_tag_not_found": _TYPES,
}


def describe(error: ValidationError, agent_ids: Sequence[str]) -> str:
    """``agent_ids``: by their position; empty where an agent has none."""
    found = [
        text
        for detail in error.errors(include_url=False, include_input=False)
        for text in _describe_one(detail, agent_ids)
    ]
    more = f"; and {len(found) - MOST_ERRORS_SHOWN} more" if len(found) > MOST_ERRORS_SHOWN else ""
    return "; ".join(found[:MOST_ERRORS_SHOWN]) + more


def _describe_one(detail: ErrorDetails, agent_ids: Sequence[str]) -> Iterator[str]:
    steps = [str(step) for step in detail["loc"] if step != "[key]"]
    plain = _PLAIN.get(detail["type"])
    reason = plain or re.sub(r"^(Input|String) should", "should", detail["msg"])
    problems = detail["ctx"]["problems"] if detail["type"] == "refused" else [("", reason)]
    for below, reason_below in problems:
        key = ".".join([*steps, *([below] if below else [])])
        variable = ENV_PREFIX + key.upper().replace(".", "__")
        source = f" (set by {variable})" if os.environ.get(variable) else ""
        yield one_line(f"{key}: {reason_below}{source}{_whose(key, agent_ids)}")


def _whose(key: str, ids: Sequence[str]) -> str:
    """Positions are hard to count in a file: the agent's id."""
    found = re.match(r"agents\.(\d+)\.", key)
    agent_id = ids[int(found[1])] if found and int(found[1]) < len(ids) else ""
    return f" (agent {agent_id})" if agent_id else ""


def describe_unreadable_variable(error: SettingsError) -> str:
    name = re.search(r'field "(\w+)"', str(error))
    key = name[1] if name else "environment"
    return f"{key}: {ENV_PREFIX}{key.upper()} is not JSON"


def one_line(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
