"""What comments and documents point at is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("delegation", "workers", "web", "examples", "bench", "tests", "docs")
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")


def texts() -> Iterator[tuple[Path, str]]:
    for path in [*ROOT.glob("*.md"), *(path for room in ROOMS for path in (ROOT / room).rglob("*"))]:
        if path.suffix in {".py", ".lua", ".md"} and path != Path(__file__):
            yield path.relative_to(ROOT), path.read_text(encoding="utf-8")


def test_every_document_that_is_named_exists() -> None:
    """A reader finds it under the name given."""
    named = {(path, name) for path, text in texts() for name in re.findall(r"\bdocs/[\w/.-]+\.md", text)}
    assert len(named) > 10
    assert not [(path, name) for path, name in named if not (ROOT / name).is_file()]


def test_every_section_and_law_that_is_named_exists() -> None:
    """Numbers in comments are those of docs/design.md."""
    sections = set(re.findall(r"^## (\d+)\. ", DESIGN, flags=re.MULTILINE))
    laws = set(re.findall(r"^(\d+)\. \*\*", DESIGN, flags=re.MULTILINE))
    assert (len(sections), len(laws)) == (10, 10)
    for path, text in texts():
        assert set(re.findall(r"docs/design\.md §(\d+)", text)) <= sections, path
        assert set(re.findall(r"\blaw (\d+)", text)) <= laws, path
