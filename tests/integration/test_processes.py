"""The process handles keep what they promise: signals, restarts on the same data, and no child left behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.child import ROOT, wait_until
from tests.support.processes import ChildFailed, ChildProcess, SampleAgent, ValkeyProcess

PARENT = """
import sys, time
from pathlib import Path
from tests.support.processes import ChildProcess
child = ChildProcess([sys.executable, "-c", "import time; print(1); time.sleep(60)"], log=Path(sys.argv[1])).start()
child.wait_for_output("1")
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[ValkeyProcess]:
    with ValkeyProcess(tmp_path / "valkey").start() as valkey:
        yield valkey


def test_valkey_keeps_its_data_through_a_kill(valkey: ValkeyProcess) -> None:
    """After kill -9 and a start the same port serves the same keys, from the AOF."""
    with valkey.client(db=3) as client:
        client.set("key", "value")
    assert valkey.kill() == -9
    valkey.start()
    with valkey.client(db=3) as client:
        assert client.get("key") == "value"


def test_a_child_that_ends_early_is_reported_with_its_output(tmp_path: Path) -> None:
    """Waiting for a dead process fails at once and shows what it said."""
    child = ChildProcess([sys.executable, "-c", "print('no luck'); raise SystemExit(3)"], log=tmp_path / "log").start()
    with pytest.raises(ChildFailed, match=r"(?s)ended with 3 before.*no luck"):
        child.wait_for_output("never")
    assert child.wait() == 3


def test_no_child_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Children end even when the process that started them is killed and can clean up nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path / "log")], stdout=subprocess.PIPE, cwd=ROOT
    ) as it:
        assert it.stdout is not None
        child_pid = int(it.stdout.readline())
        it.kill()
    wait_until(lambda: not _runs(child_pid), what="end of the child")


@pytest.mark.parametrize("kind", ["instant", "pushing", "quiet"])
def test_a_sample_agent_starts_and_ends_cleanly(tmp_path: Path, kind: str) -> None:
    """Each kind listens, and ends with exit code 0 within two seconds of SIGTERM."""
    agent = SampleAgent(kind, log=tmp_path / "log").start()
    assert agent.stop(timeout_s=2) == 0


def _runs(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "State:\tZ" not in status
