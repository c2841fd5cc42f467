"""When a join is over, as its caller says it and as it is kept; decided in release.lua (docs/workflows.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Self

from delegation.errors import InvalidArguments

NAMES = ("all", "any", "first_success", "fail_fast")
_KEPT_QUORUM = re.compile(r"quorum ([1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class JoinPolicy:
    """One of NAMES, or so many children that must be COMPLETED."""

    name: str
    quorum: int | None = None

    @classmethod
    def read(cls, given: Any) -> Self:
        """``"all"``, ``"any"``, ``"first_success"``, ``"fail_fast"`` or ``{"quorum": k}``. Raises InvalidArguments."""
        if isinstance(given, str) and given in NAMES:
            return cls(given)
        if isinstance(given, dict) and list(given) == ["quorum"]:
            count = given["quorum"]
            if isinstance(count, int) and not isinstance(count, bool) and 1 <= count <= 999_999:
                return cls("quorum", count)
            raise InvalidArguments("policy: a quorum is a number of children, at least 1")
        raise InvalidArguments(f"policy: one of {', '.join(NAMES)}, or {{'quorum': k}}")

    @classmethod
    def of(cls, kept: str) -> Self:
        """As a record has it."""
        found = _KEPT_QUORUM.fullmatch(kept)
        return cls("quorum", int(found[1])) if found else cls(kept)

    @property
    def kept(self) -> str:
        return self.name if self.quorum is None else f"{self.name} {self.quorum}"

    @property
    def as_json(self) -> str | dict[str, int]:
        """As callers say it."""
        return self.name if self.quorum is None else {"quorum": self.quorum}


ALL = JoinPolicy("all")


def quorum(count: int) -> dict[str, int]:
    """The policy of a join that waits for so many children to be COMPLETED."""
    return {"quorum": count}
