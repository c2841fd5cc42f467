"""One look at an agent's card: fetch, check, verify, take the extended one, compare with what was accepted before.

    fetch → check → signatures → extended card (checked alike) → changes since the last accepted card → verdict

Nothing is kept here (see card_cache.py). A server that does not answer is no reason to stop: the card accepted last
serves on for `STALE_TTLS` times its `timing.card_ttl` (RFC 5861, stale-if-error). A server that does answer counts:
401 and 403, a missing card and one that is refused end the agent's new work at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from delegation.card_changes import Changes, compare, fingerprint, short
from delegation.card_fetch import NONE_KEPT, CardAnswer, ask_for_card, bounded_fresh_s
from delegation.card_signatures import VerifyingKey, verify_card
from delegation.card_verdict import Signed, Verdict, kind_of, trust_of
from delegation.cards import CheckedCard, check_card
from delegation.errors import (
    AgentBusy,
    AgentError,
    AgentPaused,
    AgentRefused,
    AgentUnreachable,
    AuthenticationRefused,
    CallAmbiguous,
    UnsupportedExtensionError,
)
from delegation.outbound import GuardedTransport
from delegation.settings import AgentSettings
from delegation.version_0_3 import is_card_of_0_3

REFUSAL_TTL_S = 60.0
#: A failed fetch is remembered just long enough that everybody who waited for it hears of it.
FAILURE_TTL_S = 5.0
#: An old card serves, and the server is asked again.
STALE_RETRY_S = 60.0
STALE_TTLS = 24

#: Asks an authenticated agent for its extended card (spec section 3.1.11). Raises AgentError.
ExtendedOf = Callable[[AgentSettings, CheckedCard], Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something to log once for as long as it stays so; no word of the agent's is in it."""

    event: str
    facts: tuple[tuple[str, Any], ...] = ()
    warns: bool = True

    def key(self) -> str:
        return f"{self.event} {self.facts}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    verdict: Verdict
    remarks: tuple[Remark, ...] = ()


class CardPipeline:
    """``transport_of`` gives an agent's way out for cards, ``keys_of`` loads the keys its card is verified with, and
    ``extended_of`` asks for its extended card."""

    def __init__(
        self,
        *,
        transport_of: Callable[[AgentSettings], GuardedTransport],
        keys_of: Callable[[AgentSettings], tuple[VerifyingKey, ...]],
        participant_id: str,
        ttl_s: float,
        max_bytes: int,
        extended_of: ExtendedOf | None = None,
    ) -> None:
        self._transport_of = transport_of
        self._keys_of = keys_of
        self._participant_id = participant_id
        self._ttl_s = max(1.0, ttl_s)
        self._max_bytes = max_bytes
        self._extended_of = extended_of

    def look(
        self, agent: AgentSettings, accepted: Verdict | None, now: float, *, paused: Verdict | None = None
    ) -> Look:
        """What counts now. ``accepted`` is the last verdict with a card, under whatever settings, ``paused`` one since
        then that nobody has accepted; ``now`` is Redis time."""
        if accepted is not None and accepted.url != agent.url:
            accepted = None  # an address of the operator's is not the card's change
        kept = accepted if accepted is not None and accepted.trust == trust_of(agent) else None
        try:
            answer = self._ask(agent, kept)
            if answer.unreadable:
                if stale := self._stale(kept, paused, now, "agent.protocol"):
                    return stale
                raise AgentRefused(answer.unreadable)
            return self._judge(agent, answer, accepted, now)
        except (AgentUnreachable, AgentBusy, CallAmbiguous) as error:
            return self._stale(kept, paused, now, error.code) or Look(verdict=self._failed(agent, error, now))
        except RecursionError:
            return Look(verdict=self._failed(agent, AgentRefused("card_invalid: it is nested too deeply"), now))
        except AgentError as error:
            return Look(verdict=self._failed(agent, error, now))

    def judge_pinned(self, agent: AgentSettings, card: Any) -> Verdict:
        """A card that the operator wrote down: checked and verified, compared with nothing. Raises AgentError."""
        check_card(agent, card)
        card, signed = self._verify(agent, card)
        return Verdict(url=agent.url, trust=trust_of(agent), card=card, signed=signed)

    def _ask(self, agent: AgentSettings, kept: Verdict | None) -> CardAnswer:
        return ask_for_card(
            agent,
            self._transport_of(agent),
            participant_id=self._participant_id,
            max_bytes=self._max_bytes,
            kept=kept.validators if kept else NONE_KEPT,
        )

    def _judge(self, agent: AgentSettings, answer: CardAnswer, accepted: Verdict | None, now: float) -> Look:
        card, fresh_s = answer.card, bounded_fresh_s(answer.fresh_s, self._ttl_s)
        if answer.not_modified and accepted is not None:
            card = accepted.base or accepted.card
            fresh_s = accepted.fresh_s if answer.fresh_s is None else fresh_s
        checked = check_card(agent, card)
        card, signed = self._verify(agent, card)
        verdict = Verdict(
            url=agent.url,
            trust=trust_of(agent),
            card=card,
            signed=signed,
            fetched_at=_timestamp(now),
            confirmed_at=now,
            fresh_s=fresh_s,
            validators=answer.validators,
        )
        look = self._extended(agent, checked, verdict, accepted)
        return look if accepted is None else _compared(agent, look, accepted)

    def _verify(self, agent: AgentSettings, card: dict[str, Any]) -> tuple[dict[str, Any], Signed]:
        """The card as far as it is signed, where keys are configured."""
        is_signed = bool(card.get("signatures"))
        if agent.signature_keys is None:
            return card, Signed.PRESENT if is_signed else Signed.NO
        if not is_signed and not agent.require_signature:
            return card, Signed.NO
        verified = verify_card(card, self._keys_of(agent) if is_signed else ())
        check_card(agent, verified)
        return verified, Signed.VERIFIED

    def _extended(self, agent: AgentSettings, checked: CheckedCard, base: Verdict, accepted: Verdict | None) -> Look:
        """The extended card in place of the base one, if it is offered, we have credentials and it passes as well.

        One that cannot be had now is the one we had, while the base card is the same: it would look changed otherwise.
        """
        if not _offers_extended(base.card) or not agent.auth or self._extended_of is None:
            return Look(verdict=base)
        try:
            card = self._extended_of(agent, checked)
            check_card(agent, card)
            card, signed = self._verify(agent, card)
        except AgentError as error:
            remark = Remark(event="card.extended_missing", facts=(("code", error.code),))
            if accepted is not None and accepted.base == base.card:
                base = replace(base, card=accepted.card, base=accepted.base, signed=accepted.signed)
            return Look(verdict=base, remarks=(remark,))
        return Look(verdict=replace(base, card=card, base=base.card, signed=signed))

    def _stale(self, kept: Verdict | None, paused: Verdict | None, now: float, code: str) -> Look | None:
        """The card accepted last, if it is not too old to serve without its server; what was paused stays so."""
        if kept is not None and paused is not None and (paused.url, paused.trust) == (kept.url, kept.trust):
            return Look(verdict=paused)
        if kept is None or kept.kind or now - kept.confirmed_at > STALE_TTLS * self._ttl_s:
            return None
        verdict = replace(kept, stale=code, fresh_s=min(STALE_RETRY_S, self._ttl_s))
        return Look(verdict=verdict, remarks=(Remark(event="card.stale", facts=(("code", code),)),))

    def _failed(self, agent: AgentSettings, error: AgentError, now: float) -> Verdict:
        is_refused = isinstance(error, AgentRefused | AuthenticationRefused | UnsupportedExtensionError)
        return Verdict(
            url=agent.url,
            trust=trust_of(agent),
            kind=kind_of(error),
            detail=error.detail,
            fetched_at=_timestamp(now),
            fresh_s=min(REFUSAL_TTL_S if is_refused else FAILURE_TTL_S, self._ttl_s),
        )


def _offers_extended(card: dict[str, Any]) -> bool:
    if is_card_of_0_3(card):
        return card.get("supportsAuthenticatedExtendedCard") is True
    return (card.get("capabilities") or {}).get("extendedAgentCard") is True


def _compared(agent: AgentSettings, look: Look, accepted: Verdict) -> Look:
    """The same verdict, paused if the card has to be accepted first."""
    changes = compare(agent, accepted.card, look.verdict.card)
    if not changes.members:
        return look
    remark = _changed(accepted, look.verdict, changes)
    if not changes.reasons:
        return replace(look, remarks=(*look.remarks, remark))
    detail = f"{'; '.join(changes.reasons)}; `delegation agents accept {agent.id}` accepts it"
    verdict = replace(
        look.verdict, kind=AgentPaused.__name__, detail=detail, fresh_s=min(look.verdict.fresh_s, REFUSAL_TTL_S)
    )
    return replace(look, verdict=verdict, remarks=(*look.remarks, remark))


def _changed(accepted: Verdict, found: Verdict, changes: Changes) -> Remark:
    facts = {
        "fingerprint_before": short(accepted.fingerprint),
        "fingerprint": short(fingerprint(found.card)),
        "members": ",".join(changes.members),
        "pauses": ",".join(changes.codes),
    }
    return Remark(event="card.changed", facts=tuple(facts.items()), warns=bool(changes.reasons))


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
