"""The audit fails on a published advisory, and on nothing that is somebody else's fault."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.child import ROOT, free_port
from tests.support.raw_server import RawServer, Seen, says

SCRIPT = runpy.run_path(str(ROOT / ".ci" / "audit.py"))
LOCK = "good-one==1.0 --hash=sha256:" + "0" * 64 + "\nbad-one==2.0 --hash=sha256:" + "1" * 64 + "\n"
ADVISORY = {
    "id": "PYSEC-2026-1",
    "aliases": ["CVE-2026-1"],
    "summary": "bad",
    "affected": [
        {
            "package": {"name": "bad-one", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.1"}]}],
        }
    ],
}

Audit = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Audit:
    """The script against a service of our own; its exit code and its lines."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def run(url: str, *arguments: str, lock: str = LOCK) -> tuple[int, list[str]]:
        path = tmp_path / "some.lock"
        path.write_text(lock)
        cache = ["--cache-dir", str(tmp_path / "cache")]
        code = SCRIPT["main"](["--vulnerability-service", "osv", "--osv-url", url, *cache, *arguments], path)
        return code, capfd.readouterr().out.splitlines()

    return run


def knows(seen: Seen, connection: Any) -> bool:
    """A service in OSV's words that has one advisory."""
    is_bad = json.loads(seen.body)["package"]["name"] == "bad-one"
    return says(200, json.dumps({"vulns": [ADVISORY]} if is_bad else {}).encode())(seen, connection)


def test_a_published_advisory_fails_the_build(audit: Audit) -> None:
    """It is named with the version that ends it."""
    with RawServer(knows) as service:
        code, lines = audit(service.url)
    assert code == 1
    assert lines == [
        "VULNERABLE bad-one 2.0: PYSEC-2026-1, fixed in 2.1",
        "audited: 2 packages, advisories found: 1",
    ]


def test_an_advisory_that_does_not_concern_us_can_be_ignored(audit: Audit) -> None:
    """By its id; each that is has a reason beside it."""
    with RawServer(knows) as service:
        assert audit(service.url, "--ignore-vuln", "CVE-2026-1") == (0, ["audited: 2 packages, advisories found: 0"])
    assert all(len(reason) > 20 for reason in SCRIPT["IGNORED"].values())


def test_a_service_that_cannot_be_reached_is_said_and_fails_nothing(audit: Audit) -> None:
    """In one line; nor does one that answers with an error."""
    with RawServer(says(503)) as service:
        for url in (f"http://127.0.0.1:{free_port()}", service.url):
            code, (line,) = audit(url)
            assert code == 0
            assert line.startswith("not audited: no answer from the advisory service (")


def test_a_lock_that_cannot_be_read_fails_the_build(audit: Audit) -> None:
    """It would look like a lock without advisories."""
    code, lines = audit("http://127.0.0.1:1", lock=re.sub(" --hash.*", "", LOCK))
    assert code == 1
    assert lines[0].startswith("some.lock cannot be read: ")
