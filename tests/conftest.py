"""What holds for every test: in CI hardly anything may be skipped, and none sees the settings of whoever runs it."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TIERS = ("integration", "acceptance")
#: The project itself needs no Node.js, so a machine without it may go without the peers written for it.
MAY_BE_ABSENT = "needs Node.js"

# Before any module reads them: a developer's own Redis must never be what a test writes to.
for _name in [name for name in os.environ if name.startswith("DELEGATION_")]:
    del os.environ[_name]


def in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("true", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test carries the marker of the folder it is in."""
    for item in items:
        for tier in TIERS:
            if ROOT / "tests" / tier in item.path.parents:
                item.add_marker(tier)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_skipped_in_ci(report)
    return report


def _fail_if_skipped_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    """A missing server skips locally, where it may be nobody's fault; in CI it would hide that nothing was tested."""
    if not in_ci() or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
    if reason.removeprefix("Skipped: ").startswith(MAY_BE_ABSENT):
        return
    report.outcome = "failed"
    report.longrepr = f"skipped, which is a failure in CI: {reason}"
