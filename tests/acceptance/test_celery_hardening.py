"""Whoever can write to the broker may send anything: no code runs, nothing is repeated, no worker is told to stop."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import chord

from tests.acceptance.test_monitoring import flower_of
from tests.support import continuation_app
from tests.support.child import wait_until
from tests.support.continuation_app import runs
from tests.support.invariants import all_completed, check_at_rest, look
from tests.support.processes import ScriptedAgent
from tests.support.redis_tap import RedisTap
from tests.support.redis_users import PRODUCT
from tests.support.survival import Scene, ends_after, queue_key

QUEUE = "delegations"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    directory = tmp_path_factory.mktemp("hardening")
    with Scene(directory, agents={"a": ScriptedAgent(directory, name="a")}) as scene:
        yield scene


@pytest.fixture
def scene(running: Scene) -> Scene:
    running.reset()
    return running


class Trap:
    """Unpickled, it writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


def yaml_trap(file: Path) -> bytes:
    return f"!!python/object/apply:os.system ['touch {file}']".encode()


def message(body: bytes, content_type: str, encoding: str = "binary", **headers: Any) -> str:
    """As kombu's Redis transport has one in a queue."""
    celery_id = uuid.uuid4().hex
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": encoding,
            "content-type": content_type,
            "headers": {"id": celery_id, "task": "delegation.wake", "lang": "py", "argsrepr": "c4n4ry", **headers},
            "properties": {
                "correlation_id": celery_id,
                "delivery_mode": 2,
                "delivery_info": {"exchange": QUEUE, "routing_key": QUEUE},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": uuid.uuid4().hex,
            },
        }
    )


BODY = b'[["none"], {"text": "c4n4ry"}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'


@pytest.mark.parametrize(
    ("kind", "content_type", "encoding", "headers"),
    [
        ("pickle", "application/x-python-serialize", "binary", {}),
        ("pickle", "pickle", "binary", {}),
        ("yaml", "application/x-yaml", "utf-8", {}),
        ("json", "application/x-msgpack", "binary", {}),
        ("pickle", "application/json", "utf-8", {}),
        ("json", "application/json", "no-such-encoding", {}),
        ("json", "application/json", "utf-8", {"compression": "no-such-compression"}),
        ("json", "application/json", "utf-8", {"task": "posix.system"}),
        ("json", "application/json", "utf-8", {"task": "celery.backend_cleanup.c4n4ry"}),
        ("json", "application/json", "utf-8", {"eta": "c4n4ry"}),
    ],
)
def test_b01_a_message_of_another_kind_is_dropped_and_runs_nothing(
    scene: Scene, tmp_path: Path, kind: str, content_type: str, encoding: str, headers: dict[str, Any]
) -> None:
    """No code of it runs, its body is in no log, it does not come back, and the worker goes on."""
    trap = tmp_path / "trap"
    body = {"pickle": pickle.dumps([Trap(trap), "c4n4ry"]), "yaml": yaml_trap(trap), "json": BODY}[kind]
    worker = scene.start_worker()
    scene.records.client.lpush(queue_key(QUEUE), message(body, content_type, encoding, **headers))
    scene.open_one(ends_after(0.1))
    assert all_completed(check_at_rest(scene))
    assert worker.is_alive
    assert not trap.exists()
    assert BODY.decode() not in worker.output()
    assert "c4n4ry" not in worker.output().replace("celery.backend_cleanup.c4n4ry", "")


def test_b03_every_message_of_a_run_sent_once_more_changes_nothing(scene: Scene) -> None:
    """Byte for byte as they were in the queues, after all has ended: each end, link, body and release stays one."""
    scene.start_worker()
    with scene.valkey.client() as client, RedisTap(client) as tap:
        workflow = scene.open_workflow([ends_after(0.1 * n) for n in range(3)], tells=True)
        link = (scene.delegate(goal=ends_after(0.1)) | continuation_app.proceed.s("link")).apply_async()
        chord([scene.delegate(goal=ends_after(0.1)) for _ in range(2)])(continuation_app.gather.s())
        assert link.get(timeout=20) == "link: ok"
        wait_until(lambda: runs("body"), 20, what="the chord's body")
        before = check_at_rest(scene)
        sent = [command for command in tap.commands() if command[0] == b"LPUSH" and b'"task"' in command[-1]]
    ours = [command for command in sent if b'"task": "delegation.' in command[-1]]
    assert len(ours) >= 6 * 3
    for _, queue, *messages in ours:
        scene.records.client.lpush(queue.decode(), *[each.decode() for each in messages])
    check_at_rest(scene)
    after = look(scene)
    assert (after.calls, after.histories) == (before.calls, before.histories)
    assert {run["task_id"] for run in after.runs} == {run["task_id"] for run in before.runs}
    assert {run["task_id"] for run in runs("continuation")} == {f"{workflow.id}.release.1"}


def test_b07_nobody_stops_a_worker_from_afar(scene: Scene) -> None:
    """Remote control is off: whoever reaches Redis can neither shut a worker down nor change it."""
    worker = scene.start_worker()
    assert scene.app is not None
    for command in ("shutdown", "pool_restart", "cancel_consumer"):
        scene.app.control.broadcast(command, arguments={"queue": QUEUE} if command == "cancel_consumer" else None)
    assert scene.app.control.ping(timeout=1) == []
    scene.open_one(ends_after(0.1))
    assert all_completed(check_at_rest(scene))
    assert worker.is_alive


def test_b07_an_operator_can_switch_remote_control_on(scene: Scene) -> None:
    """By the worker's command line and the channel in the ACL, as docs/security.md says."""
    with scene.valkey.client() as client:
        client.execute_command("ACL", "SETUSER", PRODUCT, "&delegation:celery:/0.celery.pidbox")
        scene.start_worker(options=["--", "worker.enable_remote_control=true"])
        assert scene.app is not None
        answers = scene.app.control.ping(timeout=5)
        client.acl_load()
    assert [list(answer) for answer in answers] == [["w1@test"]]


def test_d02_flower_shows_nothing_without_its_password(scene: Scene) -> None:
    """Its API is closed as it comes; with a password its pages are, and right credentials open them."""
    with flower_of(scene) as flower:
        for path in ("/api/workers", "/api/tasks", "/api/task/result/x", "/api/queues/length"):
            assert flower.get(path).status_code == 401, path
    with flower_of(scene, env={"FLOWER_BASIC_AUTH": "operator:pass-of-the-operator"}) as flower:
        for path in ("/", "/tasks", "/workers", "/broker", "/task/x", "/api/workers"):
            assert flower.get(path).status_code == 401, path
        assert flower.get("/tasks", auth=httpx.BasicAuth("operator", "pass-of-the-operator")).status_code == 200
