"""Cards shared through Redis, and the roster over them."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from structlog.testing import capture_logs

from delegation.agent_task import AgentTaskId
from delegation.card_changes import fingerprint
from delegation.card_pipeline import REFUSAL_TTL_S
from delegation.errors import (
    AgentRefused,
    AgentUnreachable,
    StoreUnavailable,
    UnknownAgent,
    UnsupportedExtensionError,
)
from delegation.roster import Roster
from delegation.roster_text import NO_AGENTS
from delegation.settings import AgentSettings, Settings, TimingSettings
from delegation.task_extension import TASK_EXTENSION
from tests.support.child import free_port
from tests.support.raw_server import RawServer, Seen, http, says

SECURITY: dict[str, Any] = {"securitySchemes": {"key": {"apiKeySecurityScheme": {"name": "X-Key"}}}}


class CardServer:
    """Serves one card, which a test may change, and counts who asked."""

    def __init__(self, server: RawServer) -> None:
        self.server = server
        self.url = server.url
        self.before_answer: Callable[[], object] = lambda: None
        server.behaviour = self._behave
        self.change()

    def change(self, path: str = "/rpc", **fields: Any) -> None:
        interface = {"url": self.url + path, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        skills = [{"id": "s", "name": "S", "description": "does", "tags": ["t"]}]
        self.card = {
            "name": "Helper",
            "description": "helps",
            "version": "1.0",
            "supportedInterfaces": [interface],
            "capabilities": {"pushNotifications": True},
            "skills": skills,
            **fields,
        }

    def asked(self) -> int:
        return sum("agent-card" in seen.line for seen in self.server.seen)

    def _behave(self, request: Seen, connection: Any) -> bool:
        self.before_answer()
        if "agent-card" in request.line:
            connection.sendall(http(200, json.dumps(self.card).encode()))
        else:
            task = {"id": "t1", "status": {"state": "TASK_STATE_WORKING"}}
            answer = {"jsonrpc": "2.0", "id": request.rpc["id"], "result": task}
            connection.sendall(http(200, json.dumps(answer).encode()))
        return True


@pytest.fixture
def cards() -> Iterator[CardServer]:
    with RawServer(says(500)) as server:
        yield CardServer(server)


def settings_for(*agents: AgentSettings, **fields: Any) -> Settings:
    return Settings(agents=agents, **fields)


def agent(url: str, agent_id: str = "helper", **fields: Any) -> AgentSettings:
    return AgentSettings(id=agent_id, url=url, **fields)


@pytest.fixture
def make_roster(store: redis.Redis) -> Iterator[Callable[..., Roster]]:
    made: list[Roster] = []

    def make(*agents: AgentSettings, **fields: Any) -> Roster:
        made.append(Roster(settings_for(*agents, **fields), store, lambda agent_id: f"card:{agent_id}"))
        return made[-1]

    yield make
    for roster in made:
        roster.close()


def test_a_card_is_fetched_once_for_everybody(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Twenty threads of four processes' worth of rosters: one GET; the key has a TTL."""
    rosters = [make_roster(agent(cards.url)) for _ in range(4)]
    with ThreadPoolExecutor(20) as threads:
        names = list(threads.map(lambda n: rosters[n % 4].card("helper").name, range(40)))
    assert names == ["Helper"] * 40
    assert cards.asked() == 1
    assert 0 < store.ttl("card:helper") <= 3600
    assert store.exists("card:helper:lock") == 0


def test_steps_do_not_ask_redis_each_time(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """What was checked is remembered for half a minute."""
    roster = make_roster(agent(cards.url))
    roster.card("helper")
    store.delete("card:helper")
    assert roster.card("helper").name == "Helper"
    assert cards.asked() == 1


def test_a_card_from_redis_is_checked_against_the_settings_of_today(
    cards: CardServer, make_roster: Callable[..., Roster]
) -> None:
    """The operator narrowed the version meanwhile."""
    make_roster(agent(cards.url)).card("helper")
    with pytest.raises(AgentRefused, match="does not satisfy"):
        make_roster(agent(cards.url, version=">=2")).card("helper")
    assert cards.asked() == 1


def test_a_refusal_is_kept_for_a_short_time_with_its_reason(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Shown to everybody, and asked again soon."""
    cards.change(**SECURITY)
    for _ in range(2):
        with pytest.raises(UnsupportedExtensionError, match="key"):
            make_roster(agent(cards.url)).card("helper")
    assert cards.asked() == 1
    assert 0 < store.ttl("card:helper") <= REFUSAL_TTL_S


def test_many_who_wait_for_a_fetch_that_fails_hear_of_it(
    make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Not each of them tries for itself."""
    with RawServer(says(502)) as server:
        rosters = [make_roster(agent(server.url)) for _ in range(6)]

        def ask(roster: Roster) -> str:
            try:
                return roster.card("helper").name
            except Exception as error:  # noqa: BLE001  its kind is the answer
                return type(error).__name__

        with ThreadPoolExecutor(6) as threads:
            assert list(threads.map(ask, rosters)) == ["CallAmbiguous"] * 6
        assert len(server.seen) == 1
    assert 0 < store.ttl("card:helper") <= 5


def test_a_lock_whose_holder_died_does_not_last(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """It expires, and the next one fetches."""
    store.set("card:helper:lock", "a dead process", px=300)
    assert make_roster(agent(cards.url)).card("helper").name == "Helper"
    assert cards.asked() == 1


def test_a_holder_that_lost_its_lock_leaves_the_next_ones_alone(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """It was slow; somebody else holds the lock now."""
    cards.before_answer = lambda: store.set("card:helper:lock", "somebody else", ex=60)
    assert make_roster(agent(cards.url)).card("helper").name == "Helper"
    assert store.get("card:helper:lock") == "somebody else"


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"x": 1}', '{"url": 7}', "[" * 100_000])
def test_garbage_in_place_of_a_card_is_no_card(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis, garbage: str
) -> None:
    """The server is asked."""
    store.set("card:helper", garbage)
    assert make_roster(agent(cards.url)).card("helper").name == "Helper"
    assert cards.asked() == 1


def test_without_redis_the_store_is_unavailable(cards: CardServer) -> None:
    """No redis exception leaves."""
    client = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))
    roster = Roster(settings_for(agent(cards.url)), client, lambda agent_id: f"card:{agent_id}")
    for ask in (roster.card, roster.client):
        with pytest.raises(StoreUnavailable):
            ask("helper")
    with pytest.raises(StoreUnavailable):
        roster.describe()
    client.close()


def test_the_roster_shows_everybody_and_nobody_stops_it(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Accepted, refused, unreachable and hanging agents side by side, in the order of the configuration."""
    with RawServer(says(200, b"<html>")) as broken:
        roster = make_roster(
            agent(f"http://127.0.0.1:{free_port()}", "down"),
            agent(broken.url, "broken"),
            agent(cards.url, "helper"),
            server={"base_url": "http://127.0.0.1:8000"},
        )
        down, refused, helper = roster.describe()
    names = ["id", "name", "version", "accepted", "paused", "reason", "watch", "skills"]
    names += ["auth", "signed", "fingerprint", "card_fetched_at", "stale"]
    assert [list(row) for row in (down, refused, helper)] == [names] * 3
    assert (down["id"], down["accepted"]) == ("down", False)
    assert down["reason"].startswith("agent.unavailable: ")
    assert (refused["accepted"], refused["reason"]) == (
        False,
        "agent.refused: card_invalid: the answer is not JSON (JSONDecodeError)",
    )
    assert helper["card_fetched_at"].endswith("Z")
    assert {**helper, "card_fetched_at": None} == {
        "id": "helper",
        "name": "Helper",
        "version": "1.0",
        "accepted": True,
        "paused": False,
        "reason": None,
        "watch": "push",
        "skills": [{"id": "s", "name": "S", "description": "does"}],
        "auth": None,
        "signed": "no",
        "fingerprint": fingerprint(cards.card),
        "card_fetched_at": None,
        "stale": None,
    }


def test_an_unknown_agent_is_told_with_the_valid_ones(cards: CardServer, make_roster: Callable[..., Roster]) -> None:
    """Nothing is fetched for it."""
    roster = make_roster(agent(cards.url))
    for ask in (roster.config, roster.card, roster.client):
        with pytest.raises(UnknownAgent, match="helper"):
            ask("nobody")
    assert cards.asked() == 0


def forget_card(roster: Roster, store: redis.Redis) -> None:
    """As if its time were over, in this process and in Redis."""
    roster._cards._memory.clear()
    assert store.delete(roster._cards._card_key("helper")) == 1


def test_a_client_lives_as_long_as_its_interface(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Case C047: a moved interface is found once new work has the card fetched again, and no sooner."""
    roster = make_roster(agent(cards.url), timing=TimingSettings(card_ttl=1))
    first = roster.client("helper")
    assert roster.client("helper") is first
    cards.change(path="/rpc2", description="changed")
    forget_card(roster, store)
    assert roster.client("helper") is first
    assert cards.asked() == 1
    roster.card("helper")
    second = roster.client("helper")
    assert second is not first
    second.get_task(AgentTaskId("t1"), deadline_s=5)
    assert cards.server.seen[-1].line == "POST /rpc2 HTTP/1.1"


def test_a_client_calls_as_whoever_delegated(cards: CardServer, make_roster: Callable[..., Roster]) -> None:
    """Agents know a delegation's sender by the id it was opened with, whatever the settings say today."""
    roster = make_roster(agent(cards.url), server={"participant_id": "today"})
    for participant_id, sent in ((None, "today"), ("before", "before"), ("today", "today")):
        roster.client("helper", participant_id).get_task(AgentTaskId("t1"), deadline_s=5)
        assert cards.server.seen[-1].headers["x-participant-id"] == sent
    assert roster.client("helper") is roster.client("helper", "today")
    assert roster.client("helper", "before") is roster.client("helper", "before")
    assert cards.server.connections == 2  # cards are fetched with credentials of their own


def test_a_client_keeps_no_more_of_a_card_than_calls_need(
    cards: CardServer, make_roster: Callable[..., Roster]
) -> None:
    """Hundreds of clients are kept, and a card may be megabytes; whoever asks for the card has all of it."""
    roster = make_roster(agent(cards.url))
    kept = roster.client("helper").card
    assert (kept.raw, kept.skills, kept.name) == ({}, (), "Helper")
    assert roster.card("helper").raw == cards.card


def test_a_client_learns_what_its_card_offers_anew(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Streams, and the extensions that its calls name."""
    roster = make_roster(agent(cards.url))
    assert not roster.client("helper").card.can_stream
    offers = {"streaming": True, "extensions": [{"uri": TASK_EXTENSION, "required": True}]}
    cards.change(capabilities=offers)
    forget_card(roster, store)
    roster.card("helper")
    client = roster.client("helper")
    assert client.card.can_stream
    client.get_task(AgentTaskId("t1"), deadline_s=5)
    assert cards.server.seen[-1].headers["a2a-extensions"] == TASK_EXTENSION
    assert roster.client("helper") is client


def test_what_is_under_way_keeps_its_interface_though_the_card_is_refused_now(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """New work asks for the card and hears why not; work under way goes on."""
    make_roster(agent(cards.url)).card("helper")
    cards.change(**SECURITY)
    roster = make_roster(agent(cards.url))
    forget_card(roster, store)
    with pytest.raises(UnsupportedExtensionError):
        roster.card("helper")
    assert roster.client("helper").get_task(AgentTaskId("t1"), deadline_s=5).id == "t1"


def test_an_agent_never_accepted_has_no_client(make_roster: Callable[..., Roster]) -> None:
    """There is nothing to fall back on."""
    with pytest.raises(AgentUnreachable):
        make_roster(agent(f"http://127.0.0.1:{free_port()}")).client("helper")


def _ask_in_child(roster: Roster, answer: Any) -> None:
    task = roster.client("helper").get_task(AgentTaskId("t1"), deadline_s=5)
    answer.send((os.getpid(), task.id))


def test_a_forked_process_has_clients_and_connections_of_its_own(
    cards: CardServer, make_roster: Callable[..., Roster], tmp_path: Path
) -> None:
    """Parent and child both go on, also when another thread of the parent was in the middle of a call."""
    roster = make_roster(agent(cards.url))
    roster.client("helper").get_task(AgentTaskId("t1"), deadline_s=5)
    in_call, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        if not in_call.is_set():
            in_call.set()
            go_on.wait(10)

    cards.before_answer = hold
    with ThreadPoolExecutor(1) as threads:
        pending = threads.submit(roster.client("helper").get_task, AgentTaskId("t1"), deadline_s=10)
        assert in_call.wait(5)
        receiver, sender = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_ask_in_child, args=(roster, sender))
        child.start()
        assert receiver.poll(10)
        pid, task_id = receiver.recv()
        child.join(10)
        assert (pid, task_id, child.exitcode) == (child.pid, "t1", 0)
        go_on.set()
        assert pending.result(10).id == "t1"
    assert roster.client("helper").get_task(AgentTaskId("t1"), deadline_s=5).id == "t1"
    receiver.close()
    sender.close()


# ---------------------------------------------------------------- what a model is shown


def shown(roster: Roster) -> tuple[str, list[Any]]:
    """The section, and what was logged for it: event and agent or agents."""
    with capture_logs() as lines:
        section = roster.render()
    told = [(line["log_level"], line["event"], line.get("agents", line.get("agent"))) for line in lines]
    return section, [each for each in told if each[1].startswith(("roster.", "text."))]


def test_a_model_is_shown_the_same_bytes_until_a_card_changes(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Fetched again it is the same text, and nothing is logged twice; a changed card counts without a restart."""
    roster = make_roster(agent(cards.url))
    cards.change(name="n" * 81)
    first, told = shown(roster)
    assert told == [("warning", "text.cut", "helper"), ("info", "roster.rendered", ["helper"])]
    forget_card(roster, store)
    assert shown(roster) == (first, [])
    assert cards.asked() == 2
    cards.change(description="helps more")
    assert shown(roster) == (first, [])
    forget_card(roster, store)
    section, told = shown(roster)
    assert '  description: "helps more"' in section
    assert told == [("info", "roster.rendered", ["helper"])]


def test_a_cut_is_warned_of_once_whatever_becomes_of_other_agents(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """One agent that comes and goes does not repeat the warnings about another."""
    roster = make_roster(agent(cards.url), agent(cards.url, agent_id="other", version="==1.0", description="x" * 501))

    def change_other(**fields: Any) -> None:
        cards.change(**fields)
        roster._cards._memory.clear()
        store.delete("card:other")

    assert [each[2] for each in shown(roster)[1]] == ["other", ["helper", "other"]]
    change_other(version="2.0")
    assert [each[2] for each in shown(roster)[1]] == [["helper"]]
    change_other()
    assert [each[2] for each in shown(roster)[1]] == [["helper", "other"]]


def test_agents_that_take_no_work_are_not_shown(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Refused, unreachable or paused: until they do, and then without a restart."""
    roster = make_roster(agent(cards.url), agent(f"http://127.0.0.1:{free_port()}", agent_id="away"))
    cards.change(**SECURITY)
    assert shown(roster) == (f"<agents>\n{NO_AGENTS}\n</agents>", [("info", "roster.rendered", [])])
    cards.change(signatures=[{"protected": "e30", "signature": "c2ln"}])
    forget_card(roster, store)
    assert [each.id for each in roster.listed()] == ["helper"]
    cards.change()
    forget_card(roster, store)
    assert NO_AGENTS in roster.render()
    assert roster.describe()[0]["paused"]
    assert roster.accept(roster.review("helper"))
    assert "- id: helper" in roster.render()


def test_an_agent_stays_shown_while_somebody_fetches_its_card(
    cards: CardServer, make_roster: Callable[..., Roster], store: redis.Redis
) -> None:
    """Its last accepted card serves: the section does not flicker."""
    make_roster(agent(cards.url)).card("helper")
    store.delete("card:helper")
    store.set("card:helper:lock", "somebody else's")
    impatient = Roster(settings_for(agent(cards.url)), store, lambda agent_id: f"card:{agent_id}", card_patience_s=0.1)
    assert "- id: helper" in impatient.render()
    assert cards.asked() == 1
    impatient.close()


def test_a_roster_without_redis_is_an_error(make_roster: Callable[..., Roster], cards: CardServer) -> None:
    """Not an empty one, which a model would believe."""
    nowhere = redis.Redis(port=free_port(), retry=Retry(NoBackoff(), 0))
    roster = Roster(settings_for(agent(cards.url)), nowhere, lambda agent_id: f"card:{agent_id}")
    with pytest.raises(StoreUnavailable):
        roster.render()
    roster.close()
    nowhere.close()
