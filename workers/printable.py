"""Lines of our own and JSON, fit to print: what they quote must not steer a terminal."""

from __future__ import annotations

import json
from typing import Any

from delegation.texts import is_unseen, printable


def one_line(text: str, most: int | None = None) -> str:
    """A line of ours, or a user's own words: blanks folded into one space, cut at ``most`` characters. What an agent
    says goes through `delegation.texts.clean` instead."""
    line = " ".join(printable(text).split())
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that reads back as ``value``; whatever is unseen is escaped (JSON itself leaves all but C0 as it is)."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_escaped(char) if char != "\n" and is_unseen(char) else char for char in text)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1]
