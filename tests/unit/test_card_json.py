"""Whatever JSON a card is, reading it ends in a card or in one of two errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delegation.card_changes import MEMBERS, compare, fingerprint
from delegation.card_signatures import verify_card
from delegation.cards import CheckedCard, check_card
from delegation.errors import AgentRefused, UnsupportedExtensionError
from delegation.settings import AgentSettings

AGENT = AgentSettings(id="ledger", url="https://agent.example", version=">=1")
NAMES = [*MEMBERS, "url", "protocolVersion", "protocolBinding", "extensions", "uri", "required", "schemes", "list"]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["1.0", "0.3.0", "JSONRPC", "https://agent.example/rpc", "https://evil.example/", "\ud800"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=6)
    ),
    max_leaves=15,
)
INTERFACE = st.fixed_dictionaries(
    {"url": JSON | st.just("https://agent.example/rpc"), "protocolBinding": JSON | st.just("JSONRPC")},
    optional={"protocolVersion": JSON | st.just("1.0"), "tenant": JSON},
)
NEARLY = st.fixed_dictionaries(
    {
        "name": JSON | st.just("N"),
        "description": JSON | st.just("d"),
        "version": JSON | st.just("1.2"),
        "supportedInterfaces": JSON | st.lists(INTERFACE, min_size=1, max_size=3),
    },
    optional=dict.fromkeys(MEMBERS[4:], JSON),
)
BOUNDED = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def said_of(read: Callable[[], object]) -> str:
    """Why it was refused, in one of the two kinds that may be; empty where it was not."""
    try:
        read()
    except (AgentRefused, UnsupportedExtensionError) as error:
        return error.detail
    return ""


@BOUNDED
@given(JSON | NEARLY)
def test_a_card_is_accepted_or_refused(raw: Any) -> None:
    """In two kinds, each with a reason on one line."""
    refusal = said_of(lambda: check_card(AGENT, raw))
    assert refusal.isprintable()
    assert refusal or isinstance(check_card(AGENT, raw), CheckedCard)


@BOUNDED
@given(st.dictionaries(st.sampled_from(NAMES), JSON) | NEARLY, NEARLY)
def test_any_two_cards_can_be_compared(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Also those that would be refused; each has a fingerprint."""
    found = compare(AGENT, old, new)
    assert set(found.members) <= {*MEMBERS, "others"}
    assert all(reason.isprintable() for reason in found.reasons)
    assert len(fingerprint(old)) == 64


@BOUNDED
@given(NEARLY, JSON | st.lists(st.dictionaries(st.sampled_from(["protected", "signature", "header"]), JSON)))
def test_no_signature_verifies_without_keys(card: dict[str, Any], signatures: Any) -> None:
    """Whatever stands there for one: refused, in one kind."""
    assert said_of(lambda: verify_card({**card, "signatures": signatures}, ())).startswith("card_signature_")
