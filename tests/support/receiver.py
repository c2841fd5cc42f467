"""A webhook and a JSON-RPC caller, both by hand, for tests of the agents themselves."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import httpx

PUSH_CREDENTIALS = {"token": "t-1", "authentication": {"scheme": "Bearer", "credentials": "t-1"}}


class Receiver:
    """Remembers the headers (names in lower case) and bodies of what is pushed, and answers 202."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], dict[str, Any]]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.received.append((headers, json.loads(body)))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"

    def states(self) -> list[str]:
        """The states pushed so far, without their prefix; pushes of artifacts carry none."""
        told = [body.get("statusUpdate") or body.get("task") for _headers, body in self.received]
        return [each["status"]["state"].removeprefix("TASK_STATE_") for each in told if each]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class RpcCaller:
    """JSON-RPC calls to an agent's /rpc, or another path."""

    def __init__(self, agent_url: str, headers: dict[str, str] | None = None, *, path: str = "/rpc") -> None:
        headers = {"A2A-Version": "1.0", **(headers or {})}
        self._path = path
        self._http = httpx.Client(base_url=agent_url, trust_env=False, timeout=5, headers=headers)

    def post(self, method: str, **params: Any) -> httpx.Response:
        return self._http.post(self._path, json={"jsonrpc": "2.0", "id": "1", "method": method, "params": params})

    def call(self, method: str, **params: Any) -> Any:
        answer = self.post(method, **params).json()
        assert "result" in answer, answer
        return answer["result"]

    def error(self, method: str, **params: Any) -> int:
        return int(self.post(method, **params).json()["error"]["code"])

    def send(self, script: dict[str, Any] | str, push_to: str | None = None, **message: Any) -> Any:
        return self.call("SendMessage", **send_params(script, push_to, **message))

    def get(self, path: str) -> httpx.Response:
        return self._http.get(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()


def send_params(script: dict[str, Any] | str, push_to: str | None = None, **message: Any) -> dict[str, Any]:
    """Parameters of a SendMessage whose goal holds the script, with push config "p1" if there is somewhere to push."""
    text = script if isinstance(script, str) else f"Goal: {json.dumps(script)}\nand be quick"
    configuration: dict[str, Any] = {"returnImmediately": message.pop("return_immediately", True)}
    if push_to:
        configuration["taskPushNotificationConfig"] = {"id": "p1", "url": push_to, **PUSH_CREDENTIALS}
    whole = {"messageId": "m1", "contextId": "c1", "role": "ROLE_USER", "parts": [{"text": text}], **message}
    return {"message": whole, "configuration": configuration}
