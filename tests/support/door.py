"""What a stranger can send to the push endpoint over a raw socket, and a delegation that hears it."""

from __future__ import annotations

import hashlib
import re
import secrets
import socket
from dataclasses import dataclass, replace

from delegation.state import Brief, Change, Delegation, DelegationId, Phase
from delegation.store import Store

COMPLETED = b'{"task": {"id": "t1", "status": {"state": "TASK_STATE_COMPLETED"}}}'


@dataclass
class Target:
    """A delegation that accepts pushes, and its token."""

    id: str
    token: str


def open_watching(store: Store, delegation_id: str | None = None) -> Target:
    """A delegation as it is when its agent has the task and our push config."""
    target = Target(delegation_id or f"{secrets.token_hex(16)}.1", secrets.token_urlsafe(32))
    store.open_delegation(
        Delegation(
            id=DelegationId(target.id),
            agent="a",
            brief=Brief(goal="g"),
            call_id=f"call-{target.id}",
            participant_id="p",
            created_at=0.0,
        )
    )
    opened = store.load(target.id).delegation
    digest = hashlib.sha256(target.token.encode()).hexdigest()
    _, leased = store.begin(opened, replace(opened, phase=Phase.STARTING, push_digest=digest))
    store.save(leased, Change(after=replace(leased, phase=Phase.WATCHING)))
    return target


def push_of(target: Target, token: str | None = None, body: bytes = COMPLETED, *more: str) -> bytes:
    """A push as agents send it; `more` headers go along."""
    headers = [f"Authorization: Bearer {token or target.token}", "Content-Type: application/json", *more]
    return request(f"/a2a/push/{target.id}", headers, body)


def request(path: str, headers: list[str], body: bytes = COMPLETED, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Connection: close", *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def chunked(path: str, headers: list[str], chunks: list[bytes]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", *headers, "Transfer-Encoding: chunked"]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + framed + b"0\r\n\r\n"


def statuses(answer: bytes) -> list[int]:
    """The status of each answer on the connection."""
    return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3}) ", answer)]


def exchange(port: int, raw: bytes, *, source: str = "127.0.0.1", timeout_s: float = 12.0) -> bytes:
    """Everything the server says until it closes; what it says before it resets us counts as well."""
    with socket.create_connection(("127.0.0.1", port), timeout=timeout_s, source_address=(source, 0)) as connection:
        received = b""
        try:
            connection.sendall(raw)
            while piece := connection.recv(65_536):
                received += piece
        except (ConnectionError, BrokenPipeError):
            pass
        return received
