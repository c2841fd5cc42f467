"""Public bug reports of comparable systems (cases.json), and a deployment with an agent for each of them.

An entry's ``input`` is what goes wrong, its ``expected`` what a right product does; docs/cases.md maps them to tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from delegation.state import Delegation
from tests.support.agent_handle import ScriptedAgent
from tests.support.caller import caller_in
from tests.support.child import wait_until
from tests.support.deployment import Deployment
from workers import DelegationHandle, Workflow, delegate
from workers.runtime import runtime

Rule = dict[str, Any]
_STREAMS = ("SendStreamingMessage", "SubscribeToTask")


def case_input(case_id: str) -> dict[str, Any]:
    """What the report gives us, e.g. ``card``, ``script``, ``pushes``, ``bodies``."""
    found: dict[str, Any] = json.loads(_inputs()[case_id])
    return found


def script_of(case_id: str, *, streams: bool = False) -> list[Rule]:
    """The report's answers as rules, our own contextId kept as agents do.

    Without ``streams`` those to streaming calls are left out, for agents that offer none.
    """
    script: list[Rule] = _keep_context(case_input(case_id)["script"])
    return [rule for rule in script if streams or not rule["on"].startswith(_STREAMS)]


def beginning(rule: Rule, state: str) -> Rule:
    """The same stream, its task in another state at first. We read the stream of a send until the task is past
    SUBMITTED: one that begins so is read to its end, others are heard by a subscription and by looks."""
    first, *more = rule["sse"]
    status = {**first["task"]["status"], "state": f"TASK_STATE_{state}"}
    return {**rule, "sse": [{"task": {**first["task"], "status": status}}, *more]}


def pausing(rule: Rule, delay_s: float, *, after: int = 1) -> Rule:
    """The same stream, with a pause after so many events."""
    events = rule["sse"]
    return {**rule, "sse": [*events[:after], {"delay_s": delay_s}, *events[after:]]}


def pushes_of(case_id: str, key: str = "pushes") -> list[Any]:
    pushes: list[Any] = _keep_context(case_input(case_id)[key])
    return pushes


def answer(state: str, text: str | None = None, *, task_id: str = "t1") -> dict[str, Any]:
    """A Task as most of the reports show it."""
    task: dict[str, Any] = {"id": task_id, "contextId": "{contextId}", "status": {"state": f"TASK_STATE_{state}"}}
    if text is not None:
        task["artifacts"] = [{"artifactId": "r1", "parts": [{"text": text}]}]
    return task


def on_send(task: Mapping[str, Any], **more: Any) -> Rule:
    return {"on": "SendMessage", "reply": {"task": dict(task)}, **more}


def on_get(task: Mapping[str, Any], **more: Any) -> Rule:
    return {"on": "GetTask", "reply": dict(task), **more}


class Bench:
    """A deployment, its agents by id, and delegations to them."""

    def __init__(self, deployment: Deployment, agents: Mapping[str, ScriptedAgent]) -> None:
        self.deployment = deployment
        self.agents = agents

    def run(self, agent: str, rules: Sequence[Rule] | None = None, **arguments: Any) -> DelegationHandle:
        """Tell the agent what to answer, and delegate to it."""
        if rules is not None:
            self.agents[agent].script(rules)
        arguments = {"goal": f"the work of {agent}", "on_failure": "return", **arguments}
        call_id: str = delegate.delay(agent=agent, **arguments).id
        return DelegationHandle(call_id.removesuffix(".delegate"))


@contextmanager
def bench(
    directory: Path,
    agents: Mapping[str, Mapping[str, Any]] | Sequence[str],
    *,
    paths: Mapping[str, str] | None = None,
    urls: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Bench]:
    """``agents``: ids, each with its AgentConfig fields where it needs any; ``options`` as of Deployment.

    ``paths``: what is registered as the agent's URL behind its host, where it is not the root; ``urls``: agents that
    the test runs itself.
    """
    configs = agents if isinstance(agents, Mapping) else {name: {} for name in agents}
    handles = {name: ScriptedAgent(directory, name=name, **configs[name]) for name in configs}
    addresses: dict[str, ScriptedAgent | str] = {**handles, **(urls or {})}
    with ExitStack() as ends:
        for name, path in (paths or {}).items():
            ends.enter_context(handles[name].start())
            addresses[name] = handles[name].url + path
        deployment = ends.enter_context(Deployment(directory, agents=addresses, **options))
        ends.enter_context(caller_in(deployment))
        yield Bench(deployment, handles)


def ended(handle: DelegationHandle, timeout_s: float = 30.0) -> dict[str, Any]:
    """The outcome, whichever it is."""
    return handle.wait(timeout_s)


def outcome_in(workflow: Workflow, child: DelegationHandle) -> dict[str, Any]:
    """The child's outcome, as its parent sees it; there must be one."""
    outcome = workflow.outcomes()[child.id]
    assert outcome is not None
    return outcome


def record_of(handle: DelegationHandle) -> Delegation:
    return runtime().store.load(handle.id).delegation


def wait_for_record(
    handle: DelegationHandle, condition: Callable[[Delegation], Any], timeout_s: float = 15.0, *, what: str = "record"
) -> Delegation:
    """The record as soon as the condition holds."""

    def look() -> Delegation | None:
        found = record_of(handle)
        return found if condition(found) else None

    return wait_until(look, timeout_s, what=f"{what} of {handle.id}")


def message_ids(agent: ScriptedAgent) -> set[str]:
    return {sent["message_id"] for sent in agent.sends()}


def _keep_context(value: Any) -> Any:
    return json.loads(json.dumps(value).replace('"contextId": "c1"', '"contextId": "{contextId}"'))


@cache
def _inputs() -> dict[str, str]:
    entries = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
    return {entry["id"]: json.dumps(entry["input"]) for entry in entries}
