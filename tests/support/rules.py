"""What the scripted agent was told to answer: ordered rules, each for some calls and some number of times.

A rule is a JSON object. Which calls it is for:

- ``on``: ``SendMessage`` (any A2A method name), ``SendMessage without taskId``, ``SendMessage with taskId='t1'``,
  ``SendMessage with push``, ``CancelTask for t1``, ``GET /path`` (an HTTP call), ``any`` (every A2A method);
- ``match``: only calls whose message text contains this; calls that name a task go by the text that started it;
- ``unless_header``: ``{name: value}``, only calls that lack one of these headers (value null: any value will do);
- ``with``, ``without``: only calls that carry all of this, or not all of it (see agent_credentials.py);
- ``times``: how many calls it answers (default: from then on); ``replies`` last once each, the last one for good.

What it does: at most one of ``reply`` (JSON-RPC result), ``replies`` (one per call), ``error`` (JSON-RPC error),
``http`` (``status``, ``headers``, ``body``, ``cut_after``, ``drip_s``), ``end`` (``reset``, ``close``, ``hang``),
``sse`` or ``raw`` (a stream, see below); nothing of these: the agent's own answer. ``delay_s`` waits before the answer.
``work: true`` does what the call asks for and then answers as told: "done, but the reply was lost" is
``{"on": "SendMessage", "work": true, "end": "reset"}``. ``id: "other"`` answers under a foreign JSON-RPC id. In texts
``{contextId}``, ``{messageId}``, ``{taskId}`` stand for the call's own, or those of the last send; ``"<same>"`` in
a body stands for the JSON-RPC id.

``sse`` is a list of events: a StreamResponse (``{"statusUpdate": …}``, put into an envelope), ``{"error": …}`` (a
JSON-RPC error), ``{"raw": bytes as text}``, also with ``every_s`` and ``for_s``, ``{"delay_s": n}``, ``{"note": …}``.
``raw`` is the whole body as text. After either comes ``end``: ``close`` (the default: the body ends as it should),
``cut`` (FIN in the middle), ``reset``, ``half`` (silence on an open connection), ``hold`` (until the client goes) or
``hold 120 s``. What ``sse`` says about the task of a scripted reply is what GetTask and a subscription then find, also
when the client has hung up meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.agent_credentials import carries
from tests.support.played_streams import is_an_end
from tests.support.streams import Event
from tests.support.wire import Response

_KEYS = {
    *(
        "on",
        "match",
        "unless_header",
        "with",
        "without",
        "times",
        "reply",
        "replies",
        "error",
        "http",
        "end",
        "delay_s",
        "work",
        "id",
    ),
    *("sse", "raw", "note"),
}
_STREAMS = ("sse", "raw")
_ACTIONS = ("reply", "replies", "error", "http", "end", *_STREAMS)
_ENDS = {"reset", "close", "hang", "hold"}
_ON = re.compile(
    r"(?P<any>any|any method|any call|any request)"
    r"|(?P<http>[A-Z]+ /\S*)"
    r"|(?P<method>[A-Z][A-Za-z]+)"
    r"( (?P<new>without taskId)| with taskId='(?P<continues>[^']*)'| (?P<push>with push)| for (?P<task>\S+))?"
)


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the rules see it."""

    http: str  #: "POST /rpc"
    method: str = ""  #: A2A method, empty for other HTTP calls
    rpc_id: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    query: str = ""
    certificate: str = ""
    text: str = ""  #: the message's text, or that of the message which started the named task
    task_id: str = ""
    context_id: str = ""
    message_id: str = ""

    @property
    def push_config(self) -> dict[str, Any] | None:
        configuration = self.params.get("configuration") or {}
        found: dict[str, Any] | None = configuration.get("taskPushNotificationConfig")
        return found

    @property
    def message(self) -> dict[str, Any]:
        return dict(self.params.get("message") or {})

    @property
    def is_send(self) -> bool:
        return self.method in ("SendMessage", "SendStreamingMessage")

    @property
    def participant_id(self) -> str:
        """Who calls: the message's word counts before the header."""
        metadata = self.message.get("metadata") or {}
        return str(metadata.get("participant_id") or self.headers.get("x-participant-id", ""))


class RuleError(ValueError):
    """A rule that cannot mean anything; the message says why."""


class Rule:
    """One rule and how often it has answered."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        unknown = set(spec) - _KEYS
        actions = [key for key in _ACTIONS if key in spec]
        is_stream = any(key in spec for key in _STREAMS)
        if is_stream and "end" in spec:
            actions.remove("end")
        on = _ON.fullmatch(str(spec.get("on", "")))
        if unknown:
            raise RuleError(f"unknown keys: {', '.join(sorted(unknown))}")
        if on is None:
            raise RuleError(f"on: cannot read {spec.get('on')!r}")
        if len(actions) > 1:
            raise RuleError(f"more than one action: {', '.join(actions)}")
        end = str(spec.get("end", "close"))
        if not (is_an_end(end) if is_stream else end in _ENDS):
            raise RuleError(f"end: cannot read {end!r}")
        for key in ("with", "without"):
            carries(spec.get(key, {}), {})  # raises when it cannot mean anything
        self.spec = dict(spec)
        self.is_stream = is_stream
        self.used = 0
        self._on = on

    def applies_to(self, call: Call) -> bool:
        return not self._is_spent() and self._is_for(call) and self._matches(call)

    @property
    def delay_s(self) -> float:
        return float(self.spec.get("delay_s", 0))

    @property
    def leaves_answer_alone(self) -> bool:
        return not any(key in self.spec for key in _ACTIONS)

    @property
    def does_the_work(self) -> bool:
        return bool(self.spec.get("work")) or self.leaves_answer_alone

    def answer(self, call: Call, stand_ins: Mapping[str, str]) -> tuple[Response, Any]:
        """The answer to the ``used``-th call, and the JSON-RPC result in it (None where there is none)."""
        if "end" in self.spec:
            end = str(self.spec["end"])
            return Response(end="hang" if end == "hold" else end), None
        if "http" in self.spec:
            return _http_response(self.spec["http"], call, stand_ins), None
        rpc_id = self.rpc_id_for(call)
        if "error" in self.spec:
            return Response.of_json({"jsonrpc": "2.0", "id": rpc_id, "error": self.spec["error"]}), None
        result = json.loads(_filled(json.dumps(self._result()), stand_ins))
        return Response.of_json({"jsonrpc": "2.0", "id": rpc_id, "result": result}), result

    def rpc_id_for(self, call: Call) -> Any:
        return "other" if self.spec.get("id") == "other" else call.rpc_id

    @property
    def stream_end(self) -> str:
        return str(self.spec.get("end", "close"))

    def stream_events(self, call: Call, stand_ins: Mapping[str, str]) -> list[Event]:
        """What is played to this call."""
        events = self.spec["sse"] if "sse" in self.spec else [{"raw": self.spec["raw"]}]
        filled: list[Event] = json.loads(_filled(json.dumps(events), stand_ins))
        rpc_id = json.dumps(self.rpc_id_for(call))
        return [{**each, "raw": _same(each["raw"], rpc_id)} if "raw" in each else each for each in filled]

    def _result(self) -> Any:
        if "reply" in self.spec:
            return self.spec["reply"]
        replies = self.spec["replies"]
        return replies[min(self.used, len(replies)) - 1]

    def _is_spent(self) -> bool:
        return "times" in self.spec and self.used >= int(self.spec["times"])

    def _is_for(self, call: Call) -> bool:
        on = self._on
        if on["http"]:
            return on["http"] == call.http
        if not call.method or (on["method"] and on["method"] != call.method):
            return False
        if on["new"]:
            return not call.task_id
        if on["push"]:
            return call.push_config is not None
        wanted = on["continues"] if on["continues"] is not None else on["task"]
        return wanted is None or wanted == call.task_id

    def _matches(self, call: Call) -> bool:
        if self.spec.get("match", "") not in call.text:
            return False
        carried = (call.headers, call.query, call.certificate)
        if not carries(self.spec.get("with", {}), *carried):
            return False
        unless = self.spec.get("unless_header")
        unwanted = [self.spec.get("without"), {"headers": unless} if unless else None]
        return not any(carries(each, *carried) for each in unwanted if each)


class Rules:
    """The rules in force, in order; the first that applies answers."""

    def __init__(self) -> None:
        self.all: list[Rule] = []

    def replace(self, specs: list[dict[str, Any]]) -> None:
        self.all = [Rule(spec) for spec in specs]

    def append(self, specs: list[dict[str, Any]]) -> None:
        self.all += [Rule(spec) for spec in specs]

    def take(self, call: Call) -> Rule | None:
        """The rule that answers this call, counted as used."""
        for rule in self.all:
            if rule.applies_to(call):
                rule.used += 1
                return rule
        return None


def _http_response(spec: Mapping[str, Any], call: Call, stand_ins: Mapping[str, str]) -> Response:
    body = spec.get("body", "")
    text = body if isinstance(body, str) else json.dumps(body)
    text = _same(_filled(text, stand_ins), json.dumps(call.rpc_id))
    return Response(
        status=int(spec.get("status", 200)),
        headers={str(name): str(value) for name, value in (spec.get("headers") or {}).items()},
        body=text.encode(),
        cut_after=spec.get("cut_after"),
        drip_s=float(spec.get("drip_s", 0)),
    )


def _same(text: str, rpc_id: str) -> str:
    return text.replace('"<same>"', rpc_id)


def _filled(text: str, stand_ins: Mapping[str, str]) -> str:
    for name, value in stand_ins.items():
        text = text.replace("{" + name + "}", json.dumps(value)[1:-1])
    return text
