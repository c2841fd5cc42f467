"""An A2A 1.0 agent as strict as tiny-harness, on the official SDK's routes: `python -m tests.support.harness_agent`.

It shares no code with us or with the scripted agent. What it does is in the goal (the task envelope's, else the text),
steps divided by bars: `ask: TEXT` and `login: TEXT` wait for a message, `work: SECONDS`, `fail: TEXT`, `say: TEXT`
(completes, with the answers it got). Its manners, as read in tiny-harness:

- A participant is whom the message's metadata.participant_id names, else the header X-Participant-Id. Who is not on a
  task finds no such task, and who is nobody cannot begin one. The participants are those of the envelope and nobody
  else (``--adds-sender``: and who sent it); without an envelope, the sender.
- A2A-Extensions may name only what the card does; an envelope with an unknown key and a foreign context id are invalid.
- SubscribeToTask sends the task, then its whole log from the first entry on; it ends at once when the newest entry is
  interrupted, or terminal.

Prints one JSON line ``{"ready": url}``; GET /_log shows every request, GET /_open the open streams.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import httpx
import uvicorn
from a2a.helpers import get_message_text
from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    ExtensionSupportRequiredError,
    InvalidParamsError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope
from starlette.types import Send as SendToClient

from tests.support.harness_task import OWN_ID, TERMINAL, HarnessTask, Participant, TaskExtension, read_extension

HOST = "127.0.0.1"
TASK_EXTENSION = "https://madarauchiha-314.github.io/tiny-harness/a2a/ext/task/v1"
CHANNEL_EXTENSION = "https://madarauchiha-314.github.io/tiny-harness/a2a/ext/channel/v1"
A2UI_EXTENSION = "https://a2ui.org/a2a-extension/a2ui/v0.9.1"
SUPPORTED_EXTENSIONS = (TASK_EXTENSION, CHANNEL_EXTENSION, A2UI_EXTENSION)
HEADERS_OF_INTEREST = ("a2a-version", "a2a-extensions", "x-participant-id", "accept")
BINDINGS = ("JSONRPC", "HTTP+JSON")


# ------------------------------------------------------------------ calls


class HarnessCalls(RequestHandler):
    """The A2A methods, each behind the same door: extensions first, then the participant."""

    def __init__(self, *, adds_sender: bool, requires_extension: bool) -> None:
        self.tasks: dict[str, HarnessTask] = {}
        self.streams: list[dict[str, str]] = []
        self.streams_opened = 0
        self._adds_sender = adds_sender
        self._requires_extension = requires_extension
        self._pushes = httpx.AsyncClient(timeout=5, trust_env=False)

    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        task, turn = self._take(params, context)
        if not params.configuration.return_immediately:
            async for _entry in task.entries(turn, turn=turn):
                pass
        return task.to_task()

    async def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        task, turn = self._take(params, context)
        with self._open(task, "SendStreamingMessage"):
            yield task.to_task()
            async for entry in task.entries(turn, turn=turn):
                yield entry

    async def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event]:
        task = self._find(params.id, context)
        with self._open(task, "SubscribeToTask"):
            yield task.to_task()
            async for entry in task.entries(0, turn=len(task.log) - 1):
                yield entry

    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        task = self._find(params.id, context)
        return task.to_task(params.history_length if params.HasField("history_length") else None)

    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        self._check_extensions(context)
        asked_by = _participant(None, context)
        own = [task for task in self.tasks.values() if task.knows(asked_by)]
        own = [task for task in own if params.context_id in ("", task.context_id)]
        return ListTasksResponse(tasks=[task.to_task() for task in own], page_size=50, total_size=len(own))

    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        task = self._find(params.id, context)
        if task.state in TERMINAL:
            raise TaskNotCancelableError
        if task.running is not None:
            task.running.cancel()
        await task.move(TaskState.TASK_STATE_CANCELED)
        return task.to_task()

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        return self._find(params.task_id, context).keep(params)

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        config = self._find(params.task_id, context).push_configs.get(params.id)
        if config is None:
            raise TaskNotFoundError
        return config

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        configs = self._find(params.task_id, context).push_configs.values()
        return ListTaskPushNotificationConfigsResponse(configs=configs)

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        self._find(params.task_id, context).push_configs.pop(params.id, None)

    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        raise UnsupportedOperationError

    # -------------------------------------------------------- the door

    def _take(self, params: SendMessageRequest, context: ServerCallContext) -> tuple[HarnessTask, int]:
        """The task, and where in its log the turn of this message begins."""
        self._check_extensions(context)
        message, sender = params.message, _participant(params.message, context)
        if not message.message_id or not message.parts:
            raise InvalidParamsError("a message needs an id and parts")
        if not message.task_id:
            task = self._begin(message, sender)
        else:
            task = self._known(message.task_id, sender)
            if message.context_id not in ("", task.context_id):
                raise InvalidParamsError("the context id is not the task's")
            read_extension(message)
            if task.state in TERMINAL:
                raise UnsupportedOperationError("the task is in a terminal state")
        if params.configuration.HasField("task_push_notification_config"):
            task.keep(params.configuration.task_push_notification_config)
        turn = task.take(message)
        if task.running is None:
            task.running = asyncio.create_task(task.run())
        return task, turn

    def _begin(self, message: Message, sender: str) -> HarnessTask:
        if not sender:
            raise InvalidParamsError("no participant asserted")
        extension = read_extension(message)
        has_envelope = extension is not None
        text = get_message_text(message)
        extension = extension or TaskExtension(name=text[:80], goal=text)
        present = {each.id for each in extension.participants}
        if sender not in present and (self._adds_sender or not has_envelope):
            extension.participants.append(Participant(id=sender, kind="agent", role="reporter"))
        extension.participants.append(Participant(id=OWN_ID, kind="agent", role="assignee"))
        task = HarnessTask(message, extension, self._pushes)
        self.tasks[task.id] = task
        return task

    def _find(self, task_id: str, context: ServerCallContext) -> HarnessTask:
        self._check_extensions(context)
        return self._known(task_id, _participant(None, context))

    def _known(self, task_id: str, participant_id: str) -> HarnessTask:
        task = self.tasks.get(task_id)
        if task is None or not task.knows(participant_id):
            raise TaskNotFoundError
        return task

    def _check_extensions(self, context: ServerCallContext) -> None:
        unknown = sorted(context.requested_extensions - set(SUPPORTED_EXTENSIONS))
        if unknown:
            raise UnsupportedOperationError(f"extensions not offered: {', '.join(unknown)}")
        if self._requires_extension and TASK_EXTENSION not in context.requested_extensions:
            raise ExtensionSupportRequiredError(f"{TASK_EXTENSION} is required")

    @contextlib.contextmanager
    def _open(self, task: HarnessTask, method: str) -> Iterator[None]:
        stream = {"method": method, "taskId": task.id}
        self.streams.append(stream)
        self.streams_opened += 1
        try:
            yield
        finally:
            self.streams = [each for each in self.streams if each is not stream]


def _participant(message: Message | None, context: ServerCallContext) -> str:
    metadata = MessageToDict(message.metadata) if message is not None else {}
    return str(metadata.get("participant_id") or context.state["headers"].get("x-participant-id", ""))


# ------------------------------------------------------------------ the server


class RequestLog:
    """Keeps every request: the A2A method, or the HTTP one with its path; the headers that matter; the parameters."""

    def __init__(self, app: ASGIApp) -> None:
        self.entries: list[dict[str, Any]] = []
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: SendToClient) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/_"):
            await self._app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        http = f"{scope['method']} {scope['path']}"
        seen = {name: headers[name] for name in HEADERS_OF_INTEREST if name in headers}
        entry: dict[str, Any] = {"method": http, "http": http, "headers": seen, "params": {}}
        self.entries.append(entry)
        body = b""

        async def receive_and_keep() -> Any:
            nonlocal body
            received = await receive()
            if received["type"] == "http.request":
                body += received.get("body", b"")
                if not received.get("more_body"):
                    entry.update(_read(body))
            return received

        await self._app(scope, receive_and_keep, send)


def _read(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body or b"{}")
    except ValueError:
        return {"params": None}
    if isinstance(value, dict) and "method" in value:
        return {"method": value["method"], "params": value.get("params")}
    return {"params": value}


def card_at(base_url: str, *, push: bool, requires_extension: bool) -> AgentCard:
    bindings = [AgentInterface(url=base_url, protocol_binding=name, protocol_version="1.0") for name in BINDINGS]
    extensions = [
        AgentExtension(uri=uri, required=requires_extension and uri == TASK_EXTENSION) for uri in SUPPORTED_EXTENSIONS
    ]
    return AgentCard(
        name="harness agent",
        description="Asks what it was told to ask",
        version="0.1.0",
        supported_interfaces=bindings,
        capabilities=AgentCapabilities(streaming=True, push_notifications=push, extensions=extensions),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="ask", name="ask", description="asks questions", tags=["test"])],
    )


def build_app(card: AgentCard, calls: HarnessCalls) -> RequestLog:
    async def show_log(_: Request) -> JSONResponse:
        return JSONResponse(app.entries)

    async def show_open(_: Request) -> JSONResponse:
        facts = {"open": len(calls.streams), "opened": calls.streams_opened, "streams": calls.streams}
        return JSONResponse(facts)

    routes: list[BaseRoute] = [Route("/_log", show_log), Route("/_open", show_open), *create_agent_card_routes(card)]
    routes += [*create_jsonrpc_routes(calls, rpc_url="/"), *create_rest_routes(calls)]
    app = RequestLog(Starlette(routes=routes))
    return app


async def serve(options: argparse.Namespace) -> None:
    config = uvicorn.Config("", host=HOST, port=options.port, log_level="warning", timeout_graceful_shutdown=1)
    listener = config.bind_socket()
    listener.listen()  # before we say so
    base_url = f"http://{HOST}:{listener.getsockname()[1]}"
    card = card_at(f"{base_url}/", push=not options.no_push, requires_extension=options.requires_extension)
    calls = HarnessCalls(adds_sender=options.adds_sender, requires_extension=options.requires_extension)
    config.app = build_app(card, calls)
    print(json.dumps({"ready": base_url}), flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.harness_agent")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--no-push", action="store_true", help="offer no push notifications")
    parser.add_argument("--adds-sender", action="store_true", help="put the sender on a task whose envelope forgot it")
    parser.add_argument("--requires-extension", action="store_true", help="the task extension is required")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
