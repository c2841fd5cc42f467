"""What Redis keeps of a card: in codes of its own, readable by other releases."""

from __future__ import annotations

import json

import pytest

from delegation.card_fetch import Validators
from delegation.card_verdict import Kind, Signed, Verdict, decode, encode, kind_of
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

CARD = {"name": "n"}
FULL = Verdict(
    url="https://a.example",
    trust="file:/k required",
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
