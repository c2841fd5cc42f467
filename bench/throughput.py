"""Delegations per second on the push path, against four no-op Celery tasks each, run the same way."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from bench.app import NOTE
from bench.progress import say
from bench.reference_app import submit
from bench.stage import Scale, Stage, agent_of, stage
from bench.table import Goal, Row
from workers import Workflow

CHILDREN = 10
#: Under way when SendMessage is answered, done right after: one push.
GOAL = json.dumps({"states": [["WORKING", 0], ["COMPLETED", 0.001]]})


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What one side did in one round."""

    units: int  #: delegations, or chains
    seconds: float  #: to the last continuation, or the last task
    seconds_after: float  #: from there until nothing was left to do, at the agent either
    commands: Mapping[str, int]
    agent_calls: Mapping[str, int]

    @property
    def per_second(self) -> float:
        return self.units / self.seconds

    def per_unit(self, count: float) -> float:
        return count / self.units


def measure(scale: Scale) -> list[Row]:
    """All figures of this subject. Raises TimeoutError when a side does not come to its end."""
    workflows = scale.of(50, 10)
    with stage({"agent": {}}) as made:
        delegate(made, 2)
        run_chains(made, 2 * CHILDREN)
        ours, theirs = [], []
        for number in range(scale.rounds):
            say(f"throughput: round {number + 1} of {scale.rounds}")
            ours.append(delegate(made, workflows))
            theirs.append(run_chains(made, workflows * CHILDREN))
    return _rows(ours, theirs)


def delegate(made: Stage, workflows: int) -> Round:
    """Workflows of ten children, each joined once its children are submitted."""
    commands, calls = Counter(made.commands()), _agent_calls(made)
    then = made.app.signature(NOTE)
    began = time.monotonic()
    for number in range(workflows):
        workflow = Workflow.open(f"bench {number}")
        for _ in range(CHILDREN):
            workflow.delegate("agent", GOAL)
        workflow.join(then)
    made.await_done(workflows)
    seconds = time.monotonic() - began
    made.await_rest()
    return Round(
        units=workflows * CHILDREN,
        seconds=seconds,
        seconds_after=time.monotonic() - began - seconds,
        commands=Counter(made.commands()) - commands,
        agent_calls=_agent_calls(made) - calls,
    )


def run_chains(made: Stage, chains: int) -> Round:
    """The raw reference."""
    commands = Counter(made.commands())
    began = time.monotonic()
    for _ in range(chains):
        submit(made.reference, chains)
    made.await_done(1, reference=True)
    seconds = time.monotonic() - began
    return Round(
        units=chains,
        seconds=seconds,
        seconds_after=0.0,
        commands=Counter(made.commands()) - commands,
        agent_calls={},
    )


def _agent_calls(made: Stage) -> Counter[str]:
    return Counter(entry["method"] for entry in agent_of(made, "agent").calls())


def _rows(ours: list[Round], theirs: list[Round]) -> list[Row]:
    units = ours[0].units
    return [
        Row(
            what=f"delegations per second by push, {units} in {units // CHILDREN} workflows (chains of 4 tasks)",
            ours=[each.per_second for each in ours],
            reference=[each.per_second for each in theirs],
            unit="/s",
            goal=Goal(at_least=0.6),
        ),
        Row(what="from there until push configs are removed", ours=[each.seconds_after for each in ours], unit="s"),
        Row(
            what="agent calls per delegation",
            ours=[each.per_unit(sum(each.agent_calls.values())) for each in ours],
            details={method: ours[-1].per_unit(count) for method, count in ours[-1].agent_calls.items()},
        ),
        _per_unit("Celery messages per delegation (chain)", ours, theirs, "lpush"),
        _per_unit("Redis scripts per delegation (chain)", ours, theirs, "evalsha"),
        _per_unit("Redis commands per delegation (chain), those in scripts included", ours, theirs, None),
    ]


def _per_unit(what: str, ours: list[Round], theirs: list[Round], command: str | None) -> Row:
    """kombu publishes with LPUSH, and nothing else here uses it."""

    def figures(rounds: list[Round]) -> list[float]:
        return [r.per_unit(r.commands.get(command, 0) if command else sum(r.commands.values())) for r in rounds]

    details = {name: ours[-1].per_unit(count) for name, count in sorted(ours[-1].commands.items())}
    return Row(what=what, ours=figures(ours), reference=figures(theirs), details={} if command else details)
