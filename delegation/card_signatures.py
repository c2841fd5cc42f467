"""Verify the signatures of an AgentCard (A2A spec section 8.4) with keys the operator configured. Pure.

A signature is a detached JWS (RFC 7515 appendix F) over the card's canonical JSON (RFC 8785) without `signatures`.
The card never says where keys are: `jku`, `x5u`, `jwk` and `x5c` in its header are not looked at.

Signers disagree on what is canonical, so three forms are tried: the card as served; without empty values (the spec
leaves unset fields out, and the SDK's signer leaves out every empty one; of a card of 0.3 also the two members that
say what goes without saying); and of that the members of A2A 1.0 alone, because the SDK's server adds those of version
0.3 after signing. Those are then no part of the card. Empty values count though no such signature covers them: in a
card by the SDK, `{"list": []}` is a requirement like any other.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jwt
import rfc8785
from jwt.api_jws import PyJWS

from delegation.errors import AgentRefused

#: Signatures alone: a secret shared with the signer would let everybody who can verify sign as well.
ALGORITHMS: Mapping[str, str] = {
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    "EdDSA": "OKP",
}
MOST_SIGNATURES = 8
MOST_KEYS = 32
#: Of the signatures, those that keys of ours could have made; and of verifications in all. A card by a stranger must
#: not cost seconds.
MOST_TRIED = 3
MOST_TRIES = 8
MAX_DEPTH = 64
_LONGEST_PART = 16_384

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_JWS = PyJWS(algorithms=list(ALGORITHMS))

_ANY: dict[str, Any] = {}
_REQUIREMENT = {"schemes": {"*": {"list": _ANY}}}
_FLOW_NAMES = ("authorizationUrl", "tokenUrl", "refreshUrl", "deviceAuthorizationUrl", "scopes", "pkceRequired")
_FLOW = dict.fromkeys(_FLOW_NAMES, _ANY)
_SCHEME = {
    "apiKeySecurityScheme": dict.fromkeys(("description", "location", "name"), _ANY),
    "httpAuthSecurityScheme": dict.fromkeys(("description", "scheme", "bearerFormat"), _ANY),
    "oauth2SecurityScheme": {"description": _ANY, "oauth2MetadataUrl": _ANY, "flows": {"*": _FLOW}},
    "openIdConnectSecurityScheme": dict.fromkeys(("description", "openIdConnectUrl"), _ANY),
    "mtlsSecurityScheme": {"description": _ANY},
}
#: Of a card of A2A 0.3; what they say is the same with them and without.
_DEFAULTS = {"protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}
_SKILL = dict.fromkeys(("id", "name", "description", "tags", "examples", "inputModes", "outputModes"), _ANY)
#: The members of a card in A2A 1.0 (spec section 4.4): `*` is any name, an empty table whatever is there.
_CARD: dict[str, Any] = {
    **dict.fromkeys(("name", "description", "version", "documentationUrl", "iconUrl"), _ANY),
    **dict.fromkeys(("defaultInputModes", "defaultOutputModes"), _ANY),
    "supportedInterfaces": dict.fromkeys(("url", "protocolBinding", "tenant", "protocolVersion"), _ANY),
    "provider": dict.fromkeys(("url", "organization"), _ANY),
    "capabilities": {
        **dict.fromkeys(("streaming", "pushNotifications", "extendedAgentCard"), _ANY),
        "extensions": dict.fromkeys(("uri", "description", "required", "params"), _ANY),
    },
    "securitySchemes": {"*": _SCHEME},
    "securityRequirements": _REQUIREMENT,
    "skills": {**_SKILL, "securityRequirements": _REQUIREMENT},
}


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """One public key of a JWK set, for the algorithms of its kind."""

    kid: str
    kind: str
    algorithm: str  #: the only one it is for; empty: any of its kind
    key: Any

    def fits(self, algorithm: str) -> bool:
        return self.kind == ALGORITHMS[algorithm] and self.algorithm in ("", algorithm)


def read_keys(raw: object) -> tuple[VerifyingKey, ...]:
    """The usable keys of a JWK set (RFC 7517). Raises ValueError with a reason when there is none."""
    entries = raw.get("keys") if isinstance(raw, dict) else None
    if not isinstance(entries, list):
        raise ValueError("is not a JWK set: an object with `keys`")
    keys = tuple(key for entry in entries[:MOST_KEYS] if isinstance(entry, dict) for key in _read_key(entry))
    if not keys:
        raise ValueError("holds no public key that verifies signatures")
    return keys


def verify_card(card: dict[str, Any], keys: tuple[VerifyingKey, ...]) -> dict[str, Any]:
    """The card as it was signed: one of its signatures is right, by one of `keys`.

    Raises AgentRefused: `card_signature_missing` or `card_signature_invalid`.
    """
    signatures = card.get("signatures")
    if not signatures:
        raise AgentRefused("card_signature_missing: the card is not signed")
    if not isinstance(signatures, list) or len(signatures) > MOST_SIGNATURES:
        raise _invalid(f"signatures is not a list of at most {MOST_SIGNATURES}")
    reasons: list[str] = []
    candidates: list[_Candidate] = []
    for position, entry in enumerate(signatures):
        try:
            candidates.append(_read_candidate(position, entry, keys))
        except ValueError as error:
            reasons.append(f"signatures[{position}] {error}")
    form = _signed_form(card, candidates[:MOST_TRIED])
    if form is not None:
        return {**form, "signatures": signatures}
    reasons = [f"signatures[{each.position}] does not fit the card" for each in candidates] + reasons
    raise _invalid("; ".join(reasons[:3]))


def canonical(value: Any) -> bytes | None:
    """JSON by RFC 8785; None where there is no such: lone surrogates, integers past 2^53, endless depth."""
    try:
        return rfc8785.dumps(value) if _is_shallow(value, MAX_DEPTH) else None
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Candidate:
    """A signature that one of `keys` may have made."""

    position: int
    protected: str
    signature: str
    algorithm: str
    keys: tuple[VerifyingKey, ...]


def _read_candidate(position: int, entry: object, keys: tuple[VerifyingKey, ...]) -> _Candidate:
    """Raises ValueError with a reason."""
    protected, signature = (_part(entry, name) for name in ("protected", "signature"))
    algorithm, kid = _read_header(protected)
    fitting = tuple(key for key in keys if key.fits(algorithm) and kid in (None, key.kid))
    if not fitting:
        raise ValueError("names a key that is not configured" if kid is not None else "is by no kind of our keys")
    return _Candidate(position=position, protected=protected, signature=signature, algorithm=algorithm, keys=fitting)


def _signed_form(card: dict[str, Any], candidates: Sequence[_Candidate]) -> dict[str, Any] | None:
    """The form of the card that one of the signatures is right for. The likeliest form is tried with all of them first;
    the canonical JSON of a form is made when it is tried, and no payload is tried twice."""
    if not candidates:
        return None
    left, seen = MOST_TRIES, set[bytes]()
    for form, said in _forms(card):
        payload = canonical(said) if left else None
        if payload is None or payload in seen:
            continue
        seen.add(payload)
        encoded = _encode(payload)
        for each in candidates:
            for key in each.keys[:left]:
                left -= 1
                if _is_right(f"{each.protected}.{encoded}.{each.signature}", key, each.algorithm):
                    return form
    return None


def _is_right(token: str, key: VerifyingKey, algorithm: str) -> bool:
    try:
        _JWS.decode(token, key=key.key, algorithms=[algorithm])
    except (jwt.PyJWTError, ValueError, TypeError):
        return False
    return True


def _part(entry: object, name: str) -> str:
    value = entry.get(name) if isinstance(entry, dict) else None
    if not isinstance(value, str) or len(value) > _LONGEST_PART or not _BASE64URL.fullmatch(value):
        raise ValueError(f"has no {name} in base64url")
    return value


def _read_header(protected: str) -> tuple[str, str | None]:
    try:
        header = json.loads(base64.urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        raise ValueError("has an unreadable protected header") from None
    if not isinstance(header, dict):
        raise ValueError("has an unreadable protected header")
    algorithm, kid = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise ValueError("is by an algorithm that is not accepted")
    if "crit" in header or "b64" in header:
        raise ValueError("asks for something that we do not implement")  # RFC 7515 section 4.1.11
    if kid is not None and not isinstance(kid, str):
        raise ValueError("has an unreadable protected header")
    return algorithm, kid


def _forms(card: dict[str, Any]) -> Iterator[tuple[dict[str, Any], Any]]:
    """The card, and what of it may have been signed, in the order in which it is tried."""
    if not _is_shallow(card, MAX_DEPTH):
        return
    served = {name: value for name, value in card.items() if name != "signatures"}
    yield served, served
    lean = _without_empty(served)
    if lean != served:
        yield served, lean
    if "supportedInterfaces" not in served:
        said = _without_empty({name: value for name, value in served.items() if _DEFAULTS.get(name) != value})
        if said != lean:
            yield served, said
    known = _project(served, _CARD)
    if known != served:
        yield known, _without_empty(known)


def _without_empty(value: Any) -> Any:
    """None where nothing is left: null, empty texts, lists and objects, at every depth. False and 0 are values."""
    if isinstance(value, dict):
        kept = {name: left for name, each in value.items() if (left := _without_empty(each)) is not None}
        return kept or None
    if isinstance(value, list):
        return [left for each in value if (left := _without_empty(each)) is not None] or None
    return None if value == "" else value


def _project(value: Any, members: Mapping[str, Any]) -> Any:
    if not members:
        return value
    if isinstance(value, list):
        return [_project(each, members) for each in value]
    if not isinstance(value, dict):
        return value
    known = {name: members.get(name, members.get("*")) for name in value}
    return {name: _project(value[name], below) for name, below in known.items() if below is not None}


def _read_key(entry: dict[str, Any]) -> Iterator[VerifyingKey]:
    """Nothing where a key is secret, private, for encryption, or of a kind we do not use."""
    kind, kid, algorithm = entry.get("kty"), entry.get("kid", ""), entry.get("alg", "")
    operations = entry.get("key_ops", ["verify"])
    is_for_us = kind in ALGORITHMS.values() and entry.get("use", "sig") == "sig" and "d" not in entry
    if not is_for_us or not isinstance(operations, list) or "verify" not in operations:
        return
    if not isinstance(kid, str) or (algorithm and algorithm not in ALGORITHMS):
        return
    try:
        key = jwt.PyJWK.from_dict(entry, algorithm or _default_algorithm(entry)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return
    yield VerifyingKey(kid=kid, kind=str(kind), algorithm=str(algorithm), key=key)


def _default_algorithm(entry: dict[str, Any]) -> str:
    """PyJWK wants one to read the key by; which is then verified with is the header's, if it fits."""
    curves = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
    return {"RSA": "RS256", "OKP": "EdDSA"}.get(str(entry.get("kty")), curves.get(str(entry.get("crv")), "ES256"))


def _is_shallow(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inside = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_is_shallow(each, depth - 1) for each in inside)


def _encode(payload: bytes) -> str:
    return base64.urlsafe_b64encode(payload).rstrip(b"=").decode()


def _invalid(reason: str) -> AgentRefused:
    return AgentRefused(f"card_signature_invalid: {reason}")
