"""Speak A2A, 1.0 or 0.3, to one agent through the official SDK's client; a synchronous face.

The SDK builds and sends every request, over our transport (`outbound.py`). What comes back is read by us from the
bytes of the answer (`replies.py`, `answers.py`): the SDK does not compare JSON-RPC ids, loses an answer over one
unreadable field and leaks many kinds of exceptions, so it is given a stand-in for the answer instead.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from a2a.types import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
)

from delegation.agent_task import AgentMessage, AgentTask, AgentTaskId, ContextId, OutgoingMessage, PushConfig
from delegation.answers import (
    MAX_VALUES,
    PATH_SAFE_ID,
    count_values,
    find_tasks,
    history_message_ids,
    read_send_answer,
    read_task,
)
from delegation.cards import CheckedCard, for_calls
from delegation.credentials import Credentials, Presented
from delegation.errors import (
    AgentError,
    AgentRefused,
    AgentUnreachable,
    AnswerTooLarge,
    AuthenticationRefused,
    CallAmbiguous,
    MethodNotOffered,
)
from delegation.events import PreparedRequest, read_event, read_stream_response
from delegation.exchange import Exchange, exchanging
from delegation.http_client import build_http
from delegation.outbound import GuardedTransport, Route, drive
from delegation.outgoing import json_restorer
from delegation.redaction import mask_known
from delegation.replies import JSONRPC, Question, read_reply
from delegation.sdk_requests import HISTORY, build_sdk_client, build_send
from delegation.settings import AgentSettings, LimitSettings
from delegation.streamed_task import StreamedTask
from delegation.version_0_3 import VERSION as VERSION_0_3

#: How far ListTasks is read when we look for a message: our context is new, so it holds a handful of tasks.
LIST_HISTORY = 20
LIST_PAGE = 50
LIST_PAGES = 4
#: Whoever subscribes has no deadline of its own.
TOKEN_DEADLINE_S = 10.0

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Method:
    """A2A's name of a method, and what the SDK is told the agent answered."""

    name: str
    result: str = "{}"
    names_task: bool = True

    def stand_in(self, binding: str) -> bytes:
        return (f'{{"result":{self.result}}}' if binding == JSONRPC else self.result).encode()


_SEND = _Method(name="SendMessage", result='{"task":{}}', names_task=False)
_STREAM = _Method(name="SendStreamingMessage", result='{"message":{}}', names_task=False)
_SUBSCRIBE = _Method(name="SubscribeToTask", result='{"message":{}}')
_GET = _Method(name="GetTask")
_LIST = _Method(name="ListTasks", names_task=False)
_CANCEL = _Method(name="CancelTask")
_DELETE_PUSH = _Method(name="DeleteTaskPushNotificationConfig")
_EXTENDED_CARD = _Method(name="GetExtendedAgentCard", names_task=False)


class AgentClient:
    """One per agent and process; all threads share it. Every method raises `AgentError` kinds only, by certainty:

    AgentUnreachable (certainly not sent), AgentBusy, AgentRefused and its kinds (nothing was started),
    AuthenticationRefused (the same, and our credentials are why), CallAmbiguous (may have happened) and AnswerTooLarge.
    `deadline_s` bounds the whole call, the reading of the answer included. A call that is answered 401 is made once
    more where there are other credentials by then: a renewed token, a rotated secret.
    """

    def __init__(
        self,
        agent: AgentSettings,
        card: CheckedCard,
        participant_id: str,
        *,
        transport: GuardedTransport,
        limits: LimitSettings,
        credentials: Credentials | None = None,
        stream_start_s: float = 10.0,
    ) -> None:
        self._transport = transport
        self._credentials = credentials or Credentials((), (), lambda _url: transport)
        self.agent_id = agent.id
        self.card = for_calls(card)
        self._participant_id = participant_id
        self._binding = card.interface.binding
        self._version = card.interface.version
        self._subscribes_by_get = False
        self._max_bytes = limits.answer_bytes
        self._event_bytes = limits.event_bytes
        self._stream_start_s = stream_start_s
        self._secrets = tuple(value for value in agent.headers.values() if len(value) >= 8)
        self._http = build_http(agent, card, participant_id, transport)
        self._sdk = build_sdk_client(card, self._http, streaming=False)
        self._streaming_sdk = build_sdk_client(card, self._http, streaming=True)

    def start_task(
        self, message: OutgoingMessage, *, push: PushConfig | None, deadline_s: float
    ) -> AgentTask | AgentMessage:
        """SendStreamingMessage: send the first message, and hear by its stream how it is taken.

        The stream is closed once the task is past SUBMITTED, or `stream_start_s` after the call began if a task is
        known by then. However a stream ends that has named a task: the task as known so far is the answer. Raises as
        `send_message` does; MethodNotOffered: nothing was started, the same message may go by `send_message`. In 0.3 a
        message with a push config goes by that at once: a2a-sdk 0.3's server pushes nothing once its stream was left.
        """
        if push is not None and self._version == VERSION_0_3:
            return self.send_message(message, push=push, deadline_s=deadline_s)
        until = time.monotonic() + deadline_s
        return self._taken(
            message, self._known(until, lambda presented: self._hear_start(message, push, until, presented))
        )

    def send_message(
        self, message: OutgoingMessage, *, push: PushConfig | None, deadline_s: float
    ) -> AgentTask | AgentMessage:
        """SendMessage with `returnImmediately`. PushNotAccepted: nothing was started, send again without `push`.

        The answer to a follow-up may be another task than its own: some servers begin one for every message.
        """
        result = self._call(
            _SEND,
            lambda: _exhaust(self._sdk.send_message(build_send(message, self._participant_id, push))),
            deadline_s,
            push=push,
            edit_body=self._restorer(message),
        )
        return self._taken(message, read_send_answer(result))

    def _taken(self, message: OutgoingMessage, answer: AgentTask | AgentMessage) -> AgentTask | AgentMessage:
        if isinstance(answer, AgentMessage):
            return answer
        if answer.id != message.agent_task_id:
            return self._usable(answer)
        return answer if answer.context_id else replace(answer, context_id=message.context_id)

    def _usable(self, task: AgentTask) -> AgentTask:
        """HTTP+JSON puts the id into a path, where some ids would be another request."""
        if self._binding != JSONRPC and not PATH_SAFE_ID.fullmatch(task.id):
            raise CallAmbiguous("the agent's task has an id that cannot stand in a path")
        return task

    def subscription(self, agent_task_id: AgentTaskId) -> PreparedRequest:
        """The SubscribeToTask request as the SDK builds it, for whoever holds streams; nothing is sent to the agent.

        Raises MethodNotOffered where the card offers no streams, AgentRefused if the request cannot be built,
        CredentialUnavailable. A token may have to be asked for, so this may take as long as a call.
        """
        if not self.card.can_stream:
            raise MethodNotOffered("SubscribeToTask: the card offers no streams")
        request = SubscribeToTaskRequest(id=agent_task_id)
        presented = self._credentials.present(time.monotonic() + TOKEN_DEADLINE_S)
        exchange = self._new_exchange(_SUBSCRIBE, float("inf"), presented, only_build=True)
        self._perform(_SUBSCRIBE, lambda: _exhaust(self._streaming_sdk.subscribe(request)), exchange)
        built = exchange.request
        assert built is not None
        return PreparedRequest(
            method="GET" if self._subscribes_by_get else built.method.decode(),
            url=exchange.url,
            headers=list(built.headers),
            content=exchange.request_body,
            question=self._question(_SUBSCRIBE, exchange, presented, None),
        )

    def subscribe_otherwise(self) -> bool:
        """The subscription was answered 405: whether there is another way, from now on taken.

        HTTP+JSON of 0.3: POST by the specification (0.3.0 section 3.5.6), which comes first, GET by a2a-sdk's servers.
        """
        has_another = self._version == VERSION_0_3 and self._binding != JSONRPC and not self._subscribes_by_get
        self._subscribes_by_get = self._subscribes_by_get or has_another
        return has_another

    def get_task(self, agent_task_id: AgentTaskId, *, deadline_s: float, history: int = HISTORY) -> AgentTask:
        """GetTask with the last `history` messages. An answer about another task is CallAmbiguous."""
        request = GetTaskRequest(id=agent_task_id, history_length=history)
        return _same_task(read_task(self._call(_GET, lambda: self._sdk.get_task(request), deadline_s)), agent_task_id)

    def cancel_task(self, agent_task_id: AgentTaskId, *, deadline_s: float) -> AgentTask:
        """CancelTask. The state in the answer is the truth: some agents answer with a task still at work."""
        request = CancelTaskRequest(id=agent_task_id)
        return _same_task(
            read_task(self._call(_CANCEL, lambda: self._sdk.cancel_task(request), deadline_s)), agent_task_id
        )

    def find_task(self, context_id: ContextId, message_id: str, *, deadline_s: float) -> AgentTask | None:
        """The task that the message `message_id`, sent in our context `context_id`, started; None when there is none.

        Proof is our message id in a task's history. An agent may keep no history, or send none in lists. Then the
        context speaks: its id is ours, unguessable and used for one delegation, so a single task in it can only be
        the one its first message started; two or more prove nothing, and neither does one for a later message of
        the context. A task whose history lacks our message is not ours, context or not. A2A 0.3 has no such method.
        """
        if self._version == VERSION_0_3:
            raise MethodNotOffered("ListTasks: A2A 0.3 has no such method")
        until = time.monotonic() + deadline_s
        without_history: list[AgentTask] = []
        page_token = ""
        for _ in range(LIST_PAGES):
            result = self._list_tasks(context_id, page_token, until - time.monotonic())
            for raw in find_tasks(result):
                sent = history_message_ids(raw)
                if message_id in sent:
                    return self._usable(read_task(raw))
                if not sent and raw.get("contextId") == context_id:
                    without_history.append(read_task(raw))
            page_token = result.get("nextPageToken", "")
            if not isinstance(page_token, str) or not page_token:
                break
        return without_history[0] if len(without_history) == 1 else None

    def delete_push_config(self, agent_task_id: AgentTaskId, config_id: str, *, deadline_s: float) -> None:
        """DeleteTaskPushNotificationConfig; deleting it twice is no error (spec section 3.1.10)."""
        request = DeleteTaskPushNotificationConfigRequest(task_id=agent_task_id, id=config_id)
        if self._version == VERSION_0_3 and self._binding != JSONRPC:  # the SDK's transport for it has no such call
            path = f"/v1/tasks/{agent_task_id}/pushNotificationConfigs/{config_id}"
            url = f"{self.card.interface.url.removesuffix('/')}{path}"
            self._call(_DELETE_PUSH, lambda: self._http.delete(url), deadline_s)
            return
        self._call(_DELETE_PUSH, lambda: self._sdk.delete_task_push_notification_config(request), deadline_s)

    def extended_card(self, *, deadline_s: float, max_bytes: int) -> Any:
        """GetExtendedAgentCard (spec section 3.1.11): the card for those who have shown who they are, as raw JSON."""
        request = GetExtendedAgentCardRequest(tenant=self.card.interface.tenant)
        return self._call(
            _EXTENDED_CARD, lambda: self._sdk.get_extended_agent_card(request), deadline_s, max_bytes=max_bytes
        )

    def route(self) -> Route:
        """How a subscription may be sent. Raises CredentialUnavailable: a certificate that cannot be read."""
        return self._transport.route()

    def forget_credentials(self, refused: Collection[str]) -> None:
        """A subscription with these secrets was answered 401: tokens among them are asked for anew next time."""
        self._credentials.forget(refused)

    def _list_tasks(self, context_id: ContextId, page_token: str, deadline_s: float) -> Any:
        request = ListTasksRequest(
            context_id=context_id,
            page_size=LIST_PAGE,
            page_token=page_token,
            history_length=LIST_HISTORY,
            include_artifacts=True,  # what is found may have ended already, and is then settled from this answer
        )
        return self._call(_LIST, lambda: self._sdk.list_tasks(request), deadline_s)

    def _hear_start(
        self, message: OutgoingMessage, push: PushConfig | None, until: float, presented: Presented
    ) -> AgentTask | AgentMessage:
        """SendStreamingMessage, read as far as `start_task` needs it."""
        hear_until = time.monotonic() + self._stream_start_s
        heard = StreamedTask()
        exchange = self._new_exchange(_STREAM, until, presented, edit_body=self._restorer(message))
        question = functools.cache(lambda: self._question(_STREAM, exchange, presented, push))

        values_left = MAX_VALUES  # of all events: what they say is kept until the end

        def hear(payload: bytes) -> bool:
            nonlocal values_left
            values_left -= count_values(payload, values_left)
            if values_left < 0:
                raise AnswerTooLarge(f"the stream holds more than {MAX_VALUES} values")
            _take_in(heard, question(), payload)
            if heard.is_known:
                exchange.deadline_at = min(until, hear_until)
            return heard.has_begun

        exchange.on_event = hear
        try:
            self._perform(
                _STREAM,
                lambda: _exhaust(self._streaming_sdk.send_message(build_send(message, self._participant_id, push))),
                exchange,
            )
            if not exchange.is_stream:  # some agents answer with a plain result, or an error (case C049)
                result = read_reply(question(), exchange.status, exchange.headers, exchange.body)
                heard.hear(read_stream_response(result))
        except AgentError:
            if not heard.is_known:
                raise
            heard.break_off()
        if exchange.was_cut:
            heard.break_off()
        answer = heard.result
        if answer is None:
            raise CallAmbiguous("SendStreamingMessage: the answer ended without a task or a message")
        return answer

    def _call(
        self,
        method: _Method,
        start: Callable[[], Coroutine[Any, Any, Any]],
        deadline_s: float,
        *,
        push: PushConfig | None = None,
        edit_body: Callable[[bytes], bytes] | None = None,
        max_bytes: int | None = None,
    ) -> Any:
        """One exchange, and what its answer says."""
        until = time.monotonic() + deadline_s

        def attempt(presented: Presented) -> Any:
            exchange = self._new_exchange(method, until, presented, edit_body=edit_body, max_bytes=max_bytes)
            self._perform(method, start, exchange)
            question = self._question(method, exchange, presented, push)
            return read_reply(question, exchange.status, exchange.headers, exchange.body)

        return self._known(until, attempt)

    def _known(self, until: float, attempt: Callable[[Presented], T]) -> T:
        """With our credentials; once more after a 401, where there are others. A token is waited for ``until`` then.

        Whatever an error quotes of the agent, none of our secrets is in it, in whichever form the agent has echoed it.
        """
        try:
            return self._try(until, attempt)
        except AgentError as error:
            error.detail = mask_known(error.detail)
            error.args = (error.detail, *error.args[1:])
            raise

    def _try(self, until: float, attempt: Callable[[Presented], T]) -> T:
        presented = self._credentials.present(until)
        try:
            return attempt(presented)
        except AuthenticationRefused as error:
            other = self._credentials.present_others(presented, until) if error.status == 401 else None
            if other is None:
                raise
        return attempt(other)

    def _new_exchange(
        self,
        method: _Method,
        deadline_at: float,
        presented: Presented,
        *,
        max_bytes: int | None = None,
        **options: Any,
    ) -> Exchange:
        return Exchange(
            deadline_at=deadline_at,
            present=presented,
            max_bytes=max_bytes or self._max_bytes,
            event_bytes=self._event_bytes,
            stand_in=method.stand_in(self._binding),
            **options,
        )

    def _perform(self, method: _Method, start: Callable[[], Coroutine[Any, Any, Any]], exchange: Exchange) -> None:
        """The only place where anything the SDK may raise becomes one of our errors."""
        try:
            with exchanging(exchange):
                drive(start())
        except AgentError:
            raise
        except Exception as error:
            if not exchange.status:
                raise _explain(method, error, exchange) from error
            # The answer is here all the same; what the SDK thought of its stand-in does not matter.

    def _question(self, method: _Method, exchange: Exchange, presented: Presented, push: PushConfig | None) -> Question:
        secrets = (*self._secrets, *presented.secrets)
        return Question(
            method=method.name,
            binding=self._binding,
            request_id=_request_id(exchange.request_body) if self._binding == JSONRPC else "",
            names_task=method.names_task,
            had_push_config=push is not None,
            secrets=(*secrets, push.token) if push else secrets,
            version=self._version,
        )

    def _restorer(self, message: OutgoingMessage) -> Callable[[bytes], bytes] | None:
        return json_restorer(message, self._participant_id, self._binding, self._version)


def _same_task(task: AgentTask, asked: AgentTaskId) -> AgentTask:
    if task.id != asked:
        raise CallAmbiguous("the agent answered about another task than the one asked for")
    return task


def _take_in(heard: StreamedTask, question: Question, payload: bytes) -> None:
    try:
        heard.hear(read_event(question, payload))
    except AgentRefused as error:
        if not heard.events:
            raise
        # Certain is a refusal as the first thing said alone: after others, the agent may have begun.
        raise CallAmbiguous(error.detail, error.a2a_code) from error


def _request_id(body: bytes) -> str:
    request_id: str = json.loads(body)["id"]
    return request_id


def _explain(method: _Method, error: Exception, exchange: Exchange) -> AgentError:
    """For what neither we nor the network raised: a request that cannot be built, or an interruption."""
    detail = f"{method.name}: the call could not be made ({type(error).__name__})"
    if exchange.sent:
        return CallAmbiguous(detail)
    return AgentRefused(detail) if isinstance(error, ValueError | TypeError) else AgentUnreachable(detail)


async def _exhaust(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass
