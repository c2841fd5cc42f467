"""The sample agents' plausible work: short texts computed from the goal alone, the same every time."""

from __future__ import annotations

import zlib
from collections.abc import Callable

FAIL_ON_PURPOSE = "fail on purpose"
FAILURE_TEXT = "the goal asked for a failure, so this work failed on purpose"

_AIRLINES = ("Northwind Air", "Meridian", "Blue Heron", "Alpine Jet")
_HOTELS = ("Harbour House", "The Old Mill", "Hotel Linden", "Gasthof Stern")
_SKIES = ("clear", "light rain", "cloudy, dry", "sunny with a breeze")


def topic_of(goal: str) -> str:
    """The topic named first in the goal: flights, hotels, weather, ledger; else note."""
    text = goal.lower()
    named = [(text.find(word), topic) for word, topic in _WORDS.items() if word in text]
    return min(named)[1] if named else "note"


def wants_failure(goal: str) -> bool:
    return FAIL_ON_PURPOSE in goal.lower()


def seconds_of_work(goal: str, *, shortest: float, longest: float) -> float:
    """How long the goal takes, between the two bounds, the same for the same goal."""
    return round(shortest + (longest - shortest) * (_number(goal) % 101) / 100, 2)


def answer_to(goal: str) -> str:
    """What the agent hands over for this goal, one or two lines of text."""
    return _ANSWERS[topic_of(goal)](goal, _number(goal))


def _number(goal: str) -> int:
    return zlib.crc32(goal.encode())


def _flights(_goal: str, number: int) -> str:
    airline = _AIRLINES[number % len(_AIRLINES)]
    hour, minute = 6 + number // 7 % 14, number // 11 % 12 * 5
    return f"Best flight: {airline} {100 + number % 900}, departs {hour:02}:{minute:02}, {80 + number % 420} EUR"


def _hotels(_goal: str, number: int) -> str:
    hotel = _HOTELS[number % len(_HOTELS)]
    return f"Best hotel: {hotel}, {60 + number % 140} EUR a night, {1 + number // 5 % 9} rooms left"


def _weather(_goal: str, number: int) -> str:
    low = 2 + number % 14
    return f"Forecast: {_SKIES[number % len(_SKIES)]}, {low} to {low + 4 + number // 3 % 8} °C"


def _ledger(_goal: str, number: int) -> str:
    entries, cents = 3 + number % 40, number % 900_000
    return f"Ledger: {entries} entries, {number % 3} to be checked, balance {cents // 100}.{cents % 100:02} EUR"


def _note(goal: str, _number: int) -> str:
    return f"Noted: {len(goal.split())} words, {len(goal)} characters, nothing further to do"


_WORDS = {
    "flight": "flights",
    "fly": "flights",
    "way to": "flights",
    "hotel": "hotels",
    "stay": "hotels",
    "room": "hotels",
    "nights": "hotels",
    "weather": "weather",
    "forecast": "weather",
    "ledger": "ledger",
    "invoice": "ledger",
    "budget": "ledger",
    "expense": "ledger",
}
_ANSWERS: dict[str, Callable[[str, int], str]] = {
    "flights": _flights,
    "hotels": _hotels,
    "weather": _weather,
    "ledger": _ledger,
    "note": _note,
}
