"""A card chooses scopes, and not how often our credentials are shown to a token endpoint."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

import delegation.access as access
from delegation.access import TOKENS_AT_ONCE, AgentAccess
from delegation.errors import CredentialUnavailable
from delegation.security import CredentialUse
from delegation.settings import AgentSettings
from tests.support.raw_server import RawServer, says

TOKEN = json.dumps({"access_token": "a-token", "token_type": "bearer", "expires_in": 3600}).encode()


@pytest.fixture
def tokens() -> Iterator[RawServer]:
    with RawServer(says(200, TOKEN)) as server:
        yield server


def ask(way: AgentAccess, scope: str) -> None:
    """As for a card that asks for this scope."""
    way.credentials((CredentialUse(position=0, scopes=(scope,)),)).present(time.monotonic() + 30)


def test_a_card_that_changes_its_scopes_has_few_tokens_asked_for(
    tokens: RawServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handful at once, then one in five seconds; a token that is kept needs no request, and another endpoint is not
    concerned."""
    monkeypatch.setenv("CLIENT_SECRET_OF_TEST", "a secret of the test")
    monkeypatch.setattr(access, "TOKEN_EACH_S", 3600.0)
    secret = {"client_id": "us", "client_secret": "env:CLIENT_SECRET_OF_TEST"}
    auth = [{"type": "oauth2", "token_url": f"{tokens.url}/token", **secret}]
    way = AgentAccess(AgentSettings(id="helper", url="http://127.0.0.1:9", auth=auth))
    for number in range(TOKENS_AT_ONCE):
        ask(way, f"scope{number}")
    for number in range(20):
        with pytest.raises(CredentialUnavailable, match="asked for too often"):
            ask(way, f"more{number}")
    assert len(tokens.seen) == TOKENS_AT_ONCE
    way._pace.begin("http://127.0.0.1:9/another")
    monkeypatch.setattr(access, "TOKEN_EACH_S", 1e-9)
    ask(way, "later")
    assert len(tokens.seen) == TOKENS_AT_ONCE + 1
    ask(way, "later")
    assert len(tokens.seen) == TOKENS_AT_ONCE + 1
    way.close()
