"""docs/cases.md says where each public bug report is tested, and is right about it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
ROW = re.compile(r"\| (C\d{3}) \| [^|]+ \| ([^|]+) \|")
MODULES = {path.stem: path for path in (ROOT / "tests").glob("*/test_*.py")}


def rows() -> dict[str, str]:
    lines = (ROOT / "docs" / "cases.md").read_text(encoding="utf-8").splitlines()
    return {found[1]: found[2] for line in lines if (found := ROW.fullmatch(line))}


def test_every_report_has_a_row() -> None:
    """C001 to C100, each once, in order."""
    assert list(rows()) == [f"C{number:03}" for number in range(1, 101)]


@pytest.mark.parametrize("case", rows())
def test_a_row_names_modules_that_test_the_report(case: str) -> None:
    """Each module it names exists, and a `test_cases_…` among them holds tests of this report."""
    named = re.findall(r"\btest_\w+", rows()[case])
    assert set(named) <= set(MODULES)
    for name in named:
        if name.startswith("test_cases_"):
            assert f"def test_{case.lower()}_" in MODULES[name].read_text(encoding="utf-8"), name


@pytest.mark.parametrize("case", [name for name, row in rows().items() if not re.search(r"\btest_\w+", row)])
def test_a_row_without_a_test_gives_the_reason(case: str) -> None:
    """What it needs first, or why it cannot happen here."""
    assert re.match(r"(not yet|not applicable): \w+", rows()[case])


def test_every_report_that_is_kept_is_tested() -> None:
    """The file holds what tests play, and no more."""
    kept = json.loads((ROOT / "tests" / "support" / "cases.json").read_text(encoding="utf-8"))
    untested = [each["id"] for each in kept if not re.search(r"\btest_\w+", rows()[each["id"]])]
    assert untested == []
