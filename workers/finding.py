"""Which delegation is meant: by its own id, or by the Celery id of a `delegate` call."""

from __future__ import annotations

import contextlib

from delegation.errors import UnknownDelegation
from delegation.state import Delegation
from delegation.store import Store


def find_delegation(store: Store, given_id: str) -> Delegation:
    """The delegation with that id, or the one that the call with that Celery id opened or shares.

    Raises UnknownDelegation, which says what is accepted.
    """
    with contextlib.suppress(UnknownDelegation):
        return store.load(given_id).delegation
    called = store.id_of_call(given_id) or given_id.removesuffix(".delegate")  # no index has our own choice of id
    with contextlib.suppress(UnknownDelegation):
        return store.load(called).delegation
    raise UnknownDelegation(
        f"unknown delegation {given_id[:128]}: give a delegation's id, or the Celery id of its `delegate` call"
    )
