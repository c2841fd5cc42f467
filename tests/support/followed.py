"""Delegations that want a follower, in a deployment without workers: what followers tell is there to be looked at."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any, Self

import httpx

from delegation.agent_task import AgentTaskId, TaskState
from delegation.opening import make_delegation
from delegation.state import Change, Delegation, Phase, Watch
from tests.support.processes import Deployment, ScriptedAgent, wait_until


class Followed:
    """One agent of a deployment, and the delegations to it."""

    def __init__(self, deployment: Deployment, agent_id: str = "agent") -> None:
        agent = deployment.agents[agent_id]
        assert isinstance(agent, ScriptedAgent)
        self.agent = agent
        self.agent_id = agent_id
        self.deployment = deployment
        self.store = deployment.store()
        self.client: Any = self.store.client
        # Connections are counted at the agent, so none of ours may stay.
        nothing_kept = httpx.Limits(max_keepalive_connections=0)
        self._http = httpx.Client(base_url=agent.url, trust_env=False, timeout=30, limits=nothing_kept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def begin(self, state: str = "WORKING", *, at_agent: str | None = None, **script: Any) -> str:
        """A delegation that knows its agent task in ``state``; the agent may be further on. Returns its id, which is
        the agent task's as well."""
        delegation_id = uuid.uuid4().hex
        task = self._start_task(delegation_id, at_agent or state, script)
        known = task["status"] if at_agent is None else {}
        self._watch(delegation_id, TaskState(state), known.get("timestamp", ""))
        self.want(delegation_id)
        return delegation_id

    def want(self, delegation_id: str) -> None:
        """As the store's scripts do when a delegation starts wanting a follower."""
        pipe = self.client.pipeline()
        pipe.zadd(self.store.key("follows"), {delegation_id: 0}, nx=True)
        pipe.publish(self.store.key("follows"), delegation_id)
        pipe.execute()

    def unwant(self, delegation_id: str) -> None:
        """As they do when it stops: it has ended, or a reply or a cancel is under way."""
        pipe = self.client.pipeline()
        pipe.zrem(self.store.key("follows"), delegation_id)
        pipe.hdel(self.store.key("follow_owners"), delegation_id)
        pipe.publish(self.store.key("follows"), delegation_id)
        pipe.execute()

    def load(self, delegation_id: str) -> Delegation:
        return self.store.load(delegation_id).delegation

    def wakes(self, delegation_id: str) -> int:
        return int(self.client.hget(self.store.key("d", delegation_id), "wakes") or 0)

    def wait_for_wakes(self, delegation_id: str, count: int = 1, timeout_s: float = 10.0) -> Delegation:
        wait_until(lambda: self.wakes(delegation_id) >= count, timeout_s, what=f"{count} wakes of {delegation_id}")
        return self.load(delegation_id)

    def is_followed(self, delegation_id: str) -> bool:
        """A follower has said that a stream is open."""
        return bool(self.client.hget(self.store.key("d", delegation_id), "followed") == "1")

    def wait_until_followed(self, *delegation_ids: str, timeout_s: float = 15.0) -> None:
        for delegation_id in delegation_ids:
            wait_until(lambda: self.is_followed(delegation_id), timeout_s, what="a followed delegation")  # noqa: B023

    def owners(self) -> dict[str, str]:
        found: dict[str, str] = self.client.hgetall(self.store.key("follow_owners"))
        return found

    def wanting(self) -> set[str]:
        return set(self.client.zrange(self.store.key("follows"), 0, -1))

    def subscribed_at(self, delegation_id: str) -> list[float]:
        """When the agent was asked for a stream of it."""
        return [call["at"] for call in self.agent.calls("SubscribeToTask") if call.get("task_id") == delegation_id]

    def counter(self, name: str) -> int:
        return int(self.client.hget(self.store.key("counters"), name) or 0)

    def _start_task(self, task_id: str, state: str, script: dict[str, Any]) -> dict[str, Any]:
        states = [["WORKING", 0]] if state == "WORKING" else [["WORKING", 0], [state, 0]]
        goal = json.dumps({"states": states, "id": task_id, **script})
        message = {"messageId": task_id, "role": "ROLE_USER", "parts": [{"text": goal}]}
        params = {"message": message, "configuration": {"returnImmediately": True}}
        envelope = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        headers = {"A2A-Version": "1.0", "X-Participant-Id": "delegation"}
        answer = self._http.post("/rpc", json=envelope, headers=headers).json()
        task: dict[str, Any] = answer["result"]["task"]
        return task

    def _watch(self, delegation_id: str, state: TaskState, status_at: str) -> None:
        arguments = {"agent": self.agent_id, "goal": "follow"}
        made = make_delegation(arguments, call_id=None, participant_id="delegation", canvas={})
        opened = replace(made, id=type(made.id)(delegation_id), call_id=f"{delegation_id}.delegate")
        self.store.open_delegation(opened, by_call=False)
        before = self.store.load(delegation_id).delegation
        progress = replace(
            before.progress,
            state=state,
            status_at=status_at,
            agent_task_id=AgentTaskId(delegation_id),
            watch=Watch.FOLLOW,
            can_follow=True,
        )
        timers = replace(before.timers, publish_at=None, poll_at=self.store.now() + 0.5)
        after = replace(before, phase=Phase.WATCHING, progress=progress, timers=timers)
        self.store.save(before, Change(after=after), fenced=False)
