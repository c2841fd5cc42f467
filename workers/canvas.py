"""`delegate`, and what comes after it: keep a canvas's tail in the record, publish it when the delegation has ended.

A `delegate` call opens the record (with its chain, link, link_error, chord and group options) and publishes
``chain(start_agent_task, watch, finalize)`` with ids only. finalize inherits the call's Celery id and takes the tail
from the record while it runs, so that the loss of any message of ours loses no tail.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC
from typing import Any, TypeVar

import stamina
import structlog
from celery import Celery, Task, shared_task, signature, states, uuid
from celery.app.task import Context
from celery.exceptions import Ignore, TaskRevokedError
from celery.local import Proxy
from celery.result import AsyncResult
from celery.utils.functional import maybe_list
from celery.utils.time import maybe_iso8601
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps, loads

from delegation.errors import CallerError, InvalidArguments, StoreUnavailable, UnknownAgent
from delegation.failpoints import failpoint
from delegation.opening import Deadline, arguments_digest, check_arguments, make_delegation, read_deadline
from delegation.state import Delegation, DelegationId, Phase
from delegation.store import Opened, Store
from workers.carrier import carrying_app
from workers.results import state_of
from workers.runtime import Runtime, runtime

log = structlog.get_logger("delegation")

T = TypeVar("T")

#: What of a call's options belongs to what follows, and is given to finalize when it runs.
TAIL_OPTIONS = ("chain", "link", "link_error", "chord", "group_id", "group_index")
#: What of a call's options our own messages carry on.
FAMILY_OPTIONS = ("root_id", "parent_id")

#: Options of every step: redelivered when its worker dies, its own result of no interest.
STEP: dict[str, Any] = {
    "acks_late": True,
    "reject_on_worker_lost": True,
    "ignore_result": True,
    "max_retries": 0,
    "soft_time_limit": 60,
    "time_limit": 90,
}
#: Steps that a dashboard is better without: looks by the thousand would bury what somebody asked for. ``watch`` tells
#: its own story (events.py).
QUIET_STEP: dict[str, Any] = {**STEP, "send_events": False}


class DelegateTask(Task[Any, Any]):
    """The user's task. Calling it opens a delegation; it never runs as a message unless sent by name."""

    def apply_async(  # type: ignore[override]  # celery-types spells out every option
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> AsyncResult[Any]:
        """Open the delegation and return the promise of its outcome. Positional arguments are inputs piped in.

        Raises CallerError for arguments that cannot be used, ConfigurationError, StoreUnavailable. Inside a running
        canvas there is no caller: the link fails instead, as Celery does it.
        """
        app = self.app
        in_canvas = task_id is not None and app.current_worker_task is not None
        try:
            delegation, opened = open_delegation(kwargs or {}, inputs=args or (), call_id=task_id, options=options)
        except CallerError as error:
            if not in_canvas or task_id is None:
                raise
            _fail_call(self, task_id, error, options)
            return self.AsyncResult(task_id)
        if opened.existing:
            return self.AsyncResult(_share(app, delegation, task_id, _tail(options)))
        publish_start(app, delegation, family=options)
        return self.AsyncResult(delegation.call_id)


@shared_task(bind=True, base=DelegateTask, name="delegation.delegate", acks_late=True, typing=False)
def _delegate(self: DelegateTask, *inputs: Any, **arguments: Any) -> None:
    """Give work to an agent: ``delegate.s(agent="flights", goal="…", …) | next.s()`` (arguments: docs/design.md §9).

    Its body runs only when somebody sends the message by name; then the delegation inherits that message's id and tail.
    """
    request = self.request
    self.apply_async(inputs, arguments, **request.as_execution_options())
    raise Ignore


#: The task in whatever app carries delegations here; resolved at each use, so that importing it chooses no app.
delegate: Any = Proxy(lambda: carrying_app().tasks["delegation.delegate"])


def open_delegation(
    arguments: Mapping[str, Any],
    *,
    inputs: Sequence[Any] = (),
    call_id: str | None = None,
    options: Mapping[str, Any],
    ancestor: DelegationId | None = None,
) -> tuple[Delegation, Opened]:
    """Check the arguments and make the delegation durable; one that existed already is returned as it is."""
    context = runtime()
    carrying_app()  # an app that cannot be found is better found out before the record is made
    check_arguments(arguments)
    agents = [agent.id for agent in context.settings.agents]
    if arguments["agent"] not in agents:
        raise UnknownAgent(arguments["agent"], agents)
    deadline = _read_deadline(arguments.get("deadline"), context)
    workflow = arguments.get("workflow")
    in_canvas = call_id is not None and carrying_app().current_worker_task is not None
    delegation = make_delegation(
        arguments,
        inputs=inputs,
        call_id=call_id,
        participant_id=context.settings.server.participant_id,
        canvas=_tail(options),
        number=_patiently(lambda: context.store.next_child_number(workflow), in_canvas) if workflow else None,
        ancestor=ancestor,
    )
    failpoint("accept.before_commit")
    opened = _patiently(
        lambda: context.store.open_delegation(
            delegation,
            deadline_s=deadline.after_s,
            deadline_at=deadline.at,
            start_after_s=_start_after_s(context.store, options),
            arguments_digest=arguments_digest(delegation),
            by_call=call_id is not None,
        ),
        in_canvas,
    )
    failpoint("accept.after_commit")
    return (context.store.load(opened.id).delegation if opened.existing else delegation), opened


def _read_deadline(given: Any, context: Runtime) -> Deadline:
    """The given deadline or the default. Raises InvalidArguments for one that has passed or is too far away."""
    defaults = context.settings.defaults
    deadline = read_deadline(defaults.deadline if given is None else given)
    after_s = deadline.after_s if deadline.at is None else deadline.at - context.store.now()
    if after_s is not None and after_s <= 0:
        raise InvalidArguments("deadline: has passed already")
    if after_s is not None and after_s > defaults.max_deadline.total_seconds():
        raise InvalidArguments(f"deadline: longer than defaults.max_deadline ({defaults.max_deadline})")
    return deadline


def _start_after_s(store: Store, options: Mapping[str, Any]) -> float:
    """Celery's ``countdown`` and ``eta`` (a naive one is UTC, as for Celery), kept in the due index."""
    at = maybe_iso8601(options.get("eta"))
    if options.get("countdown") or at is None:
        return max(0.0, float(options.get("countdown") or 0))
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - store.now())


def _patiently(call: Callable[[], T], in_canvas: bool) -> T:
    """A caller hears at once that Redis is away; a canvas has nobody to hear it, and would fail its last link."""
    if not in_canvas:
        return call()
    return stamina.retry(on=StoreUnavailable, attempts=None, timeout=30.0, wait_max=3.0)(call)()


def _tail(options: Mapping[str, Any]) -> dict[str, Any]:
    """What follows in the canvas, as plain JSON values."""
    kept = {name: options[name] for name in TAIL_OPTIONS if options.get(name) is not None}
    kept |= {name: _with_ids(kept[name]) for name in ("link", "link_error") if name in kept}
    kept |= {name: options[name] for name in FAMILY_OPTIONS if options.get(name) is not None}
    if options.get("ignore_result"):
        kept["ignore_result"] = True
    plain: dict[str, Any] = loads(dumps(kept))
    return plain


def _with_ids(links: Any) -> list[Any]:
    """Each under one id from now on: finalize may run twice, and a link must not then be two calls.

    Chains and chords have given their parts ids already; Celery takes one link as well as a list.
    """
    copies = [signature(loads(dumps(link))) for link in maybe_list(links) or []]
    for copy in copies:
        copy.freeze()
    return copies


def _share(app: Celery, delegation: Delegation, call_id: str | None, tail: Mapping[str, Any]) -> str:
    """One more call for a delegation that exists; the Celery id of its result. Its canvas goes on as the first one's.

    The same call again is nothing new, and a call without an id or a canvas of its own gets the first one's result.
    """
    if call_id == delegation.call_id or not (call_id or tail):
        return delegation.call_id
    call_id = call_id or uuid()
    if runtime().store.share_delegation(delegation, call_id, tail):
        _publish_finalize(app, delegation, call_id, tail)
    return call_id


def _fail_call(task: Task[Any, Any], task_id: str, error: Exception, options: Mapping[str, Any]) -> None:
    """Fail the link as a worker would: result, rest of the chain, chord and errbacks."""
    task.backend.mark_as_failure(task_id, error, request=_context(task_id, options))


def _context(task_id: str, options: Mapping[str, Any]) -> Context:
    request = Context(id=task_id, root_id=options.get("root_id"), delivery_info={})
    adopt_tail(request, options)
    return request


# ---------------------------------------------------------------- our own messages


def publish_start(app: Celery, delegation: Delegation, *, family: Mapping[str, Any]) -> None:
    """chain(start_agent_task, watch, finalize), ids only. Losing it costs time: the due index has the start as well."""
    if family.get("countdown") or family.get("eta"):
        return
    watch = app.signature("delegation.watch", (delegation.id,), immutable=True, task_id=watch_id(delegation.id))
    options = _finalize_options(delegation.call_id, delegation.canvas, family=family)
    finalize = app.signature("delegation.finalize", (delegation.id,), immutable=True, **options)
    publish_step(
        app,
        "delegation.start_agent_task",
        delegation.id,
        task_id=f"{delegation.id}.start",
        chain=[finalize, watch],  # Celery takes the next from the end
        **_related(family),
    )


def watch_id(delegation_id: str) -> str:
    """Our steps' Celery ids contain the delegation's, so that Flower finds them."""
    return f"{delegation_id}.watch"


def publish_finalize(app: Celery, delegation: Delegation, *, again: bool = False) -> None:
    """The parked chain goes on, and that of each call that shares the delegation.

    ``again`` marks a repeat by the due index: then it is first asked whether finalize has run.
    """
    for call_id, tail in waiting_calls(delegation).items():
        if again and has_ended(app, call_id, tail):
            runtime().store.finish(delegation, call_id)
        else:
            _publish_finalize(app, delegation, call_id, tail)


def waiting_calls(delegation: Delegation) -> dict[str, dict[str, Any]]:
    """The calls whose canvas has not gone on yet: Celery id → what follows."""
    first = {} if delegation.phase is Phase.RELEASED else {delegation.call_id: delegation.canvas}
    return first | runtime().store.waiting_shares(delegation)


def has_ended(app: Celery, call_id: str, tail: Mapping[str, Any]) -> bool:
    """Whether finalize ran to its end under this id, or never will.

    Celery stores a success after what follows is published, but a failure before its errbacks are called: such a one
    runs again. So does a chord member, whose part may not have been counted. Whoever revoked the call wants no end,
    but a chord has to hear of it; the worker that revoked it knew nothing of the chord.
    """
    state = state_of(app, call_id)
    if state == states.REVOKED and tail.get("chord"):
        app.backend.on_chord_part_return(_context(call_id, tail), state, TaskRevokedError("revoked"))
    return state == states.REVOKED or (state == states.SUCCESS and not tail.get("chord"))


def publish_wake(app: Celery, delegation_id: str, number: int | str) -> None:
    """Look at this delegation now."""
    publish_step(app, "delegation.wake", delegation_id, task_id=f"{delegation_id}.wake.{number}")


def _publish_finalize(app: Celery, delegation: Delegation, call_id: str, tail: Mapping[str, Any]) -> None:
    """The same message whoever sends it, under the call's own id."""
    publish_step(app, "delegation.finalize", delegation.id, **_finalize_options(call_id, tail, family=tail))


def _finalize_options(call_id: str, tail: Mapping[str, Any], *, family: Mapping[str, Any]) -> dict[str, Any]:
    return {"task_id": call_id, "ignore_result": bool(tail.get("ignore_result")), **_related(family)}


def _related(family: Mapping[str, Any]) -> dict[str, Any]:
    return {name: family[name] for name in FAMILY_OPTIONS if family.get(name) is not None}


def publish_step(app: Celery, name: str, delegation_id: str, **options: Any) -> None:
    """A message that makes a step sooner; the due index has it anyway, so a broker that is away costs time only."""
    try:
        app.tasks[name].apply_async((delegation_id,), add_to_parent=False, **options)
    except OperationalError as error:
        log.warning("delegation.message_not_sent", delegation_id=delegation_id, step=name, error=type(error).__name__)


def adopt_tail(request: Context, tail: Mapping[str, Any]) -> None:
    """Give a running finalize the tail that its message does not carry; Celery reads it when the task returns."""
    request.chain = tail.get("chain")
    request.callbacks = tail.get("link")
    request.errbacks = tail.get("link_error")
    request.chord = tail.get("chord")
    request.group = tail.get("group_id")
    request.group_index = tail.get("group_index")
