"""What a delegation is: frozen values, no I/O, no clock. What may happen to one is decided in ``decide.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NewType

from delegation.agent_task import AgentTaskId, ContextId, TaskState

DelegationId = NewType("DelegationId", str)
WorkflowId = NewType("WorkflowId", str)


class Phase(StrEnum):
    """Our own progress with a delegation; it only moves forward."""

    OPENED = "OPENED"  #: durable, nothing sent
    STARTING = "STARTING"  #: an attempt to send was begun; the agent task id is not known yet
    WATCHING = "WATCHING"  #: the agent has the task; waiting for it to end
    SETTLED = "SETTLED"  #: outcome and parent recorded
    RELEASED = "RELEASED"  #: what follows in the canvas was published

    @property
    def is_settled(self) -> bool:
        return self in (Phase.SETTLED, Phase.RELEASED)


class Watch(StrEnum):
    """How we hear back."""

    PUSH = "push"
    FOLLOW = "follow"
    POLL = "poll"
    OFF = "off"


class Cause(StrEnum):
    """Why the record changed: how the news was heard, or who asked for it."""

    OPENED = "opened"
    SENT = "sent"
    PUSH = "push"
    FOLLOW = "follow"
    POLL = "poll"
    SWEEP = "sweep"
    REPLY = "reply"
    CANCEL = "cancel"
    DEADLINE = "deadline"


class Reason(StrEnum):
    """Why a delegation FAILED by our own verdict rather than the agent's."""

    AGENT_UNAVAILABLE = "agent.unavailable"
    AGENT_REFUSED = "agent.refused"
    AUTH_FAILED = "agent.auth_failed"
    OUTCOME_UNKNOWN = "send.outcome_unknown"
    DEADLINE_EXCEEDED = "deadline.exceeded"
    AGENT_TASK_LOST = "agent_task.lost"
    TOO_LARGE = "response.too_large"
    POISONED = "poisoned"
    CANCEL_UNCONFIRMED = "cancel.unconfirmed"  #: CANCELED by us; what the agent does is not known
    TOO_MANY_ROUNDS = "conversation.too_long"
    REPEATS = "conversation.repeats"


class CancelAnswer(StrEnum):
    """What the agent said to our CancelTask, where that was not the end."""

    NONE = ""
    ACCEPTED = "accepted"  #: it answered, and is still at work
    REFUSED = "refused"  #: it cannot, or will not


@dataclass(frozen=True, kw_only=True, slots=True)
class Brief:
    """What the agent is told, and nothing else of ours."""

    goal: str
    name: str = ""
    description: str = ""
    acceptance_criteria: tuple[str, ...] = ()
    inputs: tuple[Any, ...] = ()  #: results piped in from earlier links, JSON values

    @property
    def text(self) -> str:
        """The text part any agent understands; a goal alone is sent as it is."""
        if not (self.name or self.description or self.acceptance_criteria):
            return self.goal
        lines = [self.name] if self.name else []
        lines.append(f"Goal: {self.goal}")
        if self.description:
            lines.append(f"Description: {self.description}")
        if self.acceptance_criteria:
            lines += ["Acceptance criteria:", *(f"- {criterion}" for criterion in self.acceptance_criteria)]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timers:
    """When the delegation must be looked at again, seconds of Redis time; None where there is nothing to do."""

    poll_at: float | None = None  #: next regular look, or next attempt to start
    refetch_at: float | None = None  #: sooner look: a wake, an answer behind its claim, a full agent
    lease_until: float | None = None  #: a step is at work until then; afterwards it is presumed dead
    deadline_at: float | None = None
    publish_at: float | None = None  #: a Celery message not acted on by then is sent again
    cleanup_at: float | None = None  #: next attempt to remove what is left at the agent
    reply_at: float | None = None  #: next attempt to send a reply that waits
    cancel_at: float | None = None  #: next attempt to cancel the agent task, or to give up doing so


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What the agent last asked, or wants authorization for; kept after the reply, to know it again when it is heard
    late (questions.py)."""

    number: int  #: counts from 1: the rounds of this conversation
    state: TaskState
    digest: str  #: of its text and parts
    said_at: str = ""  #: the status' timestamp
    message_id: str = ""
    asked_at: float = 0.0  #: when we first heard it, Redis time
    turn: int = 0  #: number of the last reply before it
    in_turn: int = 1  #: counts the questions since that reply
    before: str = ""  #: digest and timestamp of the question before, which a replica that lags may still show


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """The part of the record that only our steps change, always under a version check."""

    state: TaskState = TaskState.SUBMITTED
    unknown_state: str = ""  #: spelling of the state of the last answer, in quotes, if it is none of A2A's
    status_text: str = ""
    status_parts: tuple[dict[str, Any], ...] = ()
    status_at: str = ""
    artifact_names: tuple[str, ...] = ()  #: of what the agent has produced so far
    watch: Watch | None = None
    can_follow: bool = False  #: the card offers streams
    interface: str = ""  #: where it was sent, as the card names it; empty: wherever the card says now
    agent_task_id: AgentTaskId | None = None
    context_id: ContextId | None = None
    intent_at: float | None = None  #: a SendMessage may have left at this time and its answer is not recorded
    empty_lookups: int = 0  #: times the agent did not show our message
    resends: int = 0  #: times the present message was sent again because of it
    failures: int = 0  #: failed calls in a row
    failing_since: float | None = None
    failing_code: str = ""  #: of the last call that failed; counts while there are failures
    lost_since: float | None = None  #: first of the -32001 answers in a row
    lost_count: int = 0
    attempts: int = 0  #: steps begun and never ended, in a row
    polls: int = 0  #: looks that brought no news, in a row
    refetches: int = 0  #: looks spent on the present claim
    push_config: bool = False  #: our push config may be at the agent
    abandoned: bool = False  #: the agent task may still run and nobody wants it: cancel it
    question: Question | None = None
    turn: int = 0  #: number of the last reply that was sent, or is being sent
    turn_intent_at: float | None = None  #: that reply may have left at this time, and its answer is not recorded
    turn_key: str = ""  #: digest of the last question and the reply to it
    same_turns: int = 0  #: how many turns in a row had that key
    cancel_answer: CancelAnswer = CancelAnswer.NONE
    updated_at: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How a delegation ended, as it travels to the next link; artifacts are summaries, contents stay in the record."""

    delegation_id: str
    agent: str
    state: TaskState
    text: str = ""
    truncated: bool = False
    artifacts: tuple[dict[str, Any], ...] = ()
    reason: str | None = None
    agent_task_id: str | None = None
    context_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "delegation_id": self.delegation_id,
            "agent": self.agent,
            "state": self.state.value,
            "text": self.text,
            "truncated": self.truncated,
            "artifacts": list(self.artifacts),
            "reason": self.reason,
            "agent_task_id": self.agent_task_id,
            "context_id": self.context_id,
        }

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> Outcome:
        return cls(**{**raw, "state": TaskState(raw["state"]), "artifacts": tuple(raw["artifacts"])})


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegation:
    """One durable piece of work given to one agent."""

    id: DelegationId
    agent: str
    brief: Brief
    call_id: str  #: Celery id of the `delegate` call; finalize inherits it
    participant_id: str
    created_at: float
    workflow_id: WorkflowId | None = None
    on_failure: str = "raise"
    step: str = ""  #: the caller's label, such as a step of a plan; the agent is not told
    idempotency: str = ""  #: digest of the idempotency key in its scope; empty without one
    canvas: dict[str, Any] = field(default_factory=dict)  #: what follows in the user's canvas, Celery options
    version: int = 0
    phase: Phase = Phase.OPENED
    parked: bool = False
    wakes: int = 0
    fence: int = 0
    heard: str = ""  #: who asked for the next look: "push", "follow", "no_stream" (a follower that may not), or nothing
    claimed: TaskState | None = None  #: the state the last push claimed; only compared, never applied
    fetched_at: float | None = None
    replies: int = 0  #: replies given so far; those after ``progress.turn`` wait to be sent
    followed: bool = False  #: a follower holds a stream for it
    cancel_until: float | None = None  #: somebody wants it cancelled; then CANCELED all the same
    cancel_reason: str = ""
    push_digest: str = ""  #: SHA-256 of the push token, hex; empty when no push is accepted
    timers: Timers = field(default_factory=Timers)
    progress: Progress = field(default_factory=Progress)
    outcome: Outcome | None = None

    @property
    def state(self) -> TaskState:
        return self.outcome.state if self.outcome else self.progress.state

    @property
    def message_id(self) -> str:
        """The first turn's messageId: the same on every attempt (docs/design.md law 7)."""
        return f"{self.id}:goal"

    @property
    def reply_message_id(self) -> str:
        """The present turn's messageId."""
        return f"{self.id}:reply:{self.progress.turn}"

    @property
    def has_reply_waiting(self) -> bool:
        return self.replies > self.progress.turn

    @property
    def waits_for_agent(self) -> bool:
        """A reply was sent, or is being sent, and the agent still shows the question it answers."""
        question = self.progress.question
        return question is not None and self.state.is_interrupted and self.progress.turn > question.turn

    @property
    def waits_for_reply(self) -> bool:
        """It is somebody's turn here (AUTH_REQUIRED may also go on by itself)."""
        is_wanted = self.timers.cancel_at is None  # one that refused to be cancelled goes on
        return is_wanted and self.state.is_interrupted and not self.waits_for_agent and not self.has_reply_waiting

    @property
    def push_config_id(self) -> str:
        return f"delegation-{self.id}"

    @property
    def own_context_id(self) -> ContextId:
        """Our contextId for the first message: a delegation's own, so that ListTasks can find its task."""
        return ContextId(self.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class HistoryEntry:
    """One line of a delegation's story."""

    cause: Cause
    state: TaskState
    text: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """What a decision wants written. With an outcome it is the end of the delegation."""

    after: Delegation
    outcome: Outcome | None = None
    content: tuple[dict[str, Any], ...] = ()  #: artifacts as sent, kept once beside the record
    history: tuple[HistoryEntry, ...] = ()
    counts: tuple[str, ...] = ()  #: counters to increment
    note: str = ""  #: what a parent is told of it, JSON (notes.py)
    begins_to_fail: str = ""  #: error code of the first in a row of calls that the agent did not answer
    reached: bool | None = None  #: whether the agent answered; None when it was not asked, or said "later"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The numbers decisions depend on, all in seconds unless said otherwise."""

    call_deadline_s: float = 30.0
    lease_margin_s: float = 15.0
    hint_patience_s: float = 15.0
    poll_first_s: float = 2.0
    poll_max_s: float = 30.0
    recheck_first_s: float = 60.0
    recheck_max_s: float = 6 * 3600.0
    unavailable_after_s: float = 15 * 60.0
    retry_first_s: float = 2.0
    retry_max_s: float = 60.0
    retry_after_max_s: float = 300.0
    refetch_s: tuple[float, ...] = (1.0, 2.0, 4.0)
    min_fetch_gap_s: float = 1.0
    lost_after_s: float = 60.0
    lost_answers: int = 3
    cleanup_for_s: float = 24 * 3600.0
    attempts: int = 5
    cancel_deadline_s: float = 60.0
    message_text_bytes: int = 65536
    artifact_bytes: int = 1024 * 1024
    status_text_chars: int = 2000
    rounds: int = 20
    same_turns: int = 3

    @property
    def lease_s(self) -> float:
        return self.call_deadline_s + self.lease_margin_s


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """When, in seconds of Redis time, and by which numbers a decision is made; ``rand`` in [0, 1) spreads the looks."""

    now: float
    rules: Rules
    rand: float = 0.5
