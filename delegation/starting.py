"""The first step: send the brief, or find out what became of an earlier send. One agent task, whatever happens."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field, replace

import structlog

from delegation import decide, endings
from delegation.agent_task import AgentMessage, AgentTask, DataPart, OutgoingMessage, PushConfig
from delegation.agents import AgentCalls, Card
from delegation.decide import StartAction
from delegation.errors import (
    AgentError,
    AgentRefused,
    AuthenticationRefused,
    CallAmbiguous,
    MethodNotOffered,
    PushNotAccepted,
    UnsupportedExtensionError,
    VersionNotSpoken,
)
from delegation.failpoints import failpoint
from delegation.state import Cause, Change, Delegation, HistoryEntry, Phase, Reason, Watch
from delegation.steps import Aftermath, Steps
from delegation.store import Begun, Loaded
from delegation.task_extension import TASK_EXTENSION, task_envelope
from delegation.times import rfc3339
from delegation.watch import choose, next_best

log = structlog.get_logger("delegation")


@dataclass
class _Sending:
    """A brief on its way: what is still asked of the agent with it, and what the history will say was refused."""

    delegation: Delegation
    push: PushConfig | None
    streams: bool
    story: list[HistoryEntry] = field(default_factory=list)

    def leave_out_push(self, refusal: AgentRefused) -> bool:
        """The next best watch from now on; False when it was left out already."""
        if self.push is None:
            return False
        watch = next_best(can_follow=self.delegation.progress.can_follow)
        progress = replace(self.delegation.progress, watch=watch, push_config=False)
        self.push, self.delegation = None, replace(self.delegation, push_digest="", progress=progress)
        self._tell(f"push refused, so {watch.value}: {refusal.detail}")
        return True

    def leave_out_stream(self, refusal: AgentRefused) -> bool:
        """SendMessage from now on; False when it was that already."""
        if not self.streams:
            return False
        self.streams = False
        self._tell(f"streaming refused, so SendMessage: {refusal.detail}")
        return True

    def _tell(self, text: str) -> None:
        state = self.delegation.progress.state
        self.story.append(HistoryEntry(cause=Cause.SENT, state=state, text=endings.cut(text, 200)))


class Starting(Steps):
    """start_agent_task, and the look-up after an ambiguous send."""

    def start_agent_task(self, delegation_id: str) -> Aftermath | None:
        """Send the brief, or find out what became of an earlier send. None when there was nothing to do."""
        loaded = self._store.load(delegation_id)
        delegation, action = loaded.delegation, decide.choose_start(loaded.delegation, self._moment(loaded))
        if action is StartAction.NOTHING:
            return None
        if action is StartAction.CANCEL:
            return self._write(delegation, endings.cancel_unsent(delegation, self._moment(loaded)), fenced=False)
        if decide.is_poisoned(delegation, self._rules):
            return self._give_up(loaded, delegation, Reason.POISONED, "every attempt to start it ended in a crash")
        try:
            if action is StartAction.LOOK_UP:
                return self._look_up(loaded, self._client(delegation))
            card = self._card(delegation)
            interface = decide.choose_interface(delegation, card.interface_key, card.older_interface_key)
            return self._send(loaded, self._client(delegation, interface), card, interface)
        except (UnsupportedExtensionError, AgentRefused) as error:
            reason = Reason.AGENT_REFUSED if action is StartAction.SEND else Reason.OUTCOME_UNKNOWN
            return self._give_up(loaded, delegation, reason, str(error))
        except AgentError as error:
            if action is StartAction.LOOK_UP:
                return self._write(delegation, self._look_up_failed(loaded, delegation, error), fenced=False)
            if isinstance(error, AuthenticationRefused):
                return self._give_up(loaded, delegation, Reason.AUTH_FAILED, str(error))
            return self._write(delegation, decide.not_started(delegation, error, self._moment(loaded)), fenced=False)

    def _send(self, loaded: Loaded, agent: AgentCalls, card: Card, interface: str) -> Aftermath | None:
        token = secrets.token_urlsafe(32)
        before = loaded.delegation
        watch = choose(self._agents.config(before.agent).updates, card, base_url=self._base_url)
        pushes = watch is Watch.PUSH
        progress = replace(
            before.progress,
            intent_at=loaded.now(),
            attempts=before.progress.attempts + 1,
            watch=watch,
            can_follow=card.can_stream,
            interface=interface,
            push_config=pushes,
        )
        digest = hashlib.sha256(token.encode()).hexdigest() if pushes else ""
        intent = replace(before, phase=Phase.STARTING, push_digest=digest, progress=progress)
        begun, delegation = self._store.begin(before, intent, counts=("sends",))
        if begun is not Begun.BEGUN:
            return None
        failpoint("send.after_intent")
        push = PushConfig(id=delegation.push_config_id, url=self._push_url(delegation), token=token) if pushes else None
        sending = _Sending(delegation=delegation, push=push, streams=card.can_stream)
        try:
            answer = self._deliver(loaded, agent, self._message(delegation, card), sending)
        except VersionNotSpoken as error:
            if interface == card.interface_key and card.older_interface_key:
                moment = self._moment(loaded)
                return self._write(delegation, decide.speak_older(delegation, card.older_interface_key, error, moment))
            return self._send_failed(loaded, delegation, sending.delegation, error)
        except AgentError as error:
            return self._send_failed(loaded, delegation, sending.delegation, error)
        failpoint("send.after_call")
        moment = self._moment(loaded)
        if isinstance(answer, AgentMessage):
            change = endings.answered_directly(sending.delegation, answer, moment)
        else:
            change = decide.transition(sending.delegation, answer, cause=Cause.SENT, moment=moment)
        change = replace(change, history=(*sending.story, *change.history))
        aftermath = self._write(delegation, change, made=answer if isinstance(answer, AgentTask) else None)
        failpoint("send.after_record")
        return aftermath

    def _deliver(
        self, loaded: Loaded, agent: AgentCalls, message: OutgoingMessage, sending: _Sending
    ) -> AgentTask | AgentMessage:
        """At most three times the same message: what the agent refuses is left out, and then nothing was started."""
        while True:
            send = agent.start_task if sending.streams else agent.send_message
            try:
                return send(message, push=sending.push, deadline_s=self._call_s(loaded))
            except PushNotAccepted as refusal:
                if not sending.leave_out_push(refusal):
                    raise
            except MethodNotOffered as refusal:
                if not sending.leave_out_stream(refusal):
                    raise

    def _send_failed(
        self, loaded: Loaded, before: Delegation, delegation: Delegation, error: AgentError
    ) -> Aftermath | None:
        """By what is certain about the delivery (errors.py): refused, not sent, or perhaps sent."""
        moment = self._moment(loaded)
        log.debug("delegation.send_failed", delegation_id=delegation.id, agent=delegation.agent, code=error.code)
        if isinstance(error, AgentRefused | AuthenticationRefused):
            reset = replace(delegation, progress=replace(delegation.progress, intent_at=None, push_config=False))
            reason, cause = _reason_of(error), Cause.SENT
            change = endings.fail(reset, reason, error.detail, cause=cause, moment=moment, reached=True)
            change = replace(change, counts=(*change.counts, *decide.refused_credentials(error)))
        elif isinstance(error, CallAmbiguous):
            change = decide.postpone(delegation, error, cause=Cause.SENT, moment=moment)
        else:
            change = decide.not_started(delegation, error, moment)
        return self._write(before, change)

    def _look_up(self, loaded: Loaded, agent: AgentCalls) -> Aftermath | None:
        before = loaded.delegation
        begun, delegation = self._store.begin(before, decide.attempted(before), counts=("look_ups",))
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
        later = decide.postpone(delegation, error, cause=Cause.SENT, moment=moment)
        since = later.after.progress.failing_since
        keeps_failing = since is not None and moment.now - since >= self._rules.unavailable_after_s
        if not isinstance(error, AgentRefused) and not keeps_failing:
            return later
        if self._agents.config(delegation.agent).on_ambiguous_send == "resend":
            return decide.forget_intent(delegation, moment)
        detail = "the agent's answer to the message was lost, and it cannot be asked whether it has the task"
        reason, reached = Reason.OUTCOME_UNKNOWN, endings.was_reached(error)
        return endings.fail(delegation, reason, detail, cause=Cause.SENT, moment=moment, reached=reached)

    def _push_url(self, delegation: Delegation) -> str:
        return f"{self._base_url}/a2a/push/{delegation.id}"

    @staticmethod
    def _message(delegation: Delegation, card: Card) -> OutgoingMessage:
        texts, values = decide.read_inputs(delegation.brief)
        envelope = (task_envelope(delegation.brief, delegation.participant_id),)
        return OutgoingMessage(
            message_id=delegation.message_id,
            context_id=delegation.own_context_id,
            text=delegation.brief.text,
            extra_texts=texts,
            data=(*(envelope if TASK_EXTENSION in card.active_extensions else ()), *map(_data, values)),
            metadata=metadata_of(delegation),
        )


def _reason_of(error: AgentError) -> Reason:
    return Reason.AUTH_FAILED if isinstance(error, AuthenticationRefused) else Reason.AGENT_REFUSED


def metadata_of(delegation: Delegation) -> dict[str, str]:
    """What every message of ours says beside its parts: who speaks, and until when an answer is of use."""
    deadline_at = rfc3339(delegation.timers.deadline_at)
    known = {"participant_id": delegation.participant_id, "deadline_at": deadline_at}
    return {name: value for name, value in known.items() if value}


def _data(value: object) -> DataPart:
    return DataPart(value=value)


def _with_attempts_of(before: Delegation, change: Change) -> Change:
    """A look-up that ended says nothing about the sends that did not: those still count towards poisoned."""
    progress = replace(change.after.progress, attempts=before.progress.attempts)
    return replace(change, after=replace(change.after, progress=progress))
