"""The story of a delegation: start_agent_task, wake, send_reply, cancel, expire, clean_up.

Each step loads the record, lets the pure modules (``decide.py``, ``turns.py``, ``endings.py``) say what should happen,
makes one call under a lease (more only where the agent refuses a part of it), and writes the answer. Every step is safe
to run twice, to lose, and to kill anywhere. What they share is in ``steps.py``, the start in ``starting.py``, what is
said later in ``talking.py``; here is what the clock and the agent's news lead to.
"""

from __future__ import annotations

from dataclasses import replace

from delegation import decide, endings
from delegation.agents import AgentCalls, withdraw
from delegation.errors import AgentError, AgentTaskNotFound, AnswerTooLarge, StaleWrite
from delegation.failpoints import failpoint
from delegation.state import Cause, Change, Delegation, HistoryEntry, Phase, Reason, Watch
from delegation.steps import Aftermath
from delegation.store import Begun, Loaded
from delegation.talking import Talking


class Lifecycle(Talking):
    """One per process."""

    # ------------------------------------------------------------ wake

    def wake(self, delegation_id: str) -> Aftermath | None:
        """Ask the agent how its task is, and apply that answer. None when there was nothing to do."""
        loaded = self._store.load(delegation_id)
        before = loaded.delegation
        if before.phase is not Phase.WATCHING or decide.is_leased(before, loaded.now()):
            return None
        soonest = (before.fetched_at or 0.0) + self._rules.min_fetch_gap_s
        if loaded.now() < soonest:
            self._wait_until(before, soonest, loaded.now())
            return None
        if decide.is_poisoned(before, self._rules):
            return self._give_up(
                loaded, endings.abandon(before), Reason.POISONED, "every attempt to fetch it ended in a crash"
            )
        cause = _cause_of_look(before)
        fetching, story = _fetching(before, loaded.now())
        try:
            agent = self._client(before)
            begun, delegation = self._store.begin(before, fetching, counts=("fetches",))
        except AgentError as error:
            postponed = decide.postpone(before, error, cause=cause, moment=self._moment(loaded))
            return self._write(before, postponed, fenced=False)
        if begun is not Begun.BEGUN:
            return None
        failpoint("fetch.before_call")
        change = self._fetch(loaded, delegation, agent, cause)
        change = replace(change, history=(*story, *change.history))
        failpoint("apply.before")
        aftermath = self._write(delegation, change)
        failpoint("apply.after")
        return aftermath

    def _wait_until(self, before: Delegation, soonest: float, now: float) -> None:
        """Too early for another look. Most often a message that came twice; but where one is due, it is put off."""
        timers = before.timers
        if any(at is not None and at <= now for at in (timers.poll_at, timers.refetch_at)):
            later = replace(before, timers=replace(timers, poll_at=soonest, refetch_at=None))
            self._try_save(before, Change(after=later), fenced=False)

    def _fetch(self, loaded: Loaded, delegation: Delegation, agent: AgentCalls, cause: Cause) -> Change:
        agent_task_id = delegation.progress.agent_task_id
        assert agent_task_id is not None  # WATCHING implies it
        try:
            task = agent.get_task(agent_task_id, deadline_s=self._call_s(loaded))
        except AgentTaskNotFound:
            return decide.task_not_found(delegation, cause=cause, moment=self._moment(loaded))
        except AnswerTooLarge as error:
            unwanted, moment = endings.abandon(delegation), self._moment(loaded)
            return endings.fail(unwanted, Reason.TOO_LARGE, error.detail, cause=cause, moment=moment, reached=True)
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
            change = endings.expire(delegation, self._moment(loaded))
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
            self._try_save(before, endings.cleaned_up(before), fenced=False)  # given up: it kills whoever tries
            return
        try:
            agent = self._client(before)
            begun, delegation = self._store.begin(before, decide.attempted(before), counts=("clean_ups",))
        except AgentError:
            self._try_save(before, endings.left_for_later(before, self._moment(loaded)), fenced=False)
            return
        if begun is not Begun.BEGUN:
            return
        try:
            withdraw(agent, delegation, call_s=self._rules.call_deadline_s / 3)
        except AgentError as error:
            reached = endings.was_reached(error)
            self._try_save(delegation, endings.left_for_later(delegation, self._moment(loaded), reached=reached))
            return
        self._try_save(delegation, endings.cleaned_up(delegation))


def _fetching(before: Delegation, now: float) -> tuple[Delegation, tuple[HistoryEntry, ...]]:
    """The look that begins. A new claim has the whole ladder before it; an agent that offers no streams after all is
    polled from now on, and the history says so."""
    fetching = replace(decide.attempted(before), heard="", fetched_at=now)
    progress = fetching.progress
    if before.heard in ("push", "follow"):
        progress = replace(progress, refetches=0)
    story: tuple[HistoryEntry, ...] = ()
    if before.heard == "no_stream":
        watch = Watch.POLL if progress.watch is Watch.FOLLOW else progress.watch
        progress = replace(progress, watch=watch, can_follow=False)
        text = "the agent offers no stream for this, so it is polled"
        story = (HistoryEntry(cause=Cause.FOLLOW, state=progress.state, text=text),)
    return replace(fetching, progress=progress), story


def _cause_of_look(delegation: Delegation) -> Cause:
    """Why we look: a push or a stream asked for it, or the clock did, as the watch or as the safety net behind one."""
    if delegation.heard == "push":
        return Cause.PUSH
    if delegation.heard in ("follow", "no_stream"):
        return Cause.FOLLOW
    is_net = delegation.progress.watch is Watch.PUSH or delegation.followed
    return Cause.SWEEP if is_net else Cause.POLL
