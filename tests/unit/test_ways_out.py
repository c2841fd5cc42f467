"""What may open a connection to somebody else: one seam for agents, and three named exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("delegation", "workers", "web")

#: Whatever speaks to a network, standard library or not. Redis and the broker have clients of their own.
NETWORK = {"aiohttp", "anyio", "ftplib", "grpc", "h11", "http", "httpcore", "httpx", "imaplib", "poplib", "requests"}
NETWORK |= {
    "select",
    "selectors",
    "smtplib",
    "socket",
    "socketserver",
    "ssl",
    "trio",
    "urllib3",
    "websockets",
    "xmlrpc",
}
NETWORK |= {"urllib.request"}

#: And why.
ALLOWED = {
    "delegation/outbound.py": {"httpcore", "httpx", "ssl"},  # the seam
    "delegation/sockets.py": {"httpcore", "select", "socket", "ssl"},  # the seam's sockets
    "delegation/exchange.py": {"httpcore", "httpx"},  # types, and a deadline's error
    "delegation/origins.py": {"httpx", "socket"},  # reads URLs, looks up names
    "delegation/tls.py": {"httpx", "ssl"},  # whom to trust
    "delegation/http_client.py": {"httpx"},  # the SDK's client, over the seam
    "delegation/sdk_requests.py": {"httpx"},  # types
    "delegation/credentials.py": {"httpx"},  # types
    "delegation/token_endpoint.py": {"httpx"},  # types
    "delegation/tools/dialects.py": {"httpx"},  # types
    "delegation/tools/failures.py": {"httpcore", "socket", "ssl"},  # types of errors
    "workers/follow_connection.py": {"httpcore", "httpx", "socket"},  # the seam for streams
    "workers/follower.py": {"socket"},  # the name of this machine
    "workers/processes.py": {"socket"},  # looks for a free port
    "workers/doctor.py": {"httpx"},  # asks our own web app whether it is there
    "workers/demo.py": {"httpx"},  # forges a push to our own web app
}
#: What of httpx opens connections, and where that may be written.
CONNECTING = {"AsyncClient", "Client", "AsyncHTTPTransport", "HTTPTransport", "stream", "request"}
CONNECTING |= {"delete", "get", "head", "options", "patch", "post", "put"}
OWN_WEB_APP = ("workers/doctor.py", "workers/demo.py")
#: Things that fetch by themselves, past our guard.
BEHIND_OUR_BACK = {"A2ACardResolver", "PyJWKClient", "create_client", "urlopen", "OAuth2Session", "AsyncOAuth2Client"}


def sources() -> list[tuple[str, ast.Module]]:
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def network_modules(tree: ast.Module) -> set[str]:
    return {name for name in NETWORK for found in imported(tree) if found == name or found.startswith(f"{name}.")}


def test_only_these_modules_know_the_network() -> None:
    """A new one is a decision: what leaves by it is not guarded by itself."""
    found = {path: modules for path, tree in sources() if (modules := network_modules(tree))}
    assert found == ALLOWED


def test_nothing_fetches_behind_our_back() -> None:
    """Neither the SDK's resolver, nor PyJWT's, nor Authlib's sessions: they know no origins, caps or deadlines."""
    used = [(path, name) for path, tree in sources() for name in _names(tree) if name in BEHIND_OUR_BACK]
    assert used == []


def _names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)


def opening_calls(tree: ast.Module) -> list[tuple[str, dict[str | None, str]]]:
    """Calls of httpx, or of a client made from one of its own, that may open a connection: name and keywords."""
    ours = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) if any(map(_httpx_name, node.bases))}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    named = [(_httpx_name(call.func) or (ast.unparse(call.func) in ours and "a client"), call) for call in calls]
    return [(name, {word.arg: ast.unparse(word.value) for word in call.keywords}) for name, call in named if name]


def _httpx_name(node: ast.expr) -> str:
    is_httpx = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "httpx"
    return node.attr if is_httpx and node.attr in CONNECTING else ""


def test_httpx_connects_by_the_seam_or_to_our_own_web_app() -> None:
    """And then by no proxy of the environment, and after no redirect."""
    found = {path: calls for path, tree in sources() if (calls := opening_calls(tree))}
    assert set(found) == {"delegation/http_client.py", *OWN_WEB_APP}
    for calls in found.values():
        for _, words in calls:
            assert words["trust_env"] == "False"
            assert words.get("follow_redirects", "False") == "False"
    assert "GuardedTransport" in (ROOT / "delegation/http_client.py").read_text(encoding="utf-8")
    assert all(words["transport"] == "transport" for _, words in found["delegation/http_client.py"])
