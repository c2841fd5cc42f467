"""What Redis keeps of a card: in codes of its own, readable by other releases."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from delegation.card_fetch import Validators
from delegation.card_verdict import Kind, Signed, Verdict, decode, encode, judging_of, kind_of
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentPaused,
    AgentRefused,
    AgentTaskNotFound,
    AgentUnreachable,
    AnswerTooLarge,
    AuthenticationRefused,
    CallAmbiguous,
    CredentialUnavailable,
    UnsupportedExtensionError,
)
from delegation.settings import AgentSettings

CARD = {"name": "n"}
FULL = Verdict(
    url="https://a.example",
    trust="file:/k required",
    judged="abc",
    card=CARD,
    base={"name": "b"},
    signed=Signed.VERIFIED,
    kind=Kind.PAUSED,
    detail="d",
    confirmed_at=1.5,
    looked_at=2,
    validators=Validators(url="https://a.example/x", etag='"1"'),
)


def test_what_is_kept_is_read_again() -> None:
    """All of it."""
    assert decode(encode(FULL)) == FULL
    assert decode(encode(Verdict(url="https://a.example"))) == Verdict(url="https://a.example")


@pytest.mark.parametrize(
    ("error", "code", "read"),
    [
        (AuthenticationRefused("x"), "auth_failed", AuthenticationRefused),
        (AgentTaskNotFound("x"), "refused", AgentRefused),
        (UnsupportedExtensionError("x"), "unsupported", UnsupportedExtensionError),
        (CredentialUnavailable("x"), "no_credential", CredentialUnavailable),
        (AgentUnreachable("x"), "unreachable", AgentUnreachable),
        (AgentPaused("x", 30.0), "paused", AgentPaused),
        (AgentBusy("x", 1.0), "busy", AgentBusy),
        (AnswerTooLarge("x"), "ambiguous", CallAmbiguous),
    ],
)
def test_an_error_is_kept_by_a_code(error: AgentError, code: str, read: type[AgentError]) -> None:
    """Not by the name of its class: classes are renamed."""
    kept = encode(Verdict(url="u", kind=kind_of(error), detail=error.detail))
    assert json.loads(kept)["kind"] == code
    found = decode(kept)
    assert found is not None
    assert type(found.error()) is read
    assert found.error().detail == "x"


@pytest.mark.parametrize(
    "change",
    [
        {"url": ""},
        {"url": 7},
        {"kind": "AgentPaused"},
        {"signed": "perhaps"},
        {"confirmed_at": "soon"},
        {"fresh_s": None},
        {"card": []},
        {"base": "x"},
        {"validators": None},
        {"validators": {"etag": 7}},
    ],
)
def test_what_is_not_readable_is_told_from_a_verdict(change: dict[str, object]) -> None:
    """Wrong types, unknown codes; a field that another release added is no harm."""
    values = json.loads(encode(FULL))
    assert decode(json.dumps(values | {"later": [1]})) == FULL
    assert decode(json.dumps(values | change)) is None
    del values["validators"]
    assert decode(json.dumps(values)) is None


PLAIN: dict[str, Any] = {"id": "a", "url": "https://a.example"}
TOKEN = {"type": "bearer", "token": "env:T"}


@pytest.mark.parametrize(
    "fields",
    [
        {"auth": [TOKEN]},
        {"auth": [{**TOKEN, "scheme": "s"}]},
        {"auth": [{**TOKEN, "token": "file:/t"}]},
        {"card_auth": [TOKEN]},
        {"origins": ["https://b.example"]},
        {"version": ">=1"},
        {"allow_http": True},
        {"signature_keys": "file:/k"},
        {"signature_keys": "file:/k", "require_signature": True},
        {"ca_bundle": "file:/c"},
        {"proxy": "http://p.example:1"},
        {"url": "https://a.example/x"},
        {"headers": {"X-A": "1"}},
    ],
    ids=",".join,
)
def test_each_setting_that_judges_makes_another_digest(fields: dict[str, Any]) -> None:
    """And so does what a process is asked to judge by beside them."""
    plain = judging_of(AgentSettings(**PLAIN))
    assert judging_of(AgentSettings(**PLAIN | fields)) != plain
    assert judging_of(AgentSettings(**PLAIN), "other") != plain


def test_what_does_not_judge_makes_the_same_digest() -> None:
    """Names for models, ways to hear back; and no secret goes into it, of which it could be a proof."""
    plain = judging_of(AgentSettings(**PLAIN))
    shown = {"name": "n", "description": "d", "skills": ["s"], "updates": "poll", "on_ambiguous_send": "resend"}
    assert judging_of(AgentSettings(**PLAIN | shown)) == plain
    one, other = (AgentSettings(**PLAIN | {"headers": {"X-Key": value}}) for value in ("s3cret-1", "s3cret-2"))
    assert judging_of(one) == judging_of(other)
    assert re.fullmatch(r"[0-9a-f]{16}", plain)


@pytest.mark.parametrize(
    ("verdict", "shared", "own"),
    [
        ({"card": CARD}, True, True),
        ({"card": CARD, "kind": Kind.PAUSED}, True, True),
        ({"kind": Kind.REFUSED}, False, True),
        ({"kind": Kind.UNSUPPORTED}, False, True),
        ({"kind": Kind.AUTH_FAILED}, False, True),
        ({"kind": Kind.UNREACHABLE}, False, True),
        ({"card": CARD, "stale": "agent.unavailable"}, False, True),
        ({"kind": Kind.NO_CREDENTIAL}, False, False),
        ({"card": CARD, "stale": "agent.credential_unavailable"}, False, False),
    ],
)
def test_why_there_is_no_card_holds_for_the_same_settings(verdict: dict[str, Any], shared: bool, own: bool) -> None:
    """A card is checked by whoever reads it; a secret that is missing may be there for others."""
    agent = AgentSettings(**PLAIN)
    found = Verdict(url=agent.url, judged="mine", **verdict)
    assert found.is_about(agent, "theirs") is shared
    assert found.is_about(agent, "mine") is own
    assert not found.is_about(AgentSettings(**PLAIN | {"url": "https://b.example"}), "mine")
