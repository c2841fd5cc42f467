"""What an agent asks, fit for a terminal: every part of it, and the command that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from delegation.agent_task import TaskState
from delegation.state import Delegation
from delegation.texts import clean, printable
from workers.printable import json_text


def question_text(each: Delegation) -> str:
    """All its parts in the order sent: texts as they are, data as JSON, files by name, never opened."""
    return printable(_said(each))


def question_line(each: Delegation, most: int) -> str:
    """The same, in one line of at most so many characters."""
    return clean(_said(each), most)


def how_to_answer(each: Delegation) -> str:
    """For a person; an authorization is given elsewhere, and often needs no reply."""
    command = f"delegation reply {each.id} TEXT"
    if each.state is TaskState.AUTH_REQUIRED:
        return f"authorize it as asked; if it does not go on by itself: {command}"
    return f"answer: {command}"


def size_text(size: int) -> str:
    """Short: 512 bytes, 4.2 KiB, 1.5 MiB."""
    if size < 1024:
        return "1 byte" if size == 1 else f"{size} bytes"
    return f"{size / 1024:.1f} KiB" if size < 1024 * 1024 else f"{size / (1024 * 1024):.1f} MiB"


def _said(each: Delegation) -> str:
    parts = each.progress.status_parts or ({"text": each.progress.status_text},)
    said = "\n".join(filter(None, map(_part_text, parts)))
    return said if said.strip() else "(without a word)"


def _part_text(part: Mapping[str, Any]) -> str:
    if "invalid_part" in part:
        return "[a part that cannot be read]"
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if "data" in part:
        return json_text(part["data"])
    return _file_text(part)


def _file_text(part: Mapping[str, Any]) -> str:
    """A file of A2A 1.0 or, under ``file``, of 0.3: by URL or with its bytes in base64."""
    older = part.get("file")
    older = older if isinstance(older, dict) else {}
    name = part.get("filename") or older.get("name")
    media_type = part.get("mediaType") or older.get("mimeType")
    raw = part.get("raw") or older.get("bytes")
    where = f"{size_text(len(str(raw)) * 3 // 4)} of data" if raw else part.get("url") or older.get("uri")
    return f"[file: {', '.join(str(fact) for fact in (name, media_type, where) if fact)}]"
