"""Which processes still carry a mark in their environment: what a command started and did not end."""

from __future__ import annotations

from pathlib import Path


def left_behind(mark: str) -> list[str]:
    """Command lines of living processes whose environment or command line holds ``mark``; Linux only, else none."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            told = (process / "environ").read_bytes() + command
        except OSError:  # gone meanwhile, or not ours to read
            continue
        if command and mark.encode() in told:
            found.append(command.replace(b"\0", b" ").decode("utf-8", "replace"))
    return found
