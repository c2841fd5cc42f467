"""Calls in threads, one at a time for all who ask the same thing: a hanging one holds one thread, not all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Flights(Generic[K, V]):
    """Whoever asks while an answer to the same ``key`` is under way gets that one."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._under_way: dict[K, asyncio.Future[V]] = {}

    async def ask(self, key: K, call: Callable[[], V]) -> V:
        """What ``call`` returns or raises."""
        answer = self._under_way.get(key)
        if answer is None:
            answer = asyncio.get_running_loop().run_in_executor(self._threads, call)
            self._under_way[key] = answer
            answer.add_done_callback(lambda answered: self._land(key, answered))
        return await asyncio.shield(answer)  # whoever stops waiting does not stop the others

    def _land(self, key: K, answered: asyncio.Future[V]) -> None:
        del self._under_way[key]
        if not answered.cancelled():
            answered.exception()  # nobody may be waiting for it any more
