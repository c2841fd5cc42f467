"""An A2A 1.0 agent on the official SDK's server: `python -m tests.support.sdk_agent --binding JSONRPC`.

What it does with a message is the message's text, steps divided by semicolons: `work`, `wait SECONDS`,
`make TEXT` (an artifact), `ask TEXT` (INPUT_REQUIRED), `fail TEXT`, `say TEXT` (a Message, no task), `crash`.
A task that is not told otherwise completes. Prints one JSON line ``{"ready": url}`` when it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import httpx
import uvicorn
from a2a.helpers import get_message_text, new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import AgentCapabilities, AgentCard, AgentExtension, AgentInterface, AgentSkill, Role
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HOST = "127.0.0.1"
PATHS = {"JSONRPC": "/rpc", "HTTP+JSON": "/rest"}


class Executor(AgentExecutor):
    """Does what the text says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        steps = [step.strip().partition(" ") for step in get_message_text(context.message).split(";")]
        if steps[0][0] == "say":
            reply = new_text_message(steps[0][2], context_id=context.context_id, role=Role.ROLE_AGENT)
            await event_queue.enqueue_event(reply)
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        for verb, _, text in steps:
            if await self._has_ended(updater, verb, text):
                return
        await updater.complete()

    async def _has_ended(self, updater: TaskUpdater, verb: str, text: str) -> bool:
        parts = [new_text_part(text)]
        if verb == "work":
            await updater.start_work()
        elif verb == "wait":
            await asyncio.sleep(float(text))
        elif verb == "make":
            await updater.add_artifact(parts, name="result")
        elif verb == "ask":
            await updater.requires_input(updater.new_agent_message(parts))
        elif verb == "fail":
            await updater.failed(updater.new_agent_message(parts))
        elif verb == "crash":
            raise RuntimeError("told to crash")
        return verb in ("ask", "fail")

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()


class Recorder:
    """Keeps every request as it came, and counts the event streams, for the tests to look at."""

    def __init__(self, app: ASGIApp, seen: list[dict[str, object]], streams: dict[str, int]) -> None:
        self._app = app
        self._seen = seen
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in ("/_seen", "/_streams"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        entry: dict[str, object] = {"method": scope["method"], "path": scope["path"], "headers": headers}
        body = b""

        async def receive_and_keep() -> dict[str, object]:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            entry["body"] = body.decode()
            return dict(message)

        self._seen.append(entry)
        is_stream = False

        async def send_and_count(message: Message) -> None:
            nonlocal is_stream
            if message["type"] == "http.response.start" and _is_event_stream(message):
                is_stream = True
                self._streams["opened"] += 1
                self._streams["open"] += 1
            await send(message)

        try:
            await self._app(scope, receive_and_keep, send_and_count)
        finally:
            self._streams["open"] -= is_stream


def _is_event_stream(start: Message) -> bool:
    return dict(start["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")


def build_app(base_url: str, binding: str, *, push: bool, extensions: list[str]) -> ASGIApp:
    card = AgentCard(
        name="sdk agent",
        description="An agent on the official SDK",
        version="1.2.3",
        supported_interfaces=[
            AgentInterface(url=base_url + PATHS[binding], protocol_binding=binding, protocol_version="1.0")
        ],
        capabilities=AgentCapabilities(
            push_notifications=push,
            streaming=True,
            extensions=[AgentExtension(uri=uri, required=True) for uri in extensions],
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="obey", name="obey", description="does what the text says", tags=["test"])],
    )
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Executor(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=configs if push else None,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(timeout=2), configs) if push else None,
    )
    seen: list[dict[str, object]] = []
    streams = {"open": 0, "opened": 0}

    async def show_seen(_: Request) -> JSONResponse:
        return JSONResponse(seen)

    async def show_streams(_: Request) -> JSONResponse:
        return JSONResponse(streams)

    routes: list[BaseRoute] = [Route("/_seen", show_seen), Route("/_streams", show_streams)]
    routes += create_agent_card_routes(card)
    routes += create_jsonrpc_routes(handler, rpc_url=PATHS["JSONRPC"])
    routes += create_rest_routes(handler, path_prefix=PATHS["HTTP+JSON"])
    return Recorder(Starlette(routes=routes), seen, streams)


async def serve(binding: str, *, push: bool, extensions: list[str]) -> None:
    config = uvicorn.Config("", host=HOST, port=0, log_level="warning", timeout_graceful_shutdown=1)
    listener = config.bind_socket()
    listener.listen()  # before we say so
    base_url = f"http://{HOST}:{listener.getsockname()[1]}"
    config.app = build_app(base_url, binding, push=push, extensions=extensions)
    server = uvicorn.Server(config)
    print(json.dumps({"ready": base_url}), flush=True)
    await server.serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.sdk_agent")
    parser.add_argument("--binding", choices=list(PATHS), default="JSONRPC")
    parser.add_argument("--no-push", action="store_true")
    parser.add_argument("--extension", action="append", default=[], metavar="URI", help="required by the card")
    options = parser.parse_args()
    asyncio.run(serve(options.binding, push=not options.no_push, extensions=options.extension))


if __name__ == "__main__":
    main()
