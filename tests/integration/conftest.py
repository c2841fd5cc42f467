"""What tests of this tier share: a server of their own, one for each module, and an agent that serves a card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.support.card_agent import CardAgent
from tests.support.processes import ValkeyProcess
from tests.support.raw_server import RawServer, says
from tests.support.redis_users import TESTER


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """For tests of the store."""
    server = ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start()
    with server, server.client(user=TESTER) as client:
        yield client


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    with ValkeyProcess(tmp_path_factory.mktemp("valkey")).start() as process:
        yield process


@pytest.fixture
def store(valkey: ValkeyProcess) -> Iterator[redis.Redis]:
    """Empty, for tests of what is kept of cards."""
    client = valkey.client()
    client.flushdb()
    yield client
    client.close()


@pytest.fixture
def agent() -> Iterator[CardAgent]:
    with RawServer(says(500)) as server:
        yield CardAgent(server)
