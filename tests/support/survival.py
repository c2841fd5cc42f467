"""A deployment to be hurt: workers that carry the recording app, and this process as the user who delegates."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from celery import Celery
from celery.result import AsyncResult

from delegation.state import Delegation, DelegationId
from delegation.store import Store
from tests.support import continuation_app
from tests.support.agent_handle import ScriptedAgent
from tests.support.child import wait_until
from tests.support.deployment import Deployment
from tests.support.ledger import Entry
from tests.support.services import CeleryWorker
from workers import DelegationHandle, Workflow, delegate
from workers.runtime import reset_runtime, runtime

#: A lease of 1.5 s: what waits for a dead worker's lease must not make a test long.
SHORT_LEASE: dict[str, Any] = {"call_deadline": 1, "lease_margin": 0.5}


class Scene(Deployment):
    """``with Scene(tmp_path, agents={"a": agent}) as it``: no worker runs until a test starts one.

    One scene serves many tests, each after a :meth:`reset`: processes start slowly, and faults leave their marks in
    Redis only.
    """

    def __init__(
        self,
        directory: Path,
        *,
        agents: Mapping[str, ScriptedAgent],
        config: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        celery = {"app": continuation_app.APP}
        super().__init__(directory, agents=agents, workers=0, config={"celery": celery, **(config or {})}, **options)
        self.scripted = dict(agents)
        self.app: Celery | None = None
        self._ledger_began: dict[str, int] = {}
        self._env_before: dict[str, str | None] = {}

    def __enter__(self) -> Self:
        super().__enter__()
        self._set_env(self.env)
        self.reset()
        return self

    def __exit__(self, *exit_info: object) -> None:
        self._close_app()
        for name, value in self._env_before.items():
            _set_variable(name, value)
        reset_runtime()
        super().__exit__(*exit_info)

    def reset(self, **env: str) -> None:
        """As on the first day: no worker, empty Redis, obedient agents, a new app (``env`` as for its workers)."""
        for worker in self.workers:
            if worker.is_alive:
                worker.kill()
        self.workers.clear()
        self._close_app()
        with self.valkey.client() as client:
            client.flushall()
        self.soothe_agents()
        self.set_user_env(**env)

    def renew(self) -> None:
        """For tests that share a worker: agents obey again; all begins anew after a test that left something open."""
        counts = self.counters()
        settled = sum(count for name, count in counts.items() if name.startswith("settled:"))
        if counts.get("opened", 0) > settled or not self.workers or not all(it.is_alive for it in self.workers):
            self.reset()
            self.start_worker()
        self.soothe_agents()

    def soothe_agents(self) -> None:
        """Every agent runs and obeys again, and what it saw so far is forgotten; everything else goes on."""
        for name, agent in self.scripted.items():
            if not agent.is_alive:
                agent.start()
            agent.script([])
            agent.configure(hang=False, status=None, delay_s=0.0, dedup=False, list_tasks=True, cancel="accept")
            self._ledger_began[name] = len(agent.ledger())

    def set_user_env(self, **env: str) -> None:
        """This process as a user with these variables, too."""
        cleared = {name: None for name in os.environ if name.startswith("CONTINUATION_")}
        for name, value in {**cleared, **env}.items():
            _set_variable(name, value)
        self._close_app()
        reset_runtime()
        self.app = continuation_app.make_app()

    def start_worker(self, *, wait: bool = True, env: Mapping[str, str] | None = None, **options: Any) -> CeleryWorker:
        """A worker with the recording app; it leaves held messages alone unless ``queues`` says otherwise."""
        options = {"app": continuation_app.APP, "queues": continuation_app.QUEUES, **options}
        return super().start_worker(wait=wait, env=env, **options)

    def start_dying_worker(self, failpoint: str, **env: str) -> CeleryWorker:
        """One that kills itself at the first pass of a failpoint."""
        return self.start_worker(wait=False, env={"DELEGATION_FAILPOINT": f"{failpoint}:kill:1", **env})

    # -------------------------------------------------------- as a user

    def delegate(self, agent: str = "a", goal: str | Mapping[str, Any] = "", **arguments: Any) -> Any:
        """A ``delegate`` signature; a goal given as a mapping is the agent's script."""
        return delegate.s(agent=agent, goal=text_of(goal), **arguments)

    def open_one(self, goal: str | Mapping[str, Any] = "", **arguments: Any) -> DelegationId:
        """Delegate one piece of work, and say its id."""
        call: AsyncResult[Any] = self.delegate(goal=goal, **arguments).apply_async()
        return self.id_of(call.id)

    def open_workflow(
        self,
        goals: Sequence[str | Mapping[str, Any]],
        *,
        agent: str = "a",
        joins: bool = True,
        tells: bool = False,
        policy: Any = "all",
        **options: Any,
    ) -> Workflow:
        """A workflow with a child for each goal. ``joins``: by the recording continuation; ``tells``: each note to the
        recording task."""
        workflow = Workflow.open("survival", on_note=continuation_app.note.s() if tells else None, **options)
        for goal in goals:
            workflow.delegate(agent, text_of(goal))
        if joins:
            workflow.join(then=continuation_app.resume.s(), policy=policy)
        return workflow

    def handle(self, delegation_id: str) -> DelegationHandle:
        return DelegationHandle.get(delegation_id)

    def id_of(self, call_id: str) -> DelegationId:
        """The delegation that a call with this Celery id opened; one made up by us contains it."""
        return self.records.id_of_call(call_id) or DelegationId(call_id.removesuffix(".delegate"))

    # -------------------------------------------------------- look

    @property
    def records(self) -> Store:
        return runtime().store

    def load(self, delegation_id: str) -> Delegation:
        return self.records.load(delegation_id).delegation

    def wait_for(
        self, delegation_id: str, condition: Callable[[Delegation], Any], timeout_s: float = 20.0, *, what: str
    ) -> Delegation:
        """The record, once the condition holds."""

        def look() -> Delegation | None:
            delegation = self.load(delegation_id)
            return delegation if condition(delegation) else None

        return wait_until(look, timeout_s, what=f"{what}, delegation {delegation_id}")

    def wait_until_settled(self, delegation_id: str, timeout_s: float = 30.0) -> Delegation:
        return self.wait_for(delegation_id, lambda it: it.outcome, timeout_s, what="outcome")

    def wait_for_question(self, delegation_id: str, number: int = 1, timeout_s: float = 20.0) -> Delegation:
        """The record, once the agent's question with this number waits for a reply."""

        def is_asked(it: Delegation) -> bool:
            return it.waits_for_reply and it.progress.question is not None and it.progress.question.number >= number

        return self.wait_for(delegation_id, is_asked, timeout_s, what=f"question {number}")

    def wait_for_state(self, delegation_id: str, state: str, timeout_s: float = 20.0) -> Delegation:
        """The record, once it says so and knows its agent task."""
        return self.wait_for(
            delegation_id, lambda it: it.state == state and it.progress.agent_task_id, timeout_s, what=state
        )

    def task_of(self, delegation_id: str) -> dict[str, Any]:
        """The agent task as its agent has it, whole."""
        delegation = self.load(delegation_id)
        tasks = self.scripted[delegation.agent].tasks()
        return next(task for task in tasks if task["id"] == delegation.progress.agent_task_id)

    def accepted(self, delegation_id: str) -> list[str]:
        """The messageIds of what the agent took from us for this delegation, in order, repeats included."""
        return accepted_by(self.task_of(delegation_id))

    def replies_sent(self, delegation_id: str) -> list[Entry]:
        """Each time a reply left for this delegation's agent, taken or not."""
        sends = self.calls("SendMessage", self.load(delegation_id).agent)
        return [entry for entry in sends if entry["message_id"].startswith(f"{delegation_id}:reply:")]

    def ledger(self, agent: str = "a", kind: str | None = None) -> list[Entry]:
        """What the agent saw since the last reset."""
        entries = self.scripted[agent].ledger()[self._ledger_began[agent] :]
        return [entry for entry in entries if kind in (None, entry["kind"])]

    def calls(self, method: str, agent: str = "a") -> list[Entry]:
        return [entry for entry in self.ledger(agent, "call") if entry["method"] == method]

    def wait_for_calls(self, method: str, count: int = 1, timeout_s: float = 20.0, agent: str = "a") -> list[Entry]:
        def look() -> list[Entry] | None:
            return found if len(found := self.calls(method, agent)) >= count else None

        return wait_until(look, timeout_s, what=f"{count} × {method}")

    def counters(self) -> dict[str, int]:
        counters: dict[str, int] = self.records.metrics()["counters"]
        return counters

    # -------------------------------------------------------- the broker

    def queued(self, queue: str) -> int:
        length: Any = self.records.client.llen(queue_key(queue))
        return int(length)

    def wait_for_message(self, queue: str = continuation_app.HELD_QUEUE, timeout_s: float = 20.0) -> None:
        wait_until(lambda: self.queued(queue), timeout_s, what=f"message in the queue {queue}")

    def take_messages(self, queue: str = continuation_app.HELD_QUEUE) -> list[str]:
        """Delete every message of a queue from the broker; the names of the tasks they were for."""
        with self.records.client.pipeline(transaction=True) as pipe:
            pipe.lrange(queue_key(queue), 0, -1)
            pipe.delete(queue_key(queue))
            messages, _ = pipe.execute()
        return [json.loads(message)["headers"]["task"] for message in messages]

    def _set_env(self, env: Mapping[str, str]) -> None:
        for name, value in env.items():
            self._env_before[name] = os.environ.get(name)
            _set_variable(name, value)

    def _close_app(self) -> None:
        if self.app is None:
            return
        backend: Any = self.app.backend
        runtime().store.close()
        backend.result_consumer.stop()
        backend.result_consumer.subscribed_to.clear()  # or a result that is forgotten later would try to unsubscribe
        backend.client.close()
        self.app.close()
        self.app = None


def queue_key(queue: str) -> str:
    return f"delegation:celery:{queue}"


def text_of(goal: str | Mapping[str, Any]) -> str:
    return goal if isinstance(goal, str) and goal else json.dumps(goal or {"states": [["COMPLETED", 0]]})


def accepted_by(task: Mapping[str, Any]) -> list[str]:
    """The messageIds of an agent task's messages from us, in the order they came."""
    return [message["messageId"] for message in task.get("history", []) if message.get("role") == "ROLE_USER"]


def asks(text: str = "Which month?", at: float = 0, **script: Any) -> dict[str, Any]:
    """A goal, or a reply, whose agent task then waits for one."""
    return {"states": [["INPUT_REQUIRED", at, text]], **script}


def ends_after(seconds: float, **script: Any) -> dict[str, Any]:
    """A goal whose agent task works at first and is COMPLETED after so long."""
    return {"states": [["WORKING", 0], ["COMPLETED", seconds]], **script}


def _set_variable(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
