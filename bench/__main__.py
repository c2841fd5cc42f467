"""``python -m bench [NAME…]``: measure, print one table, and with ``--write`` put it into docs/benchmarks.md."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from redis import RedisError

from bench import client, door, fan_out, follower, latency, parked, throughput
from bench.document import write
from bench.machine import facts
from bench.progress import say
from bench.stage import Scale
from bench.table import Row, aligned
from delegation.errors import DelegationError
from tests.support.processes import ChildFailed

SUBJECTS: dict[str, Callable[[Scale], list[Row]]] = {
    "throughput": throughput.measure,
    "latency": latency.measure,
    "parked": parked.measure,
    "door": door.measure,
    "client": client.measure,
    "follower": follower.measure,
    "fan_out": fan_out.measure,
}

#: Figures from fewer rounds are not worth keeping.
LEAST_WRITTEN = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """0 whatever the figures are; 1 when a benchmark could not be run to its end."""
    options = _read(arguments)
    found: dict[str, list[Row]] = {}
    for name in options.names:
        try:
            found[name] = SUBJECTS[name](Scale(rounds=options.rounds, quick=options.quick))
        except (ChildFailed, DelegationError, RedisError, OSError, ValueError) as error:
            say(f"{name}: not measured: {error}")
    rows = [row for each in found.values() for row in each]
    print(aligned(rows))
    print(f"\nmedians of {options.rounds} rounds" + (", smaller than usual: not for quoting" if options.quick else ""))
    print("\n".join(f"{name}: {value}" for name, value in facts().items()))
    is_whole = len(found) == len(options.names)
    if options.json:
        options.json.write_text(_to_json(options, found), encoding="utf-8")
    if options.write and is_whole:
        write(rows, rounds=options.rounds)
    return 0 if is_whole else 1


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure against the raw reference.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5, help="of each figure; the table shows medians (default: 5)")
    parser.add_argument("--quick", action="store_true", help="smaller in everything: does it run? not for quoting")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of every round there")
    parser.add_argument("--write", action="store_true", help="put the table into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in SUBJECTS]
    if unknown:
        parser.error(f"{unknown[0]}: no such benchmark; there are {', '.join(SUBJECTS)}")
    if options.rounds < 1:
        parser.error("--rounds: at least 1")
    if options.write and (options.quick or options.names or options.rounds < LEAST_WRITTEN):
        parser.error(f"--write: all benchmarks, not quick, at least {LEAST_WRITTEN} rounds")
    options.names = options.names or list(SUBJECTS)
    return options


def _to_json(options: argparse.Namespace, found: Mapping[str, Sequence[Row]]) -> str:
    benchmarks = {name: [row.to_json() for row in rows] for name, rows in found.items()}
    whole = {"rounds": options.rounds, "quick": options.quick, "machine": facts(), "benchmarks": benchmarks}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)  # everything that was started is gone by now
