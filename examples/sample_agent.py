"""A sample A2A 1.0 agent on a2a-sdk's own server: `python -m examples.sample_agent --kind instant`, or another kind.

Kinds:

- ``instant`` answers at once: a direct Message when asked for the weather, else a task that is already terminal;
- ``pushing`` works for 1 to 4 seconds and pushes; its last push is sent twice on purpose;
- ``quiet`` works for 1 to 3 seconds, neither pushes nor streams, and has to be asked;
- ``asking`` streams, asks a question back, and ends when it is answered.

A goal that contains "fail on purpose" ends FAILED. Prints one JSON line ``{"ready": url, "kind": kind}`` when it
listens; SIGINT or SIGTERM ends it within two seconds. JSON-RPC at /rpc, HTTP+JSON at /rest, tasks in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import uvicorn
from a2a.helpers import get_data_parts, get_message_text, new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    PushNotificationEvent,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Artifact,
    Message,
    Role,
    TaskState,
    TaskStatusUpdateEvent,
)
from starlette.applications import Starlette

from examples.demo_work import FAILURE_TEXT, answer_to, seconds_of_work, topic_of, wants_failure

KINDS = {
    "instant": "Answers at once",
    "pushing": "Works for some seconds and pushes every change",
    "quiet": "Works for some seconds and has to be asked",
    "asking": "Asks a question back and streams every change",
}
QUESTION = "On which day?"
_TERMINAL = {
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
}


def main(argv: list[str] | None = None) -> None:
    options = read_options(argv)
    # The SDK logs a traceback for every push that a receiver refuses, and refusing the second of two is right.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    asyncio.run(serve(options.kind, options.host, options.port, options.name, options.public_url))


def read_options(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.sample_agent", description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=sorted(KINDS), required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--name", help="the name on the card")
    parser.add_argument("--public-url", help="where callers reach it, for the card; without it, http://HOST:PORT")
    options = parser.parse_args(argv)
    options.name = options.name or f"{options.kind} agent"
    return options


async def serve(kind: str, host: str, port: int, name: str, public_url: str | None = None) -> None:
    """Listen until a signal comes. The socket is bound first, because the card has to name the real port."""
    listener = _bind(host, port)
    base_url = public_url or f"http://{host}:{listener.getsockname()[1]}"
    async with httpx.AsyncClient(timeout=5) as push_client:
        card = build_card(kind, base_url, name)
        handler = build_handler(card, kind, push_client)
        server = _Server(
            uvicorn.Config(build_app(handler, card), log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
        )
        server.ready_line = json.dumps({"ready": base_url, "kind": kind})
        await server.serve(sockets=[listener])
        await handler.aclose()


class SampleExecutor(AgentExecutor):
    """One goal, one task (or one message)."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        goal = get_message_text(context.message) if context.message else ""
        if self._kind == "instant":
            await self._answer_at_once(context, event_queue, goal)
        elif self._kind == "asking":
            await self._ask(context, event_queue, goal)
        else:
            await self._work(context, event_queue, goal)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id or "", context.context_id or "").cancel()

    async def _answer_at_once(self, context: RequestContext, event_queue: EventQueue, goal: str) -> None:
        if topic_of(goal) == "weather" and not wants_failure(goal):
            reply = new_text_message(answer_to(goal), context_id=context.context_id, role=Role.ROLE_AGENT)
            await event_queue.enqueue_event(reply)
            return
        assert context.message is not None
        # The first event of a new task must be the Task itself, so a task that is born terminal is one event.
        ended = new_task_from_user_message(context.message)
        ended.status.timestamp.GetCurrentTime()
        if wants_failure(goal):
            ended.status.state = TaskState.TASK_STATE_FAILED
            ended.status.message.CopyFrom(_status_message(ended.id, ended.context_id, FAILURE_TEXT))
        else:
            ended.status.state = TaskState.TASK_STATE_COMPLETED
            ended.artifacts.append(
                Artifact(artifact_id="answer", name=topic_of(goal), parts=[new_text_part(answer_to(goal))])
            )
        await event_queue.enqueue_event(ended)

    async def _work(self, context: RequestContext, event_queue: EventQueue, goal: str) -> None:
        assert context.message is not None
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.start_work(updater.new_agent_message([new_text_part(f"looking into {topic_of(goal)}")]))
        await asyncio.sleep(seconds_of_work(goal, shortest=1.0, longest=4.0 if self._kind == "pushing" else 3.0))
        if wants_failure(goal):
            await updater.failed(updater.new_agent_message([new_text_part(FAILURE_TEXT)]))
            return
        await updater.add_artifact([new_text_part(answer_to(goal))], artifact_id="answer", name=topic_of(goal))
        await updater.complete()

    async def _ask(self, context: RequestContext, event_queue: EventQueue, said: str) -> None:
        """The first message is the goal, the next one the answer to our question."""
        assert context.message is not None
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.start_work(updater.new_agent_message([new_text_part("thinking it over")]))
        await asyncio.sleep(1.0)
        if context.current_task is None:
            await updater.requires_input(updater.new_agent_message([new_text_part(QUESTION)]))
            return
        answer = f"{said.strip() or _values_of(context.message)} it is."
        await updater.add_artifact([new_text_part(answer)], artifact_id="answer", name="answer")
        await updater.complete()


class RepeatingPushSender(BasePushNotificationSender):
    """Sends the push of a terminal state twice: A2A promises at least once (spec section 4.3.3)."""

    async def send_notification(self, task_id: str, event: PushNotificationEvent) -> None:
        await super().send_notification(task_id, event)
        if isinstance(event, TaskStatusUpdateEvent) and event.status.state in _TERMINAL:
            await super().send_notification(task_id, event)


def build_card(kind: str, base_url: str, name: str) -> AgentCard:
    return AgentCard(
        name=name,
        description=f"{KINDS[kind]}; knows about flights, hotels, weather and ledgers",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=f"{base_url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=f"{base_url}/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
        ],
        capabilities=AgentCapabilities(streaming=kind == "asking", push_notifications=kind == "pushing"),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id="travel", name="travel", description="flights, hotels and weather", tags=["travel"]),
            AgentSkill(id="ledger", name="ledger", description="summarises invoices and budgets", tags=["ledger"]),
        ],
    )


def build_handler(card: AgentCard, kind: str, push_client: httpx.AsyncClient) -> DefaultRequestHandler:
    push_configs = InMemoryPushNotificationConfigStore() if card.capabilities.push_notifications else None
    return DefaultRequestHandler(
        agent_executor=SampleExecutor(kind),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=push_configs,
        push_sender=RepeatingPushSender(push_client, push_configs) if push_configs else None,
    )


def build_app(handler: DefaultRequestHandler, card: AgentCard) -> Starlette:
    return Starlette(
        routes=[
            *create_agent_card_routes(card, cache_control="public, max-age=60"),
            *create_jsonrpc_routes(handler, rpc_url="/rpc"),
            *create_rest_routes(handler, path_prefix="/rest"),
        ]
    )


class _Server(uvicorn.Server):
    """Says when it listens, and ends with exit code 0 on a signal (uvicorn would raise the signal once more)."""

    ready_line = ""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(self.ready_line, flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self.should_exit = True


def _bind(host: str, port: int) -> socket.socket:
    # Naming the protocol matters: asyncio switches Nagle's algorithm off only where it reads IPPROTO_TCP, and with
    # it on every answer waits 40 ms for the client's delayed acknowledgement.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))
    return listener


def _values_of(message: Message) -> str:
    """What a message says in data parts alone: the values, in the order of their names."""
    found: list[str] = []
    for value in get_data_parts(message.parts):
        # A protobuf Struct keeps no order of its fields.
        values = [value[name] for name in sorted(value)] if isinstance(value, dict) else value
        values = values if isinstance(values, list) else [values]
        found += [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in values]
    return ", ".join(found)


def _status_message(task_id: str, context_id: str, text: str) -> Message:
    return new_text_message(text, context_id=context_id, task_id=task_id, role=Role.ROLE_AGENT)


if __name__ == "__main__":
    main()
