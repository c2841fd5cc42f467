"""What a benchmark found: rows with ratio and goal, as an aligned table, as Markdown and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

COLUMNS = ("what", "ours", "reference", "ratio", "goal", "met?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """``at_least`` or ``at_most``, of the ratio, or of our own figure where ``is_absolute``."""

    at_least: float | None = None
    at_most: float | None = None
    is_absolute: bool = False

    def is_met_by(self, value: float) -> bool:
        return (self.at_least is None or value >= self.at_least) and (self.at_most is None or value <= self.at_most)

    def text(self, unit: str) -> str:
        sign, limit = ("≥", self.at_least) if self.at_least is not None else ("≤", self.at_most)
        assert limit is not None
        return f"{sign} {_number(limit)} {unit}".rstrip() if self.is_absolute else f"{sign} {limit:g} ×"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line. Figures are lists, one per round; what is shown is their median. ``ratio`` is ours ÷ reference."""

    what: str
    ours: Sequence[float]
    reference: Sequence[float] = ()
    unit: str = ""
    goal: Goal | None = None
    details: dict[str, Any] = field(default_factory=dict)  #: for the JSON file only

    @property
    def ratio(self) -> float | None:
        """Of the medians; None without a reference, or where the reference is nothing."""
        reference = statistics.median(self.reference) if self.reference else 0.0
        return statistics.median(self.ours) / reference if reference else None

    @property
    def is_met(self) -> bool | None:
        """None where there is no goal."""
        if self.goal is None:
            return None
        value = statistics.median(self.ours) if self.goal.is_absolute else self.ratio
        return value is not None and self.goal.is_met_by(value)

    def cells(self) -> tuple[str, ...]:
        met = {None: "", True: "yes", False: "no"}[self.is_met]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f} ×"
        goal = self.goal.text(self.unit) if self.goal else ""
        return (self.what, self._figure(self.ours), self._figure(self.reference), ratio, goal, met)

    def to_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "unit": self.unit,
            "ours": list(self.ours),
            "reference": list(self.reference),
            "ratio": self.ratio,
            "goal": self.goal.text(self.unit) if self.goal else None,
            "met": self.is_met,
            **({"details": self.details} if self.details else {}),
        }

    def _figure(self, values: Sequence[float]) -> str:
        return f"{_number(statistics.median(values))} {self.unit}".rstrip() if values else "–"


def aligned(rows: Sequence[Row]) -> str:
    """For a terminal: columns padded, figures to the right."""
    cells = [COLUMNS, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(_pad(text, widths[n], n) for n, text in enumerate(line)).rstrip() for line in cells]
    return "\n".join([lines[0], "─" * max(map(len, lines)), *lines[1:]])


def markdown(rows: Sequence[Row]) -> str:
    """For docs/benchmarks.md."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| --- |" + " ---: |" * 4 + " --- |"]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)])


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which that share of them lies; the nearest one, nothing interpolated."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _pad(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column in (0, len(COLUMNS) - 1) else text.rjust(width)


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
