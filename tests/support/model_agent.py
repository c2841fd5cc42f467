"""An unreliable agent on a virtual clock: it works, asks, takes replies, is cancelled, and answers when it likes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from delegation.agent_task import AgentMessage, AgentTask, AgentTaskId, ContextId, TaskState
from delegation.errors import (
    AgentBusy,
    AgentRefused,
    AgentTaskNotCancelable,
    AgentTaskNotFound,
    AgentUnreachable,
    CallAmbiguous,
)
from tests.support.model_world import World

#: Somebody has authorized it elsewhere by then.
AUTHORIZED_AFTER_S = 400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Manners:
    """What kind of agent it is."""

    works_for_s: float = 5.0  #: before each question, and before the end
    questions: int = 0
    keeps_history: bool = True  #: else it shows no messages
    has_times: bool = True  #: its status has a timestamp
    has_message_ids: bool = True  #: its status messages have ids
    repeats_words: bool = False  #: all its questions read the same
    lag_s: float = 0.0  #: it shows the old question for a while after a reply
    cancels: str = "obeys"  #: or "refuses", "ignores", "is_gone"
    forgets_at: float = float("inf")  #: it knows no agent task any more from then on
    refuses_replies: float = 0.0  #: how often it refuses one that it asked for
    asks_for_auth: bool = False  #: AUTH_REQUIRED instead, and goes on by itself after a while


@dataclass
class Arrival:
    """A message, and when it arrives; late ones arrive after their caller has given up."""

    message_id: str
    at: float
    is_reply: bool = False


@dataclass
class ModelAgent:
    """Makes an agent task of each brief that arrives; its state follows from what has arrived, and the clock."""

    world: World
    away_until: float
    manners: Manners
    arrivals: list[Arrival] = field(default_factory=list)  #: each brief makes an agent task
    accepted: list[Arrival] = field(default_factory=list)  #: replies that answered a question
    refused: list[Arrival] = field(default_factory=list)
    calls: list[float] = field(default_factory=list)  #: when it was called, whatever came of it
    cancelled_at: float | None = None
    can_push: bool = False
    can_stream: bool = False
    active_extensions: tuple[str, ...] = ()
    interface_key: str = ""
    older_interface_key: str = ""
    updates: str = "poll"
    on_ambiguous_send: str = "reconcile"

    def config(self, _: str, participant_id: str | None = None, interface: str = "") -> ModelAgent:
        return self

    card = client = config

    @property
    def briefs(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if not arrival.is_reply]

    # ------------------------------------------------------------ calls

    def start_task(self, message: Any, *, push: Any, deadline_s: float) -> AgentTask:
        self._may_fail(deadline_s)
        self._arrives(Arrival(message.message_id, self.world.now), deadline_s)
        task = self._answer(deadline_s)
        if self.can_stream and self.world.happens(0.4):  # the stream broke: what came before, and its gaps
            state = self.world.rand.choice([TaskState.SUBMITTED, task.state])
            return AgentTask(id=task.id, context_id=task.context_id, state=state, is_whole=False)
        return task

    def send_message(self, message: Any, *, push: Any, deadline_s: float) -> AgentTask | AgentMessage:
        if message.agent_task_id is None:
            return self.start_task(message, push=push, deadline_s=deadline_s)
        self._may_fail(deadline_s)
        self._may_not_know()
        self._arrives(Arrival(message.message_id, self.world.now, is_reply=True), deadline_s)
        if any(refusal.message_id == message.message_id for refusal in self.refused):
            raise AgentRefused("it waits for nothing")
        task = self._answer(deadline_s)
        return AgentMessage(text="thanks", context_id=task.context_id) if self.world.happens(0.1) else task

    def find_task(self, context_id: str, message_id: str, *, deadline_s: float) -> AgentTask | None:
        self._may_fail(deadline_s)
        return self._answer(deadline_s) if self._arrived() else None

    def get_task(self, agent_task_id: str, *, deadline_s: float, history: int = 0) -> AgentTask:
        self._may_fail(deadline_s)
        self._may_not_know()
        return self._answer(deadline_s, history=history)

    def cancel_task(self, agent_task_id: str, *, deadline_s: float) -> AgentTask:
        self._may_fail(deadline_s)
        self._may_not_know()
        if self.manners.cancels == "is_gone":
            self.world.pass_time(deadline_s)
            raise CallAmbiguous("never answers a cancel")
        if self._state()[0].is_terminal:
            raise AgentTaskNotCancelable("it is over")
        if self.manners.cancels == "refuses":
            raise AgentTaskNotCancelable("it will not")
        if self.manners.cancels == "obeys":
            self.cancelled_at = self.world.now
        return self._answer(deadline_s)

    def delete_push_config(self, *_: Any, **__: Any) -> None: ...

    def _may_fail(self, deadline_s: float) -> None:
        self.calls.append(self.world.now)
        if self.world.now < self.away_until or self.world.happens(0.1):
            raise AgentUnreachable("no route")
        if self.world.happens(0.05):
            raise AgentBusy("429", self.world.rand.choice([None, 5.0, 999_999.0]))
        if self.world.happens(0.1):
            self.world.pass_time(deadline_s)
            raise CallAmbiguous("not done, and nobody knows")

    def _may_not_know(self) -> None:
        if self.world.now >= self.manners.forgets_at or self.world.happens(0.03):
            raise AgentTaskNotFound("another replica, or gone")

    def _arrives(self, arrival: Arrival, deadline_s: float) -> None:
        is_late = self.world.happens(0.15)
        if is_late:
            arrival.at += self.world.rand.random() * deadline_s
        self.arrivals.append(arrival)
        if is_late:
            self.world.maybe_die()
            raise CallAmbiguous("done later, and nobody knows")
        self._read_replies()

    # ------------------------------------------------------------ what it is at

    def _arrived(self) -> list[Arrival]:
        return [brief for brief in self.briefs if brief.at <= self.world.now]

    def _read_replies(self) -> None:
        """Whatever has arrived by now answers the question that was open at that time, or is refused."""
        read = {id(arrival) for arrival in (*self.accepted, *self.refused)}
        waiting = [one for one in self.arrivals if one.is_reply and id(one) not in read and one.at <= self.world.now]
        for reply in sorted(waiting, key=lambda one: one.at):
            state, _, _ = self._state(reply.at)
            takes_it = state.is_interrupted and not self.world.happens(self.manners.refuses_replies)
            (self.accepted if takes_it else self.refused).append(reply)

    def open_since(self) -> float | None:
        """When the question that waits for an answer was asked."""
        self._read_replies()
        state, _, since = self._state()
        return since if state.is_interrupted else None

    def _state(self, at: float | None = None) -> tuple[TaskState, int, float]:
        """State, number of the stage, and since when; a stage is the work before a question or before the end."""
        at = self.world.now if at is None else at
        if self.cancelled_at is not None and self.cancelled_at <= at:
            return TaskState.CANCELED, 0, self.cancelled_at
        begun = self._arrived()[0].at if self._arrived() else at
        for stage in range(self.manners.questions):
            asked_at = begun + self.manners.works_for_s
            if at < asked_at:
                return TaskState.WORKING, stage, begun
            answers = [reply.at for reply in self.accepted if asked_at < reply.at <= at]
            if self.manners.asks_for_auth and at >= asked_at + AUTHORIZED_AFTER_S:
                answers.append(asked_at + AUTHORIZED_AFTER_S)
            if not answers:
                state = TaskState.AUTH_REQUIRED if self.manners.asks_for_auth else TaskState.INPUT_REQUIRED
                return state, stage + 1, asked_at
            begun = min(answers)
        done_at = begun + self.manners.works_for_s
        return (TaskState.COMPLETED, 0, done_at) if at >= done_at else (TaskState.WORKING, 0, begun)

    def _answer(self, deadline_s: float, *, history: int = 0) -> AgentTask:
        """What it says now; with a lag it says what it was at a moment ago, if it was asking."""
        self._read_replies()
        state, stage, since = self._state()
        lagging = self._state_before_reply()
        if lagging and not state.is_terminal:
            state, stage, since = lagging
        task = self._said(state, stage, since, history)
        self.world.maybe_die()
        self.world.pass_time(deadline_s)
        if self.world.happens(0.15):
            raise CallAmbiguous("done, and nobody knows")
        return task

    def _state_before_reply(self) -> tuple[TaskState, int, float] | None:
        last = self.accepted[-1].at if self.accepted else None
        if last is None or self.world.now >= last + self.manners.lag_s:
            return None
        accepted, self.accepted = self.accepted, self.accepted[:-1]
        shown = self._state(last)
        self.accepted = accepted
        return shown if shown[0].is_interrupted else None

    def _said(self, state: TaskState, stage: int, since: float, history: int) -> AgentTask:
        shown: TaskState | None = state
        if state is TaskState.WORKING and self.world.happens(0.2):
            shown = None  # a word that we do not know
        asks = state.is_interrupted
        text = ("Which one?" if self.manners.repeats_words else f"Question {stage}?") if asks else ""
        seen = [one.message_id for one in self.arrivals if one.at <= self.world.now and one not in self.refused]
        return AgentTask(
            id=AgentTaskId("0"),
            context_id=ContextId("x"),
            state=shown,
            raw_state="" if shown else "PAUSED",
            status_text=text if shown else "one moment",
            status_at=f"{since:.6f}" if self.manners.has_times else "",
            status_message_id=f"q{stage}" if asks and self.manners.has_message_ids else "",
            history_message_ids=frozenset(seen if self.manners.keeps_history and history else ()),
        )
