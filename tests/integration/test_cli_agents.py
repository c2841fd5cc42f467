"""`delegation agents` and `delegation agents accept`: what is said of cards, and how a changed one is accepted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delegation.card_changes import fingerprint, short
from tests.support.processes import Deployment
from tests.support.raw_server import RawServer, says

OTHER = "http://127.0.0.1:9"


@pytest.fixture
def server() -> Iterator[RawServer]:
    with RawServer(says(500)) as running:
        yield running


@pytest.fixture
def deployment(server: RawServer, tmp_path: Path) -> Iterator[Deployment]:
    """One agent, that may be at another origin as well; nothing runs but Redis."""
    settings = {"helper": {"origins": [OTHER]}}
    agents = {"helper": server.url}
    with Deployment(tmp_path, agents=agents, agent_settings=settings, web=False, workers=0) as it:
        yield it


def serve(server: RawServer, origin: str, **fields: Any) -> dict[str, Any]:
    """The card that the agent has from now on, and that is asked for each time."""
    interface = {"url": f"{origin}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    card = {"name": "Helper", "description": "d", "version": "1.4", "supportedInterfaces": [interface], **fields}
    server.behaviour = says(200, json.dumps(card).encode(), {"Cache-Control": "no-cache"})
    return card


def forget(deployment: Deployment) -> None:
    """As if the card's time were over."""
    store = deployment.store()
    store.client.delete(store.key("card", "helper"))


def test_an_accepted_card_is_described(server: RawServer, deployment: Deployment) -> None:
    """Version, signature and fingerprint; `doctor` shows the beginning of it."""
    card = serve(server, server.url)
    (row,) = json.loads(deployment.command("agents", "--json").stdout)
    assert (row["accepted"], row["paused"], row["version"], row["signed"]) == (True, False, "1.4", "no")
    assert row["fingerprint"] == fingerprint(card)
    heading, line = deployment.command("agents").stdout.splitlines()
    assert heading.split()[:7] == ["ID", "NAME", "VERSION", "ACCEPTED", "WATCH", "AUTH", "SIGNED"]
    assert line.split() == ["helper", "Helper", "1.4", "yes", "poll", "-", "no"]
    said = deployment.command("doctor").stdout
    assert f"accepted, poll; version 1.4, no credentials, not signed, card {short(fingerprint(card))}\n" in said


def test_a_changed_card_is_paused_until_it_is_accepted(server: RawServer, deployment: Deployment) -> None:
    """`agents` and `doctor` say why, `accept` says what changed; afterwards there is nothing to accept."""
    old = serve(server, server.url)
    said = deployment.command("agents", "accept", "helper")
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == f"helper: nothing to accept: card {short(fingerprint(old))} is in use\n"

    new = serve(server, OTHER, description="\x1b[2J")
    forget(deployment)
    (row,) = json.loads(deployment.command("agents", "--json").stdout)
    assert (row["accepted"], row["paused"], row["fingerprint"]) == (False, True, fingerprint(new))
    assert " paused " in deployment.command("agents").stdout
    assert deployment.command("doctor").returncode == 1

    other = deployment.command("agents", "accept", "helper", "--fingerprint", fingerprint(old))
    assert other.returncode == 1
    assert "another one" in other.stderr
    said = deployment.command("agents", "accept", "helper", "--fingerprint", short(fingerprint(new)))
    assert (said.returncode, said.stderr) == (0, "")
    first, reason, changed, last = said.stdout.splitlines()
    assert first == f"helper: card {short(fingerprint(old))} → {short(fingerprint(new))}"
    assert reason == f"  endpoint_moved: an interface is at {OTHER} now; before: {server.url}"
    assert changed == "  changed: description, supportedInterfaces"
    assert last == f"helper: accepted card {short(fingerprint(new))}"

    assert json.loads(deployment.command("agents", "--json").stdout)[0]["accepted"] is True
    assert "nothing to accept" in deployment.command("agents", "accept", "helper").stdout


def test_what_cannot_be_accepted_says_so(server: RawServer, deployment: Deployment) -> None:
    """An unknown id, an unknown command, an agent that is refused or away."""
    for arguments in (("accept", "nobody"), ("accept",), ("acept", "helper"), ("accept", "helper", "more")):
        said = deployment.command("agents", *arguments)
        assert (said.returncode, said.stdout) == (2, "")
    assert "'accept'" in deployment.command("agents", "acept").stderr
    for behaviour, code in ((says(200, b"[]"), "not a JSON object"), (says(500), "HTTP 500")):
        server.behaviour = behaviour
        said = deployment.command("agents", "accept", "helper")
        assert (said.returncode, said.stdout) == (1, "")
        assert code in said.stderr


def test_a_card_that_is_old_is_not_told_as_if_it_were_new(server: RawServer, deployment: Deployment) -> None:
    """It serves; the table, JSON and `doctor` say that it is stale, and why."""
    serve(server, server.url)
    deployment.command("agents")
    server.behaviour = says(500)
    forget(deployment)
    (row,) = json.loads(deployment.command("agents", "--json").stdout)
    assert row["accepted"] is True
    assert row["stale"].startswith("agent.protocol since 20")
    assert "HTTP 500" in row["stale"]
    assert " yes, stale " in deployment.command("agents").stdout
    (line,) = [each for each in deployment.command("doctor").stdout.splitlines() if each.startswith("agent helper ")]
    assert " warning " in line
    assert "card is stale: agent.protocol since 20" in line


def test_a_secret_that_is_missing_was_looked_for_here(tmp_path: Path, server: RawServer) -> None:
    """Workers have an environment of their own."""
    serve(server, server.url)
    auth = {"auth": [{"type": "bearer", "token": "env:UNSET_OF_TEST"}]}
    with Deployment(
        tmp_path, agents={"helper": server.url}, agent_settings={"helper": auth}, workers=0, web=False
    ) as it:
        for command in ("agents", "doctor"):
            said = it.command(command).stdout
            assert "env:UNSET_OF_TEST is empty or not set (looked for in this shell's environment" in said
