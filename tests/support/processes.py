"""Everything a test may start, in one place to import from."""

from __future__ import annotations

from tests.support.agent_handle import ScriptedAgent
from tests.support.child import ChildFailed, ChildProcess, free_port, wait_until
from tests.support.deployment import FAST_TIMING, Deployment
from tests.support.harness_handle import HarnessAgent
from tests.support.services import CeleryWorker, Follower, SampleAgent, ValkeyProcess, Web

__all__ = [
    "FAST_TIMING",
    "CeleryWorker",
    "ChildFailed",
    "ChildProcess",
    "Deployment",
    "Follower",
    "HarnessAgent",
    "SampleAgent",
    "ScriptedAgent",
    "ValkeyProcess",
    "Web",
    "free_port",
    "wait_until",
]
