"""The paths under /_ with which a test steers a scripted agent and looks into it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from tests.support.played_streams import ENDS
from tests.support.pushes import credentials, status_update
from tests.support.wire import Answer, Request, Response

if TYPE_CHECKING:
    from tests.support.scripted_agent import ScriptedAgent


class AgentControl:
    """Every answer is JSON; a wrong request is 400 with the reason."""

    def __init__(self, agent: ScriptedAgent) -> None:
        self._agent = agent
        self._paths: dict[str, Callable[[Request], Answer]] = {
            "POST /_script": self._set_rules,
            "GET /_script": self._show_rules,
            "POST /_config": self._set_config,
            "GET /_config": lambda _: Response.of_json(asdict(agent.calls.config)),
            "POST /_move": self._move,
            "POST /_push": self._push,
            "POST /_stream": self._disturb_streams,
            "GET /_stream": lambda _: Response.of_json([stream.facts() for stream in agent.streams]),
            "GET /_ledger": self._show_ledger,
            "GET /_tasks": self._show_tasks,
            "GET /_stats": self._show_stats,
            "GET /_open": lambda request: Response.of_json({"open": self._open_but(request)}),
            "GET /_memory": lambda _: Response.of_json([work.to_memory() for work in agent.works.by_id.values()]),
            "POST /_memory": self._restore,
        }

    def handle(self, request: Request) -> Answer:
        handle = self._paths.get(f"{request.method} {request.path}")
        if handle is None:
            return Response.of_json({"error": f"no {request.method} {request.path}"}, status=404)
        try:
            return handle(request)
        except (ValueError, KeyError, TypeError) as problem:
            return Response.of_json({"error": f"{type(problem).__name__}: {problem}"}, status=400)

    def _set_rules(self, request: Request) -> Response:
        given = json.loads(request.body)
        if isinstance(given, list):
            self._agent.rules.replace(given)
        elif given.get("append"):
            self._agent.rules.append(given["rules"])
        else:
            self._agent.rules.replace(given["rules"])
        return self._show_rules(request)

    def _show_rules(self, _request: Request) -> Response:
        return Response.of_json([{**rule.spec, "used": rule.used} for rule in self._agent.rules.all])

    def _set_config(self, request: Request) -> Response:
        self._agent.calls.config = self._agent.calls.config.changed(json.loads(request.body))
        return Response.of_json(asdict(self._agent.calls.config))

    def _move(self, request: Request) -> Response:
        given = json.loads(request.body)
        work = self._agent.works.by_id[given["taskId"]]
        self._agent.works.move(work, given["state"], given.get("text", ""), given.get("artifact"))
        return Response.of_json(work.to_wire())

    def _push(self, request: Request) -> Answer:
        given = json.loads(request.body)
        work = self._agent.works.by_id.get(given.get("taskId", ""))
        configs = list(work.push_configs.values()) if work else []
        if "url" in given:
            configs = [{"id": None, "url": given["url"]}]
        if not configs:
            return Response.of_json({"error": "no push config, and no url given"}, status=400)
        state = given.get("state") or (work.state if work else "")
        sends = [
            self._agent.pushes.send(
                given.get("taskId", ""),
                config,
                _push_body(given, work, state),
                state=state,
                headers=_push_headers(given, config),
            )
            for config in configs
            for _ in range(int(given.get("times", 1)))
        ]
        return _statuses(sends)

    def _disturb_streams(self, request: Request) -> Response:
        given = json.loads(request.body)
        streams = self._agent.streams.of(given.get("taskId") or "")
        if "cut" in given and given["cut"] not in ENDS:
            raise ValueError(f"cut: {given['cut']!r} is none of {', '.join(ENDS)}")
        for stream in streams:
            if "cut" in given:
                stream.finish(given["cut"], why="cut")
            elif "event" in given:
                stream.send(given["event"])
            else:
                stream.send_raw(base64.b64decode(given["base64"]) if "base64" in given else given["raw"].encode())
        return Response.of_json({"streams": len(streams)})

    def _show_ledger(self, request: Request) -> Response:
        since = parse_qs(request.query).get("since", ["0"])[0]
        return Response.of_json(self._agent.ledger.since(int(since)))

    def _show_tasks(self, _request: Request) -> Response:
        works = self._agent.works.by_id.values()
        return Response.of_json(
            [{**work.to_wire(), "push_configs": list(work.push_configs.values())} for work in works]
        )

    def _show_stats(self, request: Request) -> Response:
        agent = self._agent
        return Response.of_json(
            {
                "calls": agent.counts,
                "pushes": agent.pushes.statuses,
                "tasks": len(agent.works.by_id),
                "in_flight": agent.in_flight,
                "max_in_flight": agent.max_in_flight,
                "open": self._open_but(request),
                "accepted": agent.server.accepted,
                "streams_open": len(agent.streams),
                "streams_opened": agent.streams.opened,
                "streams_max": agent.streams.most,
            }
        )

    def _open_but(self, request: Request) -> int:
        """Open connections without the one that asks."""
        return sum(1 for number in self._agent.server.open_numbers() if number != request.connection)

    def _restore(self, request: Request) -> Response:
        self._agent.works.restore(json.loads(request.body))
        return Response.of_json({"tasks": len(self._agent.works.by_id)})


async def _statuses(sends: list[Coroutine[Any, Any, Any]]) -> Response:
    return Response.of_json({"statuses": [await send for send in sends]})


def _push_body(given: dict[str, Any], work: Any, state: str) -> bytes:
    body = given.get("body")
    if isinstance(body, str):
        return body.encode()
    if body is None and work is not None:
        body = status_update(work, state)
    return json.dumps(body if body is not None else {}).encode()


def _push_headers(given: dict[str, Any], config: dict[str, Any]) -> dict[str, str]:
    token = given.get("token")
    if token is not None:
        config = {**config, "token": token, "authentication": {"scheme": "Bearer", "credentials": token}}
    return {**credentials(config, given.get("with", "both")), **(given.get("headers") or {})}
