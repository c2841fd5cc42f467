"""What kind of server Redis is: its product and version, and whether it keeps what it is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import redis

OLDEST_REDIS = (6, 2)
#: The first releases, of each line that got one, in which no script can break out of Lua (CVE-2025-49844).
_PATCHED = {
    "Redis": ((6, 2, 20), (7, 2, 11), (7, 4, 6), (8, 0, 4), (8, 2, 2)),
    "Valkey": ((7, 2, 11), (8, 0, 6), (8, 1, 4)),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerVersion:
    """Of the product, and of the Redis that it says to be compatible with."""

    product: str
    version: str
    compatible: str

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> ServerVersion:
        """``info``: the server section of INFO."""
        compatible = str(info.get("redis_version", ""))
        if "valkey_version" in info:
            return cls(product="Valkey", version=str(info["valkey_version"]), compatible=compatible)
        return cls(product="Redis", version=compatible, compatible=compatible)

    @property
    def is_too_old(self) -> bool:
        return _numbers(self.compatible)[:2] < OLDEST_REDIS

    @property
    def is_patched(self) -> bool:
        """As far as its number tells: a distribution may have patched an older one."""
        numbers, patched = _numbers(self.version), _PATCHED[self.product]
        return numbers >= next((each for each in patched if each[:2] == numbers[:2]), patched[-1])

    def __str__(self) -> str:
        return f"{self.product} {self.version}"


def durability_of(client: redis.Redis) -> dict[str, str]:
    """appendonly, maxmemory-policy and, where CONFIG GET is permitted, appendfsync, as they are written there.

    deploy/redis-users.acl does not permit it, as it tells other users' passwords, too; INFO knows the rest.
    """
    try:
        found: Any = client.config_get("appendonly", "appendfsync", "maxmemory-policy")
        return dict(found)
    except redis.exceptions.NoPermissionError:
        persistence: Any = client.info("persistence")
        memory: Any = client.info("memory")
        is_on = persistence.get("aof_enabled") == 1
        return {"appendonly": "yes" if is_on else "no", "maxmemory-policy": str(memory.get("maxmemory_policy"))}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
