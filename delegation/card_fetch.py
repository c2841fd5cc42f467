"""Ask an agent's server for its card: where it is, what of it we have already, and for how long it counts.

HTTP's own rules (RFC 9110 section 13, RFC 9111): a card that we have is asked for conditionally, and the answer says
how long it is fresh. What the server says is bounded: a card counts for a second at least and `ttl_s` at most.
"""

from __future__ import annotations

import email.utils
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from delegation.answers import load_json
from delegation.cards import standard_headers
from delegation.errors import AgentError, AgentRefused, AnswerTooLarge, AuthenticationRefused, CallAmbiguous
from delegation.outbound import Exchange, GuardedTransport
from delegation.replies import JSONRPC, Question, explain_status, read_reply
from delegation.settings import AgentSettings

CARD_PATH = "/.well-known/agent-card.json"
#: Where cards were before A2A 0.3.
OLDER_CARD_PATH = "/.well-known/agent.json"
CARD_DEADLINE_S = 10.0
LEAST_FRESH_S = 1.0
#: No such card here: look at the older path. Anything else (a 401 above all) is an answer.
_NOT_HERE = (404, 410)
_QUESTION = Question(method="card", binding=JSONRPC)

_ENTITY_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]{0,256}"')
_SECONDS = re.compile(r'"?(\d{1,12})"?')


@dataclass(frozen=True, kw_only=True, slots=True)
class Validators:
    """What a conditional request repeats to the URL that said it."""

    url: str = ""
    etag: str = ""
    last_modified: str = ""

    def headers(self, url: str) -> dict[str, str]:
        if url != self.url:
            return {}
        named = {"If-None-Match": self.etag, "If-Modified-Since": self.last_modified}
        return {name: value for name, value in named.items() if value}


NONE_KEPT = Validators()


@dataclass(frozen=True, kw_only=True, slots=True)
class CardAnswer:
    """A card; or None in its place: the one we have still holds. `unreadable` says why what came is neither."""

    card: Any = None
    not_modified: bool = False
    unreadable: str = ""
    validators: Validators = NONE_KEPT
    fresh_s: float | None = None  #: None: the server did not say


def ask_for_card(
    agent: AgentSettings,
    transport: GuardedTransport,
    *,
    participant_id: str,
    max_bytes: int,
    kept: Validators = NONE_KEPT,
    deadline_s: float = CARD_DEADLINE_S,
) -> CardAnswer:
    """What the agent's server says of its card.

    Raises AgentRefused, or AuthenticationRefused for 401 and 403, when the server says no; AgentUnreachable, AgentBusy
    or CallAmbiguous when it may be otherwise later.
    """
    deadline_at = time.monotonic() + deadline_s
    missing: list[str] = []
    for url in card_urls(agent.url):
        headers = standard_headers(agent, participant_id) | kept.headers(url)
        left = max(0.0, deadline_at - time.monotonic())
        try:
            answer = transport.get(url, headers=headers, deadline_s=left, max_bytes=max_bytes)
        except AnswerTooLarge as error:
            return CardAnswer(unreadable=f"card_invalid: {error.detail}")
        if answer.status not in _NOT_HERE:
            return _read_answer(answer, url, kept)
        missing.append(f"HTTP {answer.status} at {url.removeprefix(agent.url) or 'its url'}")
    raise AgentRefused(f"card: {', '.join(missing)}")


def card_urls(url: str) -> list[str]:
    """Where the card of the agent at `url` may be, in order. A URL that ends with .json is the card's own."""
    return [url] if url.endswith(".json") else [url + CARD_PATH, url + OLDER_CARD_PATH]


def _read_answer(answer: Exchange, url: str, kept: Validators) -> CardAnswer:
    if answer.status == 304 and kept.headers(url):
        return CardAnswer(not_modified=True, validators=kept, fresh_s=said_fresh_s(answer.headers))
    if 300 <= answer.status < 400:
        raise AgentRefused(f"card: HTTP {answer.status}: a redirect, not followed; configure the url it leads to")
    if answer.status in (401, 403):
        raise AuthenticationRefused(explain_status(_QUESTION, answer.status).detail)
    if answer.status != 200:
        raise _error_of_status(answer)
    try:
        card = load_json(answer.body)
    except CallAmbiguous as error:
        return CardAnswer(unreadable=f"card_invalid: {error.detail}")
    return CardAnswer(card=card, validators=_validators(url, answer.headers), fresh_s=said_fresh_s(answer.headers))


def _error_of_status(answer: Exchange) -> AgentError:
    """By the status and its headers alone: whatever stands in the body is no A2A error, since this is no A2A call."""
    try:
        read_reply(_QUESTION, answer.status, answer.headers, b"null")
    except AgentError as error:
        return error
    return explain_status(_QUESTION, answer.status)


def _validators(url: str, headers: Mapping[str, str]) -> Validators:
    """Sent back as they came, so they must be what they claim to be."""
    etag, last_modified = headers.get("etag", "").strip(), headers.get("last-modified", "").strip()
    return Validators(
        url=url,
        etag=etag if _ENTITY_TAG.fullmatch(etag) else "",
        last_modified=last_modified if _read_date(last_modified) and len(last_modified) < 64 else "",
    )


def said_fresh_s(headers: Mapping[str, str]) -> float | None:
    """Seconds for which the server says its answer is fresh, 0 for `no-store` and `no-cache`; None: it does not say.

    `max-age` goes before `Expires` (RFC 9111 section 5.3), and `Age` is taken off. What cannot be read counts as stale.
    A date counts from the answer's own Date: our clock says nothing about the server's.
    """
    directives = dict(_directives(headers.get("cache-control", "")))
    if "no-store" in directives or "no-cache" in directives:
        return 0.0
    if "max-age" in directives:
        return max(0.0, (_seconds(directives["max-age"]) or 0.0) - (_seconds(headers.get("age", "")) or 0.0))
    if "expires" in headers:
        until, now = _read_date(headers["expires"]), _read_date(headers.get("date", ""))
        return max(0.0, (until - now).total_seconds()) if until and now else 0.0
    return None


def bounded_fresh_s(said: float | None, ttl_s: float) -> float:
    """As `timing.card_ttl` allows."""
    return ttl_s if said is None else min(max(said, LEAST_FRESH_S), ttl_s)


def _directives(text: str) -> list[tuple[str, str]]:
    pairs = (piece.partition("=") for piece in text[:1000].split(","))
    return [(name.strip().lower(), value.strip()) for name, _, value in pairs]


def _seconds(text: str) -> float | None:
    found = _SECONDS.fullmatch(text.strip())
    return float(found[1]) if found else None


def _read_date(text: str) -> datetime | None:
    try:
        date = email.utils.parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
