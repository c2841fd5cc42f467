"""Signed cards: what verifies, and what never does."""

from __future__ import annotations

import base64
import json
from typing import Any

import jwt
import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.api_jws import PyJWS

from delegation.card_signatures import MOST_SIGNATURES, VerifyingKey, canonical, read_keys, verify_card
from delegation.errors import AgentRefused

EC_KEY = ec.generate_private_key(ec.SECP256R1())
EC_384_KEY = ec.generate_private_key(ec.SECP384R1())
RSA_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
ED_KEY = ed25519.Ed25519PrivateKey.generate()
STRANGER = ec.generate_private_key(ec.SECP256R1())
KEYS = {"ES256": EC_KEY, "ES384": EC_384_KEY, "RS256": RSA_KEY, "PS256": RSA_KEY, "EdDSA": ED_KEY}

CARD: dict[str, Any] = {
    "name": "Zähler €",
    "description": "line\nbreak \U0001f600",
    "version": "1",
    "supportedInterfaces": [{"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}],
    "capabilities": {"streaming": True, "extensions": []},
    "xFuture": {"number": 1e21, "small": 1e-7, "zero": 0.0, "\ufb33": 1, "\U00010000": 2},
}


def jwk(key: Any, kid: str | None = "k1", **more: Any) -> dict[str, Any]:
    """The public half."""
    algorithm = {
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    kind = next(kind for cls, kind in algorithm.items() if isinstance(key, cls))
    entry: dict[str, Any] = json.loads(kind.to_jwk(key.public_key()))
    return {name: value for name, value in {**entry, "kid": kid, **more}.items() if value is not None}


def keys(*entries: dict[str, Any]) -> tuple[VerifyingKey, ...]:
    return read_keys({"keys": list(entries)})


def sign(payload: bytes, key: Any, algorithm: str = "ES256", kid: str | None = "k1", **header: Any) -> dict[str, Any]:
    """A detached signature over these bytes."""
    names = {**header} if kid is None else {"kid": kid, **header}
    protected, _, signature = PyJWS().encode(payload, key, algorithm=algorithm, headers=names).split(".")
    return {"protected": protected, "signature": signature}


def signed(
    card: dict[str, Any] | None = None, key: Any = EC_KEY, algorithm: str = "ES256", **options: Any
) -> dict[str, Any]:
    card = card or CARD
    return {**card, "signatures": [sign(rfc8785.dumps(card), key, algorithm, **options)]}


def refusal(card: dict[str, Any], known: tuple[VerifyingKey, ...]) -> str:
    with pytest.raises(AgentRefused) as refused:
        verify_card(card, known)
    assert "\n" not in refused.value.detail
    assert len(refused.value.detail) < 300
    return refused.value.detail


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_card_as_served_verifies(algorithm: str) -> None:
    """Unknown members, odd numbers and astral characters included; it is the card that comes back."""
    card = signed(key=KEYS[algorithm], algorithm=algorithm)
    assert verify_card(card, keys(jwk(KEYS[algorithm]))) == card


def test_a_card_signed_without_its_empty_values_verifies() -> None:
    """As the SDK and the spec's rule for unset fields have it; the served card counts."""
    lean = {**CARD, "capabilities": {"streaming": True}}
    card = {**CARD, "signatures": [sign(rfc8785.dumps(lean), EC_KEY)]}
    assert verify_card(card, keys(jwk(EC_KEY))) == card


def test_members_that_were_added_after_signing_are_no_part_of_the_card() -> None:
    """An SDK's server adds those of A2A 0.3; whoever adds others gets nothing into it either."""
    known = {name: value for name, value in CARD.items() if name != "xFuture"}
    signature = sign(rfc8785.dumps({**known, "capabilities": {"streaming": True}}), EC_KEY)
    card = {**known, "url": "https://evil.example", "security": [], "signatures": [signature]}
    assert verify_card(card, keys(jwk(EC_KEY))) == {**known, "signatures": [signature]}


OLD_CARD: dict[str, Any] = {
    "name": "Old",
    "description": "d",
    "version": "1",
    "protocolVersion": "0.3.0",
    "preferredTransport": "JSONRPC",
    "url": "https://a.example/rpc",
    "capabilities": {"streaming": True},
    "skills": [],
}


def sign_old() -> dict[str, Any]:
    """As a2a-sdk 0.3 does it: without defaults and empty values."""
    unsaid = ("protocolVersion", "preferredTransport", "skills")
    return sign(rfc8785.dumps({name: value for name, value in OLD_CARD.items() if name not in unsaid}), EC_KEY)


def test_a_card_of_0_3_verifies_without_what_goes_without_saying() -> None:
    """Version and transport are defaults there; the served card counts."""
    card = {**OLD_CARD, "signatures": [sign_old()]}
    assert verify_card(card, keys(jwk(EC_KEY))) == card
    assert verify_card(signed(OLD_CARD), keys(jwk(EC_KEY)))["url"] == OLD_CARD["url"]


@pytest.mark.parametrize(
    "change",
    [
        {"preferredTransport": "HTTP+JSON"},
        {"protocolVersion": "0.3.1"},
        {"url": "https://evil.example/rpc"},
        {"additionalInterfaces": [{"url": "https://evil.example/rpc", "transport": "JSONRPC"}]},
        {"supportedInterfaces": [{"url": "https://evil.example/", "protocolBinding": "JSONRPC"}]},
    ],
)
def test_a_changed_card_of_0_3_does_not_verify(change: dict[str, Any]) -> None:
    """A member that is not at its default is part of what must be signed."""
    card = {**OLD_CARD, **change, "signatures": [sign_old()]}
    assert refusal(card, keys(jwk(EC_KEY))).startswith("card_signature_invalid: signatures[0]")


@pytest.mark.parametrize(
    "change",
    [
        {"description": "other"},
        {"supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": "https://evil.example/"}]},
        {"capabilities": {"streaming": False}},
        {"securityRequirements": [{"schemes": {"key": {"list": ["scope"]}}}]},
    ],
)
def test_a_changed_card_does_not_verify(change: dict[str, Any]) -> None:
    """Whatever of it was changed."""
    assert refusal({**signed(), **change}, keys(jwk(EC_KEY))).startswith("card_signature_invalid: signatures[0]")


def test_keys_are_chosen_by_their_id_and_kind() -> None:
    """A named key must be the one; without a name every key of the kind is tried."""
    known = keys(jwk(STRANGER, "other"), jwk(RSA_KEY, "rsa"), jwk(EC_KEY, "k1"))
    assert verify_card(signed(), known)
    assert verify_card(signed(kid=None), known)
    assert "not configured" in refusal(signed(kid="unknown"), known)
    assert "does not fit" in refusal(signed(kid="other"), known)
    assert "no kind of our keys" in refusal(signed(kid=None), keys(jwk(RSA_KEY)))


@pytest.mark.parametrize("name", ["jku", "x5u", "jwk"])
def test_a_card_does_not_say_where_its_keys_are(name: str) -> None:
    """A signature by the key that the card itself brings along is worth nothing."""
    header = {name: jwk(STRANGER) if name == "jwk" else "https://evil.example/keys"}
    assert "does not fit" in refusal(signed(key=STRANGER, **header), keys(jwk(EC_KEY)))


@pytest.mark.parametrize("algorithm", ["none", "HS256", "HS512", "ES256K", "", 7, None])
def test_only_signature_algorithms_are_accepted(algorithm: object) -> None:
    """Above all no `none`, and no public key as an HMAC's secret."""
    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm, "kid": "k1"}).encode()).decode().rstrip("=")
    card = {**CARD, "signatures": [{"protected": header, "signature": "AAAA"}]}
    assert "algorithm" in refusal(card, keys(jwk(EC_KEY)))


def test_a_key_is_used_for_what_it_is_for() -> None:
    """Its own algorithm, verification, and nothing private or shared."""
    assert verify_card(signed(), keys(jwk(EC_KEY, alg="ES256", use="sig", key_ops=["verify"])))
    assert refusal(signed(key=RSA_KEY, algorithm="PS256"), keys(jwk(RSA_KEY, alg="RS256")))
    private = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(EC_KEY))
    for entry in (
        jwk(EC_KEY, use="enc"),
        jwk(EC_KEY, key_ops=["sign"]),
        private,
        {"kty": "oct", "k": "c2VjcmV0"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {**jwk(EC_KEY), "kid": 7},
    ):
        with pytest.raises(ValueError, match="no public key"):
            keys(entry)


@pytest.mark.parametrize("raw", [None, [], {}, {"keys": {}}, {"keys": []}, {"keys": ["x"]}])
def test_what_is_no_key_set_is_told(raw: object) -> None:
    """It is the operator's file."""
    with pytest.raises(ValueError, match=r"JWK set|no public key"):
        read_keys(raw)


def test_a_card_by_a_stranger_costs_few_verifications() -> None:
    """Three signatures that keys of ours could have made, eight verifications in all; others cost none."""
    right, known = signed()["signatures"][0], keys(jwk(EC_KEY))
    wrong, unknown = (signed(key=STRANGER, kid=kid)["signatures"][0] for kid in ("k1", "unknown"))
    assert verify_card({**CARD, "signatures": [wrong, wrong, right]}, known)
    assert verify_card({**CARD, "signatures": [unknown, unknown, unknown, wrong, right]}, known)
    assert "does not fit" in refusal({**CARD, "signatures": [wrong, wrong, wrong, right]}, known)
    strangers = [jwk(ec.generate_private_key(ec.SECP256R1()), None) for _ in range(8)]
    assert verify_card(signed(kid=None), keys(*strangers[:7], jwk(EC_KEY, None)))
    assert "does not fit" in refusal(signed(kid=None), keys(*strangers, jwk(EC_KEY, None)))


def test_one_right_signature_is_enough() -> None:
    """Keys are rotated by signing with both."""
    right = signed()["signatures"][0]
    wrong = signed(key=STRANGER, kid="k1")["signatures"][0]
    assert verify_card({**CARD, "signatures": [wrong, 7, {}, right]}, keys(jwk(EC_KEY)))
    assert "list of at most" in refusal({**CARD, "signatures": [wrong] * MOST_SIGNATURES + [right]}, keys(jwk(EC_KEY)))


@pytest.mark.parametrize(
    "signatures",
    [
        "x",
        {"a": 1},
        [None],
        [{"protected": "", "signature": "AA"}],
        [{"protected": "!!", "signature": "AA"}],
        [{"protected": "AA", "signature": "AA"}],
        [{"protected": "W10", "signature": "AA"}],
        [{"protected": "A" * 20_000, "signature": "AA"}],
        [{"protected": ["x"], "signature": 7}],
    ],
)
def test_garbage_for_a_signature_is_invalid(signatures: object) -> None:
    """One kind of error, whatever it is."""
    assert refusal({**CARD, "signatures": signatures}, keys(jwk(EC_KEY))).startswith("card_signature_invalid: ")


def test_a_signature_with_critical_extensions_is_not_ours_to_judge() -> None:
    """RFC 7515 section 4.1.11: what must be understood and is not makes it invalid."""
    protected = base64.urlsafe_b64encode(b'{"alg":"ES256","kid":"k1","crit":["x"],"x":1}').decode().rstrip("=")
    card = {**CARD, "signatures": [{"protected": protected, "signature": "AAAA"}]}
    assert "do not implement" in refusal(card, keys(jwk(EC_KEY)))


@pytest.mark.parametrize("absent", [None, []])
def test_a_card_without_a_signature_is_told_as_that(absent: object) -> None:
    """Where one is required."""
    assert refusal({**CARD, "signatures": absent}, keys(jwk(EC_KEY))).startswith("card_signature_missing: ")


def test_what_has_no_canonical_form_does_not_verify() -> None:
    """Lone surrogates, numbers past 2^53, endless depth: no traceback, and no time lost."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in ("\ud800", 2**53, float("inf"), deep, {"\ud800": 1}):
        assert canonical({"a": value}) is None
        assert refusal({**signed(), "xMore": value}, keys(jwk(EC_KEY)))
    assert canonical({"b": [1.0, 1e21, "\u2028"], "a": None}) == '{"a":null,"b":[1,1e+21,"\u2028"]}'.encode()
