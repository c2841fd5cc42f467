"""The A2A methods of the scripted agent, each a JSON-RPC result, or a stream, made from its parameters."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.support.agent_config import AgentConfig
from tests.support.agent_work import Work, Works
from tests.support.goal_script import GoalScript, GoalScriptError, script_in
from tests.support.ledger import Ledger
from tests.support.played_streams import PlayedStream
from tests.support.pushes import PushSender
from tests.support.rules import Call
from tests.support.streams import EventStream, Streams
from tests.support.task_streams import SubscriptionStream, TurnStream

Result = Any  #: a JSON value, or an EventStream
TASK_NOT_FOUND, NOT_CANCELABLE, PUSH_NOT_SUPPORTED, UNSUPPORTED = -32001, -32002, -32003, -32004
METHOD_NOT_FOUND, INVALID_PARAMS = -32601, -32602


class CallRefused(Exception):
    """A JSON-RPC error (spec section 5.4 has the codes)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True)
class _Sent:
    """What a message came to: a direct Message, or a task, maybe one that this very message had made before."""

    message: dict[str, Any] | None = None
    work: Work | None = None
    is_repeat: bool = False


class AgentCalls:
    """Answers calls from the tasks in memory."""

    def __init__(self, ledger: Ledger, pushes: PushSender, streams: Streams) -> None:
        self.config = AgentConfig()
        self.works = Works(ledger, pushes, stamp=self._stamp)
        self._pushes = pushes
        self._ledger = ledger
        self._streams = streams
        self._methods: dict[str, Callable[[Call], Result | Awaitable[Result]]] = {
            "SendMessage": self._send_message,
            "GetTask": self._get_task,
            "ListTasks": self._list_tasks,
            "CancelTask": self._cancel_task,
            "CreateTaskPushNotificationConfig": self._create_push_config,
            "GetTaskPushNotificationConfig": self._get_push_config,
            "ListTaskPushNotificationConfigs": self._list_push_configs,
            "DeleteTaskPushNotificationConfig": self._delete_push_config,
            "SendStreamingMessage": self._stream_message,
            "SubscribeToTask": self._subscribe,
        }

    def _stamp(self) -> str:
        return self.config.stamp()  # asked for each status, as the configuration may have changed

    def answer(self, call: Call) -> Result | Awaitable[Result]:
        """The result, or an awaitable of it where the call has to wait. Raises CallRefused."""
        method = self._methods.get(call.method)
        if method is None:
            raise CallRefused(METHOD_NOT_FOUND, f"no method {call.method}")
        return method(call)

    # -------------------------------------------------------- messages

    def _send_message(self, call: Call) -> Result | Awaitable[Result]:
        sent = self._take_message(call)
        work = sent.work
        if work is None:
            return {"message": sent.message}
        wants_answer_now = bool((call.params.get("configuration") or {}).get("returnImmediately")) or sent.is_repeat
        if (wants_answer_now or work.is_waiting) and (sent.is_repeat or not _answers_late(work)):
            return {"task": work.to_wire()}
        return self._answer_later(work, wants_answer_now)

    def _stream_message(self, call: Call) -> Result | Awaitable[Result]:
        self._need_streams(call)
        sent = self._take_message(call)
        work, facts = sent.work, self._stream_facts(call)
        if work is None:
            event = {"message": sent.message}
            return PlayedStream(self._streams, [event], task_id="", **facts)
        if sent.is_repeat:
            return SubscriptionStream(self._streams, work, ends_when_interrupted=True, **facts)
        stream = TurnStream(self._streams, work, **facts)
        return self._stream_later(work, stream) if _answers_late(work) else stream

    def _subscribe(self, call: Call) -> Result:
        self._need_streams(call)
        work = self._work(call)
        if work.is_terminal:
            raise CallRefused(UNSUPPORTED, f"the task is in terminal state {work.state}")
        return SubscriptionStream(
            self._streams,
            work,
            ends_when_interrupted=self.config.stream_when_interrupted == "end",
            replays=self.config.replay,
            **self._stream_facts(call),
        )

    def _need_streams(self, call: Call) -> None:
        if not self.config.streaming:
            raise CallRefused(UNSUPPORTED, f"{call.method} is not offered")

    def _stream_facts(self, call: Call) -> dict[str, Any]:
        return {"method": call.method, "rpc_id": call.rpc_id, "keepalive_s": self.config.keepalive_s}

    def _take_message(self, call: Call) -> _Sent:
        message = call.params.get("message") or {}
        if not message.get("messageId") or not message.get("parts"):
            raise CallRefused(INVALID_PARAMS, "a message needs messageId and parts")
        if self.config.dedup and message["messageId"] in self.works.by_message_id:
            return _Sent(work=self.works.by_message_id[message["messageId"]], is_repeat=True)
        script = self._script_of(call)
        if script.message is not None:
            return _Sent(message=self._direct_message(message, script.message))
        return _Sent(work=self._begin_or_go_on(call, message, script))

    def _script_of(self, call: Call) -> GoalScript:
        known = self.works.by_id.get(call.task_id)
        try:
            default = known.script.next_turn() if known else None
            return script_in(call.text, default or GoalScript.from_json(dict(self.config.default_script)))
        except GoalScriptError as problem:
            raise CallRefused(INVALID_PARAMS, str(problem)) from None

    def _begin_or_go_on(self, call: Call, message: dict[str, Any], script: GoalScript) -> Work:
        if call.push_config is not None and not self.config.push:
            raise CallRefused(PUSH_NOT_SUPPORTED, "no push notifications here")
        if not message.get("taskId"):
            if self.config.strict_participant and not call.participant_id:
                raise CallRefused(INVALID_PARAMS, "no participant asserted")
            return self.works.begin(message, call.text, script, call.push_config, call.participant_id)
        work = self._work(call)
        if message.get("contextId") not in (None, "", work.context_id):
            raise CallRefused(INVALID_PARAMS, "the contextId is not the task's")
        if work.is_terminal:
            raise CallRefused(UNSUPPORTED, "the task has ended")
        self.works.go_on(work, message, script, call.push_config)
        return work

    async def _answer_later(self, work: Work, wants_answer_now: bool) -> Result:
        await self._take_time(work)
        while not wants_answer_now and not work.is_waiting:
            await work.changed.wait()
        return {"task": work.to_wire()}

    async def _stream_later(self, work: Work, stream: EventStream) -> Result:
        await self._take_time(work)
        return stream

    async def _take_time(self, work: Work) -> None:
        if work.script.push_before_reply:
            await self._pushes.before_reply(work)
        await asyncio.sleep(work.script.reply_delay)

    def _direct_message(self, message: dict[str, Any], text: str) -> dict[str, Any]:
        self._ledger.add("message", context_id=message.get("contextId"), message_id=message["messageId"])
        reply = {"messageId": str(uuid.uuid4()), "role": "ROLE_AGENT", "parts": [{"text": text}]}
        return {**reply, "contextId": message.get("contextId") or str(uuid.uuid4())}

    # -------------------------------------------------------- tasks

    def _get_task(self, call: Call) -> Result:
        return self._work(call).to_wire(call.params.get("historyLength"))

    def _list_tasks(self, call: Call) -> Result:
        if not self.config.list_tasks:
            raise CallRefused(METHOD_NOT_FOUND, "no method ListTasks")
        wanted = call.params.get("contextId")
        found = [work for work in self.works.by_id.values() if wanted in (None, "", work.context_id)]
        found = [work for work in found if self._may_see(work, call)]
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

    def _cancel_task(self, call: Call) -> Result | Awaitable[Result]:
        work, manner = self._work(call), self.config.cancel
        if manner == "unsupported":
            raise CallRefused(UNSUPPORTED, "tasks cannot be canceled here")
        if work.is_terminal or manner == "refuse":
            raise CallRefused(NOT_CANCELABLE, f"the task is {work.state}")
        if self.config.cancel_takes_s is not None:
            return self._cancel_later(work, self.config.cancel_takes_s)
        if manner == "accept":
            self.works.move(work, "CANCELED")
        return work.to_wire()

    async def _cancel_later(self, work: Work, wait_s: float) -> Result:
        await asyncio.sleep(wait_s)
        if work.is_terminal:
            raise CallRefused(NOT_CANCELABLE, f"the task is {work.state}")
        self.works.move(work, "CANCELED")
        return work.to_wire()

    def _create_push_config(self, call: Call) -> Result:
        work = self._work_with_pushes(call)
        return self.works.keep_push_config(work, dict(call.params))

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

    def _work_with_pushes(self, call: Call) -> Work:
        if not self.config.push:
            raise CallRefused(PUSH_NOT_SUPPORTED, "no push notifications here")
        return self._work(call)

    def _work(self, call: Call) -> Work:
        work = self.works.by_id.get(call.task_id)
        if work is None or not self._may_see(work, call):
            raise CallRefused(TASK_NOT_FOUND, "no such task")
        return work

    def _may_see(self, work: Work, call: Call) -> bool:
        return not self.config.strict_participant or call.participant_id == work.participant_id != ""


def _answers_late(work: Work) -> bool:
    return bool(work.script.reply_delay or work.script.push_before_reply)


def text_of(message: dict[str, Any]) -> str:
    """The message's text parts, joined by newlines."""
    parts = message.get("parts") or []
    return "\n".join(str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part)
