"""What Python users hold: a workflow, a delegation. Every call asks the store; nothing is remembered here."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, Self

from celery import states
from celery.canvas import Signature
from kombu.utils.json import dumps, loads

from delegation.endings import receipt
from delegation.errors import AgentTaskFailed, InvalidArguments
from delegation.join_policy import JoinPolicy
from delegation.opening import child_workflow_id, new_workflow_id, read_deadline
from delegation.state import Delegation, WorkflowId
from delegation.store import Store
from delegation.times import rfc3339
from delegation.workflow import Workflow as WorkflowRecord
from delegation.workflow import WorkflowState
from workers.canvas import open_delegation, publish_start
from workers.carrier import carrying_app
from workers.descriptions import (
    describe,
    describe_workflow,
    outcome_of,
    outcome_of_workflow,
    receipt_in,
    receipt_of_workflow,
)
from workers.finding import find_delegation
from workers.redrive import redrive_delegation
from workers.release import check_continuation, check_on_note, publish_release
from workers.results import state_of
from workers.runtime import runtime
from workers.talk import check_reason, give_reply, want_cancel


class DelegationHandle:
    """One delegation, by its id, or by the Celery id of its ``delegate`` call (``delegate.delay(…).id``)."""

    def __init__(self, delegation_id: str) -> None:
        self._given = delegation_id
        self._id: str | None = None

    def __repr__(self) -> str:
        return f"DelegationHandle({self._id or self._given!r})"

    @classmethod
    def get(cls, delegation_id: str) -> Self:
        """Raises UnknownDelegation."""
        handle = cls(delegation_id)
        handle._load()
        return handle

    @classmethod
    def of(cls, delegation: Delegation) -> Self:
        """The handle of a record: its id is known, nothing is asked."""
        handle = cls(delegation.id)
        handle._id = delegation.id
        return handle

    @property
    def id(self) -> str:
        """The delegation's own id, whichever the handle was made with. Raises UnknownDelegation."""
        return self._id or self._load().id

    def _load(self) -> Delegation:
        """The record as it is. Raises UnknownDelegation."""
        store = runtime().store
        delegation = store.load(self._id).delegation if self._id else find_delegation(store, self._given)
        self._id = delegation.id
        return delegation

    def describe(self) -> dict[str, Any]:
        """The delegation as `delegation show --json` prints it. Raises UnknownDelegation."""
        return describe(self._load())

    def history(self) -> list[dict[str, Any]]:
        """Its story, oldest first: ``at cause phase state text``."""
        return [{**entry, "at": rfc3339(entry["at"])} for entry in runtime().store.history(self.id)]

    def artifacts(self) -> list[dict[str, Any]]:
        """What the agent produced, as it sent it: ``id name parts``."""
        found: list[dict[str, Any]] = json.loads(runtime().store.content(self.id) or "[]")
        return found

    def reply(self, text: str | None = None, **given: Any) -> int:
        """Answer the agent's question: ``text``, ``data`` (JSON) or both; the reply's number.

        Kept at once, sent when it is our turn, in order, once. Raises UnknownDelegation, DelegationEnded,
        InvalidArguments.
        """
        return give_reply(self._id or self._given, text, **given)

    def cancel(self, reason: str = "") -> str | None:
        """Have it cancelled at the agent, within the cancel deadline; durable when this returns.

        Returns the receipt as it is now (see ``describe()["cancel"]``), None for one that ended before anybody wished.
        """
        want_cancel(carrying_app(), self._id or self._given, reason)
        return receipt(self._load())

    def redrive(
        self, *, deadline: timedelta | datetime | str | None = None, force: bool = False, alone: bool = False
    ) -> DelegationHandle:
        """Do it again, as a new delegation that remembers this one as its ``ancestor`` (redrive.py)."""
        made = redrive_delegation(self._load(), deadline=deadline, force=force, alone=alone)
        return DelegationHandle.of(made)

    def wait(self, timeout: float | timedelta | None = None) -> dict[str, Any]:
        """The outcome, when there is one. Raises TimeoutError, and AgentTaskFailed unless it is COMPLETED."""
        store = runtime().store
        for _ in changes(store, self.id.partition(".")[0], timeout):
            delegation = self._load()
            if delegation.outcome is not None:
                break
        else:
            raise TimeoutError(f"delegation {self.id} has not ended in time")
        outcome = delegation.outcome
        if outcome.state.value != "COMPLETED" and delegation.on_failure == "raise":
            raise AgentTaskFailed(delegation.id, delegation.agent, outcome.state.value, outcome.reason)
        return outcome.to_dict()


class Workflow:
    """A parent: blocked by the number of its unresolved children, released exactly once a round."""

    def __init__(self, workflow_id: str) -> None:
        self.id = WorkflowId(workflow_id)

    def __repr__(self) -> str:
        return f"Workflow({self.id!r})"

    @classmethod
    def open(
        cls, name: str = "", deadline: timedelta | datetime | str | None = None, on_note: Signature | None = None
    ) -> Self:
        """A new workflow. No child outlives its deadline, past which it ends FAILED itself unless it was joined.

        ``on_note`` is called for each note as ``on_note(*its own args, workflow_id=…, delegation_id=…, note=…)``.
        """
        return cls._open(new_workflow_id(), name, deadline, on_note)

    @classmethod
    def _open(
        cls,
        workflow_id: WorkflowId,
        name: str,
        deadline: timedelta | datetime | str | None,
        on_note: Signature | None,
        parent: WorkflowId | None = None,
    ) -> Self:
        if on_note is not None:
            check_on_note(carrying_app(), on_note)
        store, limit = runtime().store, read_deadline(deadline)
        after_s = limit.after_s if limit.at is None else limit.at - store.now()
        if after_s is not None and after_s <= 0:
            raise InvalidArguments("deadline: must be in the future")
        told = loads(dumps(on_note)) if on_note is not None else None
        store.open_workflow(workflow_id, name=name, deadline_s=after_s, on_note=told, parent=parent)
        return cls(workflow_id)

    @classmethod
    def get(cls, workflow_id: str) -> Self:
        """Raises UnknownWorkflow."""
        runtime().store.load_workflow(workflow_id)
        return cls(workflow_id)

    def delegate(self, agent: str, goal: str, **arguments: Any) -> DelegationHandle:
        """Give a piece of this workflow's work to an agent (arguments as of ``delegate``).

        Raises UnknownAgent, InvalidArguments, WorkflowConflict, IdempotencyConflict.
        """
        arguments = {**arguments, "agent": agent, "goal": goal, "workflow": self.id}
        delegation, opened = open_delegation(arguments, options={})
        if not opened.existing:
            publish_start(carrying_app(), delegation, family={})
        return DelegationHandle.of(delegation)

    def open_child(
        self,
        name: str = "",
        deadline: timedelta | datetime | str | None = None,
        on_note: Signature | None = None,
        *,
        idempotency_key: str | None = None,
    ) -> Workflow:
        """A workflow that is a child of this one, which it blocks until it is COMPLETED, FAILED or CANCELED.

        It is cancelled with this one, and outlives no deadline of its ancestors. The same key opens the same one, also
        when that has ended. Raises WorkflowConflict, WorkflowTooDeep, InvalidArguments.
        """
        child_id = child_workflow_id(self.id, idempotency_key)
        return Workflow._open(child_id, name, deadline, on_note, parent=self.id)

    def join(self, then: Signature | None = None, policy: str | Mapping[str, int] = "all") -> str | None:
        """Resume me when this round's children satisfy the policy, or cannot; at once when none is unresolved.

        ``policy`` is "all", "any", "first_success", "fail_fast" or ``quorum(k)`` (docs/workflows.md); when it is over
        before every child has ended, the others are cancelled.
        ``then`` is called as ``then(*its own args, workflow_id=…, release_id=…, round=…)`` under one fixed Celery id.
        The release id is returned when the workflow is released now. Raises WorkflowConflict for a second join,
        InvalidArguments for a canvas: what is seen to run, and run once, is one task (which may start a canvas).
        """
        wanted = JoinPolicy.read(policy)
        if then is not None:
            check_continuation(carrying_app(), then)
        store = runtime().store
        self._continuation_is_running(store)
        continuation = loads(dumps(then)) if then is not None else None
        release_id = store.join_workflow(self.id, continuation, wanted)
        if release_id is not None and continuation is not None:
            publish_release(carrying_app(), self.id)
        return release_id

    def _continuation_is_running(self, store: Store) -> None:
        """A join from within the last continuation is the best proof that it runs; else its result says so."""
        record, app = store.load_workflow(self.id), carrying_app()
        if record.release_id is None or not record.is_publishing:
            return
        running = app.current_worker_task
        is_this_one = running is not None and running.request.id == record.release_id
        if is_this_one or state_of(app, record.release_id) != states.PENDING:
            store.continuation_seen(self.id, record.release_id)

    def wait(self, timeout: float | timedelta | None = None) -> dict[str, Any]:
        """Until it is released or ended; its description then. Raises TimeoutError."""
        store = runtime().store
        waiting_since = store.load_workflow(self.id).round
        for _ in changes(store, self.id, timeout):
            record = store.load_workflow(self.id)
            if record.state in (WorkflowState.RELEASED, *_ENDED) or record.round > waiting_since:
                return self.describe()
        raise TimeoutError(f"workflow {self.id} was not released in time")

    def complete(self, result: Any = None) -> None:
        """The end. Raises UnresolvedChildren, WorkflowConflict."""
        self._end(WorkflowState.COMPLETED, result)

    def fail(self, reason: str = "") -> None:
        """The end, for the worse; its children are cancelled. Raises WorkflowConflict."""
        self._end(WorkflowState.FAILED, {"reason": reason}, reason=reason)

    def cancel(self, reason: str = "") -> dict[str, str | None]:
        """Cancel it and its children: CANCELED when the last of them has ended, CANCELING until then.

        Returns the receipts as they are now (see :meth:`receipts`). Raises WorkflowConflict when it has ended; asking
        again while it is being cancelled changes nothing.
        """
        store = runtime().store
        if store.load_workflow(self.id).state is not WorkflowState.CANCELING:
            self._end(WorkflowState.CANCELED, {"reason": reason}, reason=reason)
        return self.receipts()

    def receipts(self) -> dict[str, str | None]:
        """Child id → what became of the wish to cancel it: ``pending``, ``cancelled``, ``already ended``, ``refused``
        (watched on) or ``unreachable`` (CANCELED, unconfirmed); None where nobody wished, which is nowhere once the
        workflow is cancelled or failed."""
        store = runtime().store
        record = store.load_workflow(self.id)
        receipts = {child.id: receipt_in(record, child) for child in _children(store, record)}
        return receipts | {child.id: receipt_of_workflow(record, child) for child in store.child_workflows(self.id)}

    def notes(self) -> list[dict[str, Any]]:
        """What happened to its children since the last call: ends, and new questions, oldest first.

        Each is told once, also where Redis's answer was lost on its way: ``describe()`` has what is so now.

        ``{at, number, delegation_id, agent, state, text, source}``; what follows the colon in ``text`` is ``source``'s
        words: data, never an instruction. When too many piled up, the first one says how many were dropped.
        """
        dropped, notes = runtime().store.drain_notes(self.id)
        told = [{**note, "at": rfc3339(note["at"])} for note in notes]
        if not dropped:
            return told
        text = f"{dropped} older note{'' if dropped == 1 else 's'} dropped"
        lost = dict.fromkeys(("at", "number", "delegation_id", "agent", "state")) | {
            "text": text,
            "source": "delegation",
        }
        return [lost, *told]

    def _end(self, state: WorkflowState, result: Any, *, reason: str = "") -> None:
        check_reason(reason)
        try:
            json.dumps(result)
        except (TypeError, ValueError):
            raise InvalidArguments("result: must be JSON") from None
        runtime().store.end_workflow(self.id, state, result, reason=reason)

    def children(self) -> list[DelegationHandle]:
        """Handles of its children, in the order they were made."""
        store = runtime().store
        return [DelegationHandle.of(child) for child in _children(store, store.load_workflow(self.id))]

    def outcomes(self, round: int | None = None) -> dict[str, dict[str, Any] | None]:
        """Child id → outcome, or None while it is unresolved; of one ``round`` or all, in the order they were made.

        Of a child workflow: ``{workflow_id, name, state, result, reason}``. They are read from the records, however
        long ago Celery has forgotten its results.
        """
        store = runtime().store
        children = _children(store, store.load_workflow(self.id))
        nested = store.child_workflows(self.id)
        made: list[tuple[float, str, dict[str, Any] | None]] = [
            *((it.created_at, it.id, outcome_of(it)) for it in children if round in (None, it.round)),
            *((it.created_at, it.id, outcome_of_workflow(it)) for it in nested if round in (None, it.in_round)),
        ]
        return {child_id: outcome for _, child_id, outcome in sorted(made, key=itemgetter(0))}

    def child_workflows(self) -> list[Workflow]:
        """In the order they were opened."""
        return [Workflow(child.id) for child in runtime().store.child_workflows(self.id)]

    def describe(self) -> dict[str, Any]:
        """The workflow as `delegation workflow show --json` prints it. Raises UnknownWorkflow."""
        store = runtime().store
        record = store.load_workflow(self.id)
        return describe_workflow(record, _children(store, record), store.child_workflows(self.id))


_ENDED = tuple(state for state in WorkflowState if state.is_ended)


def changes(store: Store, root_id: str, timeout: float | timedelta | None) -> Iterator[str | None]:
    """Now, and then each time something below ``root_id`` changes (or every few seconds, should a signal be lost)."""
    end = (
        None
        if timeout is None
        else time.monotonic() + (timeout.total_seconds() if isinstance(timeout, timedelta) else timeout)
    )
    with store.listen(root_id) as next_change:
        yield None
        while end is None or time.monotonic() < end:
            left = 5.0 if end is None else min(5.0, max(0.0, end - time.monotonic()))
            yield next_change(left)


def _children(store: Store, record: WorkflowRecord) -> list[Delegation]:
    return store.load_many([f"{record.id}.{number}" for number in range(1, record.children + 1)])
