"""For how long a card counts, and where it is asked for."""

from __future__ import annotations

import pytest

from delegation.card_fetch import Validators, bounded_fresh_s, card_urls, said_fresh_s

DATE = "Mon, 30 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"cache-control": "public"}, None),
        ({"cache-control": "max-age=90"}, 90),
        ({"cache-control": 'Private, MAX-AGE="90", x="a,b"'}, 90),
        ({"cache-control": "max-age=90", "age": "30"}, 60),
        ({"cache-control": "max-age=90", "age": "300"}, 0),
        ({"cache-control": "max-age=90", "age": "soon"}, 90),
        ({"cache-control": "max-age=-1"}, 0),
        ({"cache-control": "max-age=soon"}, 0),
        ({"cache-control": "max-age=" + "9" * 400}, 0),
        ({"cache-control": "no-cache"}, 0),
        ({"cache-control": "max-age=90, no-store"}, 0),
        ({"cache-control": "max-age=90", "expires": DATE, "date": DATE}, 90),
        ({"expires": "Mon, 30 Nov 2026 12:01:00 GMT", "date": DATE}, 60),
        ({"expires": DATE, "date": "Mon, 30 Nov 2026 12:01:00 GMT"}, 0),
        ({"expires": "0", "date": DATE}, 0),
        ({"expires": DATE}, 0),
    ],
)
def test_a_server_says_for_how_long_its_card_is_fresh(headers: dict[str, str], seconds: float | None) -> None:
    """RFC 9111: max-age before Expires, Age taken off, and what cannot be read is stale."""
    assert said_fresh_s(headers) == seconds


@pytest.mark.parametrize(("said", "counts"), [(None, 3600), (0, 1), (0.2, 1), (60, 60), (10**9, 3600)])
def test_what_a_server_says_is_bounded(said: float | None, counts: float) -> None:
    """Neither asked for all the time, nor believed for ever."""
    assert bounded_fresh_s(said, 3600) == counts


def test_a_url_of_a_json_file_is_the_cards_own() -> None:
    """Nothing is appended to it; to others the two known paths are."""
    assert card_urls("https://a.example/cards/alpha.json") == ["https://a.example/cards/alpha.json"]
    assert card_urls("https://a.example/alpha") == [
        "https://a.example/alpha/.well-known/agent-card.json",
        "https://a.example/alpha/.well-known/agent.json",
    ]


def test_validators_are_for_the_url_that_gave_them() -> None:
    """Another one has another card."""
    kept = Validators(url="https://a.example/x", etag='"1"', last_modified=DATE)
    assert kept.headers("https://a.example/x") == {"If-None-Match": '"1"', "If-Modified-Since": DATE}
    assert kept.headers("https://a.example/y") == {}


@pytest.mark.parametrize("odd", [f"{DATE} (\xe9)", f"{DATE}\n", f"{DATE} ({'x' * 500})"])
def test_a_validator_that_can_be_no_header_is_not_sent(odd: str) -> None:
    """Also where it was kept before: it would fail at every look for a year."""
    assert Validators(url="u", etag=odd, last_modified=odd).headers("u") == {}
