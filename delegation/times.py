"""How times are written for others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload


@overload
def rfc3339(at: float) -> str: ...
@overload
def rfc3339(at: None) -> None: ...
def rfc3339(at: float | None) -> str | None:
    """Redis time as RFC 3339 with ``Z``, milliseconds."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
