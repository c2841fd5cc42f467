"""The A2A methods of the scripted agent, each a JSON-RPC result computed from its parameters."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.agent_config import AgentConfig
from tests.support.agent_work import Work, Works
from tests.support.goal_script import GoalScript, GoalScriptError, script_in
from tests.support.ledger import Ledger
from tests.support.pushes import PushSender
from tests.support.rules import Call

Result = Any
TASK_NOT_FOUND, NOT_CANCELABLE, PUSH_NOT_SUPPORTED, UNSUPPORTED = -32001, -32002, -32003, -32004
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602


class CallRefused(Exception):
    """A JSON-RPC error (spec section 5.4 has the codes)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class AgentCalls:
    """Answers calls from the tasks in memory."""

    def __init__(self, works: Works, pushes: PushSender, ledger: Ledger) -> None:
        self.config = AgentConfig()
        self._works = works
        self._pushes = pushes
        self._ledger = ledger
        self._methods: dict[str, Callable[[Call], Result | Awaitable[Result]]] = {
            "SendMessage": self._send_message,
            "GetTask": self._get_task,
            "ListTasks": self._list_tasks,
            "CancelTask": self._cancel_task,
            "CreateTaskPushNotificationConfig": self._create_push_config,
            "GetTaskPushNotificationConfig": self._get_push_config,
            "ListTaskPushNotificationConfigs": self._list_push_configs,
            "DeleteTaskPushNotificationConfig": self._delete_push_config,
            "SendStreamingMessage": self._refuse_streams,
            "SubscribeToTask": self._refuse_streams,
        }

    def answer(self, call: Call) -> Result | Awaitable[Result]:
        """The result, or an awaitable of it where the call has to wait. Raises CallRefused."""
        method = self._methods.get(call.method)
        if method is None:
            raise CallRefused(METHOD_NOT_FOUND, f"no method {call.method}")
        return method(call)

    def _send_message(self, call: Call) -> Result | Awaitable[Result]:
        message = call.params.get("message") or {}
        if not message.get("messageId") or not message.get("parts"):
            raise CallRefused(INVALID_PARAMS, "a message needs messageId and parts")
        if self.config.dedup and message["messageId"] in self._works.by_message_id:
            return {"task": self._works.by_message_id[message["messageId"]].to_wire()}
        try:
            script = script_in(call.text, GoalScript.from_json(dict(self.config.default_script)))
        except GoalScriptError as problem:
            raise CallRefused(INVALID_PARAMS, str(problem)) from None
        if script.message is not None:
            return self._direct_message(message, script.message)
        work = self._begin_or_go_on(call, message, script)
        wants_answer_now = bool((call.params.get("configuration") or {}).get("returnImmediately"))
        if (wants_answer_now or work.is_waiting) and not script.reply_delay and not script.push_before_reply:
            return {"task": work.to_wire()}
        return self._answer_later(work, wants_answer_now)

    def _begin_or_go_on(self, call: Call, message: dict[str, Any], script: GoalScript) -> Work:
        if call.push_config is not None and not self.config.push:
            raise CallRefused(PUSH_NOT_SUPPORTED, "no push notifications here")
        if not message.get("taskId"):
            return self._works.begin(message, call.text, script, call.push_config)
        work = self._work(message["taskId"])
        if message.get("contextId") not in (None, "", work.context_id):
            raise CallRefused(INVALID_PARAMS, "the contextId is not the task's")
        if work.is_terminal:
            raise CallRefused(UNSUPPORTED, "the task has ended")
        self._works.go_on(work, message, script, call.push_config)
        return work

    async def _answer_later(self, work: Work, wants_answer_now: bool) -> Result:
        if work.script.push_before_reply:
            await self._pushes.before_reply(work)
        await asyncio.sleep(work.script.reply_delay)
        while not wants_answer_now and not work.is_waiting:
            await work.changed.wait()
        return {"task": work.to_wire()}

    def _direct_message(self, message: dict[str, Any], text: str) -> Result:
        self._ledger.add("message", context_id=message.get("contextId"), message_id=message["messageId"])
        reply = {"messageId": str(uuid.uuid4()), "role": "ROLE_AGENT", "parts": [{"text": text}]}
        return {"message": {**reply, "contextId": message.get("contextId") or str(uuid.uuid4())}}

    def _get_task(self, call: Call) -> Result:
        return self._work(call.task_id).to_wire(call.params.get("historyLength"))

    def _list_tasks(self, call: Call) -> Result:
        if not self.config.list_tasks:
            raise CallRefused(METHOD_NOT_FOUND, "no method ListTasks")
        wanted = call.params.get("contextId")
        found = [work for work in self._works.by_id.values() if wanted in (None, "", work.context_id)]
        found.sort(key=lambda work: work.status_at, reverse=True)
        size, start = int(call.params.get("pageSize") or 50), int(call.params.get("pageToken") or 0)
        page = found[start : start + size]
        history_length, with_artifacts = call.params.get("historyLength"), bool(call.params.get("includeArtifacts"))
        return {
            "tasks": [work.to_wire(history_length, with_artifacts=with_artifacts) for work in page],
            "nextPageToken": str(start + size) if start + size < len(found) else "",
            "pageSize": size,
            "totalSize": len(found),
        }

    def _cancel_task(self, call: Call) -> Result:
        work = self._work(call.task_id)
        if work.is_terminal or self.config.cancel == "refuse":
            raise CallRefused(NOT_CANCELABLE, f"the task is {work.state}")
        if self.config.cancel == "accept":
            self._works.move(work, "CANCELED")
        return work.to_wire()

    def _create_push_config(self, call: Call) -> Result:
        work = self._work_with_pushes(call)
        return self._works.keep_push_config(work, dict(call.params))

    def _get_push_config(self, call: Call) -> Result:
        config = self._work_with_pushes(call).push_configs.get(call.params.get("id", ""))
        if config is None:
            raise CallRefused(TASK_NOT_FOUND, "no such push config")
        return config

    def _list_push_configs(self, call: Call) -> Result:
        return {"configs": list(self._work_with_pushes(call).push_configs.values()), "nextPageToken": ""}

    def _delete_push_config(self, call: Call) -> Result:
        work, config_id = self._work_with_pushes(call), call.params.get("id", "")
        was_there = work.push_configs.pop(config_id, None) is not None
        self._ledger.add("config_deleted", task_id=work.id, config_id=config_id, was_there=was_there)
        return None

    def _refuse_streams(self, call: Call) -> Result:
        raise CallRefused(UNSUPPORTED, f"{call.method} is not offered")

    def _work_with_pushes(self, call: Call) -> Work:
        if not self.config.push:
            raise CallRefused(PUSH_NOT_SUPPORTED, "no push notifications here")
        return self._work(call.task_id)

    def _work(self, task_id: str) -> Work:
        work = self._works.by_id.get(task_id)
        if work is None:
            raise CallRefused(TASK_NOT_FOUND, "no such task")
        return work


def text_of(message: dict[str, Any]) -> str:
    """The message's text parts, joined by newlines."""
    parts = message.get("parts") or []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
