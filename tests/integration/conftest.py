"""What the tests of the store share: a server of their own, one for each module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.processes import ValkeyProcess
from tests.support.redis_users import TESTER


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    server = ValkeyProcess(tmp_path_factory.mktemp("valkey"), options={"appendonly": "no"}).start()
    with server, server.client(user=TESTER) as client:
        yield client
