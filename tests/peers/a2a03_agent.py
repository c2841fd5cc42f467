"""A peer on the SDK of A2A 0.3 (a2a-sdk 0.3.26): `python -m tests.peers.a2a03_agent [--port N]`."""

from __future__ import annotations

import asyncio
import json

import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentSkill, Part, TextPart
from a2a.utils import new_agent_text_message, new_task

from tests.peers.stage import HOST, Stage, read_options


class Executor(AgentExecutor):
    """Does what the first word of the text says."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        verb, _, text = context.get_user_input().partition(" ")
        if verb == "say":
            await event_queue.enqueue_event(new_agent_text_message(text))
            return
        task = context.current_task or new_task(context.message)
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        message = updater.new_agent_message([_part(text)])
        match verb:
            case "ask":
                await updater.requires_input(message, final=True)
            case "fail":
                await updater.failed(message)
            case "reject":
                await updater.reject(message)
            case "hold":
                await asyncio.Event().wait()
            case _:
                await updater.add_artifact([_part(f"result for {text}")], name="result")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _part(text: str) -> Part:
    return Part(root=TextPart(text=text))


def build_app(base_url: str) -> Stage:
    card = AgentCard(
        name="old agent",
        description="On the SDK of A2A 0.3",
        version="1.0.0",
        url=f"{base_url}/",
        preferred_transport="JSONRPC",
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        capabilities=AgentCapabilities(streaming=False, push_notifications=False),
        skills=[AgentSkill(id="obey", name="obey", description="does what the text says", tags=["test"])],
    )
    handler = DefaultRequestHandler(agent_executor=Executor(), task_store=InMemoryTaskStore())
    stage = Stage()
    stage.app = A2AStarletteApplication(agent_card=card, http_handler=handler).build()
    return stage


async def serve(port: int) -> None:
    config = uvicorn.Config("", host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=1)
    listener = config.bind_socket()
    listener.listen()  # before we say so
    base_url = f"http://{HOST}:{listener.getsockname()[1]}"
    config.app = build_app(base_url)
    print(json.dumps({"ready": base_url}), flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    asyncio.run(serve(read_options("a2a03_agent").port))
