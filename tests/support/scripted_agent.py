"""A fast A2A 1.0 agent that does as it is told: `python -m tests.support.scripted_agent --port 0 --ledger PATH`.

One process, one event loop, no a2a-sdk: JSON-RPC at every POST path (the card names /rpc). What happens to a message
is chosen by the script in its text (goal_script.py), what happens to a call by rules (rules.py), what the agent is like
by its configuration (agent_config.py). With ``--control`` these paths steer it:

    POST /_script   [rule, …] or {"rules": […], "append": true}      GET /_script   rules and how often each answered
    POST /_config   {name: value, …}                                 GET /_config
    POST /_move     {"taskId", "state", "text"?, "artifact"?}        GET /_tasks    tasks with their push configs
    POST /_push     {"taskId" or "url", "state"?, "body"?, "token"?, "headers"?, "times"?} → {"statuses": […]}
    POST /_stream   {"cut": "close" | "cut" | "reset" | "half"} or {"raw": …} or {"event": …}, each with "taskId"?
    POST /_memory   what GET /_memory gave, maybe another process's  GET /_ledger?since=N, /_stats, /_open, /_stream

Prints one JSON line ``{"ready": url, "control": url}`` when it listens. With ``--tls`` it speaks https, and is steered
over plain http at a port of its own, so that a test can have a certificate that nobody accepts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from tests.support.agent_calls import AgentCalls, CallRefused, text_of
from tests.support.agent_control import AgentControl
from tests.support.agent_credentials import credentials_in, satisfies_one
from tests.support.identity_tls import ServerTls
from tests.support.ledger import Ledger
from tests.support.played_streams import PlayedStream
from tests.support.pushes import PushSender
from tests.support.rules import Call, Rule, Rules
from tests.support.streams import EventStream, Streams
from tests.support.wire import Answer, HttpServer, Request, Response

CARD_PATH = "/.well-known/agent-card.json"
_HEADERS_OF_INTEREST = ("a2a-version", "x-participant-id", "a2a-extensions")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.scripted_agent")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--fsync", action="store_true", help="fsync the ledger after every entry")
    parser.add_argument("--control", action="store_true", help="serve the paths that steer the agent")
    parser.add_argument("--config", type=json.loads, default={}, help="initial configuration, a JSON object")
    parser.add_argument("--tls", type=json.loads, help="certificate, key, client_ca: a JSON object of PEM files")
    options = parser.parse_args(argv)
    agent = ScriptedAgent(Ledger(options.ledger, fsync=options.fsync), may_be_steered=options.control)
    agent.calls.config = agent.calls.config.changed(options.config)
    asyncio.run(agent.serve(options.host, options.port, ServerTls.from_json(options.tls) if options.tls else None))


class ScriptedAgent:
    """From request to answer: outages, then rules, then the agent's own mind."""

    def __init__(self, ledger: Ledger, *, may_be_steered: bool) -> None:
        self.ledger = ledger
        self.pushes = PushSender(ledger)
        self.streams = Streams(ledger)
        self.calls = AgentCalls(ledger, self.pushes, self.streams)
        self.works = self.calls.works
        self.rules = Rules()
        self.server = HttpServer(self.handle)
        self.control = AgentControl(self) if may_be_steered else None
        self.base_url = ""
        self.counts: dict[str, int] = {}
        self._in_flight: dict[int, Request] = {}  # by connection, which has one at a time
        self.max_in_flight = 0
        self._last_sent: dict[str, str] = {}

    async def serve(self, host: str, port: int, tls: ServerTls | None = None) -> None:
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        listener, bound_port = await self.server.listen(host, port, tls.context() if tls else None)
        steering, control_port = await self.server.listen(host, 0) if tls else (listener, bound_port)
        self.base_url = f"{'https' if tls else 'http'}://{host}:{bound_port}"
        print(json.dumps({"ready": self.base_url, "control": f"http://{host}:{control_port}"}), flush=True)
        await stopped.wait()
        listener.close()
        steering.close()

    def handle(self, request: Request) -> Answer:
        if self.control is not None and request.path.startswith("/_"):
            return self.control.handle(request)
        try:
            call = self._read(request)
        except ValueError as problem:
            error = {"code": -32700, "message": f"not a JSON-RPC request: {problem}"}
            return Response.of_json({"jsonrpc": "2.0", "id": None, "error": error})
        is_refused = self._lacks_credentials(call)
        rule = None if is_refused else self.rules.take(call)
        self._record(call, request, rule, is_refused=is_refused)
        answer = self._refusal() if is_refused else self._answer(call, request, rule)
        if not isinstance(answer, Response):
            return self._counted(answer, request)
        self.max_in_flight = max(self.max_in_flight, self.in_flight + 1)
        return answer

    @property
    def in_flight(self) -> int:
        """Requests without an answer whose clients still wait for one."""
        return sum(not request.was_left() for request in self._in_flight.values())

    async def _counted(self, answer: Awaitable[Response], request: Request) -> Response:
        self._in_flight[request.connection] = request
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            return await answer
        finally:
            del self._in_flight[request.connection]

    def _read(self, request: Request) -> Call:
        http = f"{request.method} {request.path}"
        carried: dict[str, Any] = {"headers": request.headers, "query": request.query}
        carried["certificate"] = request.certificate
        if request.method != "POST":
            return Call(http=http, **carried)
        envelope = json.loads(request.body)
        if not isinstance(envelope, dict) or not isinstance(envelope.get("params", {}), dict):
            raise ValueError("expected an object with params")
        params = envelope.get("params") or {}
        message = params.get("message") or {}
        task_id = str(message.get("taskId") or params.get("taskId") or params.get("id") or "")
        named = self.works.by_id.get(task_id)
        return Call(
            http=http,
            method=str(envelope.get("method", "")),
            rpc_id=envelope.get("id"),
            params=params,
            **carried,
            text=text_of(message) if message else named.text if named else "",
            task_id=task_id,
            context_id=str(message.get("contextId") or params.get("contextId") or (named.context_id if named else "")),
            message_id=str(message.get("messageId") or ""),
        )

    def _lacks_credentials(self, call: Call) -> bool:
        config = self.calls.config
        wanted = config.credentials if call.method else config.card_credentials
        is_up = not config.hang and config.status is None
        return is_up and not satisfies_one(wanted, call.headers, call.query, call.certificate)

    def _refusal(self) -> Response:
        refusal = self.calls.config.refusal
        body = str(refusal.get("body", "")).encode()
        return Response(status=refusal.get("status", 401), headers=refusal.get("headers", {}), body=body)

    def _record(self, call: Call, request: Request, rule: Rule | None, *, is_refused: bool) -> None:
        name = call.method or call.http
        self.counts[name] = self.counts.get(name, 0) + 1
        facts: dict[str, Any] = {
            "method": name,
            "http": call.http,
            "message_id": call.message_id,
            "context_id": call.context_id,
            "task_id": call.task_id,
            "headers": {each: call.headers[each] for each in _HEADERS_OF_INTEREST if each in call.headers},
            "credentials": credentials_in(call.headers),
            "query": call.query,
            "certificate": call.certificate,
            "refused": is_refused,
            "connection": request.connection,
        }
        if call.is_send:
            facts |= _facts_of_send(call)
            self._last_sent = {"contextId": call.context_id, "messageId": call.message_id, "taskId": call.task_id}
        if rule is not None:
            facts["rule"] = self.rules.all.index(rule)
        self.ledger.add("call", **facts)

    def _answer(self, call: Call, request: Request, rule: Rule | None) -> Answer:
        config = self.calls.config
        if config.hang:
            return self._hang(request)
        if config.status is not None:
            return _late(Response(status=config.status), config.delay_s)
        if rule is None:
            return _late(self._own_answer(call), config.delay_s)
        if rule.leaves_answer_alone:
            return _late(self._own_answer(call), config.delay_s + rule.delay_s)
        # The work is done before the wait: an answer that comes late, or never, is about work that was done.
        work_done = self._own_answer(call) if rule.does_the_work else None
        response, result = self._play(call, rule) if rule.is_stream else rule.answer(call, self._stand_ins(call))
        self._adopt(call, result)
        if isinstance(work_done, Response) or work_done is None:
            scripted: Answer = self._hang(request) if response.end == "hang" else response
            return _late(scripted, config.delay_s + rule.delay_s)
        return _late(_instead_of(work_done, response), config.delay_s + rule.delay_s)

    def _own_answer(self, call: Call) -> Answer:
        if not call.method:
            if call.http == f"GET {CARD_PATH}":
                return Response.of_json(self.calls.config.card_at(self.base_url))
            return Response(status=404)
        try:
            result = self.calls.answer(call)
        except CallRefused as refusal:
            return _refused(call, refusal)
        return _later(call, result) if isinstance(result, Awaitable) else _enveloped(call, result)

    def _play(self, call: Call, rule: Rule) -> tuple[Response, Any]:
        """A stream as the rule wrote it, and the first event with a task in it."""
        events = rule.stream_events(call, self._stand_ins(call))
        first = next((event for event in events if isinstance(event.get("task"), dict)), {})
        stream = PlayedStream(
            self.streams,
            events,
            end=rule.stream_end,
            happened=self.works.hear,
            method=call.method,
            rpc_id=rule.rpc_id_for(call),
            task_id=call.task_id or str(first.get("task", {}).get("id", "")),
            keepalive_s=self.calls.config.keepalive_s,
        )
        return Response(open_body=stream), first

    def _adopt(self, call: Call, result: Any) -> None:
        if call.is_send and isinstance(result, dict):
            self.works.adopt(result.get("task"), call.message, call.text, call.push_config, call.participant_id)

    def _stand_ins(self, call: Call) -> dict[str, str]:
        own = {"contextId": call.context_id, "messageId": call.message_id, "taskId": call.task_id}
        return {name: value or self._last_sent.get(name, "") for name, value in own.items()}

    async def _hang(self, request: Request) -> Response:
        await asyncio.shield(request.closed)
        return Response(end="close")


def _facts_of_send(call: Call) -> dict[str, Any]:
    parts = [part for part in call.message.get("parts") or [] if isinstance(part, dict)]
    return {
        "text": call.text,
        "role": call.message.get("role"),
        "parts": len(parts),
        "media_types": [part.get("mediaType", "") for part in parts if "data" in part],
        "participant_id": (call.message.get("metadata") or {}).get("participant_id"),
        "push_config": (call.push_config or {}).get("id"),
        "return_immediately": bool((call.params.get("configuration") or {}).get("returnImmediately")),
    }


def _enveloped(call: Call, result: Any) -> Response:
    if isinstance(result, EventStream):
        return Response(open_body=result)
    return Response.of_json({"jsonrpc": "2.0", "id": call.rpc_id, "result": result})


def _refused(call: Call, refusal: CallRefused) -> Response:
    error = {"code": refusal.code, "message": refusal.message}
    return Response.of_json({"jsonrpc": "2.0", "id": call.rpc_id, "error": error})


async def _later(call: Call, result: Awaitable[Any]) -> Response:
    try:
        return _enveloped(call, await result)
    except CallRefused as refusal:
        return _refused(call, refusal)


async def _instead_of(work_done: Awaitable[Response], response: Response) -> Response:
    await work_done
    return response


def _late(answer: Answer, delay_s: float) -> Answer:
    return answer if delay_s <= 0 else _after(answer, delay_s)


async def _after(answer: Answer, delay_s: float) -> Response:
    await asyncio.sleep(delay_s)
    return answer if isinstance(answer, Response) else await answer


if __name__ == "__main__":
    main()
