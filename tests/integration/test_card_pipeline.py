"""A card's way from its server to new work: asked for conditionally, verified, compared, paused, accepted."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from a2a.server.routes import create_agent_card_routes
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from a2a.utils.signing import create_agent_card_signer
from starlette.applications import Starlette
from structlog.testing import capture_logs

from delegation.agent_task import AgentTaskId
from delegation.card_changes import fingerprint, short
from delegation.card_pipeline import FAILURE_TTL_S
from delegation.errors import (
    AgentPaused,
    AgentRefused,
    AgentUnreachable,
    AuthenticationRefused,
    CallAmbiguous,
    DelegationError,
    UnknownAgent,
)
from delegation.roster import Roster
from delegation.settings import AgentSettings, Settings
from tests.support.card_agent import KEY_SETS, SIGNER, CardAgent, events, keys_in, let_pass, signed
from tests.support.child import free_port
from tests.support.raw_server import RawServer, says

LATER = {"ETag": '"v1"', "Cache-Control": "max-age=60"}


@pytest.fixture
def make_roster(store: redis.Redis) -> Iterator[Callable[..., Roster]]:
    made: list[Roster] = []

    def make(url: str, timing: dict[str, Any] | None = None, **fields: Any) -> Roster:
        """Another process's roster, for the one agent."""
        agents = (AgentSettings(id="helper", url=url, **fields),)
        settings = Settings(agents=agents, **({"timing": timing} if timing else {}))
        made.append(Roster(settings, store, lambda agent_id: f"card:{agent_id}"))
        return made[-1]

    yield make
    for roster in made:
        roster.close()


def age(store: redis.Redis, seconds: float) -> None:
    """As if the accepted card had been confirmed so much earlier."""
    kept = json.loads(store.get("card:helper:accepted") or "{}")
    kept["confirmed_at"] -= seconds
    store.set("card:helper:accepted", json.dumps(kept))


# --- Conditional requests, freshness ----------------------------------------------------------------------------------


def test_a_kept_card_is_asked_for_conditionally(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """304 keeps it, with the freshness it had; the protocol version is sent with every card request."""
    agent.headers = {**LATER, "Last-Modified": "Mon, 30 Nov 2026 12:00:00 GMT"}
    make_roster(agent.url).card("helper")
    assert 0 < store.ttl("card:helper") <= 60
    let_pass(store)
    assert make_roster(agent.url).card("helper").name == "Helper"
    first, second = agent.gets()
    assert "if-none-match" not in first.headers
    assert second.headers["if-none-match"] == '"v1"'
    assert second.headers["if-modified-since"] == "Mon, 30 Nov 2026 12:00:00 GMT"
    assert {each.headers["a2a-version"] for each in (first, second)} == {"1.0"}
    assert 0 < store.ttl("card:helper") <= 60


@pytest.mark.parametrize("etag", ["v1", '"a"\tb', '"' + "x" * 5000 + '"', "*"])
def test_only_a_well_formed_etag_is_repeated(
    agent: CardAgent, make_roster: Callable[..., Roster], etag: str, store: redis.Redis
) -> None:
    """It would be a header of ours."""
    agent.headers = {"ETag": etag}
    for _ in range(2):
        make_roster(agent.url).card("helper")
        let_pass(store)
    assert all("if-none-match" not in seen.headers for seen in agent.gets())


@pytest.mark.parametrize("date", ["Mon, 30 Nov 2026 12:00:00 GMT (\xe9)", "yesterday"])
def test_only_a_date_that_can_be_a_header_is_repeated(
    agent: CardAgent, make_roster: Callable[..., Roster], date: str, store: redis.Redis
) -> None:
    """Of a comment beyond ASCII no request can be made."""
    agent.headers = {"Last-Modified": date}
    for _ in range(2):
        make_roster(agent.url).card("helper")
        let_pass(store)
    assert all("if-modified-since" not in seen.headers for seen in agent.gets())


@pytest.mark.parametrize(("said", "seconds"), [("max-age=2", 2), ("no-store", 1), ("max-age=999999", 10)])
def test_a_process_forgets_a_card_when_its_time_is_over(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis, said: str, seconds: int
) -> None:
    """In Redis and in memory alike, however long it was looked at; never longer than `timing.card_ttl`."""
    agent.headers = {"Cache-Control": said}
    roster = make_roster(agent.url, timing={"card_ttl": 10})
    roster.card("helper")
    left_ms = store.pttl("card:helper")
    assert 0 < left_ms <= seconds * 1000
    kept = roster._cards._memory["helper"]
    reader = make_roster(agent.url, timing={"card_ttl": 10})
    reader.card("helper")
    assert abs(reader._cards._memory["helper"].until - kept.until) < 0.5


def test_settings_that_have_changed_ask_again(
    agent: CardAgent, make_roster: Callable[..., Roster], tmp_path: Path
) -> None:
    """Unconditionally: what was kept was judged by other keys, or is another agent's."""
    agent.headers = LATER
    make_roster(agent.url).card("helper")
    (tmp_path / "keys").write_text(json.dumps(KEY_SETS["ours"]))
    make_roster(agent.url, signature_keys=f"file:{tmp_path}/keys").card("helper")
    make_roster(f"{agent.url}/other").card("helper")
    assert len(agent.gets()) == 3
    assert not any("if-none-match" in seen.headers for seen in agent.gets())


# --- Stale cards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["500", "503", "garbage", "too large", "gone"])
def test_the_accepted_card_serves_on_while_its_server_is_away(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis, failure: str
) -> None:
    """Logged once however often it is tried."""
    url = agent.url
    make_roster(url).card("helper")
    changes: dict[str, Any] = {
        "500": {"status": 500},
        "503": {"status": 503, "headers": {"Retry-After": "1"}},
        "garbage": {"card": b"<html>"},
        "too large": {"card": b" " * (1 << 21)},
    }
    with capture_logs() as logs:
        for _ in range(2):
            let_pass(store)
            for name, value in changes.get(failure, {}).items():
                setattr(agent, name, value)
            if failure == "gone":
                agent.server.__exit__()
            assert make_roster(url).card("helper").name == "Helper"
            if failure == "gone":
                break
        assert 0 < store.ttl("card:helper") <= 60
    (event,) = events(logs, "card.stale")
    assert event["agent"] == "helper"
    if failure == "gone":
        agent.server.__enter__()  # the fixture closes it


def test_a_stale_card_does_not_serve_for_ever(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """24 times `timing.card_ttl` after the server's last word new work hears of the failure."""
    make_roster(agent.url).card("helper")
    agent.status = 500
    for seconds, kind in ((23 * 3600, None), (2 * 3600, CallAmbiguous)):
        age(store, seconds)
        let_pass(store)
        roster = make_roster(agent.url)
        if kind is None:
            assert roster.card("helper").name == "Helper"
        else:
            with pytest.raises(kind):
                roster.card("helper")
    assert make_roster(agent.url).client("helper").card.name == "Helper"


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (401, AuthenticationRefused, "HTTP 401"),
        (403, AuthenticationRefused, "HTTP 403"),
        (404, AgentRefused, "HTTP 404"),
    ],
)
def test_a_server_that_says_no_is_believed(
    agent: CardAgent,
    make_roster: Callable[..., Roster],
    store: redis.Redis,
    status: int,
    kind: type[Exception],
    said: str,
) -> None:
    """No older card serves new work in its place."""
    make_roster(agent.url).card("helper")
    let_pass(store)
    agent.status = status
    with pytest.raises(kind, match=said):
        make_roster(agent.url).card("helper")
    assert make_roster(agent.url).client("helper").get_task(AgentTaskId("t1"), deadline_s=5).id == "t1"


def test_the_older_path_is_asked_only_where_there_is_no_card(
    agent: CardAgent, make_roster: Callable[..., Roster]
) -> None:
    """Cases C081 and C045: after 404 and 410; one error names both."""
    for status, paths in ((410, 2), (404, 2), (401, 1), (500, 1)):
        agent.server.seen.clear()
        agent.status = status
        with pytest.raises(DelegationError) as refused:
            make_roster(f"{agent.url}/{status}").card("helper")
        both = [f"/{status}/.well-known/agent-card.json", f"/{status}/.well-known/agent.json"]
        assert agent.paths() == both[:paths]
        if paths == 2:
            assert f"HTTP {status} at /.well-known/agent-card.json, HTTP {status} at" in str(refused.value)


# --- Changes ----------------------------------------------------------------------------------------------------------


def test_a_harmless_change_is_told_once_and_used(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Both fingerprints and names of members, no word of the card."""
    old = agent.card
    make_roster(agent.url).card("helper")
    agent.card = agent.with_path("/rpc2", description="SECRET-TEXT", xSecret="SECRET-NAME")
    let_pass(store)
    with capture_logs() as logs:
        assert make_roster(agent.url).card("helper").interface.url.endswith("/rpc2")
        let_pass(store)
        make_roster(agent.url).card("helper")
    (event,) = events(logs, "card.changed")
    assert event == {
        "event": "card.changed",
        "log_level": "info",
        "agent": "helper",
        "fingerprint_before": short(fingerprint(old)),
        "fingerprint": short(fingerprint(agent.card)),
        "members": "description,supportedInterfaces,others",
        "pauses": "",
    }


@pytest.fixture
def elsewhere() -> Iterator[CardAgent]:
    with RawServer(says(500)) as server:
        yield CardAgent(server)


def move(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> Callable[[], Roster]:
    """Accepted at one origin, then moved to another that the settings allow."""

    def another() -> Roster:
        return make_roster(agent.url, origins=(elsewhere.url,))

    another().card("helper")
    agent.card = agent.with_path("/rpc", origin=elsewhere.url)
    let_pass(store)
    return another


def test_a_moved_endpoint_pauses_new_work_and_no_other(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Work under way is asked for where it was sent; the pause is logged once and outlives a failing server."""
    another = move(agent, elsewhere, make_roster, store)
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(AgentPaused, match=r"endpoint_moved.*agents accept helper") as paused:
                another().card("helper")
            let_pass(store)
    assert paused.value.retry_after_s == 30
    assert [(event["log_level"], event["pauses"]) for event in events(logs, "card.changed")] == [
        ("warning", "endpoint_moved")
    ]
    agent.status = 500
    with pytest.raises(AgentPaused):
        another().card("helper")
    another().client("helper").get_task(AgentTaskId("t1"), deadline_s=5)
    assert agent.server.seen[-1].line == "POST /rpc HTTP/1.1"
    assert elsewhere.server.seen == []
    (row,) = another().describe()
    assert (row["accepted"], row["paused"], row["fingerprint"]) == (False, True, fingerprint(agent.card))
    assert row["reason"].startswith("agent.paused: endpoint_moved")


def test_a_change_that_is_taken_back_needs_nobody(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """The card is the accepted one again."""
    another = move(agent, elsewhere, make_roster, store)
    with pytest.raises(AgentPaused):
        another().card("helper")
    agent.card = agent.with_path("/rpc")
    let_pass(store)
    assert another().card("helper").interface.url == f"{agent.url}/rpc"


def test_an_accepted_change_is_used_by_everybody(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Also by processes that remember the pause, after the few seconds that they remember a failure."""
    another = move(agent, elsewhere, make_roster, store)
    waiting = another()
    with pytest.raises(AgentPaused):
        waiting.card("helper")
    roster = another()
    review = roster.review("helper")
    assert review.changes.codes == ("endpoint_moved",)
    assert roster.accept(review)
    assert waiting._cards._memory["helper"].until - time.monotonic() <= FAILURE_TTL_S
    for each in (roster, another()):
        assert each.card("helper").interface.url == f"{elsewhere.url}/rpc"
    assert not another().review("helper").found.is_paused
    let_pass(store)
    another().client("helper").get_task(AgentTaskId("t1"), deadline_s=5)
    assert elsewhere.server.seen[-1].line == "POST /rpc HTTP/1.1"


def test_a_card_that_changed_again_is_not_accepted_unseen(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """What is accepted is what was looked at."""
    another = move(agent, elsewhere, make_roster, store)
    roster = another()
    review = roster.review("helper")
    agent.card = agent.with_path("/evil", origin=elsewhere.url)
    let_pass(store)
    with pytest.raises(AgentPaused):
        another().card("helper")
    assert not roster.accept(review)
    with pytest.raises(AgentPaused):
        another().card("helper")


def test_an_address_that_the_operator_changed_is_no_change_of_the_card(
    agent: CardAgent, elsewhere: CardAgent, make_roster: Callable[..., Roster]
) -> None:
    """He has decided it already."""
    make_roster(agent.url).card("helper")
    assert make_roster(elsewhere.url).card("helper").interface.url == f"{elsewhere.url}/rpc"


def test_an_unknown_agent_cannot_be_reviewed(agent: CardAgent, make_roster: Callable[..., Roster]) -> None:
    """And one that is refused has nothing to accept."""
    with pytest.raises(UnknownAgent):
        make_roster(agent.url).review("nobody")
    agent.card = b"[]"
    with pytest.raises(AgentRefused):
        make_roster(agent.url).review("helper")


# --- Pinned cards -----------------------------------------------------------------------------------------------------


def test_a_pinned_card_is_never_fetched_and_read_again_when_it_changes(
    agent: CardAgent, make_roster: Callable[..., Roster], tmp_path: Path
) -> None:
    """Case C082: also while the agent serves another; the operator's own change pauses nothing."""
    pinned = tmp_path / "card.json"
    pinned.write_text(json.dumps(agent.with_path("/private-rpc")))
    roster = make_roster(agent.url, card=f"file:{pinned}")
    assert roster.card("helper").interface.url.endswith("/private-rpc")
    roster.client("helper").get_task(AgentTaskId("t1"), deadline_s=5)
    other = tmp_path / "new.json"
    other.write_text(json.dumps(agent.with_path("/other-rpc", description="another size")))
    other.replace(pinned)
    assert roster.card("helper").interface.url.endswith("/other-rpc")
    assert agent.gets() == []
    assert agent.server.seen[-1].line == "POST /private-rpc HTTP/1.1"
    (row,) = roster.describe()
    assert (row["accepted"], row["signed"]) == (True, "no")


def test_a_pinned_card_that_cannot_be_used_says_so(
    agent: CardAgent, make_roster: Callable[..., Roster], tmp_path: Path
) -> None:
    """With the file's name; a missing one may come back."""
    pinned = tmp_path / "card.json"
    roster = make_roster(agent.url, card=f"file:{pinned}")
    with pytest.raises(AgentUnreachable, match=r"card\.json cannot be read"):
        roster.card("helper")
    pinned.write_text("{")
    with pytest.raises(AgentRefused, match="is not JSON"):
        roster.card("helper")
    pinned.write_text('{"name": "x"}')
    with pytest.raises(AgentRefused, match="missing"):
        roster.card("helper")
    assert agent.server.seen == []


# --- Signatures -------------------------------------------------------------------------------------------------------


def test_a_signed_card_is_verified_with_the_operators_keys(
    agent: CardAgent, make_roster: Callable[..., Roster], tmp_path: Path
) -> None:
    """By its own unknown members as well; a wrong signature refuses it, whether one is required or not."""
    agent.card = signed(agent.with_path("/rpc", xFuture={"a": 1.0}))
    roster = make_roster(agent.url, signature_keys=keys_in(tmp_path, "ours"))
    assert roster.card("helper").raw == agent.card
    assert roster.describe()[0]["signed"] == "verified"
    with pytest.raises(AgentRefused, match="card_signature_invalid: "):
        make_roster(agent.url, signature_keys=keys_in(tmp_path, "others")).card("helper")
    unchecked = make_roster(agent.url)
    assert unchecked.card("helper").name == "Helper"
    assert unchecked.describe()[0]["signed"] == "present"


def test_an_unsigned_card_is_refused_only_where_a_signature_is_required(
    agent: CardAgent, make_roster: Callable[..., Roster], tmp_path: Path
) -> None:
    """Most agents do not sign."""
    keys = keys_in(tmp_path, "ours")
    assert make_roster(agent.url, signature_keys=keys).describe()[0]["signed"] == "no"
    with pytest.raises(AgentRefused, match="card_signature_missing"):
        make_roster(agent.url, signature_keys=keys, require_signature=True).card("helper")


def test_a_dropped_signature_pauses(agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis) -> None:
    """The card is otherwise the same."""
    plain, agent.card = agent.card, signed(agent.card)
    make_roster(agent.url).card("helper")
    agent.card = plain
    let_pass(store)
    with pytest.raises(AgentPaused, match="signature_dropped"):
        make_roster(agent.url).card("helper")
    roster = make_roster(agent.url)
    assert roster.accept(roster.review("helper"))
    assert make_roster(agent.url).card("helper").name == "Helper"


def test_keys_at_a_url_are_fetched_without_what_is_the_agents(
    agent: CardAgent, make_roster: Callable[..., Roster]
) -> None:
    """From their own origin, with none of the agent's headers; a redirect, or no keys, leaves the card unchecked."""
    agent.card = signed(agent.with_path("/rpc"))
    with RawServer(says(200, json.dumps(KEY_SETS["ours"]).encode())) as key_server:
        options = {"signature_keys": f"{key_server.url}/keys", "headers": {"X-Team": "travel"}}
        assert make_roster(agent.url, **options).describe()[0]["signed"] == "verified"
        (request,) = key_server.seen
        assert request.line == "GET /keys HTTP/1.1"
        assert "x-team" not in request.headers
        for behaviour in (says(302, headers={"Location": agent.url}), says(200, b"{}"), says(200, b" " * 300_000)):
            key_server.behaviour = behaviour
            with pytest.raises(AgentUnreachable, match="card_signature_unchecked"):
                make_roster(f"{agent.url}/{id(behaviour)}", **options).card("helper")


def test_a_verified_card_serves_on_while_the_keys_are_away(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis, tmp_path: Path
) -> None:
    """They could not be had for this look; that they were good before counts for as long as any stale card does."""
    agent.card = signed(agent.with_path("/rpc"))
    keys = keys_in(tmp_path, "ours")
    make_roster(agent.url, signature_keys=keys).card("helper")
    (tmp_path / "ours.json").unlink()
    let_pass(store)
    assert make_roster(agent.url, signature_keys=keys).card("helper").name == "Helper"


async def get_card(server: Starlette) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url="http://sdk") as client:
        return await client.get("/.well-known/agent-card.json")


@pytest.mark.parametrize("versions", [["1.0"], ["1.0", "0.3"]], ids=["1.0", "with the 0.3 members an SDK adds"])
def test_a_card_signed_and_served_by_the_sdk_verifies(
    agent: CardAgent, make_roster: Callable[..., Roster], tmp_path: Path, versions: list[str]
) -> None:
    """It signs its typed card without empty values, and its server writes more than that."""
    card = AgentCard(
        name="Zähler",
        description="counts € \U0001f600",
        version="1",
        supported_interfaces=[
            AgentInterface(url=f"{agent.url}/rpc", protocol_binding="JSONRPC", protocol_version=version)
            for version in versions
        ],
        capabilities=AgentCapabilities(streaming=True),
        skills=[AgentSkill(id="s", name="S", description="d", tags=["t"])],
    )
    header = {"kid": "k1", "alg": "ES256", "jku": "https://evil.example/keys", "typ": "JOSE"}
    create_agent_card_signer(SIGNER, header)(card)  # type: ignore[arg-type]
    served = asyncio.run(get_card(Starlette(routes=create_agent_card_routes(card))))
    agent.card = served.content
    assert ("preferredTransport" in served.json()) == (len(versions) == 2)
    roster = make_roster(agent.url, signature_keys=keys_in(tmp_path, "ours"), require_signature=True)
    assert roster.card("helper").name == "Zähler"
    assert roster.describe()[0]["signed"] == "verified"


# --- Extended cards ---------------------------------------------------------------------------------------------------


def test_an_extended_card_takes_the_place_of_the_base_card(
    agent: CardAgent, make_roster: Callable[..., Roster], store: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is offered and there are credentials. One that is missing is told of once, and nothing looks changed."""
    monkeypatch.setenv("HELPER_TOKEN", "t0k3n-of-the-helper")
    offer = {"extendedAgentCard": True}
    agent.card = agent.with_path("/rpc", capabilities=offer)
    agent.extended = agent.with_path("/rpc", name="Extended", capabilities=offer)
    auth = [{"type": "bearer", "token": "env:HELPER_TOKEN"}]
    assert make_roster(agent.url).card("helper").name == "Helper"
    let_pass(store)
    assert make_roster(agent.url, auth=auth).card("helper").name == "Extended"
    kept, agent.extended = agent.extended, None
    with capture_logs() as logs:
        for _ in range(2):
            let_pass(store)
            assert make_roster(agent.url, auth=auth).card("helper").name == "Extended"
    assert len(events(logs, "card.extended_missing")) == 1
    assert events(logs, "card.changed") == []
    agent.extended = kept
    agent.extended["supportedInterfaces"] = agent.with_path("/x", origin="http://127.0.0.1:9")["supportedInterfaces"]
    store.flushdb()
    assert make_roster(agent.url, auth=auth).card("helper").name == "Helper"


def test_an_extended_card_of_0_3_is_asked_for_by_its_old_name(
    agent: CardAgent, make_roster: Callable[..., Roster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`supportsAuthenticatedExtendedCard` offers it; it is checked like any, and stays as it is."""
    monkeypatch.setenv("HELPER_TOKEN", "t0k3n-of-the-helper")
    plain = {"name": "Helper", "description": "helps", "version": "1.0", "protocolVersion": "0.3.0"}
    agent.card = {**plain, "url": f"{agent.url}/old", "supportsAuthenticatedExtendedCard": True}
    agent.extended = {**agent.card, "name": "Extended"}
    auth = [{"type": "bearer", "token": "env:HELPER_TOKEN"}]

    card = make_roster(agent.url, auth=auth, protocol="0.3").card("helper")

    assert (card.name, card.interface.version) == ("Extended", "0.3")
    assert [seen.rpc["method"] for seen in agent.server.seen if seen.body] == ["agent/getAuthenticatedExtendedCard"]


def test_nobody_at_the_address_is_told_as_that(make_roster: Callable[..., Roster]) -> None:
    """Without a card accepted before there is nothing to serve."""
    with pytest.raises(AgentUnreachable):
        make_roster(f"http://127.0.0.1:{free_port()}").card("helper")
