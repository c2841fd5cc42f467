"""What users may import, and the error tree they may catch: names and codes are a promise."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

import delegation
import web
import workers
from delegation import errors
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentTaskFailed,
    CallerError,
    CircuitOpen,
    DelegationError,
    OperatorError,
    UnknownAgent,
    UnresolvedChildren,
)

CODES = {
    "AgentPaused": "agent.paused",
    "AuthenticationRefused": "agent.auth_failed",
    "NotTried": "agent.unavailable",
    "StepCrashed": "delegation.step_crashed",
    "CredentialUnavailable": "agent.credential_unavailable",
    "DelegationError": "delegation.error",
    "OperatorError": "operator",
    "ConfigurationError": "config.invalid",
    "StoreUnavailable": "store.unavailable",
    "StateLost": "store.state_lost",
    "CallerError": "caller",
    "UnknownAgent": "agent.unknown",
    "UnknownDelegation": "delegation.unknown",
    "UnknownWorkflow": "workflow.unknown",
    "InvalidArguments": "arguments.invalid",
    "IdempotencyConflict": "idempotency.conflict",
    "WorkflowConflict": "workflow.conflict",
    "WorkflowTooDeep": "workflow.too_deep",
    "DelegationEnded": "delegation.ended",
    "UnresolvedChildren": "workflow.unresolved_children",
    "AgentError": "agent.protocol",
    "AgentUnreachable": "agent.unavailable",
    "CircuitOpen": "agent.unavailable",
    "AgentBusy": "agent.busy",
    "AgentRefused": "agent.refused",
    "AgentTaskNotFound": "agent_task.not_found",
    "AgentTaskNotCancelable": "agent_task.not_cancelable",
    "PushNotAccepted": "push.not_accepted",
    "MethodNotOffered": "agent.method_not_offered",
    "VersionNotSpoken": "agent.version_unsupported",
    "CallAmbiguous": "agent.protocol",
    "AnswerTooLarge": "response.too_large",
    "UnsupportedExtensionError": "a2a.unsupported_extension",
    "AgentTaskFailed": "agent_task.failed",
    "StaleWrite": "store.stale_write",
}
EXAMPLES = [
    UnknownAgent("fligths", ["flights", "hotels"]),
    UnresolvedChildren(3, ["w.1", "w.2"]),
    AgentError("HTTP 500", -32603),
    AgentBusy("429", 30.0),
    CircuitOpen("away", 30.0),
    AgentTaskFailed("d1", "flights", "FAILED", "deadline.exceeded"),
    AgentTaskFailed("d1", "flights", "REJECTED"),
]


def tree(root: type[DelegationError] = DelegationError) -> Iterator[type[DelegationError]]:
    yield root
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


LIBRARY = """
    AgentError AgentTaskFailed CallerError ConfigurationError DelegationEnded DelegationError IdempotencyConflict
    InvalidArguments OperatorError RemoteAgent StateLost StoreUnavailable ToolResult Toolkit UnknownAgent
    UnknownDelegation UnknownWorkflow UnresolvedChildren UnsupportedExtensionError WorkflowConflict WorkflowTooDeep
    agent_tools parse_agents_config remote_agent
"""
WORKERS = "DelegationHandle Workflow agents_section delegate durable_agent install quorum reply subtask_tools"


@pytest.mark.parametrize(
    ("package", "names"),
    [(delegation, LIBRARY), (workers, WORKERS), (web, "create_app")],
    ids=["delegation", "workers", "web"],
)
def test_the_public_names_are_these(package: Any, names: str) -> None:
    """A name is added or taken away on purpose, with this line."""
    assert sorted(package.__all__) == names.split()
    assert all(hasattr(package, name) for name in package.__all__)


def test_every_error_has_its_code() -> None:
    """Codes are for machines, and stable."""
    assert {error.__name__: error.code for error in tree()} == CODES


def test_the_docstring_draws_the_whole_tree() -> None:
    """Who reads the top of the module knows every error there is."""
    drawn = {line.strip("│ ├└─").split(" ")[0] for line in (errors.__doc__ or "").splitlines() if line.strip()}
    assert {error.__name__ for error in tree()} <= drawn


def test_errors_are_grouped_by_who_must_act() -> None:
    """The exit code of a command follows from the group."""
    groups = {error.__name__: error.exit_code for error in tree()}
    assert {name for name, code in groups.items() if code == 3} == {"OperatorError", "StoreUnavailable", "StateLost"}
    assert all(groups[error.__name__] == 1 for error in tree(AgentError))
    assert all(issubclass(error, CallerError | OperatorError | AgentError) for error in tree(CallerError))


@pytest.mark.parametrize(
    "error",
    [*(error("why") for error in tree() if error not in {type(example) for example in EXAMPLES}), *EXAMPLES],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_from_the_result_backend_as_itself(error: DelegationError) -> None:
    """Celery stores class and args as JSON and calls ``cls(*args)``: class, text and facts are the same again."""
    backend = Celery("test", backend="cache+memory://").backend
    stored = json.loads(json.dumps(backend.prepare_exception(error, "json")))
    again = backend.exception_to_python(stored)
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert type(error)(*error.args).args == error.args


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_is_one_line(error: DelegationError) -> None:
    """It is printed on stderr as it is."""
    assert "\n" not in str(error)
    assert str(error)


def test_the_library_loads_without_its_queue_its_door_or_a2a() -> None:
    """The values and decisions can be used and tested without any of them."""
    pure = "state decide questions notes endings due watch record opening workflow errors agent_task times"
    for name in f"{pure} store store_talk store_workflows store_follows".split():
        module = importlib.import_module(f"delegation.{name}")
        foreign = {value.__name__.split(".")[0] for value in vars(module).values() if type(value) is type(importlib)}
        assert not foreign & {"celery", "kombu", "flask", "a2a"}
