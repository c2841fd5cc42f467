"""The scripted agent's append-only account of what it saw and did, one JSON object a line.

It is the tests' independent witness: what the product says about itself is not evidence.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


class Ledger:
    """Every entry has ``n`` (1, 2, …, going on after a restart), ``at`` (Unix seconds) and ``kind``."""

    def __init__(self, path: Path, *, fsync: bool = False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.entries: list[Entry] = read_ledger(path) if path.exists() else []
        self._file = path.open("a", encoding="utf-8")
        self._fsync = fsync

    def add(self, kind: str, **facts: Any) -> Entry:
        entry: Entry = {"n": len(self.entries) + 1, "at": time.time(), "kind": kind, **facts}
        self.entries.append(entry)
        self._file.write(json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()
        if self._fsync:
            os.fsync(self._file.fileno())
        return entry

    def since(self, n: int) -> list[Entry]:
        return self.entries[n:]


def read_ledger(path: Path) -> list[Entry]:
    """The entries of a ledger file; a last line that a killed agent left unfinished is not one."""
    complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
    return [json.loads(line) for line in complete.split("\n") if line]
