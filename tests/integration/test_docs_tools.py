"""The first snippet of docs/tools.md runs as it stands, but for the port."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.child import ROOT, ChildProcess, child_environment, free_port
from tests.support.doc_snippets import python_in


def test_the_snippet_runs(tmp_path: Path) -> None:
    """It needs the sample agent and nothing else: neither Celery nor Redis is even loaded."""
    port = free_port()
    code = python_in("tools.md")[0].replace("9910", str(port))
    code += "\nimport sys\nassert not {'celery', 'redis', 'kombu'} & sys.modules.keys()\n"
    command = [sys.executable, "-m", "examples.sample_agent", "--kind", "instant", "--port", str(port)]
    with ChildProcess(command, log=tmp_path / "agent.log").start() as agent:
        agent.wait_for_output(r'"ready"', 30)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=ROOT,
            env=child_environment({"PEER_TOKEN": "s3cret-token"}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert f"None http://127.0.0.1:{port}/rpc ['instant_agent_travel', 'instant_agent_ledger']" in lines
    assert "'state': 'completed'" in done.stdout
    assert "HTTP transport connect-failed" in done.stderr  # the spare agent's, in a warning
    assert "3" in lines
