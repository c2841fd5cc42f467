"""A card in, one ordinary tool for each of its skills out; nothing of it raises.

This is the "remote agent" of the toolnexus seed (SPEC section 7A), where it is also said what the modules here say of
the differences between its ports. Neither Celery nor Redis is needed: the wait is in the caller's thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

from delegation.errors import AgentRefused, InvalidArguments
from delegation.tools.agent_tool import AgentTool, RemoteAgent, failed_call
from delegation.tools.card import Place, agent_name, fetch_card, find_place, name_skills
from delegation.tools.descriptor import DEFAULT_POLL_EVERY_MS, DEFAULT_TIMEOUT_MS, Descriptor, expand, read_descriptor
from delegation.tools.failures import TRANSPORT
from delegation.tools.poll_loop import Abort, Call
from delegation.tools.results import ERROR_CHARS, ToolResult, shown


def remote_agent(
    card: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = DEFAULT_TIMEOUT_MS,
    poll_every: float = DEFAULT_POLL_EVERY_MS,
    dialect: str | None = None,
    origins: Sequence[str] = (),
    strict_seed: bool = False,
    **others: Any,
) -> RemoteAgent:
    """The agent whose card is at the URL ``card`` (of the document itself; nothing is appended).

    ``headers`` go with the card's request and every call, with ``${NAME}`` for an environment variable; ``timeout`` is
    for each request and for the agent's task as a whole, in milliseconds as is ``poll_every``; ``dialect`` is "1.0",
    "0.3" or "toolnexus", else found out; ``origins`` are further ones that the card may lead to. ``strict_seed=True``
    polls on, to the time limit, where an agent rejects the work or waits for somebody: by default such a call ends at
    once with the agent's words. A descriptor's other keys are ignored, with a warning.

    Never raises: a dead agent costs its own tools and nothing else. Its ``error`` then begins with `HTTP <status>: `,
    `HTTP transport <kind>` (timeout, dns, connect-failed, transport), `bad card: ` or `bad descriptor: `.
    """
    try:
        named = {"card": card, "headers": headers, "timeout": timeout, "poll_every": poll_every, "dialect": dialect}
        descriptor = read_descriptor({**named, "origins": origins, "strict_seed": strict_seed, **others})
    except InvalidArguments as error:
        return RemoteAgent(error=f"bad descriptor: {error.detail}")
    try:
        expanded = expand(descriptor.headers)
        fetched = fetch_card(descriptor, expanded)
    except InvalidArguments:  # a header that no request may have
        return RemoteAgent(error=f"HTTP transport {TRANSPORT}")
    if fetched.card is None:
        return RemoteAgent(error=fetched.error)
    try:
        place = find_place(fetched.card, descriptor)
        skills = name_skills(fetched.card, expanded.secrets)
    except AgentRefused as error:
        secrets = (*expanded.secrets, *map(str.lower, expanded.secrets))  # a host is told in small letters
        return RemoteAgent(error=f"bad card: {shown(error.detail, secrets, ERROR_CHARS)}")
    run = _Caller(descriptor, place, agent_name(fetched.card, expanded.secrets))
    tools = [
        AgentTool(
            name=skill.name,
            description=skill.description,
            agent=run.agent,
            default_timeout_ms=descriptor.timeout,
            run=run,
        )
        for skill in skills
    ]
    return RemoteAgent(card=fetched.card, endpoint=place.endpoint, tools=tools)


def agent_tools(card: Any = None, **options: Any) -> list[AgentTool]:
    """The tools of :func:`remote_agent`; none where it failed, which cannot be told from one without skills."""
    return remote_agent(card, **options).tools


class _Caller:
    """What the tools of one agent share: its description, and the dialect once it is known."""

    def __init__(self, descriptor: Descriptor, place: Place, agent: str) -> None:
        # The one late import: a2a costs a quarter of a second and 28 MiB, and who only reads a config needs none.
        self._dialects = importlib.import_module("delegation.tools.dialects")
        self._descriptor = descriptor
        self._target = self._dialects.Target(
            endpoint=place.endpoint, origins=place.origins, dialect=place.dialect, tenant=place.tenant
        )
        self.agent = agent

    def __call__(self, text: str, abort: Abort, timeout_ms: float) -> ToolResult:
        descriptor = self._descriptor
        try:
            headers = expand(descriptor.headers)
        except InvalidArguments:
            return failed_call(self.agent, f"HTTP transport {TRANSPORT}")
        is_unwanted = abort if abort.is_possible else None
        with self._dialects.open_line(self._target, headers, timeout_ms=timeout_ms, is_unwanted=is_unwanted) as line:
            call = Call(
                line=line,
                agent=self.agent,
                timeout_ms=timeout_ms,
                poll_every_ms=descriptor.poll_every,
                strict_seed=descriptor.strict_seed,
                abort=abort,
                secrets=headers.secrets,
            )
            return call.run(text)
