"""Puts the story together with agents that speak A2A; imported at first use only, because it imports a2a."""

from __future__ import annotations

from delegation.card_cache import STEP_PATIENCE_S
from delegation.lifecycle import Lifecycle
from delegation.roster import Roster
from delegation.settings import Settings
from delegation.store import Store
from workers.runtime import make_rules


def make_roster(settings: Settings, store: Store, **options: float) -> Roster:
    """The configured agents, their cards shared through Redis."""
    return Roster(settings, store.client, card_key=lambda agent: store.key("card", agent), **options)


def make_lifecycle(settings: Settings, store: Store) -> Lifecycle:
    """The story for this process."""
    roster = make_roster(settings, store, card_patience_s=STEP_PATIENCE_S)
    return Lifecycle(store, roster, base_url=settings.server.base_url, rules=make_rules(settings))
