"""The Python in a page of the docs, as its reader would run it."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


def python_in(page: str) -> list[str]:
    """Its blocks, in order."""
    return _PYTHON.findall((DOCS / page).read_text(encoding="utf-8"))
