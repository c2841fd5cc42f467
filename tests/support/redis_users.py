"""Who may do what on a test's server: deploy/redis-users.acl itself, and those who only look on."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.child import ROOT

SHIPPED = ROOT / "deploy" / "redis-users.acl"
#: What the file has in place of the passwords' digests; no server takes them as they are.
PLACEHOLDER = "#sha256-of-the-password"
ADMIN_PLACEHOLDER = "#sha256-of-the-admins-password"
PRODUCT = "delegation"
#: The product's rights, and what a test of the store looks into its keys with.
TESTER = "tester"
ADMIN = "admin"
_LOOKS = "+scan +type +pttl +memory|usage"


class Tenant(NamedTuple):
    """Somebody else on the same server: the product's rights on another prefix, and what they need beside them."""

    prefix: str
    more: str = ""


def write_users(file: Path, tenants: Mapping[str, Tenant]) -> dict[str, str]:
    """Write a server's aclfile; returns the passwords, made for it, by user."""
    users = {PRODUCT: Tenant("delegation:"), TESTER: Tenant("delegation:", _LOOKS), **tenants}
    passwords = {name: secrets.token_hex(16) for name in (*users, ADMIN)}
    default, admin, product = SHIPPED.read_text(encoding="utf-8").splitlines()
    lines = [default, admin.replace(ADMIN_PLACEHOLDER, _digest(passwords[ADMIN]))]
    for name, (prefix, more) in users.items():
        rights = product.removeprefix(f"user {PRODUCT} ").replace("delegation:", prefix)
        lines.append(f"user {name} {rights.replace(PLACEHOLDER, _digest(passwords[name]))} {more}")
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return passwords


def _digest(password: str) -> str:
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"
