"""A peer on fasta2a: `python -m tests.peers.fasta2a_agent [--port N] [--forgetful]`.

fasta2a has no a2a-sdk inside. Its storage makes every message a new task unless told better; ``--forgetful`` leaves it
so. What the agent says goes into the history, since a fasta2a worker has no other place for it.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import uvicorn
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.schema import Artifact, Message, Task, TaskIdParams, TaskSendParams
from fasta2a.storage import InMemoryStorage

from tests.peers.stage import HOST, Stage, Talk, made_parts, read_options

#: A worker does one thing at a time, a cancel included.
WORKERS = 16


class Storage(InMemoryStorage[Any]):
    """A message that names a task goes on with it."""

    async def submit_task(self, context_id: str, message: Message) -> Task:
        task = self.tasks.get(message.get("task_id", ""))
        if task is None:
            return await super().submit_task(context_id, message)
        task["history"] = [*task.get("history", []), message]
        return task


class ScriptedWorker(Worker[Any]):
    """Does what the goal says."""

    def __init__(self, storage: InMemoryStorage[Any], broker: InMemoryBroker, stage: Stage) -> None:
        super().__init__(storage=storage, broker=broker)
        self._stage = stage
        self._talks: dict[str, Talk] = {}

    async def run_task(self, params: TaskSendParams) -> None:
        task_id, text = params["id"], "".join(part.get("text", "") for part in params["message"]["parts"])
        if task_id in self._talks:
            self._talks[task_id].answers.append(text)
        else:
            self._talks[task_id] = Talk.of(text)
        talk = self._talks[task_id]
        while step := talk.next_step():
            verb, text = step
            match verb:
                case "hold":
                    await self._become(task_id, "working")
                    await self.publish_status(task_id, params["context_id"], "working")
                    await self._stage.hold(params["context_id"])
                    if await self._is_canceled(task_id):
                        return
                case "make":
                    await self._become(task_id, "working", made=made_parts(text), name="report")
                case "deaf":
                    talk.is_deaf = True
                case "ask":
                    await self._become(task_id, "input-required", text)
                    return
                case "fail":
                    await self._become(task_id, "failed", text)
                    return
                case "reject":
                    await self._become(task_id, "rejected", text)
                    return
        made = [{"text": talk.summary}] if talk.answers else []
        await self._become(task_id, "completed", made=made, name="answers")

    async def _become(
        self, task_id: str, state: Any, text: str = "", *, made: list[dict[str, Any]] | None = None, name: str = ""
    ) -> None:
        said = Message(role="agent", parts=[{"text": text}], message_id=str(uuid.uuid4()))
        parts: list[Any] = [{_snake(key): value for key, value in part.items()} for part in made or []]
        artifacts = [Artifact(artifact_id=str(uuid.uuid4()), name=name, parts=parts)] if parts else None
        await self.storage.update_task(task_id, state, new_artifacts=artifacts, new_messages=[said] if text else None)

    async def _is_canceled(self, task_id: str) -> bool:
        task = await self.storage.load_task(task_id)
        return task is not None and task["status"]["state"] == "canceled"

    async def cancel_task(self, params: TaskIdParams) -> None:
        task = await self.storage.load_task(params["id"])
        if task is not None and not self._talks[params["id"]].is_deaf:
            await self._become(params["id"], "canceled")
            self._stage.go_on(task["context_id"])

    def build_message_history(self, history: list[Message]) -> list[Any]:
        return history

    def build_artifacts(self, result: Any) -> list[Artifact]:
        return []


def _snake(key: str) -> str:
    return "media_type" if key == "mediaType" else key


def build_app(base_url: str, *, forgetful: bool) -> Stage:
    stage, broker = Stage(), InMemoryBroker()
    storage = InMemoryStorage[Any]() if forgetful else Storage()

    @asynccontextmanager
    async def lifespan(app: FastA2A) -> AsyncIterator[None]:
        async with app.task_manager, AsyncExitStack() as workers:
            worker = ScriptedWorker(storage, broker, stage)
            for _ in range(WORKERS):
                await workers.enter_async_context(worker.run())
            yield

    stage.app = FastA2A(storage=storage, broker=broker, name="fasta2a peer", url=f"{base_url}/", lifespan=lifespan)
    return stage


async def serve(port: int, *, forgetful: bool) -> None:
    config = uvicorn.Config("", host=HOST, port=port, log_level="warning", timeout_graceful_shutdown=1)
    listener = config.bind_socket()
    listener.listen()  # before we say so
    base_url = f"http://{HOST}:{listener.getsockname()[1]}"
    config.app = build_app(base_url, forgetful=forgetful)
    print(json.dumps({"ready": base_url}), flush=True)
    await uvicorn.Server(config).serve(sockets=[listener])


if __name__ == "__main__":
    options = read_options("fasta2a_agent", "--forgetful")
    asyncio.run(serve(options.port, forgetful=options.forgetful))
