"""What processes with different settings tell each other of an agent; and one agent that stops no other."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

from delegation.card_pipeline import CardPipeline
from delegation.errors import (
    AgentError,
    AgentPaused,
    AgentRefused,
    AgentUnreachable,
    AuthenticationRefused,
    CredentialUnavailable,
    UnsupportedExtensionError,
)
from delegation.outbound import GuardedTransport
from delegation.roster import Roster
from delegation.settings import AgentSettings, Settings
from tests.support.card_agent import CardAgent, events, keys_in, let_pass, signed

BEARER = {"type": "bearer", "token": "env:HELPER_TOKEN"}
KEY = {"type": "api_key", "in": "header", "name": "X-Key", "key": "env:HELPER_KEY"}
SECURED = {"securitySchemes": {"tok": {"httpAuthSecurityScheme": {"scheme": "bearer"}}}}
Make = Callable[..., Roster]


@pytest.fixture
def make_roster(store: redis.Redis, agent: CardAgent, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Another process's roster, with settings of its own for the one agent."""
    monkeypatch.setenv("HELPER_TOKEN", "t0k3n-of-the-helper")
    made: list[Roster] = []

    def make(limits: dict[str, Any] | None = None, **fields: Any) -> Roster:
        helper = AgentSettings(id="helper", url=agent.url, **fields)
        settings = Settings(agents=(helper,), **({"limits": limits} if limits else {}))
        made.append(Roster(settings, store, lambda agent_id: f"card:{agent_id}"))
        return made[-1]

    yield make
    for roster in made:
        roster.close()


# --- Different settings -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({}, UnsupportedExtensionError),
        ({"auth": [KEY]}, UnsupportedExtensionError),
        ({"auth": [BEARER], "version": ">=2"}, AgentRefused),
        ({"auth": [BEARER], "proxy": "http://127.0.0.1:9"}, AgentUnreachable),
        ({"auth": [BEARER], "limits": {"card_bytes": 20}}, AgentRefused),
    ],
    ids=["no credential", "another credential", "version", "proxy", "limits.card_bytes"],
)
@pytest.mark.parametrize("first", ["wrong", "right"])
def test_a_wrong_configuration_refuses_for_its_own_processes_alone(
    agent: CardAgent, make_roster: Make, store: redis.Redis, wrong: dict[str, Any], kind: type[AgentError], first: str
) -> None:
    """A shell with other settings, a rolling deploy: right ones accept at once, whoever looked first."""
    agent.card = agent.with_path("/rpc", **SECURED)
    if first == "wrong":
        with pytest.raises(kind):
            make_roster(**wrong).card("helper")
        assert store.exists("card:helper")
    for _ in range(2):
        assert make_roster(auth=[BEARER]).card("helper").name == "Helper"
        if "proxy" not in wrong and "limits" not in wrong:  # those judge the way to a card
            with pytest.raises(kind):
                make_roster(**wrong).card("helper")
        let_pass(store)


def test_what_an_operator_has_put_right_counts_at_once(agent: CardAgent, make_roster: Make) -> None:
    """It did what the message says, and started its processes again."""
    agent.card = agent.with_path("/rpc", **SECURED)
    with pytest.raises(UnsupportedExtensionError, match="auth_missing"):
        make_roster().card("helper")
    make_roster(auth=[BEARER]).card("helper")
    assert make_roster(auth=[BEARER]).describe()[0]["accepted"]


def test_a_refusal_is_shared_by_those_who_judge_alike(agent: CardAgent, make_roster: Make) -> None:
    """The server is asked once for all of them; how an agent is shown or watched does not matter."""
    agent.card = agent.with_path("/rpc", **SECURED)
    for fields in ({}, {"name": "N"}, {"updates": "poll"}):
        with pytest.raises(UnsupportedExtensionError):
            make_roster(**fields).card("helper")
    assert len(agent.gets()) == 1


def test_an_accepted_card_is_shared_by_all(agent: CardAgent, make_roster: Make) -> None:
    """Each checks it by its own settings."""
    agent.card = agent.with_path("/rpc", **SECURED)
    make_roster(auth=[BEARER]).card("helper")
    with pytest.raises(UnsupportedExtensionError):
        make_roster().card("helper")
    make_roster(auth=[BEARER], version=">=1").card("helper")
    assert len(agent.gets()) == 1


def test_a_pause_is_shared_by_all(agent: CardAgent, make_roster: Make, store: redis.Redis) -> None:
    """Work waits and fails not: the cautious word counts."""
    agent.card = agent.with_path("/rpc", **SECURED)
    make_roster(auth=[BEARER]).card("helper")
    agent.card = agent.with_path("/rpc")
    let_pass(store)
    for fields in ({"auth": [BEARER]}, {"auth": [BEARER, KEY]}):
        with pytest.raises(AgentPaused):
            make_roster(**fields).card("helper")
    assert len(agent.gets()) == 2


def test_a_secret_that_is_missing_here_may_be_there_for_others(
    agent: CardAgent, make_roster: Make, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings in a shell without the variable: workers that have it notice nothing."""
    fields = {"card_auth": [{**BEARER, "token": "env:CARD_TOKEN"}]}
    monkeypatch.delenv("CARD_TOKEN", raising=False)
    with pytest.raises(CredentialUnavailable):
        make_roster(**fields).card("helper")
    monkeypatch.setenv("CARD_TOKEN", "t0k3n-of-the-card")
    assert make_roster(**fields).card("helper").name == "Helper"

    monkeypatch.delenv("CARD_TOKEN")
    let_pass(store)
    (row,) = make_roster(**fields).describe()
    assert row["accepted"]
    assert row["stale"].startswith("agent.credential_unavailable since 20")
    assert "env:CARD_TOKEN is empty or not set" in row["stale"]
    monkeypatch.setenv("CARD_TOKEN", "t0k3n-of-the-card")
    assert make_roster(**fields).describe()[0]["stale"] is None


def test_a_refused_credential_is_a_refusal_of_the_same_settings(agent: CardAgent, make_roster: Make) -> None:
    """401 for the card: those with the same references ask no second time."""
    agent.status = 401
    for _ in range(2):
        with pytest.raises(AuthenticationRefused):
            make_roster(card_auth=[BEARER]).card("helper")
    assert len(agent.gets()) == 1
    agent.status = 200
    assert make_roster().card("helper").name == "Helper"


# --- What is old ------------------------------------------------------------------------------------------------------


def test_a_card_whose_keys_are_gone_is_told_as_stale(
    agent: CardAgent, make_roster: Make, store: redis.Redis, tmp_path: Path
) -> None:
    """It serves, and its row says why the card is old and since when."""
    keys = keys_in(tmp_path, "ours")
    agent.card = signed(agent.with_path("/rpc"))
    assert make_roster(signature_keys=keys).describe()[0]["stale"] is None
    Path(keys.removeprefix("file:")).unlink()
    let_pass(store)
    (row,) = make_roster(signature_keys=keys).describe()
    assert (row["accepted"], row["signed"]) == (True, "verified")
    assert row["stale"].startswith("agent.unavailable since 20")
    assert "card_signature_unchecked" in row["stale"]


# --- One agent stops no other -----------------------------------------------------------------------------------------


class Odd(Exception):
    """What nobody foresaw."""


def test_whatever_a_look_raises_is_a_refusal(agent: CardAgent) -> None:
    """Named by its type, and logged with where it was."""

    def transport_of(_: AgentSettings) -> GuardedTransport:
        raise Odd("\x1b[2J of the agent's")

    pipeline = CardPipeline(
        transport_of=transport_of, keys_of=lambda *_: (), participant_id="us", ttl_s=60, max_bytes=1000
    )
    with capture_logs() as logs:
        verdict = pipeline.look(AgentSettings(id="helper", url=agent.url), None, 0.0).verdict
    assert (type(verdict.error()), verdict.detail) == (AgentRefused, "card_invalid: Odd")
    (event,) = events(logs, "card.crashed")
    assert (event["agent"], event["error"]) == ("helper", "Odd")
    assert isinstance(event["exc_info"], Odd)


def test_an_agent_that_nobody_can_describe_stops_no_other(
    agent: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """A time that is none, in what Redis keeps: the row of the one says so, the other's is as always."""
    make_roster().card("helper")
    kept = json.loads(store.get("card:helper") or "{}")
    settings = [AgentSettings(id=name, url=agent.url) for name in ("helper", "other")]
    roster = Roster(Settings(agents=settings), store, lambda agent_id: f"card:{agent_id}")
    judged = roster._cards._pipeline.judged(settings[0])
    store.set(
        "card:helper", json.dumps({**kept, "stale": "agent.unavailable", "judged": judged, "confirmed_at": 1e300})
    )
    odd, other = roster.describe()
    assert (odd["id"], odd["accepted"], odd["reason"]) == (
        "helper",
        False,
        "agent.refused: card_invalid: OverflowError",
    )
    assert other["accepted"]
    roster.close()


def test_a_pinned_card_in_nobodys_home_is_no_crash(make_roster: Make) -> None:
    """It may be put right, and so may the home directory."""
    with pytest.raises(AgentUnreachable, match="no such home directory"):
        make_roster(card="file:~nobody-of-the-test/card.json").card("helper")
