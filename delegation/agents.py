"""What the story asks of agents, and how it takes back what it left at one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from delegation.agent_task import AgentMessage, AgentTask, AgentTaskId, ContextId, OutgoingMessage, PushConfig
from delegation.errors import AgentRefused
from delegation.failpoints import failpoint
from delegation.state import Delegation
from delegation.watch import CanHear

T = TypeVar("T")


class AgentCalls(Protocol):
    """What the story asks of an agent (see client.py)."""

    def start_task(
        self, message: OutgoingMessage, *, push: PushConfig | None, deadline_s: float
    ) -> AgentTask | AgentMessage: ...
    def send_message(
        self, message: OutgoingMessage, *, push: PushConfig | None, deadline_s: float
    ) -> AgentTask | AgentMessage: ...
    def get_task(self, agent_task_id: AgentTaskId, *, deadline_s: float, history: int = ...) -> AgentTask: ...
    def find_task(self, context_id: ContextId, message_id: str, *, deadline_s: float) -> AgentTask | None: ...
    def cancel_task(self, agent_task_id: AgentTaskId, *, deadline_s: float) -> AgentTask: ...
    def delete_push_config(self, agent_task_id: AgentTaskId, config_id: str, *, deadline_s: float) -> None: ...


class AgentConfig(Protocol):
    """What the operator says about an agent."""

    @property
    def updates(self) -> str: ...
    @property
    def on_ambiguous_send(self) -> str: ...


class Card(CanHear, Protocol):
    """What the story reads on an agent's card (see cards.py)."""

    @property
    def active_extensions(self) -> tuple[str, ...]: ...
    @property
    def interface_key(self) -> str: ...
    @property
    def older_interface_key(self) -> str: ...


class Agents(Protocol):
    """Where agents come from (see roster.py)."""

    def config(self, agent: str) -> AgentConfig: ...
    def card(self, agent: str) -> Card: ...
    def client(self, agent: str, participant_id: str | None = None, interface: str = "") -> AgentCalls: ...


def withdraw(agent: AgentCalls, delegation: Delegation, *, call_s: float) -> None:
    """Take back what a settled delegation left: an agent task nobody wants, our push config.

    An agent task that was never heard of is looked for first. A refusal is as good as done: the task has ended, the
    config is not there, or the agent cannot be asked. Raises the other kinds of AgentError.
    """
    agent_task_id, unwanted = delegation.progress.agent_task_id, delegation.progress.abandoned
    if agent_task_id is None:
        found = _unless_refused(
            lambda: agent.find_task(delegation.own_context_id, delegation.message_id, deadline_s=call_s)
        )
        if found is None:
            return
        agent_task_id, unwanted = found.id, True
    try:
        if unwanted:
            _unless_refused(lambda: agent.cancel_task(agent_task_id, deadline_s=call_s))
            failpoint("cancel.after_call")
    finally:  # an agent that answers no cancel may still give up its pushes
        failpoint("cfg.before_delete")
        if delegation.progress.push_config:
            config_id = delegation.push_config_id
            _unless_refused(lambda: agent.delete_push_config(agent_task_id, config_id, deadline_s=call_s))


def _unless_refused(call: Callable[[], T]) -> T | None:
    try:
        return call()
    except AgentRefused:
        return None
