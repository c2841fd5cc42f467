"""What a follower costs: memory and time per stream, how soon news is a wake, and how soon another takes over."""

from __future__ import annotations

import os
import time
from datetime import datetime
from pathlib import Path

from bench.progress import say
from bench.stage import PATIENCE_S, Scale, Stage, stage
from bench.table import Goal, Row, quantile
from delegation.settings import TimingSettings
from tests.support.followed import Followed
from tests.support.processes import Follower, wait_until

IDLE_S = 10.0
#: As a2a-sdk's servers do.
AGENT = {"streaming": True, "keepalive_s": 15.0}
LEASE_S = TimingSettings().follow_lease.total_seconds()


def measure(scale: Scale) -> list[Row]:
    """All figures of this subject. Raises TimeoutError when the streams do not get open."""
    streams, news = scale.of(1000, 200), scale.of(300, 60)
    with stage({"agent": AGENT}, worker=False, reference=False) as made, Followed(made.deployment) as followed:
        follower = made.deployment.start_follower()
        before = _rss(follower)
        ids = _hold(followed, streams)
        each = (_rss(follower) - before) / streams
        say(f"follower: {IDLE_S:.0f} idle seconds")
        busy = _cpu_share(follower)
        say(f"follower: {news} pieces of news")
        delays = [_wake_delay(followed, delegation_id) for delegation_id in ids[:news]]
        took = _take_over(made, followed, follower, streams)
    held = f"{streams:,} streams held"
    return [
        Row(what=f"follower: memory per stream, {held}", ours=[each], unit="bytes"),
        Row(what=f"follower: share of a core while idle, {held}", ours=[busy * 100], unit="%"),
        Row(
            what="agent's event → wake recorded, p50",
            ours=[quantile(delays, 0.5)],
            unit="ms",
            goal=Goal(at_most=50, is_absolute=True),
        ),
        Row(what="agent's event → wake recorded, p95", ours=[quantile(delays, 0.95)], unit="ms"),
        Row(
            what=f"kill -9 of a follower → all its streams open at another (lease {LEASE_S:.0f} s), {held}",
            ours=[took],
            unit="s",
            goal=Goal(at_most=LEASE_S + 15, is_absolute=True),
        ),
    ]


def _hold(followed: Followed, streams: int) -> list[str]:
    say(f"follower: {streams} streams")
    ids = [followed.begin() for _ in range(streams)]
    followed.agent.wait_for_streams(streams, PATIENCE_S)
    wait_until(lambda: followed.counter("follows_opened") >= streams, PATIENCE_S, what="all told")
    return ids


def _wake_delay(followed: Followed, delegation_id: str) -> float:
    """Milliseconds from the new status' timestamp to the wake, both on this machine's clock."""
    task = followed.agent.move(delegation_id, "WORKING", "half way")
    said_at = datetime.fromisoformat(task["status"]["timestamp"]).timestamp()
    key = followed.store.key("d", delegation_id)
    hinted_at = wait_until(lambda: followed.client.hget(key, "hinted_at"), what="wake", every_s=0.001)
    return (float(hinted_at) - said_at) * 1000


def _take_over(made: Stage, followed: Followed, first: Follower, streams: int) -> float:
    """Seconds until the other one has opened a stream for everything that the first one held."""
    made.deployment.start_follower()
    opened = followed.counter("follows_opened")
    say("follower: kill -9")
    killed_at = time.monotonic()
    first.kill()
    wait_until(
        lambda: followed.counter("follows_opened") >= opened + streams, PATIENCE_S, what="take-over", every_s=0.1
    )
    return time.monotonic() - killed_at


def _rss(follower: Follower) -> int:
    pages = int(Path(f"/proc/{follower.pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _cpu_share(follower: Follower) -> float:
    before, began = _cpu_s(follower), time.monotonic()
    time.sleep(IDLE_S)
    return (_cpu_s(follower) - before) / (time.monotonic() - began)


def _cpu_s(follower: Follower) -> float:
    fields = Path(f"/proc/{follower.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
