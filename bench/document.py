"""Replaces the figures in docs/benchmarks.md, between its two markers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.machine import facts
from bench.table import Row, markdown

FILE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"
BEGIN = "<!-- written by python -m bench --write: begin -->"
END = "<!-- written by python -m bench --write: end -->"


def write(rows: Sequence[Row], *, rounds: int) -> None:
    """Raises ValueError when a marker is missing."""
    before, begin, rest = FILE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{FILE.name}: a marker is missing")
    machine = "\n".join(f"- {name}: {value}" for name, value in facts().items())
    figures = f"{markdown(rows)}\n\nMedians of {rounds} rounds.\n\n{machine}"
    FILE.write_text(f"{before}{BEGIN}\n\n{figures}\n\n{END}{after}", encoding="utf-8")
