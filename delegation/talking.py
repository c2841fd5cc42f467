"""What is said to an agent task after the brief: replies to its questions, one by one; and that nobody wants it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from delegation import decide, endings, turns
from delegation.agent_task import AgentMessage, AgentTask, DataPart, OutgoingMessage
from delegation.agents import AgentCalls
from delegation.errors import AgentError, AgentRefused, AgentTaskNotFound, CallAmbiguous
from delegation.failpoints import failpoint
from delegation.questions import begin_turn
from delegation.starting import Starting, metadata_of
from delegation.state import Cause, Change, Delegation, HistoryEntry, Phase
from delegation.steps import Aftermath
from delegation.store import Begun, Loaded
from delegation.turns import Fate

#: How far back an agent is asked when it has to tell whether it has our reply.
HISTORY = 20


class Talking(Starting):
    """send_reply and cancel."""

    def send_reply(self, delegation_id: str) -> Aftermath | None:
        """Send the next reply that waits, or find out what became of the last one. None when it is not our turn."""
        loaded = self._store.load(delegation_id)
        before = loaded.delegation
        if before.phase is not Phase.WATCHING or decide.is_leased(before, loaded.now()):
            return None
        is_unclear = before.progress.turn_intent_at is not None
        if not is_unclear and not turns.may_send_reply(before):
            if before.timers.reply_at is not None:
                self._try_save(before, turns.nothing_to_send(before, self._moment(loaded)), fenced=False)
            return None
        try:
            agent = self._client(before)
            return self._look_for_reply(loaded, agent) if is_unclear else self._send_next(loaded, agent)
        except AgentError as error:  # no card, or an open circuit: nothing was sent now
            moment = self._moment(loaded)
            change = turns.reply_unclear(before, error, moment)
            return self._write(before, change, fenced=False)

    def _send_next(self, loaded: Loaded, agent: AgentCalls) -> Aftermath | None:
        before = loaded.delegation
        reply = self._store.load_reply(before.id, before.progress.turn + 1)
        question = before.progress.question
        if question is not None and reply.get("question", question.number) != question.number:
            return self._write(before, turns.reply_out_of_date(before, self._moment(loaded)), fenced=False)
        progress = replace(begin_turn(before, reply, loaded.now()), attempts=before.progress.attempts + 1)
        intent = replace(before, progress=progress)
        begun, delegation = self._store.begin(before, intent, counts=("replies",), unfollowed=True)
        if begun is not Begun.BEGUN:
            return None
        failpoint("reply.after_intent")
        try:
            answer = agent.send_message(_message(delegation, reply), push=None, deadline_s=self._call_s(loaded))
        except AgentError as error:
            return self._write(delegation, self._reply_failed(loaded, delegation, error))
        failpoint("reply.after_call")
        change = self._reply_answered(loaded, delegation, answer)
        aftermath = self._write(delegation, change)
        failpoint("reply.after_record")
        if isinstance(answer, AgentTask) and _is_another(answer, delegation):
            self._cancel_orphan(delegation, answer)
        return aftermath

    def _reply_failed(self, loaded: Loaded, delegation: Delegation, error: AgentError) -> Change:
        """By what is certain about the delivery (errors.py)."""
        moment = self._moment(loaded)
        if isinstance(error, AgentTaskNotFound):
            return turns.reply_to_unknown(delegation, moment)
        if isinstance(error, AgentRefused):
            return turns.reply_refused(delegation, error, moment)
        if isinstance(error, CallAmbiguous):
            return turns.reply_unclear(delegation, error, moment)
        return turns.reply_not_sent(delegation, error, moment)

    def _reply_answered(self, loaded: Loaded, delegation: Delegation, answer: AgentTask | AgentMessage) -> Change:
        moment = self._moment(loaded)
        if isinstance(answer, AgentTask):
            if _is_another(answer, delegation):
                # It arrived, so it must not be sent again; whether ours took note of it, the next look tells.
                stray = AgentRefused("the agent began another task with it")
                return turns.reply_refused(delegation, stray, moment)
            return decide.transition(delegation, answer, cause=Cause.REPLY, moment=moment)
        # A Message says something and no state; the agent task still has one.
        progress = replace(delegation.progress, turn_intent_at=None, attempts=0, failures=0)
        timers = replace(delegation.timers, poll_at=moment.now, reply_at=None, refetch_at=None)
        entry = HistoryEntry(cause=Cause.REPLY, state=progress.state, text=endings.cut(answer.text, 200))
        return Change(after=replace(delegation, progress=progress, timers=timers), history=(entry,), reached=True)

    def _look_for_reply(self, loaded: Loaded, agent: AgentCalls) -> Aftermath | None:
        """The answer to a reply was lost: the agent's history tells whether it came, as ListTasks does for a send."""
        before = loaded.delegation
        if decide.is_poisoned(before, self._rules):
            error = AgentRefused("every attempt to send it ended in a crash")
            return self._write(before, turns.reply_refused(before, error, self._moment(loaded)), fenced=False)
        begun, delegation = self._store.begin(before, decide.attempted(before), counts=("look_ups",))
        if begun is not Begun.BEGUN:
            return None
        assert delegation.progress.agent_task_id is not None  # WATCHING implies it
        call_s = self._call_s(loaded)
        try:
            task = agent.get_task(delegation.progress.agent_task_id, deadline_s=call_s, history=HISTORY)
        except AgentTaskNotFound:
            change = turns.reply_to_unknown(delegation, self._moment(loaded), is_unclear=True)
            return self._write(delegation, change)
        except AgentError as error:
            return self._write(delegation, turns.reply_unclear(delegation, error, self._moment(loaded)))
        moment = self._moment(loaded)
        fate = turns.fate_of_reply(delegation, task)
        if fate is Fate.ARRIVED:
            return self._write(delegation, decide.transition(delegation, task, cause=Cause.REPLY, moment=moment))
        decided = turns.reply_overtaken if fate is Fate.OVERTAKEN else turns.reply_not_found
        return self._write(delegation, decided(delegation, task, moment))

    # ------------------------------------------------------------ cancel

    def cancel(self, delegation_id: str) -> Aftermath | None:
        """Do what somebody wanted: cancel the agent task, as soon as there is one; give up at the cancel deadline."""
        loaded = self._store.load(delegation_id)
        before, now = loaded.delegation, loaded.now()
        until = before.cancel_until
        if before.phase.is_settled or until is None or before.timers.cancel_at is None or decide.is_leased(before, now):
            return None
        if now >= (before.timers.deadline_at or now + 1):  # its own deadline comes first
            change = endings.expire(before, self._moment(loaded))
            return self._write(before, change, fenced=False)
        if before.progress.agent_task_id is None and before.progress.intent_at is None:
            return self._write(before, endings.cancel_unsent(before, self._moment(loaded)), fenced=False)
        if now >= until or decide.is_poisoned(before, self._rules):
            return self._write(before, endings.cancel_unconfirmed(before, self._moment(loaded)), fenced=False)
        if before.progress.agent_task_id is None:
            return self._find_to_cancel(loaded)
        try:
            agent = self._client(before)
            begun, delegation = self._store.begin(
                before, decide.attempted(before), counts=("cancels",), unfollowed=True
            )
        except AgentError as error:
            return self._write(before, endings.cancel_failed(before, error, self._moment(loaded)), fenced=False)
        if begun is not Begun.BEGUN:
            return None
        change = self._cancel_at_agent(loaded, delegation, agent)
        failpoint("cancel.before_record")
        return self._write(delegation, change)

    def _cancel_at_agent(self, loaded: Loaded, delegation: Delegation, agent: AgentCalls) -> Change:
        agent_task_id, until = delegation.progress.agent_task_id, delegation.cancel_until
        assert agent_task_id is not None
        assert until is not None
        try:
            call_s = min(self._call_s(loaded), max(1.0, until - loaded.now()))
            task = agent.cancel_task(agent_task_id, deadline_s=call_s)
        except AgentTaskNotFound as error:
            return endings.cancel_failed(delegation, error, self._moment(loaded))
        except AgentRefused as error:
            return endings.cancel_refused(delegation, error, self._moment(loaded))
        except AgentError as error:
            return endings.cancel_failed(delegation, error, self._moment(loaded))
        failpoint("cancel.after_call")
        moment = self._moment(loaded)
        change = decide.transition(delegation, task, cause=Cause.CANCEL, moment=moment)
        return change if change.outcome else endings.cancel_accepted(change, moment)

    def _find_to_cancel(self, loaded: Loaded) -> Aftermath | None:
        """A send may have gone through; whoever is found is cancelled next."""
        before = loaded.delegation
        assert before.cancel_until is not None
        at = min(loaded.now() + self._rules.retry_first_s, before.cancel_until)
        later = replace(before, timers=replace(before.timers, cancel_at=at))
        self._try_save(before, Change(after=later), fenced=False)
        return self.start_agent_task(before.id)


def _is_another(task: AgentTask, delegation: Delegation) -> bool:
    """Some servers make every message a new task (fasta2a's own storage does), whichever it names."""
    return task.id != delegation.progress.agent_task_id


def _message(delegation: Delegation, reply: dict[str, Any]) -> OutgoingMessage:
    """A follow-up: to the same agent task, in the agent's own context, from whoever sent the brief (its metadata wins
    over the header at the agent)."""
    progress = delegation.progress
    return OutgoingMessage(
        message_id=delegation.reply_message_id,
        context_id=progress.context_id or delegation.own_context_id,
        agent_task_id=progress.agent_task_id,
        text=reply.get("text", ""),
        data=(DataPart(value=reply["data"]),) if "data" in reply else (),
        metadata={**reply.get("metadata", {}), **metadata_of(delegation)},
    )
