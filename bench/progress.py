"""Says on stderr what is being measured, so that stdout holds the table alone."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
