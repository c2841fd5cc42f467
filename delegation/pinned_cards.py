"""Cards that an operator wrote down in files (`agents[].card`): read again when the file changes, never fetched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from delegation.answers import load_json
from delegation.card_verdict import Verdict, kind_of, trust_of
from delegation.errors import AgentError, AgentRefused, AgentUnreachable, CallAmbiguous
from delegation.secret_values import file_of
from delegation.settings import AgentSettings

#: What tells one content of a file from another without reading it: time, size and inode.
_Seen = tuple[int, int, int]


class PinnedCards:
    """One per process. ``judge`` checks a card (see `CardPipeline.judge_pinned`)."""

    def __init__(self, judge: Callable[[AgentSettings, Any], Verdict], *, max_bytes: int) -> None:
        self._judge = judge
        self._max_bytes = max_bytes
        self._known: dict[str, tuple[_Seen, Verdict]] = {}

    def look(self, agent: AgentSettings) -> Verdict:
        """The card in the agent's file, or why there is none. An unreadable file may come back, and so its agent."""
        try:
            path = file_of(agent.card or "")
            found = path.stat()
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            known, verdict = self._known.get(agent.id, (None, None))
            if verdict is None or known != seen:
                verdict = self._read(agent, path, found.st_mtime)
                self._known[agent.id] = (seen, verdict)
        except OSError as error:
            return _none(agent, AgentUnreachable(f"card: {agent.card} cannot be read: {error.strerror}"))
        except RuntimeError:
            return _none(agent, AgentUnreachable(f"card: {agent.card} cannot be read: no such home directory"))
        except AgentError as error:
            return _none(agent, error)
        return verdict

    def _read(self, agent: AgentSettings, path: Path, written_at: float) -> Verdict:
        with path.open("rb") as file:
            body = file.read(self._max_bytes + 1)
        if len(body) > self._max_bytes:
            raise AgentRefused(f"card_invalid: {agent.card} is larger than {self._max_bytes} bytes")
        try:
            card = load_json(body)
        except CallAmbiguous:
            raise AgentRefused(f"card_invalid: {agent.card} is not JSON") from None
        at = datetime.fromtimestamp(int(written_at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return replace(self._judge(agent, card), fetched_at=at)


def _none(agent: AgentSettings, error: AgentError) -> Verdict:
    return Verdict(url=agent.url, trust=trust_of(agent), kind=kind_of(error), detail=error.detail)
