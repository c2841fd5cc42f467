"""What a card is trusted by: nothing is shown to one that has to be accepted, and nothing lets one in unseen."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from structlog.testing import capture_logs

import delegation.card_cache as card_cache
import delegation.card_pipeline as card_pipeline
from delegation.card_changes import fingerprint
from delegation.errors import AgentPaused, AgentUnreachable, CallAmbiguous
from delegation.roster import Roster
from delegation.settings import AgentSettings, Settings
from tests.support.card_agent import CardAgent, events, keys_in, let_pass, sign, signed
from tests.support.raw_server import RawServer, Seen, says

BEARER = {"type": "bearer", "token": "env:HELPER_TOKEN"}
KEY = {"type": "api_key", "in": "header", "name": "X-Key", "key": "env:HELPER_KEY"}
OFFER = {"capabilities": {"extendedAgentCard": True}}
SECURED = {
    "securitySchemes": {"tok": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
    "securityRequirements": [{"schemes": {"tok": {"list": []}}}],
}
Make = Callable[..., Roster]


@pytest.fixture
def elsewhere() -> Iterator[CardAgent]:
    with RawServer(says(500)) as server:
        yield CardAgent(server)


@pytest.fixture
def make_roster(
    store: redis.Redis, agent: CardAgent, elsewhere: CardAgent, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """Another process's roster, for the one agent, which may be at two origins."""
    monkeypatch.setenv("HELPER_TOKEN", "t0k3n-of-the-helper")
    monkeypatch.setenv("HELPER_KEY", "key-of-the-helper")
    made: list[Roster] = []

    def make(**fields: Any) -> Roster:
        helper = AgentSettings(id="helper", url=agent.url, **{"origins": (elsewhere.url,), **fields})
        made.append(Roster(Settings(agents=(helper,)), store, lambda agent_id: f"card:{agent_id}"))
        return made[-1]

    yield make
    for roster in made:
        roster.close()


def posts(agent: CardAgent) -> list[Seen]:
    return [seen for seen in agent.server.seen if seen.line.startswith("POST")]


# --- Extended cards ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("had_extended", [True, False])
@pytest.mark.parametrize("fields", [SECURED, {}], ids=["moved", "moved, and wants nothing"])
def test_a_base_card_that_moved_is_shown_no_credentials(
    agent: CardAgent,
    elsewhere: CardAgent,
    make_roster: Make,
    store: redis.Redis,
    had_extended: bool,
    fields: dict[str, Any],
) -> None:
    """The pause comes before the extended card is asked for, also where an unchanged one would count."""
    agent.extended = agent.with_path("/rpc", **SECURED, **OFFER, name="Extended")
    elsewhere.extended = agent.extended
    agent.card = agent.with_path("/rpc", **SECURED, **(OFFER if had_extended else {}))
    assert make_roster(auth=[BEARER]).card("helper").name == ("Extended" if had_extended else "Helper")
    agent.server.seen.clear()

    agent.card = agent.with_path("/rpc", origin=elsewhere.url, **fields, **OFFER)
    let_pass(store)
    with pytest.raises(AgentPaused, match="endpoint_moved"):
        make_roster(auth=[BEARER]).card("helper")
    assert elsewhere.server.seen == []
    assert posts(agent) == []

    roster = make_roster(auth=[BEARER])
    review = roster.review("helper")
    assert "endpoint_moved" in review.changes.codes
    assert review.found.fingerprint == fingerprint(agent.card)
    assert roster.accept(review)
    assert roster.card("helper").interface.url == f"{elsewhere.url}/rpc"


def test_a_base_card_that_drops_its_signature_pauses(agent: CardAgent, make_roster: Make, store: redis.Redis) -> None:
    """Though the extended card, which counts, is signed as before."""
    plain = agent.with_path("/rpc", **SECURED, **OFFER)
    agent.card, agent.extended = signed(plain), signed({**plain, "name": "Extended"})
    assert make_roster(auth=[BEARER]).card("helper").name == "Extended"
    agent.card = plain
    let_pass(store)
    with pytest.raises(AgentPaused, match="signature_dropped"):
        make_roster(auth=[BEARER]).card("helper")


def test_an_extended_card_is_compared_with_the_extended_card(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """A base card that names less than it pauses nothing; an extended one that moved does."""
    agent.card = agent.with_path("/rpc", **SECURED, **OFFER)
    skills = [{"id": "s", "securityRequirements": SECURED["securityRequirements"]}]
    agent.extended = {**agent.card, "name": "Extended", "skills": skills}
    assert make_roster(auth=[BEARER]).card("helper").name == "Extended"
    agent.card = {**agent.card, "description": "other words"}
    let_pass(store)
    with capture_logs() as logs:
        assert make_roster(auth=[BEARER]).card("helper").name == "Extended"
    assert events(logs, "card.changed") == []

    moved = agent.with_path("/rpc", origin=elsewhere.url)["supportedInterfaces"]
    agent.extended = {**agent.extended, "supportedInterfaces": moved}
    let_pass(store)
    with pytest.raises(AgentPaused, match="endpoint_moved"):
        make_roster(auth=[BEARER]).card("helper")
    roster = make_roster(auth=[BEARER])
    assert roster.accept(roster.review("helper"))
    assert roster.card("helper").interface.url == f"{elsewhere.url}/rpc"


def test_what_no_signature_covers_chooses_no_credential(agent: CardAgent, make_roster: Make, tmp_path: Path) -> None:
    """The extended card is asked for with what the verified card asks for, not with what was added to it."""
    card = agent.with_path("/rpc", **SECURED, **OFFER)
    lean = {name: value for name, value in card.items() if name != "securityRequirements"}  # no empty value is signed
    older = {"more": {"type": "apiKey", "in": "header", "name": "X-Key"}}
    agent.card = {
        **card,
        "securitySchemes": {**card["securitySchemes"], **older},
        "security": [{"more": []}],
        "signatures": [sign(lean)],
    }
    agent.extended = {**card, "name": "Extended"}
    roster = make_roster(auth=[BEARER, KEY], signature_keys=keys_in(tmp_path, "ours"))
    assert roster.card("helper").name == "Extended"
    (asked,) = posts(agent)
    assert asked.headers["authorization"] == "Bearer t0k3n-of-the-helper"
    assert "x-key" not in asked.headers


# --- What was accepted ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"url": "x"}', '{"url": 7, "card": {}, "validators": {}}'])
def test_an_accepted_card_that_cannot_be_read_is_not_none(
    agent: CardAgent, make_roster: Make, store: redis.Redis, garbage: str
) -> None:
    """The next one is not trusted as if it were the first: an operator accepts it, whether it is another or not."""
    make_roster().card("helper")
    store.set("card:helper:accepted", garbage)
    let_pass(store)
    with capture_logs() as logs, pytest.raises(AgentPaused, match=r"accepted_unknown.*agents accept helper"):
        make_roster().card("helper")
    (event,) = events(logs, "card.changed")
    assert (event["pauses"], event["fingerprint_before"]) == ("accepted_unknown", "")
    agent.status = 500
    let_pass(store)
    with pytest.raises(CallAmbiguous, match="HTTP 500"):
        make_roster().card("helper")
    agent.status = 200
    roster = make_roster()
    review = roster.review("helper")
    assert review.changes.codes == ("accepted_unknown",)
    assert roster.accept(review)
    assert make_roster().card("helper").name == "Helper"


def test_a_card_that_a_later_release_kept_is_still_compared_with(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """What it kept beside what we know is left alone."""
    make_roster().card("helper")
    for key in ("card:helper", "card:helper:accepted"):
        kept = json.loads(store.get(key) or "{}")
        kept |= {"later": {"a": [1]}, "validators": {**kept["validators"], "later": 7}}
        store.set(key, json.dumps(kept))
    assert make_roster().card("helper").name == "Helper"
    assert len(agent.gets()) == 1
    agent.card = agent.with_path("/rpc", origin=elsewhere.url)
    let_pass(store)
    with pytest.raises(AgentPaused, match="endpoint_moved"):
        make_roster().card("helper")


def test_a_look_that_began_before_an_acceptance_does_not_undo_it(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """It lost its lock meanwhile; it stores nothing, and hears of the accepted card itself."""
    make_roster().card("helper")
    agent.card = agent.with_path("/rpc", origin=elsewhere.url)
    let_pass(store)
    asked, go_on, answer = threading.Event(), threading.Event(), agent.server.behaviour

    def hold_the_first(request: Seen, connection: Any) -> bool:
        if not asked.is_set():
            asked.set()
            assert go_on.wait(30)
        return answer(request, connection)

    agent.server.behaviour = hold_the_first
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(make_roster().card, "helper")
        assert asked.wait(30)
        assert store.delete("card:helper:lock") == 1
        roster = make_roster()
        assert roster.accept(roster.review("helper"))
        go_on.set()
        assert slow.result(30).interface.url == f"{elsewhere.url}/rpc"
    assert store.exists("card:helper:paused") == 0
    assert make_roster().card("helper").interface.url == f"{elsewhere.url}/rpc"


def test_a_look_ends_before_its_lock(agent: CardAgent, make_roster: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that it waits for has one deadline together."""
    assert card_pipeline.LOOK_DEADLINE_S < card_cache.LOCK_S
    monkeypatch.setattr(card_pipeline, "LOOK_DEADLINE_S", 0.5)
    monkeypatch.setattr(card_pipeline, "CARD_DEADLINE_S", 60.0)
    over, answer = threading.Event(), agent.server.behaviour

    def hold(request: Seen, connection: Any) -> bool:
        over.wait(60)
        return answer(request, connection)

    agent.server.behaviour = hold
    began = time.monotonic()
    try:
        with pytest.raises((AgentUnreachable, CallAmbiguous)):
            make_roster().card("helper")
        assert time.monotonic() - began < 30
    finally:
        over.set()


# --- What is said of it -----------------------------------------------------------------------------------------------


def test_a_paused_card_that_the_settings_refuse_by_now_is_described(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """The operator has narrowed the origins since: a row like others, with the pause as its reason."""
    make_roster().card("helper")
    agent.card = agent.with_path("/rpc", origin=elsewhere.url)
    let_pass(store)
    with pytest.raises(AgentPaused):
        make_roster().card("helper")
    (row,) = make_roster(origins=()).describe()
    assert (row["id"], row["accepted"], row["paused"], row["name"]) == ("helper", False, True, None)
    assert row["reason"].startswith("agent.paused: endpoint_moved")


def test_a_card_that_goes_back_and_forth_is_told_of_once_a_day(
    agent: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """Each way once; the next day again."""
    one, other = agent.with_path("/rpc"), agent.with_path("/rpc2")
    with capture_logs() as logs:
        for _ in range(3):
            for agent.card in (one, other):
                make_roster().card("helper")
                let_pass(store)
        assert len(events(logs, "card.changed")) == 2
        told = {
            digest: (at - 86_401, warns) for digest, (at, warns) in json.loads(store.get("card:helper:told")).items()
        }
        store.set("card:helper:told", json.dumps(told))
        agent.card = one
        make_roster().card("helper")
    assert len(events(logs, "card.changed")) == 3
    assert 0 < store.ttl("card:helper:told") <= 86_400


def test_an_agent_fills_no_log(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Make, store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many changes a day; those that pause are counted for themselves."""
    monkeypatch.setattr(card_cache, "MOST_TOLD", 3)
    with capture_logs() as logs:
        for number in range(6):
            agent.card = agent.with_path(f"/{number}")
            make_roster().card("helper")
            let_pass(store)
        agent.card = agent.with_path("/rpc", origin=elsewhere.url)
        with pytest.raises(AgentPaused):
            make_roster().card("helper")
    assert [event["log_level"] for event in events(logs, "card.changed")] == ["info"] * 3 + ["warning"]


@pytest.mark.parametrize("told", ["{", "[]", '["card.stale ()"]', '{"a": 1}', '{"a": ["x", true]}'])
def test_an_unreadable_note_of_what_was_told_is_none(
    agent: CardAgent, make_roster: Make, store: redis.Redis, told: str
) -> None:
    """It is told once more."""
    make_roster().card("helper")
    agent.card = agent.with_path("/rpc2")
    store.set("card:helper:told", told)
    let_pass(store)
    with capture_logs() as logs:
        make_roster().card("helper")
    assert len(events(logs, "card.changed")) == 1


def test_cut_texts_of_a_card_are_one_warning(agent: CardAgent, make_roster: Make) -> None:
    """Whose and which, never the text."""
    skills = [{"id": f"s{number}", "name": "n" * 100, "description": "short"} for number in range(12)]
    agent.card = agent.with_path("/rpc", name="N" * 100, skills=skills)
    with capture_logs() as logs:
        make_roster().describe()
    names = ",".join(["name", *(f"skills.{number}.name" for number in range(9))])
    assert events(logs, "text.cut") == [
        {"event": "text.cut", "log_level": "warning", "agent": "helper", "fields": names, "count": 13}
    ]


def test_keys_are_fetched_on_a_connection_that_is_not_kept(agent: CardAgent, make_roster: Make) -> None:
    """Once in a while; and where they cannot be had, nothing is accepted."""
    agent.card = signed(agent.with_path("/rpc"))
    with RawServer(says(500)) as keys:
        roster = make_roster(signature_keys=f"{keys.url}/keys")
        with pytest.raises(AgentUnreachable, match="card_signature_unchecked"):
            roster.card("helper")
        assert keys.wait_until_open(0, 30)
        assert roster._accesses["helper"].keys.connections == 0


def test_a_paused_card_stays_so_though_the_accepted_one_is_lost(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Make, store: redis.Redis
) -> None:
    """Whoever was paused was accepted before: no card of it is the first one."""
    make_roster().card("helper")
    agent.card = agent.with_path("/rpc", origin=elsewhere.url)
    let_pass(store)
    with pytest.raises(AgentPaused, match="endpoint_moved"):
        make_roster().card("helper")
    store.delete("card:helper", "card:helper:accepted")
    with pytest.raises(AgentPaused, match="accepted_unknown"):
        make_roster().card("helper")
    roster = make_roster()
    assert roster.accept(roster.review("helper"))
    assert roster.card("helper").interface.url == f"{elsewhere.url}/rpc"


def test_an_extended_card_may_be_as_large_as_a_card(agent: CardAgent, make_roster: Make) -> None:
    """`limits.card_bytes`, not `limits.answer_bytes`; else the base card counts."""
    agent.card = agent.with_path("/rpc", **SECURED, **OFFER)
    agent.extended = {**agent.card, "name": "Extended", "documentationUrl": "x" * (1 << 20)}
    with capture_logs() as logs:
        assert make_roster(auth=[BEARER]).card("helper").name == "Helper"
    assert [each["code"] for each in events(logs, "card.extended_missing")] == ["response.too_large"]


def test_scopes_that_grow_wait_for_an_operator(agent: CardAgent, make_roster: Make, store: redis.Redis) -> None:
    """No token for them is asked for before."""
    schemes = {"oauth": {"oauth2SecurityScheme": {"flows": {"clientCredentials": {"tokenUrl": "https://t.example"}}}}}
    ours = {"type": "oauth2", "token_url": agent.url, "client_id": "us", "client_secret": "env:HELPER_KEY"}

    def asks_for(*scopes: str) -> None:
        requirements = [{"schemes": {"oauth": {"list": list(scopes)}}}]
        agent.card = agent.with_path("/rpc", securitySchemes=schemes, securityRequirements=requirements)

    asks_for("read")
    make_roster(auth=[ours]).card("helper")
    asks_for("read", "delete")
    let_pass(store)
    with pytest.raises(AgentPaused, match="scopes_grown: oauth2 is asked for with delete as well"):
        make_roster(auth=[ours]).card("helper")
