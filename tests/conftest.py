"""What holds for every test: in CI hardly anything may be skipped, none sees the settings of whoever runs it, and
nothing that a test does leaves this machine."""

from __future__ import annotations

import atexit
import importlib
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TIERS = ("integration", "acceptance")
#: The project itself needs no Node.js, so a machine without it may go without the peers written for it.
MAY_BE_ABSENT = "needs Node.js"

# Before any module reads them: a developer's own Redis must never be what a test writes to.
for _name in [name for name in os.environ if name.startswith("DELEGATION_")]:
    del os.environ[_name]


# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Here and in every child process, once: an audit hook stays until the process ends.
_WATCH = ROOT / "tests" / "support" / "loopback_only"
_REPORT = Path(tempfile.mkdtemp(prefix="tests-leaving-")) / "report"
atexit.register(shutil.rmtree, _REPORT.parent, ignore_errors=True)
os.environ["TESTS_LEAVING_REPORT"] = str(_REPORT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_WATCH), os.environ.get("PYTHONPATH")]))
importlib.import_module("tests.support.loopback_only.sitecustomize")


@pytest.fixture(autouse=True)
def nothing_leaves_this_machine() -> Iterator[None]:
    """Fails the test during which this process, or one started by the tests, tried to connect to another machine."""
    yield
    if _REPORT.exists():
        reported = _REPORT.read_text(encoding="utf-8")
        _REPORT.unlink()
        pytest.fail(f"a connection left this machine:\n{reported}")


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
