"""A peer on a2a-sdk 0.3, which speaks A2A 0.3 alone: `python -m tests.peers.sdk_03_agent [--port N] [--rest-first]`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import uvicorn
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.apps import A2ARESTFastAPIApplication, A2AStarletteApplication
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.tasks import (
    BasePushNotificationSender,
    InMemoryPushNotificationConfigStore,
    InMemoryTaskStore,
    TaskUpdater,
)
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    DataPart,
    FilePart,
    FileWithBytes,
    FileWithUri,
    Part,
    TextPart,
)
from a2a.utils import new_agent_text_message, new_task

from tests.peers.stage import HOST, Stage, Talk, made_parts, read_options


class Executor(AgentExecutor):
    """Does what the goal says."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._talks: dict[str, Talk] = {}

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        text = context.get_user_input()
        if text.startswith("say "):
            await event_queue.enqueue_event(new_agent_text_message(text[4:], context.context_id))
            return
        task = context.current_task
        if task is None:
            task = new_task(context.message)
            self._talks[task.id] = Talk.of(text)
            await event_queue.enqueue_event(task)
        else:
            self._talks[task.id].answers.append(text)
        await self._go_on(self._talks[task.id], TaskUpdater(event_queue, task.id, task.context_id))

    async def _go_on(self, talk: Talk, updater: TaskUpdater) -> None:
        while step := talk.next_step():
            verb, text = step
            message = updater.new_agent_message([Part(root=TextPart(text=text))])
            match verb:
                case "hold":
                    await updater.start_work()
                    await self._stage.hold(updater.context_id)
                case "make":
                    await updater.add_artifact([_part(made) for made in made_parts(text)], name="report")
                case "ask":
                    await updater.requires_input(message, final=True)
                    return
                case "fail":
                    await updater.failed(message)
                    return
                case "reject":
                    await updater.reject(message)
                    return
        if talk.answers:
            await updater.add_artifact([Part(root=TextPart(text=talk.summary))], name="answers")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id
        assert context.context_id
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def _part(made: dict[str, Any]) -> Part:
    """A part of 1.0's JSON in 0.3's types."""
    if "text" in made:
        return Part(root=TextPart(text=made["text"]))
    if "data" in made:
        return Part(root=DataPart(data=made["data"]))
    names = {"name": made["filename"], "mime_type": made["mediaType"]}
    file = FileWithUri(uri=made["url"], **names) if "url" in made else FileWithBytes(bytes=made["raw"], **names)
    return Part(root=FilePart(file=file))


def build_card(base_url: str, *, rest_first: bool) -> AgentCard:
    offers = [("JSONRPC", f"{base_url}/rpc"), ("HTTP+JSON", f"{base_url}/rest")]
    if rest_first:
        offers.reverse()
    return AgentCard(
        name="0.3 peer",
        description="On a2a-sdk 0.3's server",
        version="1.0.0",
        url=offers[0][1],
        preferred_transport=offers[0][0],
        additional_interfaces=[AgentInterface(transport=transport, url=url) for transport, url in offers],
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
        push_config_store=configs,
        push_sender=BasePushNotificationSender(httpx.AsyncClient(timeout=5), configs),
    )
    app = A2AStarletteApplication(agent_card=card, http_handler=handler).build(rpc_url="/rpc")
    app.mount("/rest", A2ARESTFastAPIApplication(agent_card=card, http_handler=handler).build())
    stage.app = app
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
    options = read_options("sdk_03_agent", "--rest-first")
    asyncio.run(serve(options.port, rest_first=options.rest_first))
