"""A user's own tasks: the links, chord bodies, errbacks and continuations of the canvases in the tests.

Shared, as a user's reusable module would have them. What each saw is written to a Redis list of its own, apart from
anything the product keeps, so that a test can count the calls.
"""

from __future__ import annotations

import json
import os
from typing import Any

import redis
from celery import Task, shared_task

from delegation import WorkflowTooDeep
from workers import Workflow, delegate

#: Redis URL of the witness lists.
WITNESS_VARIABLE = "SHOP_WITNESS_URL"


def bear_witness(key: str, **facts: Any) -> None:
    with redis.Redis.from_url(os.environ[WITNESS_VARIABLE]) as client:
        client.rpush(key, json.dumps(facts, default=str))


@shared_task(name="shop.say")
def say(value: Any) -> Any:
    """Any JSON, as an earlier link's result."""
    return value


@shared_task(name="shop.fail")
def fail(*_: Any) -> None:
    raise ValueError("the shop is closed")


@shared_task(name="shop.text_of")
def text_of(outcome: dict[str, Any], suffix: str = "") -> str:
    return f"{outcome['text']}{suffix}"


@shared_task(name="shop.texts_of")
def texts_of(outcomes: list[Any]) -> list[str]:
    """A chord's body; members may be outcomes or plain texts."""
    return [outcome["text"] if isinstance(outcome, dict) else str(outcome) for outcome in outcomes]


@shared_task(name="shop.keep", bind=True)
def keep(self: Task[Any, Any], value: Any, key: str = "") -> Any:
    """A link that leaves a trace: what it was given, under which id, by which app."""
    bear_witness(key, value=value, id=self.request.id, app=self.app.main, queue=_queue_of(self))
    return value


@shared_task(name="shop.keep_call", bind=True)
def keep_call(self: Task[Any, Any], *args: Any, key: str = "", **kwargs: Any) -> str:
    """A continuation that leaves a trace of everything it was called with."""
    bear_witness(key, args=args, kwargs=kwargs, id=self.request.id, app=self.app.main, queue=_queue_of(self))
    return "seen"


@shared_task(name="shop.keep_call_silently", ignore_result=True)
def keep_call_silently(*args: Any, key: str = "", **kwargs: Any) -> None:
    bear_witness(key, args=args, kwargs=kwargs)


@shared_task(name="shop.old_errback")
def old_errback(task_id: str, key: str = "") -> None:
    """Celery's older errback: published as a message, with the failed call's id."""
    bear_witness(key, task_id=task_id)


@shared_task(name="shop.new_errback")
def new_errback(request: Any, exc: BaseException, traceback: Any, key: str = "") -> None:
    """Celery's newer errback: called in the worker where the failure was."""
    bear_witness(key, task_id=request.id, error=type(exc).__name__, args=exc.args, traceback=str(traceback))


@shared_task(name="shop.fail_to_go_on")
def fail_to_go_on(**_: Any) -> None:
    raise ValueError("the shop is closed")


@shared_task(name="shop.go_on")
def go_on(goals: list[list[str]], key: str, *, workflow_id: str, release_id: str, round: int) -> str:
    """A continuation that delegates the next list of goals and joins again, and completes after the last."""
    workflow = Workflow.get(workflow_id)
    bear_witness(key, release_id=release_id, round=round, texts=[each["text"] for each in workflow.outcomes().values()])
    if not goals:
        workflow.complete({"rounds": round})
        return "completed"
    for goal in goals[0]:
        workflow.delegate("a", goal)
    workflow.join(then=go_on.s(goals[1:], key))
    return "joined"


@shared_task(name="shop.pass_on")
def pass_on(agents: list[str], goal: str, key: str, *, workflow_id: str, release_id: str, round: int) -> str:
    """A continuation that gives the work to the next agent, in a workflow inside its own, and waits for that."""
    workflow = Workflow.get(workflow_id)
    if round > 1:
        workflow.complete({"release": release_id})
        return "completed"
    try:
        inner = workflow.open_child("passed on", idempotency_key=release_id)
    except WorkflowTooDeep as error:
        bear_witness(key, code=error.code)
        workflow.fail(str(error))
        return "failed"
    inner.delegate(agents[0], goal, idempotency_key=release_id)
    inner.join(then=pass_on.s([*agents[1:], agents[0]], goal, key))
    workflow.join(then=pass_on.s(agents, goal, key))
    return "passed on"


@shared_task(name="shop.plan", bind=True)
def plan(self: Task[Any, Any], goal: str, key: str) -> str:
    """A user's task that delegates from within, as an agent loop would."""
    after = delegate.s(agent="a", goal=goal) | keep.s(key=key)
    return str(after.apply_async().id)


def _queue_of(task: Task[Any, Any]) -> str:
    return str((task.request.delivery_info or {}).get("routing_key"))
