"""`python -m tests.support.flood PORT SECONDS CONNECTIONS [ID TOKEN]…`: pushes as fast as the door answers.

With no id, each is for a random one without a right token. Prints how many answers of each status came, as JSON.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.child import ChildProcess
from tests.support.door import Target, push_of


class Flood(ChildProcess):
    """One running flood: a process of its own, so that its senders slow down nobody who measures."""

    def __init__(self, log: Path, port: int, *targets: Target, seconds: float, connections: int) -> None:
        command = [sys.executable, "-m", "tests.support.flood", str(port), str(seconds), str(connections)]
        super().__init__([*command, *(word for target in targets for word in (target.id, target.token))], log=log)

    def statuses(self, timeout_s: float = 60.0) -> dict[int, int]:
        """What was answered, once it is over."""
        assert self.wait(timeout_s) == 0, self.output()
        return {int(status): count for status, count in json.loads(self.output()).items()}


def _send(port: int, seconds: float, targets: list[Target]) -> Counter[int]:
    seen: Counter[int] = Counter()
    until = time.monotonic() + seconds
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        while time.monotonic() < until:
            target = secrets.choice(targets) if targets else Target(f"{secrets.token_hex(16)}.1", "wrong")
            connection.sendall(push_of(target).replace(b"Connection: close\r\n", b""))
            seen[int(connection.recv(65_536).split(b" ", 2)[1])] += 1
    return seen


def _main(port: int, seconds: float, connections: int, *pairs: str) -> None:
    targets = [Target(*pair) for pair in zip(pairs[::2], pairs[1::2], strict=True)]
    with ThreadPoolExecutor(connections) as pool:
        seen = list(pool.map(lambda _: _send(port, seconds, targets), range(connections)))
    print(json.dumps(dict(sum(seen, Counter[int]()))))


if __name__ == "__main__":
    _main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
