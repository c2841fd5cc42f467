"""The story of a delegation: open, start_agent_task, wake, expire, clean_up, and what finalize hands on.

Each step loads the record, lets ``decide.py`` say what should happen, makes at most one call (two where a push config
is refused) under a lease, and writes the answer. Every step is safe to run twice, to lose, and to kill anywhere.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from delegation import decide
from delegation.agent_task import AgentMessage, AgentTask, OutgoingMessage, PushConfig
from delegation.agents import AgentCalls, Agents, withdraw
from delegation.decide import Moment, StartAction
from delegation.errors import (
    AgentError,
    AgentRefused,
    AgentTaskNotFound,
    AgentUnreachable,
    AnswerTooLarge,
    CallAmbiguous,
    PushNotAccepted,
    StaleWrite,
    UnknownAgent,
    UnsupportedExtensionError,
)
from delegation.failpoints import failpoint
from delegation.state import Cause, Change, Delegation, Phase, Reason, Rules, Watch
from delegation.store import Begun, Loaded, Settlement, Store
from delegation.watch import choose

log = structlog.get_logger("delegation")


@dataclass(frozen=True, kw_only=True, slots=True)
class Aftermath:
    """What the queue should hear of a step: nothing of it is needed, all of it is sooner than the sweeper."""

    delegation: Delegation
    settlement: Settlement | None = None
    wake_now: bool = False


class Lifecycle:
    """One per process. ``rand`` gives numbers in [0, 1)."""

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

    # ------------------------------------------------------------ start

    def start_agent_task(self, delegation_id: str) -> Aftermath | None:
        """Send the brief, or find out what became of an earlier send. None when there was nothing to do."""
        loaded = self._store.load(delegation_id)
        delegation, action = loaded.delegation, decide.choose_start(loaded.delegation, self._moment(loaded))
        if action is StartAction.NOTHING:
            return None
        if decide.is_poisoned(delegation, self._rules):
            return self._give_up(loaded, delegation, Reason.POISONED, "every attempt to start it ended in a crash")
        try:
            agent = self._agents.client(delegation.agent)
            watch = self._choose_watch(delegation.agent)
        except UnknownAgent as error:  # this worker's configuration may be an old one; another's may know it
            away = AgentUnreachable(str(error))
            if action is StartAction.LOOK_UP:
                return self._write(delegation, self._look_up_failed(loaded, delegation, away), fenced=False)
            return self._write(delegation, decide.not_started(delegation, away, self._moment(loaded)), fenced=False)
        except (UnsupportedExtensionError, AgentRefused) as error:
            reason = Reason.AGENT_REFUSED if action is StartAction.SEND else Reason.OUTCOME_UNKNOWN
            return self._give_up(loaded, delegation, reason, str(error))
        except AgentError as error:
            if action is StartAction.LOOK_UP:
                return self._write(delegation, self._look_up_failed(loaded, delegation, error), fenced=False)
            return self._write(delegation, decide.not_started(delegation, error, self._moment(loaded)), fenced=False)
        if action is StartAction.LOOK_UP:
            return self._look_up(loaded, agent)
        return self._send(loaded, agent, watch)

    def _send(self, loaded: Loaded, agent: AgentCalls, watch: Watch) -> Aftermath | None:
        token = secrets.token_urlsafe(32)
        before = loaded.delegation
        pushes = watch is Watch.PUSH
        progress = replace(
            before.progress,
            intent_at=loaded.now(),
            attempts=before.progress.attempts + 1,
            watch=watch,
            push_config=pushes,
        )
        digest = hashlib.sha256(token.encode()).hexdigest() if pushes else ""
        intent = replace(before, phase=Phase.STARTING, push_digest=digest, progress=progress)
        begun, delegation = self._store.begin(before, intent, counts=("sends",))
        if begun is not Begun.BEGUN:
            return None
        failpoint("send.after_intent")
        push = PushConfig(id=delegation.push_config_id, url=self._push_url(delegation), token=token) if pushes else None
        before_answer = delegation
        try:
            try:
                answer = agent.send_message(self._message(delegation), push=push, deadline_s=self._call_s(loaded))
            except PushNotAccepted:
                delegation = _without_push(delegation)
                answer = agent.send_message(self._message(delegation), push=None, deadline_s=self._call_s(loaded))
        except AgentError as error:
            return self._send_failed(loaded, before_answer, delegation, error)
        failpoint("send.after_call")
        moment = self._moment(loaded)
        if isinstance(answer, AgentMessage):
            change = decide.answered_directly(delegation, answer, moment)
        else:
            change = decide.transition(delegation, answer, cause=Cause.SENT, moment=moment)
        aftermath = self._write(before_answer, change, made=answer if isinstance(answer, AgentTask) else None)
        failpoint("send.after_record")
        return aftermath

    def _send_failed(
        self, loaded: Loaded, before: Delegation, delegation: Delegation, error: AgentError
    ) -> Aftermath | None:
        """By what is certain about the delivery (errors.py): refused, not sent, or perhaps sent."""
        moment = self._moment(loaded)
        log.info("delegation.send_failed", delegation_id=delegation.id, agent=delegation.agent, code=error.code)
        if isinstance(error, AgentRefused):
            reset = replace(delegation, progress=replace(delegation.progress, intent_at=None, push_config=False))
            change = decide.fail(reset, Reason.AGENT_REFUSED, error.detail, cause=Cause.SENT, moment=moment)
        elif isinstance(error, CallAmbiguous):
            change = decide.postpone(delegation, error, cause=Cause.SENT, moment=moment)
        else:
            change = decide.not_started(delegation, error, moment)
        return self._write(before, change)

    def _look_up(self, loaded: Loaded, agent: AgentCalls) -> Aftermath | None:
        before = loaded.delegation
        begun, delegation = self._store.begin(before, _attempted(before), counts=("look_ups",))
        if begun is not Begun.BEGUN:
            return None
        try:
            task = agent.find_task(delegation.own_context_id, delegation.message_id, deadline_s=self._call_s(loaded))
        except AgentError as error:
            change = self._look_up_failed(loaded, delegation, error)
            return self._write(delegation, _with_attempts_of(before, change))
        moment = self._moment(loaded)
        if task is None:
            change = decide.look_up_came_back_empty(delegation, moment)
            return self._write(delegation, _with_attempts_of(before, change))
        return self._write(delegation, decide.adopted(delegation, task, moment), made=task)

    def _look_up_failed(self, loaded: Loaded, delegation: Delegation, error: AgentError) -> Change:
        """Where the agent cannot be asked, the operator's word decides: send again, or give up with the truth."""
        moment = self._moment(loaded)
        since = delegation.progress.failing_since
        keeps_failing = since is not None and moment.now - since >= self._rules.unavailable_after_s
        if not isinstance(error, AgentRefused) and not keeps_failing:
            return decide.postpone(delegation, error, cause=Cause.SENT, moment=moment)
        if self._agents.config(delegation.agent).on_ambiguous_send == "resend":
            return decide.forget_intent(delegation, moment)
        detail = "the agent's answer to the message was lost, and it cannot be asked whether it has the task"
        return decide.fail(delegation, Reason.OUTCOME_UNKNOWN, detail, cause=Cause.SENT, moment=moment)

    # ------------------------------------------------------------ wake

    def wake(self, delegation_id: str) -> Aftermath | None:
        """Ask the agent how its task is, and apply that answer. None when there was nothing to do."""
        loaded = self._store.load(delegation_id)
        before = loaded.delegation
        if before.phase is not Phase.WATCHING or decide.is_leased(before, loaded.now()):
            return None
        if before.fetched_at is not None and loaded.now() < before.fetched_at + self._rules.min_fetch_gap_s:
            return None  # the message came twice
        if decide.is_poisoned(before, self._rules):
            unwanted = replace(before, progress=replace(before.progress, abandoned=True))
            return self._give_up(loaded, unwanted, Reason.POISONED, "every attempt to fetch it ended in a crash")
        cause = _cause_of_look(before)
        try:
            agent = self._agents.client(before.agent)
        except AgentError as error:
            postponed = decide.postpone(before, error, cause=cause, moment=self._moment(loaded))
            return self._write(before, postponed, fenced=False)
        except UnknownAgent as error:  # taken out of the configuration, perhaps by mistake: the deadline decides
            away = AgentUnreachable(str(error))
            return self._write(
                before, decide.postpone(before, away, cause=cause, moment=self._moment(loaded)), fenced=False
            )
        fetching = replace(_attempted(before), heard="", fetched_at=loaded.now())
        if before.heard == "push":  # a new claim has the whole ladder before it
            fetching = replace(fetching, progress=replace(fetching.progress, refetches=0))
        begun, delegation = self._store.begin(before, fetching, counts=("fetches",))
        if begun is not Begun.BEGUN:
            return None
        failpoint("fetch.before_call")
        change = self._fetch(loaded, delegation, agent, cause)
        failpoint("apply.before")
        aftermath = self._write(delegation, change)
        failpoint("apply.after")
        return aftermath

    def _fetch(self, loaded: Loaded, delegation: Delegation, agent: AgentCalls, cause: Cause) -> Change:
        agent_task_id = delegation.progress.agent_task_id
        assert agent_task_id is not None  # WATCHING implies it
        try:
            task = agent.get_task(agent_task_id, deadline_s=self._call_s(loaded))
        except AgentTaskNotFound:
            return decide.task_not_found(delegation, cause=cause, moment=self._moment(loaded))
        except AnswerTooLarge as error:
            abandoned = replace(delegation, progress=replace(delegation.progress, abandoned=True))
            return decide.fail(abandoned, Reason.TOO_LARGE, error.detail, cause=cause, moment=self._moment(loaded))
        except AgentError as error:
            return decide.postpone(delegation, error, cause=cause, moment=self._moment(loaded))
        failpoint("fetch.after_call")
        return decide.transition(delegation, task, cause=cause, moment=self._moment(loaded))

    # ------------------------------------------------------------ end

    def expire(self, delegation_id: str) -> Aftermath | None:
        """The deadline has passed: end it, whoever holds the lease. Needs no agent."""
        while True:
            loaded = self._store.load(delegation_id)
            delegation = loaded.delegation
            deadline_at = delegation.timers.deadline_at
            if delegation.phase.is_settled or deadline_at is None or loaded.now() < deadline_at:
                return None
            change = decide.expire(delegation, self._moment(loaded))
            try:
                settlement = self._store.settle(delegation, change, overriding=True)
            except StaleWrite:
                continue  # a step wrote in between; it may even have settled it
            return self._settled(change, settlement)

    def clean_up(self, delegation_id: str) -> None:
        """Remove what a settled delegation left at the agent: a task nobody wants, our push config. Never urgent."""
        loaded = self._store.load(delegation_id)
        before = loaded.delegation
        if not before.phase.is_settled or before.timers.cleanup_at is None or decide.is_leased(before, loaded.now()):
            return
        if decide.is_poisoned(before, self._rules):
            self._try_save(before, decide.cleaned_up(before), fenced=False)  # given up: it kills whoever tries
            return
        try:
            agent = self._agents.client(before.agent)
        except (AgentError, UnknownAgent):
            self._try_save(before, decide.left_for_later(before, self._moment(loaded)), fenced=False)
            return
        begun, delegation = self._store.begin(before, _attempted(before), counts=("clean_ups",))
        if begun is not Begun.BEGUN:
            return
        try:
            withdraw(agent, delegation, call_s=self._rules.call_deadline_s / 3)
        except AgentError:
            self._try_save(delegation, decide.left_for_later(delegation, self._moment(loaded)))
            return
        self._try_save(delegation, decide.cleaned_up(delegation))

    # ------------------------------------------------------------ writing

    def _write(
        self, before: Delegation, change: Change, *, fenced: bool = True, made: AgentTask | None = None
    ) -> Aftermath | None:
        """Store what was decided. If somebody else moved on meanwhile, cancel the agent task we made for nothing."""
        try:
            if change.outcome:
                return self._settled(change, self._store.settle(before, change, overriding=not fenced))
            wake_now = self._store.save(before, change, fenced=fenced)
        except StaleWrite:
            log.info("delegation.write_refused", delegation_id=before.id, agent=before.agent)
            if made is not None:
                self._cancel_orphan(before, made)
            return None
        for entry in change.history:
            log.info(
                "delegation.changed",
                delegation_id=before.id,
                workflow_id=before.workflow_id,
                agent=before.agent,
                phase=change.after.phase,
                state=entry.state,
                cause=entry.cause,
            )
        return Aftermath(delegation=change.after, wake_now=wake_now)

    def _try_save(self, before: Delegation, change: Change, *, fenced: bool = True) -> None:
        try:
            self._store.save(before, change, fenced=fenced)
        except StaleWrite:
            log.info("delegation.write_refused", delegation_id=before.id, agent=before.agent)

    def _give_up(self, loaded: Loaded, delegation: Delegation, reason: Reason, detail: str) -> Aftermath | None:
        cause = Cause.SENT if delegation.progress.agent_task_id is None else Cause.SWEEP
        change = decide.fail(delegation, reason, detail, cause=cause, moment=self._moment(loaded))
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
        return Aftermath(delegation=after, settlement=settlement)

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
            agent = self._agents.client(delegation.agent)
            withdraw(agent, orphan, call_s=self._rules.call_deadline_s / 3)
            self._store.count("orphans_cancelled")
        except (AgentError, UnknownAgent) as error:
            log.warning("delegation.orphan_left", delegation_id=delegation.id, agent=delegation.agent, code=error.code)

    # ------------------------------------------------------------ small things

    def _moment(self, loaded: Loaded) -> Moment:
        return Moment(now=loaded.now(), rules=self._rules, rand=self._rand())

    def _call_s(self, loaded: Loaded) -> float:
        """What is left for a call so that its answer can still be written under the lease.

        Raises AgentUnreachable when nothing is: this process slept, and somebody else is at work.
        """
        left = self._rules.lease_s - self._rules.lease_margin_s / 3 - (loaded.now() - loaded.read_at)
        if left <= 0:
            raise AgentUnreachable("the lease ran out before the call")
        return min(self._rules.call_deadline_s, left)

    def _choose_watch(self, agent: str) -> Watch:
        return choose(self._agents.config(agent).updates, self._agents.card(agent), base_url=self._base_url)

    def _push_url(self, delegation: Delegation) -> str:
        return f"{self._base_url}/a2a/push/{delegation.id}"

    @staticmethod
    def _message(delegation: Delegation) -> OutgoingMessage:
        texts, data = decide.read_inputs(delegation.brief)
        return OutgoingMessage(
            message_id=delegation.message_id,
            context_id=delegation.own_context_id,
            text=delegation.brief.text,
            extra_texts=texts,
            data=data,
            metadata={"participant_id": delegation.participant_id},
        )


def _attempted(delegation: Delegation) -> Delegation:
    """A step begins; the count goes back to 0 when one ends."""
    return replace(delegation, progress=replace(delegation.progress, attempts=delegation.progress.attempts + 1))


def _without_push(delegation: Delegation) -> Delegation:
    progress = replace(delegation.progress, watch=Watch.POLL, push_config=False)
    return replace(delegation, push_digest="", progress=progress)


def _with_attempts_of(before: Delegation, change: Change) -> Change:
    """A look-up that ended says nothing about the sends that did not: those still count towards poisoned."""
    progress = replace(change.after.progress, attempts=before.progress.attempts)
    return replace(change, after=replace(change.after, progress=progress))


def _cause_of_look(delegation: Delegation) -> Cause:
    """Why we look: a push asked for it, or the clock did, as the watch or as the safety net behind one."""
    if delegation.heard == "push":
        return Cause.PUSH
    return Cause.SWEEP if delegation.progress.watch is Watch.PUSH else Cause.POLL
