"""Every error the project raises, grouped by who must act.

    DelegationError
    ├── OperatorError                 the operator: configuration, infrastructure
    │   ├── ConfigurationError        a key of delegation.toml or the environment is wrong   (exit 2)
    │   ├── StoreUnavailable          Redis does not answer                                  (exit 3)
    │   └── StateLost                 Redis answers, but our state in it is gone             (exit 3)
    ├── CallerError                   whoever called us with something wrong                 (exit 2)
    │   ├── UnknownAgent              no such agent; names the valid ids
    │   ├── UnknownDelegation         no such delegation
    │   ├── UnknownWorkflow           no such workflow
    │   ├── InvalidArguments          a brief, deadline or option that cannot be used
    │   ├── IdempotencyConflict       same key, different arguments
    │   ├── WorkflowConflict          not possible in the workflow's present state
    │   │   └── WorkflowTooDeep       workflows inside workflows, deeper than limits.depth
    │   ├── DelegationEnded           a reply or a cancel for one that is over
    │   └── UnresolvedChildren        complete() while children are unresolved               (exit 1)
    ├── AgentError                    the agent at the other end
    │   ├── AgentUnreachable          certainly not sent: connect, resolve, TLS
    │   │   └── NotTried              for a reason of ours: nothing is known of the agent
    │   │       ├── CircuitOpen       the agent has not answered anybody lately
    │   │       └── CredentialUnavailable  a secret or a token of ours cannot be had now
    │   ├── AgentBusy                 refused for now (429, 503): wait, then the same call again
    │   │   └── AgentPaused           its card has changed in a way that an operator has to accept first
    │   ├── AgentRefused              the call was refused, nothing was started
    │   │   ├── AgentTaskNotFound     -32001
    │   │   ├── AgentTaskNotCancelable -32002
    │   │   ├── PushNotAccepted       -32003, or -32602 on a call that carried a push config
    │   │   ├── MethodNotOffered      -32601, -32004: the agent does not offer this method
    │   │   └── VersionNotSpoken      -32009: the agent does not speak this version of A2A
    │   ├── AuthenticationRefused     401, 403: nothing was started, and our credentials are why
    │   ├── CallAmbiguous             it may have happened: reply lost, 5xx, garbage, deadline
    │   │   └── AnswerTooLarge        the answer is larger than we read
    │   └── UnsupportedExtensionError the card asks for credentials we lack, or for something we do not implement
    ├── AgentTaskFailed               the delegation ended otherwise than COMPLETED (what finalize raises)
    ├── StaleWrite                    us: somebody else moved the record first; look again
    └── StepCrashed                   us: a bug, or a library's; names the type of what was raised

The class alone decides whether a call is tried again. Constructor arguments equal ``args``: Celery's JSON
result backend rebuilds an exception as ``cls(*args)`` and would otherwise hand the caller a bare Exception.
No ``redis``, ``httpx``, ``a2a`` or protobuf exception leaves the module that owns that seam.
"""

from __future__ import annotations

from typing import ClassVar


class DelegationError(Exception):
    """Root. ``code`` is stable and for machines, ``detail`` is one line for people."""

    code: ClassVar[str] = "delegation.error"
    exit_code: ClassVar[int] = 2

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail

    def __str__(self) -> str:
        return self.detail or self.code


class OperatorError(DelegationError):
    """The operator must act."""

    code = "operator"
    exit_code = 3


class ConfigurationError(OperatorError):
    """A configuration key is missing or wrong; ``detail`` begins with the key."""

    code = "config.invalid"
    exit_code = 2


class StoreUnavailable(OperatorError):
    """Redis does not answer, or refuses us."""

    code = "store.unavailable"


class StateLost(OperatorError):
    """Redis answers, but what we kept there is gone (flushed, evicted, other database)."""

    code = "store.state_lost"


class CallerError(DelegationError):
    """The caller must act."""

    code = "caller"


class UnknownAgent(CallerError):
    """No agent with that id is registered."""

    code = "agent.unknown"

    def __init__(self, agent: str, valid: list[str] | None = None) -> None:
        valid = list(valid or [])
        DelegationError.__init__(
            self, f"unknown agent {agent[:80]!r}; valid agents: {', '.join(sorted(valid)) or '(none)'}"
        )
        self.args = (agent, valid)
        self.agent = agent
        self.valid = valid


class UnknownDelegation(CallerError):
    """No delegation with that id, or its retention has passed."""

    code = "delegation.unknown"


class UnknownWorkflow(CallerError):
    """No workflow with that id, or its retention has passed."""

    code = "workflow.unknown"


class InvalidArguments(CallerError):
    """An argument that cannot be used; ``detail`` names it."""

    code = "arguments.invalid"


class IdempotencyConflict(CallerError):
    """The idempotency key was used before with different arguments."""

    code = "idempotency.conflict"


class WorkflowConflict(CallerError):
    """The workflow's present state does not allow this (a second join, a delegation while joining, an ended one)."""

    code = "workflow.conflict"


class WorkflowTooDeep(WorkflowConflict):
    """A workflow inside so many others that it looks like a circle (``limits.depth``)."""

    code = "workflow.too_deep"


class DelegationEnded(CallerError):
    """The delegation is over: nobody at the agent would hear it any more."""

    code = "delegation.ended"


class UnresolvedChildren(CallerError):
    """The workflow cannot complete yet."""

    code = "workflow.unresolved_children"
    exit_code = 1

    def __init__(self, count: int, first: list[str] | None = None) -> None:
        first = list(first or [])
        more = ", …" if count > len(first) else ""
        DelegationError.__init__(
            self, f"{count} unresolved {'child' if count == 1 else 'children'}: {', '.join(first)}{more}"
        )
        self.args = (count, first)
        self.count = count
        self.first = first


class AgentError(DelegationError):
    """A call to an agent failed. ``a2a_code`` is the JSON-RPC error code where there was one."""

    code = "agent.protocol"
    exit_code = 1

    def __init__(self, detail: str = "", a2a_code: int | None = None) -> None:
        DelegationError.__init__(self, detail)
        self.args = (detail, a2a_code)
        self.a2a_code = a2a_code


class AgentUnreachable(AgentError):
    """The request certainly did not leave: connection refused, no route, TLS, unknown host."""

    code = "agent.unavailable"


class NotTried(AgentUnreachable):
    """The call was not made, for a reason of ours: no time left, no such agent in our configuration."""

    code = "agent.unavailable"


class CircuitOpen(NotTried):
    """The agent has answered nobody lately; one call at a time tries whether it does again."""

    def __init__(self, detail: str = "", retry_after_s: float | None = None) -> None:
        AgentError.__init__(self, detail)
        self.args = (detail, retry_after_s)
        self.retry_after_s = retry_after_s


class CredentialUnavailable(NotTried):
    """Our own credential for the agent cannot be had now: a secret is missing, a token endpoint says no or nothing."""

    code = "agent.credential_unavailable"


class AgentBusy(AgentError):
    """Refused for now (HTTP 429, or 503 with Retry-After): the same message may be sent again after the wait."""

    code = "agent.busy"

    def __init__(self, detail: str = "", retry_after_s: float | None = None) -> None:
        AgentError.__init__(self, detail)
        self.args = (detail, retry_after_s)
        self.retry_after_s = retry_after_s


class AgentPaused(AgentBusy):
    """New work for the agent waits until an operator has accepted its changed card (`delegation agents accept`)."""

    code = "agent.paused"


class AgentRefused(AgentError):
    """The agent refused the call; nothing was started."""

    code = "agent.refused"


class AgentTaskNotFound(AgentRefused):
    """-32001: the agent does not know this agent task (now)."""

    code = "agent_task.not_found"


class AgentTaskNotCancelable(AgentRefused):
    """-32002: the agent task has ended, or cannot be cancelled."""

    code = "agent_task.not_cancelable"


class PushNotAccepted(AgentRefused):
    """-32003, or -32602 on a call that carried a push config: send again without it."""

    code = "push.not_accepted"


class MethodNotOffered(AgentRefused):
    """-32601 or -32004: the agent does not offer this method."""

    code = "agent.method_not_offered"


class VersionNotSpoken(AgentRefused):
    """-32009: the agent does not speak the version of A2A that it was spoken to in."""

    code = "agent.version_unsupported"


class AuthenticationRefused(AgentError):
    """HTTP 401 or 403: the agent is there, started nothing, and does not take what we showed of ourselves.

    Not an AgentRefused: with other credentials the same call may be taken.
    """

    code = "agent.auth_failed"

    def __init__(self, detail: str = "", status: int = 401) -> None:
        AgentError.__init__(self, detail)
        self.args = (detail, status)
        self.status = status


class CallAmbiguous(AgentError):
    """The call may or may not have happened: reply lost, 5xx, not a readable answer, deadline passed."""

    code = "agent.protocol"


class AnswerTooLarge(CallAmbiguous):
    """The answer is larger than the cap; it was not read further."""

    code = "response.too_large"


class UnsupportedExtensionError(AgentError):
    """The card wants credentials that are not configured, or requires an extension that we do not implement."""

    code = "a2a.unsupported_extension"


class AgentTaskFailed(DelegationError):
    """A delegation ended in another state than COMPLETED; what ``AsyncResult.get()`` raises."""

    code = "agent_task.failed"
    exit_code = 1

    def __init__(self, delegation_id: str, agent: str, state: str, reason: str | None = None) -> None:
        DelegationError.__init__(
            self, f"delegation {delegation_id} to {agent} ended {state}" + (f" ({reason})" if reason else "")
        )
        self.args = (delegation_id, agent, state, reason)
        self.delegation_id = delegation_id
        self.agent = agent
        self.state = state
        self.reason = reason


class StaleWrite(DelegationError):
    """Somebody else moved the record first, or our lease ran out; what we decided no longer applies."""

    code = "store.stale_write"


class StepCrashed(DelegationError):
    """A step raised what it should not have. ``detail`` is the type alone: the text may be an agent's."""

    code = "delegation.step_crashed"
