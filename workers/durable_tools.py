"""The skills of a configured agent as plain tools whose every call is a delegation: the same texts, without the losses.

What a call began survives every crash but that of its caller: nobody would hear the rest then, so a delegation made
here ends with its call, at the latest by a deadline that is the tool's timeout.
"""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import structlog

from delegation.agent_task import TaskState
from delegation.card_fetch import card_urls
from delegation.cards import CheckedCard
from delegation.errors import AgentError, AgentUnreachable, CallAmbiguous, DelegationError, UnknownAgent
from delegation.settings import Settings
from delegation.state import Cause, Delegation, Outcome, Reason
from delegation.tools.agent_tool import AgentTool, RemoteAgent
from delegation.tools.card import agent_name, name_skills
from delegation.tools.descriptor import DEFAULT_TIMEOUT_MS, read_ms
from delegation.tools.failures import CONNECT_FAILED, TRANSPORT
from delegation.tools.poll_loop import Abort
from delegation.tools.results import CANCELED, SUBMITTED, ToolResult, canceled_text, shown, timed_out_text
from workers.canvas import open_delegation, publish_start
from workers.carrier import carrying_app
from workers.descriptions import is_asking
from workers.handles import DelegationHandle
from workers.runtime import runtime

#: How soon an abort is seen, and how often the record is read should a signal be lost.
GLANCE_S = 0.05
LOOK_EVERY_S = 5.0
_LOOKS = frozenset({Cause.PUSH.value, Cause.FOLLOW.value, Cause.POLL.value, Cause.SWEEP.value})

log = structlog.get_logger("delegation")


def durable_agent(
    agent: str, *, timeout: float = DEFAULT_TIMEOUT_MS, strict_seed: bool = False, workflow: str | None = None
) -> RemoteAgent:
    """The tools of an agent of the configuration, by its id or the URL of its card, as `remote_agent` gives them.

    Each call is a delegation (of ``workflow``, if there is one), run by the workers and waited for here; its texts and
    metadata are those of a plain tool, with what the engine knows better: ``polls`` counts the looks that brought news,
    an agent that stays away is `HTTP transport connect-failed` once `unavailable_after` is over, and the words of a
    task that is completed without artifacts may be those of its status. A call that the agent refuses is told as the
    engine tells it, and an empty task is an error.

    The delegation ends with the call: a timeout (its deadline as well), an abort and a question cancel it, best effort.
    With ``strict_seed=True`` a question is waited over, and may be answered by `delegation reply`. Headers, origins and
    intervals are those of the configuration. Never raises.
    """
    try:
        timeout_ms = read_ms("timeout", timeout)
        context = runtime()
        agent_id = _find_agent(context.settings, agent)
        card = _fetch_card(agent_id)
        skills = name_skills(card.raw)
    except AgentError as error:
        return RemoteAgent(error=_card_error(error))
    except DelegationError as error:
        return RemoteAgent(error=f"bad descriptor: {error}")
    name = agent_name(card.raw)
    run = functools.partial(_run, _Agent(agent_id, name, strict_seed, workflow))
    tools = [
        AgentTool(name=skill.name, description=skill.description, agent=name, default_timeout_ms=timeout_ms, run=run)
        for skill in skills
    ]
    return RemoteAgent(card=card.raw, endpoint=card.interface.url, tools=tools)


@dataclass(frozen=True, slots=True)
class _Agent:
    id: str
    name: str
    strict_seed: bool
    workflow: str | None


@dataclass(kw_only=True, slots=True)
class _Call:
    """One call, and what is known of its delegation."""

    agent: _Agent
    timeout_ms: float
    abort: Abort
    started_at: float = field(default_factory=time.monotonic)
    id: str = ""
    task_id: str = ""
    state: str = SUBMITTED

    def wait(self) -> ToolResult:
        """In the order of the plain tools: an end that is known, then an abort, then the time limit."""
        store = runtime().store
        with store.listen(self.id.partition(".")[0]) as next_change:
            while True:
                record = store.load(self.id).delegation
                self.task_id = record.progress.agent_task_id or self.task_id
                if record.outcome is not None:
                    return self._ended(record.outcome)
                self.state = _spell(record.state)
                if is_asking(record) and not self.agent.strict_seed:
                    return self._asked(record)
                if self.abort():
                    return self._given_up(canceled_text(self.task_id), state=CANCELED)
                if self._elapsed_ms() >= self.timeout_ms:
                    return self._given_up(timed_out_text(self.task_id, self.timeout_ms, self.state))
                self._until_something_happens(next_change)

    def failed(self, error: DelegationError) -> ToolResult:
        return self._result(str(error), is_error=True, polls=0)

    def _until_something_happens(self, next_change: Callable[[float], str | None]) -> None:
        until = time.monotonic() + min(LOOK_EVERY_S, self.timeout_ms / 1000 - self._elapsed_ms() / 1000)
        while not self.abort() and (left := until - time.monotonic()) > 0:
            if next_change(min(left, GLANCE_S) if self.abort.is_possible else left) is not None:
                return

    def _ended(self, outcome: Outcome) -> ToolResult:
        timed_out_in = self.state
        self.state = _spell(outcome.state)
        if outcome.state is TaskState.COMPLETED:
            return self._result(_text_of(self.id, outcome), is_error=False)
        if outcome.reason == Reason.DEADLINE_EXCEEDED:
            self.state = timed_out_in
            return self._result(timed_out_text(self.task_id, self.timeout_ms, timed_out_in), is_error=True)
        if outcome.reason == Reason.AGENT_UNAVAILABLE:
            self.state = SUBMITTED
            return self._result(f"HTTP transport {CONNECT_FAILED}", is_error=True)
        if outcome.reason and not self.task_id:
            return self._result(outcome.text, is_error=True)
        return self._result(_ended_otherwise(self.task_id, self.state, outcome.text), is_error=True)

    def _asked(self, record: Delegation) -> ToolResult:
        return self._given_up(_ended_otherwise(self.task_id, self.state, record.progress.status_text))

    def _given_up(self, text: str, state: str | None = None) -> ToolResult:
        self.state = state or self.state
        try:
            DelegationHandle(self.id).cancel(reason="the tool call has ended")
        except DelegationError as error:  # its deadline ends it all the same
            log.warning("tools.not_cancelled", delegation_id=self.id, error=error.code)
        return self._result(text, is_error=True)

    def _result(self, output: str, *, is_error: bool, polls: int | None = None) -> ToolResult:
        metadata = {
            "agent": self.agent.name,
            "taskId": self.task_id,
            "state": self.state,
            "polls": self._count_looks() if polls is None else polls,
            "ms": int(self._elapsed_ms()),
        }
        return ToolResult(output=shown(output, ()), is_error=is_error, metadata=metadata)

    def _count_looks(self) -> int:
        return sum(entry["cause"] in _LOOKS for entry in runtime().store.history(self.id))

    def _elapsed_ms(self) -> float:
        return (time.monotonic() - self.started_at) * 1000


def _run(agent: _Agent, text: str, abort: Abort, timeout_ms: float) -> ToolResult:
    call = _Call(agent=agent, timeout_ms=timeout_ms, abort=abort)
    try:
        call.id = _open(agent, text, timeout_ms)
        return call.wait()
    except DelegationError as error:
        return call.failed(error)


def _open(agent: _Agent, text: str, timeout_ms: float) -> str:
    deadline = min(timedelta(milliseconds=timeout_ms), runtime().settings.defaults.max_deadline)
    arguments: dict[str, Any] = {"agent": agent.id, "goal": text, "deadline": deadline, "on_failure": "return"}
    if agent.workflow is not None:
        arguments["workflow"] = agent.workflow
    delegation, _ = open_delegation(arguments, options={})
    publish_start(carrying_app(), delegation, family={})
    return delegation.id


def _find_agent(settings: Settings, given: str) -> str:
    """Raises UnknownAgent."""
    for agent in settings.agents:
        if given == agent.id or given in card_urls(agent.url):
            return agent.id
    raise UnknownAgent(str(given), [agent.id for agent in settings.agents])


def _fetch_card(agent_id: str) -> CheckedCard:
    context = runtime()
    roster = importlib.import_module("workers.composition").make_roster(context.settings, context.store)  # imports a2a
    try:
        card: CheckedCard = roster.card(agent_id)
        return card
    finally:
        roster.close()


def _card_error(error: AgentError) -> str:
    if isinstance(error, AgentUnreachable):
        return f"HTTP transport {CONNECT_FAILED}"
    return f"HTTP transport {TRANSPORT}" if isinstance(error, CallAmbiguous) else f"bad card: {error}"


def _text_of(delegation_id: str, outcome: Outcome) -> str:
    """Part by part, as the plain tools do; the record has the whole of what the outcome cuts."""
    artifacts = DelegationHandle(delegation_id).artifacts()
    texts = [text for artifact in artifacts for text in _texts(artifact)]
    return "\n".join(texts) if texts else outcome.text


def _texts(artifact: Mapping[str, Any]) -> list[str]:
    return [part["text"] for part in artifact["parts"] if isinstance(part.get("text"), str)]


def _ended_otherwise(task_id: str, state: str, detail: str) -> str:
    return f"A2A task {task_id} {state}" + (f": {detail}" if detail else "")


def _spell(state: TaskState) -> str:
    return state.value.lower().replace("_", "-")
