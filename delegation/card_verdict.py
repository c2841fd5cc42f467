"""What is known of an agent's card, as Redis keeps it: a card, or why there is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from delegation.card_changes import fingerprint
from delegation.card_fetch import NONE_KEPT, Validators
from delegation.cards import CheckedCard, check_card
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentPaused,
    AgentRefused,
    AgentUnreachable,
    AuthenticationRefused,
    CallAmbiguous,
    CredentialUnavailable,
    UnsupportedExtensionError,
)
from delegation.settings import AgentSettings

#: Whoever waits for an operator looks again this often.
PAUSED_RETRY_S = 30.0


class Kind(StrEnum):
    """Why there is no card for new work; as Redis keeps it, whatever our classes are called."""

    NONE = ""  #: there is one
    AUTH_FAILED = "auth_failed"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    NO_CREDENTIAL = "no_credential"
    UNREACHABLE = "unreachable"
    PAUSED = "paused"
    BUSY = "busy"
    AMBIGUOUS = "ambiguous"


#: The narrower class first.
_ERRORS: Mapping[Kind, type[AgentError]] = {
    Kind.AUTH_FAILED: AuthenticationRefused,
    Kind.REFUSED: AgentRefused,
    Kind.UNSUPPORTED: UnsupportedExtensionError,
    Kind.NO_CREDENTIAL: CredentialUnavailable,
    Kind.UNREACHABLE: AgentUnreachable,
    Kind.PAUSED: AgentPaused,
    Kind.BUSY: AgentBusy,
    Kind.AMBIGUOUS: CallAmbiguous,
}


class Signed(StrEnum):
    """What is known of a card's signatures."""

    VERIFIED = "verified"
    PRESENT = "present"  #: not checked: no keys are configured
    NO = "no"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One look at an agent's card. With a `kind` there is no card for new work; a paused one is there all the same."""

    url: str = ""  #: as configured: at another one is another agent
    trust: str = ""  #: the settings that its signatures were judged by
    card: Any = None
    base: Any = None  #: what the card's URL served, where an extended card counts in its place
    signed: Signed = Signed.NO
    kind: Kind = Kind.NONE
    detail: str = ""
    stale: str = ""  #: why this is an older card: its server does not answer now
    fetched_at: str = ""  #: RFC 3339, UTC
    confirmed_at: float = 0.0  #: Redis time of the server's last word on it
    looked_at: float = 0.0  #: Redis time
    fresh_s: float = 0.0  #: how long it counts from then
    validators: Validators = NONE_KEPT

    def read(self, agent: AgentSettings) -> CheckedCard:
        """Checked anew whenever it is taken from Redis: the settings may have changed since."""
        if self.kind:
            raise self.error()
        return check_card(agent, self.card, fetched_at=self.fetched_at)

    def error(self) -> AgentError:
        """Why there is no card for new work."""
        return AgentPaused(self.detail, PAUSED_RETRY_S) if self.is_paused else _ERRORS[self.kind](self.detail)

    def is_about(self, agent: AgentSettings) -> bool:
        """Whether it was made under the settings of today."""
        return (self.url, self.trust) == (agent.url, trust_of(agent))

    @property
    def is_paused(self) -> bool:
        return self.kind is Kind.PAUSED

    @property
    def fingerprint(self) -> str:
        """Of its card; empty where there is none."""
        return fingerprint(self.card) if isinstance(self.card, dict) else ""


def trust_of(agent: AgentSettings) -> str:
    """The settings that decide whether a card's signatures are good enough."""
    return f"{agent.signature_keys or ''} {'required' if agent.require_signature else ''}".strip()


def kind_of(error: AgentError) -> Kind:
    return next((kind for kind, cls in _ERRORS.items() if isinstance(error, cls)), Kind.AMBIGUOUS)


def encode(verdict: Verdict) -> str:
    values = {field.name: getattr(verdict, field.name) for field in fields(verdict)}
    return json.dumps(values | {"validators": asdict(verdict.validators)})


def decode(kept: bytes | str) -> Verdict | None:
    """What Redis kept; None where it is not readable. What another release keeps beside that is left alone."""
    try:
        values = json.loads(kept)
        validators = Validators(**_known(Validators, values["validators"]))
        verdict = Verdict(**_known(Verdict, values) | {"validators": validators})
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    has_cards = isinstance(verdict.card, dict | None) and isinstance(verdict.base, dict | None)
    return verdict if verdict.url and has_cards else None


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `kind`, each as in `values` and of its default's type. Raises TypeError and ValueError."""
    known = {}
    for field in fields(kind):
        usual, value = field.default, values.get(field.name, field.default)
        if isinstance(usual, StrEnum):
            value = type(usual)(value)
        elif isinstance(usual, str | float) and not isinstance(value, str if isinstance(usual, str) else float | int):
            raise TypeError(field.name)
        known[field.name] = value
    return known
