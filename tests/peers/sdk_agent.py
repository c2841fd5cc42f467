"""A peer on a2a-sdk's server: `python -m tests.peers.sdk_agent [--port N] [--rest-first]`."""

from __future__ import annotations

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
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Part, Role
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

from tests.peers.stage import HOST, Stage, Talk, made_parts, read_options


class Executor(AgentExecutor):
    """Does what the goal says."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._talks: dict[str, Talk] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        assert context.task_id
        assert context.context_id
        text = get_message_text(context.message)
        if text.startswith("say "):
            reply = new_text_message(text[4:], context_id=context.context_id, role=Role.ROLE_AGENT)
            await event_queue.enqueue_event(reply)
            return
        if context.current_task is None:
            self._talks[context.task_id] = Talk.of(text)
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        else:
            self._talks[context.task_id].answers.append(text)
        await self._go_on(self._talks[context.task_id], TaskUpdater(event_queue, context.task_id, context.context_id))

    async def _go_on(self, talk: Talk, updater: TaskUpdater) -> None:
        while step := talk.next_step():
            verb, text = step
            message = updater.new_agent_message([new_text_part(text)])
            match verb:
                case "hold":
                    await updater.start_work()
                    await self._stage.hold(updater.context_id)
                case "make":
                    parts = [ParseDict(part, Part()) for part in made_parts(text)]
                    await updater.add_artifact(parts, name="report")
                case "deaf":
                    talk.is_deaf = True
                case "ask":
                    await updater.requires_input(message)
                    return
                case "fail":
                    await updater.failed(message)
                    return
                case "reject":
                    await updater.reject(message)
                    return
        if talk.answers:
            await updater.add_artifact([new_text_part(talk.summary)], name="answers")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id
        assert context.context_id
        if not self._talks[context.task_id].is_deaf:
            await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def build_card(base_url: str, *, rest_first: bool) -> AgentCard:
    interfaces = [
        AgentInterface(url=f"{base_url}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"),
        AgentInterface(url=f"{base_url}/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
    ]
    return AgentCard(
        name="sdk peer",
        description="On a2a-sdk's server",
        version="1.0.0",
        supported_interfaces=reversed(interfaces) if rest_first else interfaces,
        capabilities=AgentCapabilities(push_notifications=True, streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="obey", name="obey", description="does what the text says", tags=["test"])],
    )


def build_app(card: AgentCard) -> Stage:
    stage = Stage()
    configs = InMemoryPushNotificationConfigStore()
    handler = DefaultRequestHandler(
        agent_executor=Executor(stage),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(timeout=5), configs),
    )
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, rpc_url="/rpc"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    stage.app = Starlette(routes=routes)
    return stage


async def serve(port: int, *, rest_first: bool) -> None:
    config = uvicorn.Config("", host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=1)
    listener = config.bind_socket()
    listener.listen()  # before we say so
    base_url = f"http://{HOST}:{listener.getsockname()[1]}"
    config.app = build_app(build_card(base_url, rest_first=rest_first))
    print(json.dumps({"ready": base_url}), flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    options = read_options("sdk_agent", "--rest-first")
    asyncio.run(serve(options.port, rest_first=options.rest_first))
