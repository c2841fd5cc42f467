"""Every process refuses to start with an address that gives secrets away, and says which in one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.child import ROOT, child_environment

WEB = ("-m", "gunicorn", "-c", "python:web.server", "-b", "127.0.0.1:0", "--no-control-socket")
WORKER = ("-m", "celery", "-A", "workers.app", "worker", "-P", "threads")
COMMAND = ("-c", "from workers.cli import main; main()", "list")
FOLLOWER = ("-c", "from workers.cli import main; main()", "follower")
OPEN = {
    "server.base_url": {"DELEGATION_SERVER__BASE_URL": "http://delegations.example.com/canary"},
    "redis.url": {"DELEGATION_REDIS__URL": "redis://canary.example.com"},
    "celery.broker_url": {"DELEGATION_CELERY__BROKER_URL": "rediss://:canary@r.example.com?ssl_cert_reqs=none"},
    "celery.result_backend": {"DELEGATION_CELERY__RESULT_BACKEND": "redis://canary.example.com"},
}


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=child_environment({"DELEGATION_REDIS__URL": "redis://127.0.0.1:1/0", **env}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("process", [WEB, WORKER, COMMAND, FOLLOWER], ids=["web", "worker", "command", "follower"])
@pytest.mark.parametrize("key", OPEN)
def test_no_process_starts_with_an_open_address(process: tuple[str, ...], key: str) -> None:
    """P-19, B-04: exit code 2, the last line names the key and the way out, and nobody repeats the address."""
    ran = run(*process, **OPEN[key])
    last = ran.stderr.strip().splitlines()[-1]
    assert ran.returncode == 2
    assert f"{key}: must " in last
    assert "unless the host is loopback or DELEGATION_ALLOW_INSECURE=1" in last
    assert "canary" not in ran.stdout + ran.stderr


def test_who_says_so_may() -> None:
    """With DELEGATION_ALLOW_INSECURE=1 the configuration is taken; what fails then is Redis, which is not there."""
    env = {"DELEGATION_SERVER__BASE_URL": "http://delegations.example.com", "DELEGATION_ALLOW_INSECURE": "1"}
    ran = run(*COMMAND, **env)
    assert ran.returncode == 3
    assert "base_url" not in ran.stderr
