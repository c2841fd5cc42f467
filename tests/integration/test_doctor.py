"""`delegation doctor` and `delegation agents` say what is wrong, and what to do about it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child import child_environment, free_port
from tests.support.processes import Deployment, ValkeyProcess
from workers.redis_server import ServerVersion


def delegation(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, run in that directory with no settings but those there."""
    command = [sys.executable, "-m", "workers.cli", *arguments]
    env = child_environment({})
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=60, check=False)


def says(check: str, verdict: str, text: str, report: str) -> bool:
    return re.search(rf"^{check} +{verdict} +{text}", report, re.MULTILINE) is not None


def test_a_directory_without_a_configuration_is_told(tmp_path: Path) -> None:
    """Whoever is in the wrong directory would look for the fault elsewhere."""
    report = delegation(tmp_path, "doctor").stdout
    assert says("configuration", "warning", rf"no delegation\.toml in {tmp_path}; defaults are used; 0 agents$", report)
    (tmp_path / "delegation.toml").touch()
    assert says("configuration", "ok", "0 agents$", delegation(tmp_path, "doctor").stdout)


def test_a_project_that_is_not_up_is_told(tmp_path: Path) -> None:
    """`delegation up` ran here before, and its server is not running now."""
    (tmp_path / ".delegation").mkdir()
    report = delegation(tmp_path, "doctor").stdout
    assert says("redis", "(failed|warning)", r".*`delegation up`, .* not running", report)


def test_an_address_where_nothing_answers_is_named_with_the_cause(tmp_path: Path) -> None:
    """By `doctor` and `agents` alike, in sentences with one full stop at most."""
    where = f"127.0.0.1:{free_port()}"
    config = f'[redis]\nurl = "redis://{where}/0"\n[[agents]]\nid = "a"\nurl = "http://127.0.0.1:9"\n'
    (tmp_path / "delegation.toml").write_text(config, encoding="utf-8")
    agents, doctor = delegation(tmp_path, "agents"), delegation(tmp_path, "doctor")
    assert (agents.returncode, doctor.returncode) == (3, 3)
    for said in (agents.stderr, doctor.stdout):
        assert f"{where}: Redis does not answer: " in said
        assert "Connection refused" in said
        assert not re.search(r"[.;]{2}", said)


def test_a_server_that_refuses_us_did_answer(tmp_path: Path) -> None:
    """A wrong password is told as one, by `doctor`, `agents` and any other command."""
    with ValkeyProcess(tmp_path / "valkey").start() as server:
        url = server.url().replace("delegation:", "delegation:wrong", 1)
        agent = '[[agents]]\nid = "a"\nurl = "http://127.0.0.1:9"\n'
        (tmp_path / "delegation.toml").write_text(f'[redis]\nurl = "{url}"\n{agent}', encoding="utf-8")
        for command in ("doctor", "agents", "list"):
            said = delegation(tmp_path, command)
            assert said.returncode == 3
            assert "Redis refuses us: " in said.stdout + said.stderr
            assert "Redis does not answer" not in said.stdout + said.stderr


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path, agents={}, web=False, workers=0)


def test_a_continuation_that_is_not_seen_to_run_is_a_warning(deployment: Deployment) -> None:
    """Published once it may well be running; published again, it was asked after, and it was not."""
    with deployment as it:
        store = it.store()
        workflow = it.command("workflow", "open").stdout.strip()
        it.command("workflow", "join", workflow, "--then", "no.task", "--queue", "nobody-listens")
        assert store.publishes_of_unseen_continuations() == [1]
        report = it.command("doctor", "--no-agents").stdout
        assert says("continuations", "ok", "none given up, 1 published just now$", report)

        release_id = store.load_workflow(workflow).release_id
        assert release_id is not None
        store.continuation_published(workflow, release_id)
        report = it.command("doctor", "--no-agents").stdout
        assert says("continuations", "warning", "1 published more than once and not seen to run: ", report)

        store.continuation_seen(workflow, release_id)
        assert says("continuations", "ok", "none given up$", it.command("doctor", "--no-agents").stdout)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server")
def test_a_server_whose_scripts_can_break_out_is_a_warning(tmp_path: Path) -> None:
    """B-05: every server we start is either patched or named, by its number, as one that may not be."""
    server = ValkeyProcess(tmp_path / "redis", binary=Path(str(shutil.which("redis-server"))))
    with Deployment(tmp_path, agents={}, web=False, workers=0, valkey=server) as it, server.client() as client:
        version = ServerVersion.of(client.info("server"))
        report = it.command("doctor", "--no-agents").stdout
        warns = says("redis", "warning", rf"127\.0\.0\.1:{server.port}: Redis [0-9.]+; .*CVE-2025-49844", report)
        assert warns is not version.is_patched


def test_durability_is_known_without_a_right_to_the_configuration(deployment: Deployment) -> None:
    """CONFIG GET tells passwords, so deploy/redis-users.acl denies it; INFO tells what matters most."""
    with deployment as it, it.valkey.client() as client:
        report = it.command("doctor", "--no-agents").stdout
        assert says("durability", "ok", r"appendonly, appendfsync not known \(CONFIG GET is not permitted", report)
        client.config_set("appendonly", "no")
        client.config_set("maxmemory-policy", "allkeys-lru")
        report = it.command("doctor", "--no-agents").stdout
        assert says("durability", "failed", "appendonly is off, .*; Redis may evict records: ", report)
        assert "CONFIG SET appendonly yes as its admin, then write appendonly yes into redis.conf" in report
