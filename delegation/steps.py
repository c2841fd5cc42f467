"""What every step does: load, find the agent, hold the lease for the time of a call, and write what was decided."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from delegation import endings
from delegation.agent_task import AgentTask
from delegation.agents import AgentCalls, Agents, Card, withdraw
from delegation.errors import AgentError, NotTried, StaleWrite, UnknownAgent
from delegation.state import Cause, Change, Delegation, Moment, Reason, Rules
from delegation.store import Loaded, Settlement, Store

log = structlog.get_logger("delegation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Aftermath:
    """What the queue should hear of a step: nothing of it is needed, all of it is sooner than the sweeper."""

    delegation: Delegation
    settlement: Settlement | None = None
    wake_now: bool = False
    has_note: bool = False


class Steps:
    """The common part of the story. ``rand`` gives numbers in [0, 1)."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        *,
        base_url: str | None,
        rules: Rules,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._agents = agents
        self._base_url = base_url
        self._rules = rules
        self._rand = rand

    def _client(self, delegation: Delegation, interface: str | None = None) -> AgentCalls:
        """For this interface, else for the one it was sent to. Raises AgentError.

        An agent that this process does not know may be another's: its configuration is older.
        """
        wanted = delegation.progress.interface if interface is None else interface
        try:
            return self._agents.client(delegation.agent, delegation.participant_id, wanted)
        except UnknownAgent as error:
            raise NotTried(str(error)) from error

    def _card(self, delegation: Delegation) -> Card:
        """For new work. Raises AgentError, as `_client` does."""
        try:
            return self._agents.card(delegation.agent)
        except UnknownAgent as error:
            raise NotTried(str(error)) from error

    def _moment(self, loaded: Loaded) -> Moment:
        return Moment(now=loaded.now(), rules=self._rules, rand=self._rand())

    def _call_s(self, loaded: Loaded) -> float:
        """What is left for a call so that its answer can still be written under the lease.

        Raises NotTried when nothing is: this process slept, and somebody else is at work.
        """
        left = self._rules.lease_s - self._rules.lease_margin_s / 3 - (loaded.now() - loaded.read_at)
        if left <= 0:
            raise NotTried("the lease ran out before the call")
        return min(self._rules.call_deadline_s, left)

    # ------------------------------------------------------------ writing

    def _write(
        self, before: Delegation, change: Change, *, fenced: bool = True, made: AgentTask | None = None
    ) -> Aftermath | None:
        """Store what was decided. If somebody else moved on meanwhile, cancel the agent task we made for nothing."""
        try:
            if change.outcome:
                return self._settled(change, self._store.settle(before, change, overriding=not fenced))
            saved = self._store.save(before, change, fenced=fenced)
        except StaleWrite:
            log.info("delegation.write_refused", delegation_id=before.id, agent=before.agent)
            if made is not None:
                self._cancel_orphan(before, made)
            return None
        _tell(before, change)
        return Aftermath(delegation=change.after, wake_now=saved.wake_now, has_note=saved.has_note)

    def _try_save(self, before: Delegation, change: Change, *, fenced: bool = True) -> None:
        try:
            self._store.save(before, change, fenced=fenced)
        except StaleWrite:
            log.info("delegation.write_refused", delegation_id=before.id, agent=before.agent)

    def _give_up(self, loaded: Loaded, delegation: Delegation, reason: Reason, detail: str) -> Aftermath | None:
        cause = Cause.SENT if delegation.progress.agent_task_id is None else Cause.SWEEP
        change = endings.fail(delegation, reason, detail, cause=cause, moment=self._moment(loaded))
        return self._write(delegation, change, fenced=False)

    def _settled(self, change: Change, settlement: Settlement) -> Aftermath:
        after = change.after
        if settlement.settled and change.outcome:
            log.info(
                "delegation.settled",
                delegation_id=after.id,
                workflow_id=after.workflow_id,
                agent=after.agent,
                state=change.outcome.state,
                reason=change.outcome.reason,
                released=settlement.release_id,
            )
        return Aftermath(delegation=after, settlement=settlement, has_note=settlement.has_note)

    def _cancel_orphan(self, delegation: Delegation, made: AgentTask) -> None:
        """Best effort: the record decided without this agent task, so nobody will ever look at it.

        While the record knows no agent task, whoever took over is about to find this one in the agent's list.
        """
        current = self._store.load(delegation.id).delegation
        known = current.progress.agent_task_id
        if known == made.id or (known is None and not current.phase.is_settled):
            return
        orphan = replace(delegation, progress=replace(delegation.progress, agent_task_id=made.id, abandoned=True))
        try:
            withdraw(self._client(delegation), orphan, call_s=self._rules.call_deadline_s / 3)
            self._store.count("orphans_cancelled")
        except AgentError as error:
            log.warning("delegation.orphan_left", delegation_id=delegation.id, agent=delegation.agent, code=error.code)


def _tell(before: Delegation, change: Change) -> None:
    """One line for each entry of the history; an agent that begins not to answer is a warning, once until it does."""
    whose = {"delegation_id": before.id, "workflow_id": before.workflow_id, "agent": before.agent}
    if change.begins_to_fail:
        log.warning("delegation.agent_unavailable", **whose, code=change.begins_to_fail)
        return
    for entry in change.history:
        log.info("delegation.changed", **whose, phase=change.after.phase, state=entry.state, cause=entry.cause)
