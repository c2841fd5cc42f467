"""An OAuth 2.0 token endpoint with OpenID Connect discovery, that gives out tokens A, B, C… or misbehaves as told."""

from __future__ import annotations

import base64
import json
import string
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qs, unquote_plus

from tests.support.identity_tls import ServerTls
from tests.support.raw_server import Behaviour, RawServer, Seen, drips, says

DISCOVERY_PATH = "/.well-known/openid-configuration"
TOKEN_PATH = "/token"
CLIENT_ID = "delegation-client"
CLIENT_SECRET = "client-secret-1"
BASIC, POST = "client_secret_basic", "client_secret_post"
_NOT_CACHED = {"Content-Type": "application/json", "Cache-Control": "no-store"}

#: For `token(expires_in=…)`: the answer does not say.
UNSAID: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """What a client asked the token endpoint for."""

    grant_type: str
    client_id: str
    client_secret: str
    auth_method: str  #: BASIC, POST, "both" or "none"
    scope: str
    audience: str
    form: Mapping[str, list[str]]
    headers: Mapping[str, str]  #: names in lower case
    connection: int


# ------------------------------------------------------------------ answers


def token(value: str, *, expires_in: Any = 3600, token_type: str = "Bearer", **more: Any) -> Behaviour:
    """A token; `expires_in` is sent as it is, and left out if UNSAID."""
    given = {} if expires_in is UNSAID else {"expires_in": expires_in}
    body = {"access_token": value, "token_type": token_type, **given, **more}
    return says(200, json.dumps(body).encode(), _NOT_CACHED)


def refusal(error: str = "invalid_client", status: int = 401, **more: Any) -> Behaviour:
    """An OAuth error (RFC 6749 section 5.2)."""
    headers = {**_NOT_CACHED, **({"WWW-Authenticate": 'Basic realm="tokens"'} if status == 401 else {})}
    return says(status, json.dumps({"error": error, **more}).encode(), headers)


def garbage(body: bytes = b"<html>welcome</html>", status: int = 200) -> Behaviour:
    return says(status, body, {"Content-Type": "text/html"})


def huge(size: int = 64 * 1024 * 1024) -> Behaviour:
    """A body of that many bytes, declared, sent for as long as the client takes them."""

    def behave(_: Seen, connection: Any) -> bool:
        connection.sendall(
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        for _each in range(size // 65_536):
            connection.sendall(b" " * 65_536)
        return False

    return behave


def redirect(to: str, status: int = 307) -> Behaviour:
    return says(status, b"", {"Location": to})


# ------------------------------------------------------------------ the server


class TokenServer:
    """``with TokenServer() as server``: http, or https with ``TokenServer(tls=authority.server().as_server())``.

    Each request takes the next of ``answers``, the last one for good; without any it gets a token of its own: A, B, C…
    Clients that do not show the secret of ``clients`` get invalid_client, whatever the answers are.
    """

    def __init__(self, *answers: Behaviour, tls: ServerTls | None = None) -> None:
        self.clients = {CLIENT_ID: CLIENT_SECRET}
        self.auth_methods: Sequence[str] = (BASIC, POST)  #: those it takes, and names in its discovery document
        self.expires_in: Any = 3600  #: of the tokens A, B, C…
        self.discovery: dict[str, Any] = {}  #: replaces members of the discovery document; None removes one
        self.discovery_answer: Behaviour | None = None  #: in place of the document
        self.discoveries: list[Seen] = []
        self.requests: list[TokenRequest] = []
        self._answers = list(answers)
        self._answered = 0
        self._changed = threading.Condition()
        self._may_answer = threading.Event()
        self._may_answer.set()
        self._server = RawServer(self._behave, tls=tls.context() if tls is not None else None)

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._may_answer.set()
        self._server.__exit__(*error)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def issuer(self) -> str:
        return self.url

    @property
    def token_url(self) -> str:
        return self.url + TOKEN_PATH

    @property
    def raw(self) -> RawServer:
        """The sockets beneath: `connections`, `open`, `seen`."""
        return self._server

    def answer_with(self, *answers: Behaviour) -> None:
        """From now on these, the last one for good; none: A, B, C… go on."""
        with self._changed:
            self._answers = list(answers)

    def drip(self, every_s: float = 0.2) -> Behaviour:
        """An answer that never gets finished, a byte now and then."""
        return drips(lambda: self._server, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", every_s)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Token requests that come within get their answers after it; they are counted as they come."""
        self._may_answer.clear()
        try:
            yield
        finally:
            self._may_answer.set()

    def wait_for_requests(self, count: int = 1, timeout_s: float = 10.0) -> list[TokenRequest]:
        """The token requests, once there are so many."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) >= count, timeout_s):
                raise TimeoutError(f"{len(self.requests)} of {count} token requests within {timeout_s} s")
            return list(self.requests)

    def _behave(self, seen: Seen, connection: Any) -> bool:
        method, target, _ = seen.line.split(" ", 2)
        path = target.partition("?")[0]
        if method == "GET" and path.endswith(DISCOVERY_PATH):
            answer = self._discovery(seen, path.removesuffix(DISCOVERY_PATH))
        elif (method, path) == ("POST", TOKEN_PATH):
            answer = self._token(seen)
            self._may_answer.wait()
        else:
            answer = says(404)
        return answer(seen, connection)

    def _discovery(self, seen: Seen, tenant: str) -> Behaviour:
        self.discoveries.append(seen)
        if self.discovery_answer is not None:
            return self.discovery_answer
        document = {
            "issuer": self.issuer + tenant,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": self.token_url,
            "jwks_uri": f"{self.url}/jwks",
            "grant_types_supported": ["client_credentials"],
            "token_endpoint_auth_methods_supported": list(self.auth_methods),
            **self.discovery,
        }
        kept = {name: value for name, value in document.items() if value is not None}
        return says(200, json.dumps(kept).encode(), {"Content-Type": "application/json"})

    def _token(self, seen: Seen) -> Behaviour:
        request = _token_request(seen)
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
            if not self._knows(request):
                return refusal("invalid_client")
            if self._answers:
                return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            self._answered += 1
            return token(_letters(self._answered), expires_in=self.expires_in)

    def _knows(self, request: TokenRequest) -> bool:
        is_known = self.clients.get(request.client_id) == request.client_secret
        return is_known and request.auth_method in self.auth_methods


def _token_request(seen: Seen) -> TokenRequest:
    form = parse_qs(seen.body.decode("latin-1"), keep_blank_values=True)
    first = {name: values[0] for name, values in form.items()}
    scheme, _, given = seen.headers.get("authorization", "").partition(" ")
    is_basic, is_post = scheme.lower() == "basic", "client_secret" in form
    client_id, secret = first.get("client_id", ""), first.get("client_secret", "")
    if is_basic:
        # RFC 6749 section 2.3.1: both are form-encoded before they are joined.
        client_id, secret = (unquote_plus(part) for part in base64.b64decode(given).decode().split(":", 1))
    methods = {(True, True): "both", (True, False): BASIC, (False, True): POST, (False, False): "none"}
    return TokenRequest(
        grant_type=first.get("grant_type", ""),
        client_id=client_id,
        client_secret=secret,
        auth_method=methods[is_basic, is_post],
        scope=first.get("scope", ""),
        audience=first.get("audience", ""),
        form=form,
        headers=seen.headers,
        connection=seen.connection,
    )


def _letters(number: int) -> str:
    """1: A … 26: Z, 27: AA."""
    text = ""
    while number:
        number, letter = divmod(number - 1, 26)
        text = string.ascii_uppercase[letter] + text
    return text


__all__ = [
    "BASIC",
    "CLIENT_ID",
    "CLIENT_SECRET",
    "DISCOVERY_PATH",
    "POST",
    "UNSAID",
    "TokenRequest",
    "TokenServer",
    "garbage",
    "huge",
    "redirect",
    "refusal",
    "token",
]
