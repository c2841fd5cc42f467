"""The real story against a model store and an unreliable model agent, on a virtual clock: hundreds of seeds.

Calls time out whether they were done, not done or done later; steps die before and after each write; messages are lost,
late or come twice; while one worker waits for an answer others run, past its lease. Never two agent tasks, and one end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from delegation.due import Step, choose_steps
from delegation.lifecycle import Lifecycle
from delegation.state import Delegation, Phase, Timers
from tests.support.delegations import NOW, a_delegation
from tests.support.model_world import RULES, Died, ModelAgent, ModelStore, World

STEPS = 60
DEADLINE_S = 3600.0


def due_at(record: Delegation, now: float) -> float | None:
    """What the due index holds for a record (due.lua)."""
    timers = record.timers
    if record.phase.is_settled:
        return timers.cleanup_at
    times = [timers.lease_until, timers.deadline_at]
    if (timers.lease_until or 0) <= now:
        times += [timers.poll_at, timers.refetch_at, timers.publish_at]
    return min(at for at in times if at is not None)


def simulate(seed: int) -> tuple[ModelStore, ModelAgent]:
    world = World(seed)
    store = ModelStore(world, a_delegation(Phase.OPENED, timers={"deadline_at": NOW + DEADLINE_S, "publish_at": NOW}))
    works_for_s, away_s = world.rand.choice([0.0, 5.0, 200.0, 1e9]), world.rand.choice([0, 0, 0, 600, 2000])
    agent = ModelAgent(world, works_for_s, NOW + away_s)
    story = Lifecycle(store, agent, base_url=None, rules=RULES, rand=world.rand.random)  # type: ignore[arg-type]
    steps: dict[Step, Callable[[str], object]]
    steps = {Step.START: story.start_agent_task, Step.WAKE: story.wake, Step.EXPIRE: story.expire}
    steps[Step.CLEAN_UP] = story.clean_up

    def run(step: Step) -> None:
        try:
            steps[step](store.record.id)
        except Died:
            return

    world.others = lambda: run(world.rand.choice(list(steps)))
    for turn in range(4 * STEPS):
        if (due := due_at(store.record, world.now)) is None:
            break
        world.calm = turn > STEPS  # the faults have an end
        world.now = max(world.now, due) + world.rand.random()
        if world.happens(0.2):
            store.record = replace(store.record, wakes=store.record.wakes + 1)
        if world.happens(0.1):
            world.others()  # a message of before, late or twice
        timers = {name: at for name in Timers.__slots__ if (at := getattr(store.record.timers, name)) is not None}
        for step in choose_steps(store.record.phase, timers, world.now):
            if not world.happens(0.1):  # else its message is lost
                run(step)
    return store, agent


@pytest.mark.parametrize("seeds", [range(start, start + 100) for start in range(0, 500, 100)], ids=str)
def test_one_agent_task_and_one_end_whatever_happens(seeds: range) -> None:
    """In default settings: at most one agent task, an end by the deadline and no second one, and nothing left to do."""
    reasons = set()
    for seed in seeds:
        with capture_logs() as logs:
            store, agent = simulate(seed)
        story = f"seed {seed}: {agent.arrivals}, {store.record}, {logs}"
        assert len(agent.arrivals) <= 1, story
        assert len(store.ends) == 1, story
        assert store.record.outcome == store.ends[0].outcome is not None, story
        assert store.ends[0].progress.updated_at < NOW + DEADLINE_S + 2 * RULES.lease_s, story
        assert store.record.timers.cleanup_at is None, story
        reasons.add(store.record.outcome.reason if store.record.outcome else "")
    # A model in which nothing ever goes wrong, or right, would prove nothing.
    assert reasons >= {None, "deadline.exceeded", "agent.unavailable"}
