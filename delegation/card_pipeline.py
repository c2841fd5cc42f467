"""One look at an agent's card: fetch, verify, check, compare with what was accepted before; then the extended card.

    fetch → signatures → check → compared with the base card accepted last
          → extended card, verified and checked alike → compared with the one accepted last → verdict

A base card that has to be accepted first ends the look there: its extended card would be asked for where it says, with
credentials that it chooses.

Nothing is kept here (see card_cache.py). A server that does not answer is no reason to stop: the card accepted last
serves on for `STALE_TTLS` times its `timing.card_ttl` (RFC 5861, stale-if-error). A server that does answer counts:
401 and 403, a missing card and one that is refused end the agent's new work at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import structlog

from delegation.card_changes import Changes, compare, fingerprint, short
from delegation.card_fetch import CARD_DEADLINE_S, NONE_KEPT, CardAnswer, ask_for_card, bounded_fresh_s
from delegation.card_keys import KEYS_DEADLINE_S
from delegation.card_signatures import VerifyingKey, verify_card
from delegation.card_verdict import Kind, Signed, Verdict, judging_of, kind_of, trust_of
from delegation.cards import CheckedCard, check_card
from delegation.errors import (
    AgentBusy,
    AgentError,
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
EXTENDED_DEADLINE_S = 5.0
#: For all of a look together.
LOOK_DEADLINE_S = 18.0

log = structlog.get_logger("delegation")

#: Asks an authenticated agent for its extended card within so many seconds (spec section 3.1.11). Raises AgentError.
ExtendedOf = Callable[[AgentSettings, CheckedCard, float], Any]
#: Loads the keys that an agent's card is verified with, within so many seconds. Raises AgentUnreachable.
KeysOf = Callable[[AgentSettings, float], tuple[VerifyingKey, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something to log once; no word of the agent's is in it."""

    event: str
    facts: tuple[tuple[str, Any], ...] = ()
    warns: bool = True

    def key(self) -> str:
        return f"{self.event} {self.facts}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """``checked`` is the verdict's card where it was checked in this look and counts."""

    verdict: Verdict
    checked: CheckedCard | None = None
    remarks: tuple[Remark, ...] = ()


@dataclass(kw_only=True, slots=True)
class _Run:
    """What all parts of one look share."""

    agent: AgentSettings
    now: float  #: Redis time
    accepted: Verdict | None = None
    is_forgotten: bool = False
    deadline_at: float
    keys: tuple[VerifyingKey, ...] | None = None

    @property
    def is_compared(self) -> bool:
        return self.accepted is not None or self.is_forgotten

    def left_s(self, at_most: float) -> float:
        return max(0.0, min(at_most, self.deadline_at - time.monotonic()))


class CardPipeline:
    """``transport_of`` gives an agent's way out for cards."""

    def __init__(
        self,
        *,
        transport_of: Callable[[AgentSettings], GuardedTransport],
        keys_of: KeysOf,
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
        self,
        agent: AgentSettings,
        accepted: Verdict | None,
        now: float,
        *,
        paused: Verdict | None = None,
        is_forgotten: bool = False,
    ) -> Look:
        """What counts now. ``accepted`` is the last verdict with a card, under whatever settings, ``paused`` one since
        then that nobody has accepted; ``now`` is Redis time. ``is_forgotten``: something was accepted, and cannot be
        read any more; then no card is trusted as if it were the first."""
        if accepted is not None and accepted.url != agent.url:
            accepted = None  # an address of the operator's is not the card's change
        kept = accepted if accepted is not None and accepted.trust == trust_of(agent) else None
        run = _Run(
            agent=agent,
            now=now,
            accepted=accepted,
            is_forgotten=is_forgotten,
            deadline_at=time.monotonic() + LOOK_DEADLINE_S,
        )
        try:
            answer = self._ask(run, kept)
            if answer.unreadable:
                unreadable = AgentRefused(answer.unreadable)
                return self._stale(run, kept, paused, CallAmbiguous(unreadable.detail)) or self._failed(run, unreadable)
            return self._judge(run, answer)
        except (AgentUnreachable, AgentBusy, CallAmbiguous) as error:
            return self._stale(run, kept, paused, error) or self._failed(run, error)
        except RecursionError:
            return self._failed(run, AgentRefused("card_invalid: it is nested too deeply"))
        except AgentError as error:
            return self._failed(run, error)
        except Exception as error:  # noqa: BLE001  see unforeseen
            return self._failed(run, unforeseen(agent, error))

    def judged(self, agent: AgentSettings) -> str:
        """What a refusal of this process's is made by (see `Verdict.is_about`)."""
        return judging_of(agent, self._participant_id, self._max_bytes)

    def judge_pinned(self, agent: AgentSettings, card: Any) -> Verdict:
        """A card that the operator wrote down: verified and checked, compared with nothing. Raises AgentError."""
        run = _Run(agent=agent, now=0.0, deadline_at=time.monotonic() + LOOK_DEADLINE_S)
        try:
            checked, signed = self._verified(run, card)
        except AgentError:
            raise
        except Exception as error:  # noqa: BLE001  see unforeseen
            raise unforeseen(agent, error) from None
        return Verdict(url=agent.url, trust=trust_of(agent), card=checked.raw, signed=signed)

    def _ask(self, run: _Run, kept: Verdict | None) -> CardAnswer:
        return ask_for_card(
            run.agent,
            self._transport_of(run.agent),
            participant_id=self._participant_id,
            max_bytes=self._max_bytes,
            kept=kept.validators if kept else NONE_KEPT,
            deadline_s=run.left_s(CARD_DEADLINE_S),
        )

    def _judge(self, run: _Run, answer: CardAnswer) -> Look:
        raw, fresh_s = answer.card, bounded_fresh_s(answer.fresh_s, self._ttl_s)
        if answer.not_modified and run.accepted is not None:
            raw = run.accepted.base or run.accepted.card
            fresh_s = run.accepted.fresh_s if answer.fresh_s is None else fresh_s
        checked, signed = self._verified(run, raw)
        base = Verdict(
            url=run.agent.url,
            trust=trust_of(run.agent),
            card=checked.raw,
            signed=signed,
            fetched_at=_timestamp(run.now),
            confirmed_at=run.now,
            fresh_s=fresh_s,
            validators=answer.validators,
        )
        look = Look(verdict=base, checked=replace(checked, fetched_at=base.fetched_at))
        if not run.is_compared:
            return self._extended(run, look)
        if (changes := base_changes(run.agent, run.accepted, base)).reasons:
            return _paused(run, look, changes)
        look = self._extended(run, look)
        changes = changes_since(run.agent, run.accepted, look.verdict)
        if changes.reasons:
            return _paused(run, look, changes)
        return look if changes == Changes() else _with_remark(look, _changed(run.accepted, look.verdict, changes))

    def _verified(self, run: _Run, raw: Any) -> tuple[CheckedCard, Signed]:
        """The card as far as it is signed, where keys are configured, checked as that."""
        agent, signed = run.agent, Signed.NO
        if isinstance(raw, dict) and raw.get("signatures"):
            signed = Signed.PRESENT
        if isinstance(raw, dict) and agent.signature_keys and (signed is Signed.PRESENT or agent.require_signature):
            if run.keys is None and signed is Signed.PRESENT:
                run.keys = self._keys_of(agent, run.left_s(KEYS_DEADLINE_S))
            raw, signed = verify_card(raw, run.keys or ()), Signed.VERIFIED
        return check_card(agent, raw), signed

    def _extended(self, run: _Run, base: Look) -> Look:
        """The extended card in place of the base one, if it is offered, we have credentials and it passes as well.

        One that cannot be had now is the one we had, while the base card is the same: it would look changed otherwise.
        """
        verdict, checked, accepted = base.verdict, base.checked, run.accepted
        if not _offers_extended(verdict.card) or not run.agent.auth or self._extended_of is None or checked is None:
            return base
        try:
            raw = self._extended_of(run.agent, checked, run.left_s(EXTENDED_DEADLINE_S))
            checked, signed = self._verified(run, raw)
        except AgentError as error:
            if accepted is not None and accepted.base == verdict.card:
                base = Look(verdict=replace(verdict, card=accepted.card, base=accepted.base, signed=accepted.signed))
            return _with_remark(base, Remark(event="card.extended_missing", facts=(("code", error.code),)))
        found = replace(verdict, card=checked.raw, base=verdict.card, signed=signed)
        return Look(verdict=found, checked=replace(checked, fetched_at=verdict.fetched_at))

    def _stale(self, run: _Run, kept: Verdict | None, paused: Verdict | None, error: AgentError) -> Look | None:
        """The card accepted last, if it is not too old to serve without its server; what was paused stays so."""
        if kept is None or kept.kind or run.is_forgotten:
            return None
        if paused is not None and (paused.url, paused.trust) == (kept.url, kept.trust):
            return Look(verdict=paused)
        if run.now - kept.confirmed_at > STALE_TTLS * self._ttl_s:
            return None
        fresh_s, judged = min(STALE_RETRY_S, self._ttl_s), self.judged(run.agent)
        verdict = replace(kept, stale=error.code, detail=error.detail, judged=judged, fresh_s=fresh_s)
        return Look(verdict=verdict, remarks=(Remark(event="card.stale", facts=(("code", error.code),)),))

    def _failed(self, run: _Run, error: AgentError) -> Look:
        is_refused = isinstance(error, AgentRefused | AuthenticationRefused | UnsupportedExtensionError)
        verdict = Verdict(
            url=run.agent.url,
            trust=trust_of(run.agent),
            judged=self.judged(run.agent),
            kind=kind_of(error),
            detail=error.detail,
            fetched_at=_timestamp(run.now),
            fresh_s=min(REFUSAL_TTL_S if is_refused else FAILURE_TTL_S, self._ttl_s),
        )
        return Look(verdict=verdict)


def unforeseen(agent: AgentSettings, error: Exception) -> AgentRefused:
    """For what nobody thought of: a card that makes something of ours crash is refused, and stops no other agent."""
    log.error("card.crashed", agent=agent.id, error=type(error).__name__, exc_info=error)
    return AgentRefused(f"card_invalid: {type(error).__name__}")


def _offers_extended(card: dict[str, Any]) -> bool:
    if is_card_of_0_3(card):
        return card.get("supportsAuthenticatedExtendedCard") is True
    return (card.get("capabilities") or {}).get("extendedAgentCard") is True


def base_changes(agent: AgentSettings, accepted: Verdict | None, found: Verdict) -> Changes:
    """From base card to base card. ``accepted`` is None where it is not readable."""
    if accepted is None:
        return Changes(reasons=("accepted_unknown: the card accepted before cannot be read any more",))
    return compare(agent, accepted.base or accepted.card, found.base or found.card)


def changes_since(agent: AgentSettings, accepted: Verdict | None, found: Verdict) -> Changes:
    """From what counted to what counts; or those of the base card, if they alone have to be accepted."""
    changes = base_changes(agent, accepted, found)
    if accepted is None or changes.reasons or (accepted.base is None and found.base is None):
        return changes
    return compare(agent, accepted.card, found.card)


def _paused(run: _Run, look: Look, changes: Changes) -> Look:
    detail = f"{'; '.join(changes.reasons)}; `delegation agents accept {run.agent.id}` accepts it"
    fresh_s = min(look.verdict.fresh_s, REFUSAL_TTL_S)
    paused = replace(look, verdict=replace(look.verdict, kind=Kind.PAUSED, detail=detail, fresh_s=fresh_s))
    return _with_remark(paused, _changed(run.accepted, look.verdict, changes))


def _with_remark(look: Look, remark: Remark) -> Look:
    return replace(look, remarks=(*look.remarks, remark))


def _changed(accepted: Verdict | None, found: Verdict, changes: Changes) -> Remark:
    facts = {
        "fingerprint_before": short(accepted.fingerprint) if accepted else "",
        "fingerprint": short(fingerprint(found.card)),
        "members": ",".join(changes.members),
        "pauses": ",".join(changes.codes),
    }
    return Remark(event="card.changed", facts=tuple(facts.items()), warns=bool(changes.reasons))


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
