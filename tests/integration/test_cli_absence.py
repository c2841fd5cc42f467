"""What somebody who waits is told while nothing can be had from an agent: once as it begins, and once as it ends."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from delegation.state import Delegation
from delegation.store import Store
from tests.support.card_agent import CardAgent
from tests.support.child import ChildProcess, free_port
from tests.support.processes import Deployment, ScriptedAgent, wait_until
from tests.support.raw_server import RawServer, says

DELEGATION = [sys.executable, "-m", "workers.cli"]
NEVER = '{"states": [["WORKING", 0]]}'
ASKS = '{"states": [["INPUT_REQUIRED", 0, "Which month?"]]}'
BACK = "the agent answers again"
#: As often as it can be tried, and given up by nobody.
TIMING = {"recheck_first": 0.2, "unavailable_after": 600}


def waiting(deployment: Deployment, tmp_path: Path, *arguments: str) -> ChildProcess:
    """A command that waits; what it prints on stdout and stderr is its output."""
    env = {**deployment.env, "PYTHONUNBUFFERED": "1"}
    return ChildProcess([*DELEGATION, *arguments], log=tmp_path / f"{'-'.join(arguments[:1])}.log", env=env)


def the_delegation(store: Store) -> Delegation:
    """The one there is, once there is one."""

    def found() -> Delegation | None:
        roots = [root for root, _ in store.all_roots(10)]
        return store.load(roots[0]).delegation if roots else None

    return wait_until(found, 30, what="delegation")


def with_secret(tmp_path: Path) -> tuple[Path, dict[str, object]]:
    """A file that is not there yet, and the agent's settings that name it."""
    secret = tmp_path / "secret"
    return secret, {"auth": [{"type": "bearer", "token": f"file:{secret}"}]}


def test_credentials_that_are_missing_are_told_to_whoever_waits(tmp_path: Path) -> None:
    """`delegate --wait` says so at once, with what to do, and that the agent answers when the secret is there."""
    secret, settings = with_secret(tmp_path)
    agent = ScriptedAgent(tmp_path, push=False)
    with (
        Deployment(tmp_path, agents={"a": agent}, agent_settings={"a": settings}, web=False, timing=TIMING) as it,
        waiting(it, tmp_path, "delegate", "a", NEVER, "--wait") as child,
    ):
        child.start()
        told = r"our credentials for the agent cannot be had since [\d:]{8}, tried .*; still waiting; "
        child.wait_for_output(rf"(?m)^delegation: \w+: {told}delegation doctor$")
        delegation = the_delegation(it.store())
        wait_until(lambda: it.store().load(delegation.id).delegation.progress.failures > 3, 30, what="further tries")
        secret.write_text("k-1", encoding="ascii")
        child.wait_for_output(f"(?m)^delegation: {delegation.id}: {BACK}$")
        (task,) = agent.tasks()
        agent.move(task["id"], "COMPLETED", artifact="sunny")
        assert child.wait() == 0
        output = child.output()
        assert (output.count("cannot be had"), output.count(BACK)) == (1, 1)
        assert output.splitlines()[-1] == "sunny"


def test_credentials_that_are_refused_are_told_to_whoever_replied(tmp_path: Path) -> None:
    """`reply --wait`, over a rotated key."""
    secret, settings = with_secret(tmp_path)
    secret.write_text("k-1", encoding="ascii")
    agent = ScriptedAgent(tmp_path, push=False)
    with Deployment(tmp_path, agents={"a": agent}, agent_settings={"a": settings}, web=False, timing=TIMING) as it:
        delegation_id = it.command("delegate", "a", ASKS).stdout.strip()
        wait_until(lambda: delegation_id in it.store().inbox(), 30, what="question")
        agent.configure(credentials=[{"headers": {"Authorization": "Bearer k-2"}}])
        answer = json.dumps({"states": [["WORKING", 0]]})
        with waiting(it, tmp_path, "reply", delegation_id, answer, "--wait") as child:
            child.start()
            child.wait_for_output(f"(?m)^delegation: {delegation_id}: agent refuses our credentials since ")
            secret.write_text("k-2", encoding="ascii")
            child.wait_for_output(f"(?m)^delegation: {delegation_id}: {BACK}$")
            (task,) = agent.tasks()
            agent.move(task["id"], "COMPLETED")
            assert child.wait() == 0
            assert child.output().count("refuses our credentials") == 1


def test_a_pause_is_told_to_whoever_waits_or_watches(tmp_path: Path) -> None:
    """With the command that accepts the card; `watch` has it in its line. The history says that it was held back."""
    with RawServer(says(500)) as server, RawServer(says(500)) as other:
        agent, moved = CardAgent(server), CardAgent(other)
        agent.headers = moved.headers = {"Cache-Control": "no-cache"}
        settings = {"helper": {"origins": [moved.url]}}
        with Deployment(
            tmp_path, agents={"helper": agent.url}, agent_settings=settings, web=False, workers=0, timing=TIMING
        ) as it:
            assert it.command("agents").returncode == 0
            agent.card = agent.with_path("/rpc", origin=moved.url)
            it.store().client.delete(it.store().key("card", "helper"))
            it.start_worker()
            with waiting(it, tmp_path, "delegate", "helper", "x", "--wait") as child:
                child.start()
                child.wait_for_output("agent paused for its changed card since .*; delegation agents accept helper\n")
                delegation_id = the_delegation(it.store()).id
                with waiting(it, tmp_path, "watch", delegation_id) as watching:
                    watching.start()
                    watching.wait_for_output("SUBMITTED +agent paused for its changed card since ")
            history = json.loads(it.command("show", delegation_id, "--history", "--json").stdout)
            assert [entry["cause"] for entry in history] == ["opened", "held"]


def test_an_agent_that_is_away_is_told_when_it_stays_away(tmp_path: Path) -> None:
    """One call that fails is no news; the third is."""
    agents = {"a": f"http://127.0.0.1:{free_port()}"}
    with (
        Deployment(tmp_path, agents=agents, web=False, timing=TIMING) as it,
        waiting(it, tmp_path, "delegate", "a", "x", "--wait") as child,
    ):
        child.start()
        found = child.wait_for_output(r": agent unavailable since [\d:]{8}, tried (\d+) times; still waiting; ")
        assert int(found.group(1)) >= 3
