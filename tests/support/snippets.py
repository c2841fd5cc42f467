"""The code of a page of documentation, to be run as it stands."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def snippets_of(page: str) -> list[str]:
    """Its Python blocks, in order."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)


def module_of(page: str, name: str) -> str:
    """The block that begins with the name of its file."""
    (found,) = [block for block in snippets_of(page) if block.startswith(f"# {name}\n")]
    return found
