"""Where an operator's `signature_keys` are: a file, or a URL at an origin that is thereby trusted for keys alone."""

from __future__ import annotations

from delegation.answers import load_json
from delegation.card_signatures import VerifyingKey, read_keys
from delegation.errors import AgentError, AgentUnreachable, CallAmbiguous
from delegation.outbound import GuardedTransport
from delegation.secret_values import file_of
from delegation.settings import AgentSettings

KEYS_BYTES = 262_144
KEYS_DEADLINE_S = 5.0


def load_keys(
    agent: AgentSettings, transport: GuardedTransport, *, deadline_s: float = KEYS_DEADLINE_S
) -> tuple[VerifyingKey, ...]:
    """The keys that this agent's card is verified with. `transport` is pinned to the origin of the keys.

    Raises AgentUnreachable: without keys nothing is known of the card, and the next look may find them.
    """
    reference = agent.signature_keys or ""
    try:
        is_file = reference.startswith("file:")
        body = _read_file(reference) if is_file else _ask(reference, transport, deadline_s)
        return read_keys(load_json(body))
    except OSError as error:
        raise _unusable(f"cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise _unusable(str(error)) from None
    except AgentError as error:
        raise _unusable(error.detail) from None


def _read_file(reference: str) -> bytes:
    with file_of(reference).open("rb") as file:
        body = file.read(KEYS_BYTES + 1)
    if len(body) > KEYS_BYTES:
        raise ValueError(f"is longer than {KEYS_BYTES} bytes")
    return body


def _ask(url: str, transport: GuardedTransport, deadline_s: float) -> bytes:
    headers = {"Accept": "application/jwk-set+json, application/json", "User-Agent": "delegation"}
    answer = transport.get(url, headers=headers, deadline_s=deadline_s, max_bytes=KEYS_BYTES)
    if answer.status != 200:
        raise CallAmbiguous(f"HTTP {answer.status}")
    return answer.body


def _unusable(reason: str) -> AgentUnreachable:
    return AgentUnreachable(f"card_signature_unchecked: signature_keys: {reason}")
