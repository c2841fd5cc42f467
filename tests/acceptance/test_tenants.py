"""Two deployments on one Redis, each with its own user and key prefix (B-10)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Deployment, ScriptedAgent, ValkeyProcess
from tests.support.redis_users import Tenant

GOAL = json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.2]], "artifact": "done"})
OTHER = "trips"


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> ValkeyProcess:
    """Started and ended by the first deployment."""
    return ValkeyProcess(tmp_path_factory.mktemp("valkey"), tenants={OTHER: Tenant("trips:")})


@pytest.fixture(scope="module")
def deployments(tmp_path_factory: pytest.TempPathFactory, valkey: ValkeyProcess) -> Iterator[list[Deployment]]:
    first, second = (tmp_path_factory.mktemp(name) for name in ("first", "second"))
    theirs = {"redis": {"url": valkey.url(user=OTHER), "key_prefix": "trips:"}}
    with (
        deployment_in(first, valkey) as ours,
        deployment_in(second, valkey, config=theirs) as others,
    ):
        yield [ours, others]


def deployment_in(directory: Path, valkey: ValkeyProcess, **options: Any) -> Deployment:
    agents = {"a": ScriptedAgent(directory, name="a")}
    return Deployment(directory, agents=agents, valkey=valkey, follower=True, **options)


def test_both_work_and_see_their_own_delegations_alone(deployments: list[Deployment]) -> None:
    """Delegated in one, unknown in the other; each agent is called by its own deployment."""
    ids = []
    for it in deployments:
        done = it.command("delegate", "a", GOAL, "--wait")
        assert done.returncode == 0, done.stderr + it.logs()
        ids.append(json.loads(it.command("list", "--json").stdout)[0]["id"])
    for it, foreign in zip(deployments, reversed(ids), strict=True):
        assert it.command("show", foreign).returncode == 2
        agent = it.agents["a"]
        assert isinstance(agent, ScriptedAgent)
        assert len(agent.calls("SendMessage")) == 1


def test_every_key_is_under_one_of_the_two_prefixes(deployments: list[Deployment]) -> None:
    """Records, queues and results."""
    for it in deployments:
        assert it.command("delegate", "a", GOAL, "--wait").returncode == 0
    with deployments[0].valkey.client() as client:
        prefixes = {str(key).split(":")[0] for key in client.scan_iter("*")}
    assert prefixes == {"delegation", "trips"}


def test_nothing_was_denied_on_the_way(deployments: list[Deployment]) -> None:
    """The shipped rights are enough: the server wrote down no refusal, which would be a sign of an attack."""
    for it in deployments:
        assert it.command("delegate", "a", GOAL, "--wait").returncode == 0
        assert it.command("doctor").returncode == 0
    with deployments[0].valkey.client() as client:
        denied = [(entry["username"], entry["reason"], entry["object"]) for entry in client.acl_log()]
    assert [entry for entry in denied if entry[2] != "config|get"] == []


def test_another_deployments_prefix_is_closed(deployments: list[Deployment], monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong `key_prefix` is refused by Redis in one line, exit code 3."""
    monkeypatch.setitem(deployments[1].env, "DELEGATION_REDIS__KEY_PREFIX", "delegation:")
    for command in (("list",), ("workflow", "open")):
        refused = deployments[1].command(*command)
        assert (refused.returncode, refused.stdout) == (3, "")
        assert refused.stderr.count("\n") == 1
        assert "permission" in refused.stderr
