"""Descriptors of remote agents: the agents block, the environment in headers, and what is no descriptor."""

from __future__ import annotations

from typing import Any

import pytest

from delegation import parse_agents_config, remote_agent
from delegation.errors import InvalidArguments
from delegation.tools.card import sanitize
from delegation.tools.descriptor import Dialect, expand, read_descriptor

CARD = "https://agents.example.com/card.json"


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("Bearer ${TOOLS_TOKEN}", "Bearer s3cret-token"),
        ("a${TOOLS_TOKEN}b${TOOLS_TOKEN}", "as3cret-tokenbs3cret-token"),
        ("Bearer ${TOOLS_UNSET}", "Bearer"),
        ("${TOOLS_EMPTY}", ""),
        ("x${}y", "x${}y"),
        ("${a-b}", "${a-b}"),
        ("${TOOLS_TOKEN", "${TOOLS_TOKEN"),
        ("$HOME {HOME}", "$HOME {HOME}"),
        ("${1A}", "${1A}"),
        ("${TOOLS_NESTED}", "${TOOLS_TOKEN}"),
        ("${TOOLS_UNSET:-d}", "${TOOLS_UNSET:-d}"),
    ],
)
def test_45_env_edge_cases(template: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`${NAME}` alone is expanded, once, and an unset one is nothing; white space at the end is no part of a header."""
    monkeypatch.setenv("TOOLS_TOKEN", "s3cret-token")
    monkeypatch.setenv("TOOLS_EMPTY", "")
    monkeypatch.setenv("TOOLS_NESTED", "${TOOLS_TOKEN}")
    monkeypatch.delenv("TOOLS_UNSET", raising=False)
    assert expand({"X-Key": template}).headers == {"X-Key": value}


def test_secrets_are_what_the_environment_holds_and_what_a_name_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text that is given back repeats them."""
    monkeypatch.setenv("TOOLS_TOKEN", "from-the-environment")
    headers = {"X-Team": "${TOOLS_TOKEN}", "Authorization": "Bearer written-out-here", "X-Plain": "nothing-secret"}
    secrets = set(expand(headers).secrets)
    assert secrets == {"from-the-environment", "Bearer written-out-here", "written-out-here"}


@pytest.mark.parametrize("name", ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Cookie", "X: Y", ""])
def test_a_header_that_makes_another_request_is_refused(name: str) -> None:
    """The connection and we set those."""
    with pytest.raises(InvalidArguments, match="headers"):
        expand({name: "x"})
    assert remote_agent(card=CARD, headers={name: "x"}).error == "HTTP transport transport"


def test_our_content_type_wins() -> None:
    """A request of ours is JSON whatever a descriptor says."""
    assert expand({"Content-Type": "text/plain", "X-Team": "travel"}).headers == {"X-Team": "travel"}


def test_a_line_break_in_a_secret_is_no_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be a header of its own; the error does not repeat it."""
    monkeypatch.setenv("TOOLS_TOKEN", "a\r\nX-Evil: secret-value")
    with pytest.raises(InvalidArguments) as refused:
        expand({"X-Key": "${TOOLS_TOKEN}"})
    assert "secret-value" not in str(refused.value)


def test_47_config_parse() -> None:
    """What an entry says is in its descriptor, under the names that `remote_agent` takes."""
    block = {
        "one": {"card": CARD, "timeout": 5, "pollEvery": 7, "headers": {"X-Team": "t"}},
        "two": {"card": CARD, "enabled": True, "note": "dropped"},
    }
    assert parse_agents_config(block) == [
        {"card": CARD, "headers": {"X-Team": "t"}, "timeout": 5, "poll_every": 7},
        {"card": CARD},
    ]


@pytest.mark.parametrize(
    "block",
    [
        None,
        {},
        [],
        "x",
        {"a": {}},
        {"a": None},
        {"a": {"card": 5}},
        *({"a": {"card": CARD, **off}} for off in ({"disabled": True}, {"enabled": False})),
    ],
    ids=str,
)
def test_48_config_skip(block: Any) -> None:
    """What is no entry, or is switched off, is no agent."""
    assert parse_agents_config(block) == []


def test_49_precedence() -> None:
    """Off is off, and only true and false themselves say so."""
    assert parse_agents_config({"a": {"card": CARD, "enabled": True, "disabled": True}}) == []
    odd = {"card": CARD, "disabled": "true", "enabled": 0}
    assert parse_agents_config({"a": odd}) == [{"card": CARD}]


def test_50_config_order() -> None:
    """Sorted by key, whatever the order in the file."""
    block = {key: {"card": f"https://{key}.example.com/card"} for key in ("zeta", "mid", "alfa")}
    assert [entry["card"][8:12] for entry in parse_agents_config(block)] == ["alfa", "mid.", "zeta"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Demo Bot", "Demo_Bot"),
        ("fail.now", "fail_now"),
        ("😀", "_"),
        ("日本", "__"),
        ("A\n", "A_"),
        ("", ""),
        ("a--b__c", "a--b__c"),
        (" x ", "_x_"),
    ],
)
def test_60_sanitize_table(text: str, name: str) -> None:
    """One `_` for each character that a name may not have."""
    assert sanitize(text) == name


@pytest.mark.parametrize(
    "given",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": "5"},
        {"timeout": True},
        {"timeout": float("nan")},
        {"poll_every": 0},
        {"headers": {"X": 5}},
        {"headers": "X"},
        {"dialect": "2.0"},
        {"origins": "https://x.example"},
    ],
    ids=str,
)
def test_what_is_no_descriptor_is_an_error_and_not_an_exception(given: dict[str, Any]) -> None:
    """The key is named."""
    found = remote_agent(card=CARD, **given)
    assert (found.card, found.tools) == (None, [])
    assert found.error is not None
    assert found.error.startswith(f"bad descriptor: {next(iter(given))}: ")


def test_unknown_keys_are_dropped() -> None:
    """A descriptor may be shared with other programs."""
    found = read_descriptor({"card": CARD, "colour": "red", "pollEvery": 7, "dialect": "0.3"})
    assert (found.poll_every, found.dialect) == (7, Dialect.V0_3)


@pytest.mark.parametrize(
    "card", [None, "", 5, "not a url", "file:///etc/passwd", "http://user:pw@127.0.0.1/card"], ids=str
)
def test_10_a_bad_url_is_a_transport_error(card: Any) -> None:
    """http and https alone are spoken, and no password stands in a URL."""
    assert remote_agent(card=card).error == "HTTP transport transport"


@pytest.mark.parametrize("number", [10**400, 1e300, 1e13, 7 * 24 * 3600 * 1000 + 1], ids=lambda number: str(number)[:9])
def test_a_time_beyond_a_week_is_refused(number: float) -> None:
    """No clock takes any number: 10**400 is no float, and 1e300 no time."""
    text = "at most 604800000 milliseconds (7 days)"
    assert remote_agent(card=CARD, timeout=number).error == f"bad descriptor: timeout: {text}"
    assert remote_agent(card=CARD, poll_every=number).error == f"bad descriptor: poll_every: {text}"
    assert read_descriptor({"card": CARD, "timeout": 604_800_000.0}).timeout == 604_800_000


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_time_is_refused(number: float) -> None:
    """As zero is."""
    assert "bad descriptor: timeout: " in str(remote_agent(card=CARD, timeout=number).error)
