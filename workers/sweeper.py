"""A worker bootstep: turns due entries into messages. Every worker may sweep; a script hands each entry out once.

The due index is the outbox and the timer at once: what must still happen is in it, and stays until the script that
proves it happened takes it out. A sweeper that dies lets the score come round again.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog
from celery import Celery, bootsteps
from kombu.exceptions import OperationalError

from delegation.due import Step, choose_steps, choose_workflow_steps
from delegation.errors import DelegationError, StateLost, StoreUnavailable, UnknownWorkflow
from delegation.state import Phase
from delegation.store import Store
from delegation.store_due import Due
from workers.canvas import publish_finalize, publish_start
from workers.celery_settings import END_QUEUE, QUEUE
from workers.queues import queue_lengths
from workers.runtime import runtime

log = structlog.get_logger("delegation")

#: Clean-ups are never urgent and cost a message each, so they travel together.
CLEAN_UPS_PER_MESSAGE = 20
#: How often what should not be there is looked for, and in how many workflows.
TIDY_EVERY_S = 60.0
WORKFLOWS_CHECKED = 20
MOST_CHILDREN_CHECKED = 20_000
#: A small worker must not take a queue for full that the others empty quickly.
LEAST_QUEUED = 64


class Sweeper(bootsteps.StartStopStep):
    """Runs one thread in the worker's main process, about four times a second."""

    requires = ("celery.worker.components:Pool",)
    label = "Sweeper"

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, parent: Any) -> None:
        slots = int(getattr(parent, "concurrency", None) or 1)
        self._thread = threading.Thread(target=self._run, args=(parent.app, slots), name="sweeper", daemon=True)
        self._thread.start()

    def stop(self, parent: Any) -> None:  # noqa: ARG002  # Celery's signature
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    terminate = stop

    def _run(self, app: Celery, slots: int) -> None:
        interval = runtime().settings.timing.sweep_interval.total_seconds()
        sweep = Sweep(app, runtime().store, slots)
        wait = 0.0
        while not self._stopped.wait(wait):
            try:
                busy = sweep.once()
                wait = 0.0 if busy else interval
            except (DelegationError, OperationalError) as error:
                log.warning("delegation.sweep_failed", code=getattr(error, "code", type(error).__name__))
                wait = 1.0
            except Exception:  # whatever it is, without a sweeper nothing that was lost is ever found again
                log.exception("delegation.sweep_crashed")
                wait = 1.0


class Sweep:
    """One pass over the due index, and the messages it leads to."""

    def __init__(self, app: Celery, store: Store, slots: int) -> None:
        self._app = app
        self._store = store
        self._most_queued = max(LEAST_QUEUED, 2 * slots)
        self._epoch: str | None = None
        self._tidy_at = 0.0
        self._unchecked: set[str] = set()

    def once(self) -> bool:
        """Send the steps that are due; True when more may be waiting. Raises StoreUnavailable, OperationalError.

        A long queue is not made longer: an outage must not turn into a storm (docs/design.md §6).
        """
        self._check_epoch()
        self._tidy()
        lengths = queue_lengths(self._app)
        calls = max(0, self._most_queued - lengths[QUEUE])
        ends = max(0, self._most_queued - lengths[END_QUEUE])
        taken = self._store.sweep(calls, ends=ends, leisure=lengths[QUEUE] == 0)
        clean_ups: list[Due] = []
        for due in taken:
            try:
                self._send_steps(due, clean_ups)
            except (StoreUnavailable, OperationalError):
                raise
            except Exception:  # one unreadable record must not keep the others waiting
                log.exception("delegation.due_entry_failed", kind=due.kind, record_id=due.id)
        for first in range(0, len(clean_ups), CLEAN_UPS_PER_MESSAGE):
            self._send(Step.CLEAN_UP, *clean_ups[first : first + CLEAN_UPS_PER_MESSAGE])
        return calls > 0 and len(taken) >= calls

    def _send_steps(self, due: Due, clean_ups: list[Due]) -> None:
        if due.kind == "workflow":
            self._sweep_workflow(due)
            return
        for step in choose_steps(Phase(due.phase), due.timers, due.now):
            if step is Step.CLEAN_UP:
                clean_ups.append(due)
            elif step in (Step.START, Step.FINALIZE):
                self._send_again(due, step)
            else:
                self._send(step, due)

    def _tidy(self) -> None:
        """Now and then: drop what has expired from the list, and check some workflows' unresolved children."""
        if time.monotonic() < self._tidy_at:
            return
        self._tidy_at = time.monotonic() + TIDY_EVERY_S
        self._store.trim_roots()
        freed = self._store.free_dead_follows()
        if freed:
            log.warning("delegation.follower_gone", delegations=freed)
        for workflow_id in self._store.some_workflows(WORKFLOWS_CHECKED):
            try:
                self._check_children(workflow_id)
            except UnknownWorkflow:
                continue  # its retention has just passed
            except Exception:  # one that cannot be read must not keep the others waiting
                self._store.now()  # unless it is Redis that is away: the seam tells no script that fails from that
                if workflow_id not in self._unchecked:
                    self._unchecked.add(workflow_id)
                    log.exception("workflow.check_failed", workflow_id=workflow_id)

    def _check_children(self, workflow_id: str) -> None:
        workflow = self._store.load_workflow(workflow_id)
        if workflow.state.is_ended or workflow.children > MOST_CHILDREN_CHECKED:
            return
        repaired, release_id = self._store.repair_workflow(workflow)
        if repaired or release_id:
            log.error("workflow.repaired", workflow_id=workflow_id, children=repaired, release_id=release_id)

    def _sweep_workflow(self, due: Due) -> None:
        for step in choose_workflow_steps(due.timers, due.now):
            task_id = f"{due.id}.{step.rpartition('.')[2]}"
            self._app.tasks[step.value].apply_async((due.id,), task_id=task_id, add_to_parent=False)

    def _send_again(self, due: Due, step: Step) -> None:
        """A message of a user's canvas that was lost, or whose worker died."""
        delegation = self._store.load(due.id).delegation
        if step is Step.START:
            publish_start(self._app, delegation, family=delegation.canvas)
        else:
            publish_finalize(self._app, delegation, again=True)
        if delegation.phase in (Phase.OPENED, Phase.SETTLED):
            self._store.count("redriven")

    def _send(self, step: Step, *due: Due) -> None:
        name = step.value.rpartition(".")[2]
        task_id = f"{due[0].id}.{name}.{int(due[0].now * 1000)}"
        self._app.tasks[step.value].apply_async(tuple(each.id for each in due), task_id=task_id, add_to_parent=False)

    def _check_epoch(self) -> None:
        """Redis that forgot us is reported, never taken for an empty one: all that waited is gone."""
        if self._epoch is None:
            self._epoch = self._store.make_epoch()
            return
        try:
            known = self._store.epoch()
        except StateLost:
            known = ""
        if known != self._epoch:
            log.error("delegation.state_lost", expected_epoch=self._epoch, found_epoch=known or None)
            raise StoreUnavailable("our state in Redis is gone; restart the workers to begin anew")
