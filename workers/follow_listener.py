"""Hears which delegations start or stop wanting to be followed, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from delegation.errors import StoreUnavailable
from delegation.store_follows import FollowFacts

log = structlog.get_logger("delegation")

_LOOK_UP_EVERY_S = 0.5
_RETRY_S = 1.0


class Listener:
    """``on_id`` for each id that is told, ``on_gap`` whenever some may have been missed. Both run in the thread."""

    def __init__(self, store: FollowFacts, *, on_id: Callable[[str], None], on_gap: Callable[[], None]) -> None:
        self._store = store
        self._on_id = on_id
        self._on_gap = on_gap
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follows", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; nothing is called after :meth:`join`."""
        self._stopped.set()

    def join(self, within_s: float) -> None:
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except StoreUnavailable as error:
                log.warning("follower.not_listening", code=error.code)
                self._stopped.wait(_RETRY_S)

    def _listen(self) -> None:
        with self._store.listen_to_follows() as next_id:
            self._on_gap()
            while not self._stopped.is_set():
                delegation_id = next_id(_LOOK_UP_EVERY_S)
                if delegation_id is not None:
                    self._on_id(delegation_id)
