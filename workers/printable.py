"""Make text of strangers safe to print: an agent's words must not steer a terminal."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

#: Marks, embeddings, overrides and isolates of the bidirectional algorithm (UAX #9): they turn the writing direction.
_TURNS = "\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_BLANKS = "\n\r\t\v\f"
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def one_line(text: str, most: int | None = None) -> str:
    """Without control characters, blanks folded into one space, cut at ``most`` characters."""
    line = " ".join(_safe(text, keep="").split())
    return line if most is None or len(line) <= most else f"{line[: most - 1]}…"


def many_lines(text: str) -> str:
    """Without control characters other than newlines and tabs."""
    return _safe(text.replace("\r\n", "\n"), keep="\n\t")


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that reads back as ``value``; what could steer a terminal is escaped (JSON itself leaves C1 and DEL as they
    are)."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(f"\\u{ord(char):04x}" if char != "\n" and _steers(char) else char for char in text)


def _safe(text: str, *, keep: str) -> str:
    return "".join(char if char in keep or not _steers(char) else _instead(char) for char in text)


def _steers(char: str) -> bool:
    """Control characters, halves of a pair that no encoder takes, and turns."""
    return unicodedata.category(char) in ("Cc", "Cs") or char in _TURNS


def _instead(char: str) -> str:
    return " " if char in _BLANKS else _REPLACEMENT
