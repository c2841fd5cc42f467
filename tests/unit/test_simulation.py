"""The real story against a model store and an unreliable model agent, on a virtual clock: hundreds of seeds.

Calls time out whether they were done, not done or done later; steps die before and after each write; messages are lost,
late or come twice; while one worker waits for an answer others run, past its lease. The agent asks, users reply early,
late, twice or never, somebody cancels. Never two agent tasks, no reply twice or lost, and one end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from structlog.testing import capture_logs

from delegation.agent_task import TaskState
from delegation.due import Step, choose_steps
from delegation.lifecycle import Lifecycle
from delegation.state import CancelAnswer, Delegation, Phase, Timers
from tests.support.delegations import NOW, a_delegation
from tests.support.model_agent import Arrival, Manners, ModelAgent
from tests.support.model_world import RULES, Died, ModelStore, World

STEPS = 60
DEADLINE_S = 3600.0
#: A reply that waits for a question that waits is on its way by then, whatever failed before.
PATIENCE_S = 600.0
#: Polls alone are 15 in the first minute.
MOST_CALLS_A_MINUTE = 30


def due_at(record: Delegation, now: float) -> float | None:
    """What the due index holds for a record (due.lua)."""
    timers = record.timers
    if record.phase.is_settled:
        return timers.cleanup_at
    times = [timers.lease_until, timers.deadline_at]
    if (timers.lease_until or 0) <= now:
        times += [timers.poll_at, timers.refetch_at, timers.publish_at, timers.cancel_at]
        times += [timers.reply_at] if record.phase is Phase.WATCHING else []
    return min(at for at in times if at is not None)


@dataclass
class Run:
    """One seed: who is there, and what they did."""

    world: World
    store: ModelStore
    agent: ModelAgent
    story: Lifecycle
    zeal: float  #: chance of each turn that a user answers what is open
    cancel_at: float | None
    is_eager: bool  #: users go on talking while the agent works
    kept: dict[int, float] = field(default_factory=dict)  #: number of a reply -> when it was kept
    cancelled_at: float | None = None
    calm_at: float = NOW

    def step(self, step: Step) -> None:
        """A message is handed to a worker, who may die."""
        steps: dict[Step, Callable[[str], object]] = {
            Step.START: self.story.start_agent_task,
            Step.WAKE: self.story.wake,
            Step.SEND_REPLY: self.story.send_reply,
            Step.CANCEL: self.story.cancel,
            Step.EXPIRE: self.story.expire,
            Step.CLEAN_UP: self.story.clean_up,
        }
        try:
            steps[step](self.store.record.id)
        except Died:
            return

    def users(self) -> None:
        """Somebody may reply, twice, with something more, or before anything was asked; somebody may cancel."""
        rand, record = self.world.rand, self.store.record
        asks = record.waits_for_reply and record.progress.question is not None
        chance = self.zeal if asks else self.zeal / 4 if self.is_eager or not record.has_reply_waiting else 0
        if rand.random() < chance:
            said = f"answer {len(self.kept)}"
            for text in rand.choice([[said], [said] * 2, [said, "one more"]]):
                if kept := self.store.give_reply(text):
                    self.kept[kept] = self.world.now
        if self.cancel_at is not None and self.world.now >= self.cancel_at and self.store.want_cancel("enough"):
            self.cancelled_at, self.cancel_at = self.world.now, None

    def others(self) -> None:
        """While one waits: users, and messages of before that come late or twice."""
        self.users()
        self.step(self.world.rand.choice([step for step in Step if step is not Step.FINALIZE]))

    def turn(self) -> bool:
        """Time passes until something is due, and what it leads to; False when nothing ever will be."""
        if (due := due_at(self.store.record, self.world.now)) is None:
            return False
        # Somebody may act long before anything is due.
        self.world.now = max(self.world.now, min(due, self.world.now + 100)) + self.world.rand.random()
        self.users()
        if self.world.happens(0.2):
            self.store.record = replace(self.store.record, wakes=self.store.record.wakes + 1)
        if self.world.happens(0.1):
            self.others()
        record = self.store.record
        if (due_at(record, self.world.now) or 0) > self.world.now:
            return True
        timers = {name: at for name in Timers.__slots__ if (at := getattr(record.timers, name)) is not None}
        for step in choose_steps(record.phase, timers, self.world.now):
            if not self.world.happens(0.1):  # else its message is lost
                self.step(step)
        return True


def manners(rand: Random) -> Manners:
    has_times, has_message_ids, keeps_history = (rand.random() < 0.7 for _ in range(3))
    lags = [0.0, 0.0, 20.0, 90.0]
    return Manners(
        works_for_s=rand.choice([0.0, 0.0, 5.0, 5.0, 200.0, 1e9]),
        questions=rand.choice([0, 1, 2, 3]),
        keeps_history=keeps_history,
        has_times=has_times,
        has_message_ids=has_message_ids,
        repeats_words=(has_times or has_message_ids) and rand.random() < 0.4,
        lag_s=rand.choice(lags if keeps_history else lags[:3]),  # longer and silent, nobody could know
        cancels=rand.choice(["obeys", "obeys", "refuses", "ignores", "is_gone"]),
        forgets_at=NOW + (600 * rand.random() if rand.random() < 0.2 else 1e9),
        refuses_replies=rand.choice([0.0, 0.0, 0.3]),
        asks_for_auth=rand.random() < 0.2,
    )


def simulate(seed: int) -> Run:
    world = World(seed)
    rand = world.rand
    store = ModelStore(world, a_delegation(Phase.OPENED, timers={"deadline_at": NOW + DEADLINE_S, "publish_at": NOW}))
    agent = ModelAgent(world, NOW + rand.choice([0, 0, 0, 600, 2000]), manners(rand))
    agent.can_stream, agent.updates = rand.random() < 0.5, rand.choice(["poll", "auto", "off"])
    story = Lifecycle(store, agent, base_url=None, rules=RULES, rand=rand.random)  # type: ignore[arg-type]
    run = Run(world, store, agent, story, zeal=rand.choice([0, 0.1, 0.5, 1]), cancel_at=None, is_eager=False)
    run.is_eager = rand.random() < 0.3
    if rand.random() < 0.3:
        run.cancel_at = NOW + rand.random() * rand.choice([10, 300, 2000])
    world.others, world.users = run.others, run.users
    for turn in range(40 * STEPS):
        if turn == STEPS:  # the faults have an end
            world.calm, run.calm_at = True, world.now
        if not run.turn():
            break
    return run


# ---------------------------------------------------------------- what must hold


def check_the_end(run: Run) -> None:
    """At most one agent task, an end by the deadline and no second one, and nothing left to do."""
    assert len(run.agent.briefs) <= 1
    assert len(run.store.ends) == 1
    assert run.store.record.outcome == run.store.ends[0].outcome is not None
    assert run.store.ends[0].progress.updated_at < NOW + DEADLINE_S + 2 * RULES.lease_s
    assert run.store.record.timers.cleanup_at is None
    assert not run.store.in_inbox
    assert run.store.slept == []


def check_the_replies(run: Run) -> None:
    """In order, each accepted once; and none left lying while the agent waits for it."""
    accepted = [int(reply.message_id.rpartition(":")[2]) for reply in run.agent.accepted]
    assert accepted == sorted(set(accepted))
    assert set(accepted) <= set(run.kept)
    heard = {reply.message_id for reply in (*run.agent.accepted, *run.agent.refused)}
    waiting = [at for number, at in run.kept.items() if f"d1:reply:{number}" not in heard]
    end, asked_at = run.store.ends[0].progress.updated_at, run.agent.open_since()
    if waiting and asked_at is not None and run.cancelled_at is None and end < run.agent.manners.forgets_at:
        since = max(asked_at, waiting[0], run.calm_at, run.agent.away_until)
        assert end - since < PATIENCE_S


def check_the_notes(run: Run) -> None:
    """Each question once, each end once and last, and nothing else."""
    notes = run.store.notes
    assert [note.state for note in notes if note.state in ("WORKING", "SUBMITTED")] == []
    assert [note.state for note in notes[-1:]] == [run.store.ends[0].state]
    questions = [note.text for note in notes[:-1]]
    assert len(questions) <= run.agent.manners.questions
    assert run.agent.manners.repeats_words or len(set(questions)) == len(questions)


def check_the_cancel(run: Run) -> None:
    """Unless the agent refuses, it ends within the cancel deadline and a lease (and the workers' stops)."""
    answer, end = run.store.ends[0].progress.cancel_answer, run.store.ends[0].progress.updated_at
    if run.cancelled_at is None or answer is CancelAnswer.REFUSED:
        return
    stops = sum(length for at, length in run.world.stalled if at + length >= run.cancelled_at)
    assert end - run.cancelled_at <= RULES.cancel_deadline_s + RULES.lease_s + 2 * RULES.call_deadline_s + stops


def check_the_calls(run: Run) -> None:
    """An agent is never asked in a hot loop, whatever it answers."""
    calls = sorted(run.agent.calls)
    busiest = max((bisect_right(calls, at + 60) - n for n, at in enumerate(calls)), default=0)
    assert busiest <= MOST_CALLS_A_MINUTE


CHECKS = (check_the_end, check_the_replies, check_the_notes, check_the_cancel, check_the_calls)


@pytest.mark.parametrize("seeds", [range(start, start + 100) for start in range(0, 500, 100)], ids=str)
def test_what_must_hold_does_whatever_happens(seeds: range) -> None:
    """In default settings, a hundred histories at a time."""
    seen: Counter[str | None] = Counter()
    for seed in seeds:
        with capture_logs() as logs:
            run = simulate(seed)
        for check in CHECKS:
            try:
                check(run)
            except AssertionError as error:
                story = "\n".join(map(str, [run.agent, run.store.ends, run.kept, *logs]))
                raise AssertionError(f"seed {seed}: {check.__name__}\n{story}") from error
        outcome = run.store.record.outcome
        assert outcome is not None
        seen.update([outcome.reason, outcome.state.value])
        seen.update({"accepted": len(run.agent.accepted), "refused": len(run.agent.refused), "kept": len(run.kept)})
        seen.update(["cancelled"] if run.cancelled_at else [])
    # A model in which nothing ever goes wrong, or right, would prove nothing.
    assert all(seen[what] for what in (None, "COMPLETED", "CANCELED", "deadline.exceeded", "agent.unavailable")), seen
    assert seen["accepted"] >= 20, seen
    assert seen["cancelled"] >= 10, seen


def a_run(record: Delegation, manners: Manners) -> Run:
    """Nothing fails by chance: one record and one agent, as they are given."""
    world = World(0)
    world.calm, world.now = True, NOW
    store, agent = ModelStore(world, record), ModelAgent(world, NOW, manners)
    agent.arrivals.append(Arrival("d1:goal", NOW - 500))
    story = Lifecycle(store, agent, base_url=None, rules=RULES, rand=world.rand.random)  # type: ignore[arg-type]
    return Run(world, store, agent, story, zeal=0, cancel_at=None, is_eager=False)


def test_an_agent_that_forgot_its_task_is_not_asked_about_a_reply_in_a_hot_loop() -> None:
    """The answer to a reply was lost and the agent knows nothing any more: three looks over a minute are enough."""
    unclear = {"turn": 1, "turn_intent_at": NOW, "state": TaskState.INPUT_REQUIRED}
    record = a_delegation(replies=1, progress=unclear, timers={"reply_at": NOW + 1, "poll_at": NOW + 1})
    run = a_run(record, Manners(questions=1, forgets_at=NOW))
    while run.store.record.outcome is None:
        assert run.turn()
    assert run.store.record.outcome.reason == "agent_task.lost"
    assert len(run.agent.calls) == 3


def test_a_reply_of_a_dead_step_that_waited_for_a_slot_is_looked_after() -> None:
    """Who waited for a call slot had no other look planned; its worker died at that, and a reply waits meanwhile."""
    timers = {"lease_until": NOW - 1, "reply_at": NOW - 1, "deadline_at": NOW + DEADLINE_S}
    record = a_delegation(replies=1, progress={"state": TaskState.WORKING}, timers=timers)
    run = a_run(record, Manners(works_for_s=0.0))
    while run.store.record.outcome is None:
        assert run.turn()
    assert run.store.record.outcome.state is TaskState.COMPLETED
