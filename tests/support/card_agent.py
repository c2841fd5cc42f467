"""An agent that serves a card which a test may change; signed cards; what was logged of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jwt
import redis
import rfc8785
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.api_jws import PyJWS

from tests.support.raw_server import RawServer, Seen, http

SIGNER = ec.generate_private_key(ec.SECP256R1())
KEY_SETS = {
    name: {"keys": [{**json.loads(jwt.algorithms.ECAlgorithm.to_jwk(key.public_key())), "kid": "k1"}]}
    for name, key in (("ours", SIGNER), ("others", ec.generate_private_key(ec.SECP256R1())))
}


class CardAgent:
    """Serves a card with headers and a status that a test may change, also where there is no card."""

    def __init__(self, server: RawServer) -> None:
        self.server = server
        self.url = server.url
        self.headers: dict[str, str] = {}
        self.status = 200
        self.extended: dict[str, Any] | None = None
        self.card: Any = self.with_path("/rpc")
        server.behaviour = self._behave

    def with_path(self, path: str, *, origin: str | None = None, **fields: Any) -> dict[str, Any]:
        url = (origin or self.url) + path
        interface = {"url": url, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        plain = {"name": "Helper", "description": "helps", "version": "1.0", "supportedInterfaces": [interface]}
        return {**plain, **fields}

    def gets(self) -> list[Seen]:
        return [seen for seen in self.server.seen if seen.line.startswith("GET")]

    def paths(self) -> list[str]:
        return [seen.line.split()[1] for seen in self.gets()]

    def _behave(self, request: Seen, connection: Any) -> bool:
        if request.line.startswith("POST"):
            wants_card = request.rpc["method"] in ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard")
            task = {"id": "t1", "status": {"state": "TASK_STATE_WORKING"}}
            answer = {"jsonrpc": "2.0", "id": request.rpc["id"], "result": self.extended if wants_card else task}
            if wants_card and self.extended is None:
                answer = {"jsonrpc": "2.0", "id": request.rpc["id"], "error": {"code": -32007, "message": "none"}}
            connection.sendall(http(200, json.dumps(answer).encode()))
        elif self.status == 200 and request.headers.get("if-none-match") == self.headers.get("ETag", "none"):
            connection.sendall(http(304))
        else:
            body = self.card if isinstance(self.card, bytes) else json.dumps(self.card).encode()
            connection.sendall(http(self.status, body, self.headers))
        return True


def let_pass(store: redis.Redis) -> None:
    """As if the card's time were over; a new roster has no memory of it either."""
    assert store.delete("card:helper") == 1


def events(logs: list[Any], name: str) -> list[dict[str, Any]]:
    return [dict(entry) for entry in logs if entry["event"] == name]


def sign(payload: dict[str, Any]) -> dict[str, Any]:
    """A signature of `SIGNER` over that much of a card."""
    protected, _, signature = PyJWS().encode(rfc8785.dumps(payload), SIGNER, "ES256", headers={"kid": "k1"}).split(".")
    return {"protected": protected, "signature": signature}


def signed(card: dict[str, Any]) -> dict[str, Any]:
    return {**card, "signatures": [sign(card)]}


def keys_in(tmp_path: Path, name: str) -> str:
    path = tmp_path / f"{name}.json"
    path.write_text(json.dumps(KEY_SETS[name]))
    return f"file:{path}"
