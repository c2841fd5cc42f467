"""A2A 0.3 as A2A 1.0: what a card of 0.3 offers, and what an agent of 0.3 says, in the shapes of 1.0. Pure.

Requests are the SDK's own compatibility transports' (a2a.compat.v0_3). Their answers are translated here, raw JSON to
raw JSON and as tolerantly as `answers.py` reads it, because the SDK's conversion loses an answer over one bad field.
0.3 has two spellings: JSON-RPC's (spec 0.3.0 section 6: `kind`, lowercase states) and that of its HTTP+JSON servers,
which is protobuf's (`content`, `msg`, `{"data": {"data": …}}`).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from delegation.agent_task import read_state

VERSION = "0.3"
HINT = 'protocol = "0.3" in its [[agents]] block allows it'
#: The SDK's mark on a data part whose value is no object: 0.3 allows nothing else, so it is `{"value": …}` there.
WRAPPED = "data_part_compat"

_VERSION = re.compile(r"0\.3(\.\d+)?")
_BASE64 = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_UNKNOWN_STATE = "TASK_STATE_UNSPECIFIED"
#: What HTTP+JSON servers of 0.3 say of an error, if they say more than the status.
_ERROR_TYPES = {
    "TaskNotFoundError": -32001,
    "TaskNotCancelableError": -32002,
    "PushNotificationNotSupportedError": -32003,
    "UnsupportedOperationError": -32004,
    "ContentTypeNotSupportedError": -32005,
    "InvalidAgentResponseError": -32006,
    "InvalidRequestError": -32600,
    "MethodNotFoundError": -32601,
    "InvalidParamsError": -32602,
    "InternalError": -32603,
}
_TASK_STATUSES = {404: -32001, 409: -32002}
_INVALID_PARAMS = (422, -32602)


# ---------------------------------------------------------------- cards


def is_0_3(version: object) -> bool:
    """Whether a card says 0.3 with it; the patch number does not matter."""
    return isinstance(version, str) and _VERSION.fullmatch(version) is not None


def is_card_of_0_3(card: Mapping[str, Any]) -> bool:
    """A url of its own and no interfaces. A card without any version is one: 0.3's first drafts left it out."""
    version = card.get("protocolVersion")
    return not card.get("supportedInterfaces") and "url" in card and (version is None or is_0_3(version))


def own_offers(card: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The interfaces in the members of a card of 0.3 (spec 0.3.0 section 5.5), as entries of 1.0 by their place."""
    if not is_card_of_0_3(card) and not is_0_3(card.get("protocolVersion")):
        return
    if card.get("url") is not None:
        yield "the card", _offer(card["url"], card.get("preferredTransport") or "JSONRPC")
    more = card.get("additionalInterfaces")
    for position, entry in enumerate(more if isinstance(more, list) else []):
        where = f"additionalInterfaces[{position}]"
        yield where, _offer(entry.get("url"), entry.get("transport")) if isinstance(entry, dict) else entry


def _offer(url: object, transport: object) -> dict[str, Any]:
    return {"url": url, "protocolBinding": transport, "protocolVersion": VERSION}


def without_address(interface_key: str) -> str:
    """What stays of a pinned interface that does not answer: its version, if that is 0.3, which no card's choice is."""
    try:
        is_old = is_0_3(json.loads(interface_key or "{}").get("protocolVersion"))
    except (ValueError, AttributeError):
        return ""
    return json.dumps({"protocolVersion": VERSION}) if is_old else ""


# ---------------------------------------------------------------- what is said


def to_1_0(raw: Any, *, is_protobuf: bool) -> Any:
    """The result of a call, or of one event of a stream, as 1.0 has it; what is none of 0.3's stays as it is.

    A task comes bare, as GetTask has it; anything else in the member of a StreamResponse that names it.
    """
    if not isinstance(raw, dict):
        return raw
    if is_protobuf:
        raw = _unwrapped(raw)
    kind = _kind_of(raw)
    return _READERS[kind](raw, is_protobuf) if kind else raw


def wrap_data(value: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """The data and the metadata of a data part that carries `value`."""
    return (value, None) if isinstance(value, dict) else ({"value": value}, {WRAPPED: True})


def error_code(status: int, answer: Mapping[str, Any], *, names_task: bool) -> int | None:
    """The JSON-RPC code of an HTTP+JSON error; None when the agent's own server did not write it."""
    if not isinstance(answer.get("message"), str):
        return None
    if (code := _ERROR_TYPES.get(str(answer.get("type")))) is not None:
        return code
    if status == _INVALID_PARAMS[0]:
        return _INVALID_PARAMS[1]
    return _TASK_STATUSES.get(status) if names_task else None


def _unwrapped(raw: dict[str, Any]) -> dict[str, Any]:
    """Out of protobuf's envelopes: `{"task": …}`, `{"msg": …}`, `{"statusUpdate": …}`, `{"artifactUpdate": …}`."""
    kinds = {"task": "task", "msg": "message", "message": "message"}
    kinds |= {"statusUpdate": "status-update", "artifactUpdate": "artifact-update"}
    found = [name for name in kinds if isinstance(raw.get(name), dict)]
    return {**raw[found[0]], "kind": kinds[found[0]]} if len(found) == 1 and "id" not in raw else raw


def _kind_of(raw: dict[str, Any]) -> str:
    """What it says it is; some say nothing."""
    if isinstance(raw.get("kind"), str):
        return raw["kind"] if raw["kind"] in _READERS else ""
    known = {
        "message": "messageId" in raw and ("parts" in raw or "content" in raw),
        "status-update": "taskId" in raw and "status" in raw,
        "artifact-update": "taskId" in raw and "artifact" in raw,
        "task": "id" in raw and "status" in raw,
    }
    return next((kind for kind, is_it in known.items() if is_it), "")


def _read_task(raw: dict[str, Any], is_protobuf: bool) -> dict[str, Any]:
    task = _without(raw, "kind") | {"status": _read_status(raw.get("status"), is_protobuf)}
    if isinstance(raw.get("artifacts"), list):
        task["artifacts"] = [_read_owner(artifact, is_protobuf) for artifact in raw["artifacts"]]
    if isinstance(raw.get("history"), list):
        task["history"] = [_read_said(message, is_protobuf) for message in raw["history"]]
    return task


def _read_message(raw: dict[str, Any], is_protobuf: bool) -> dict[str, Any]:
    return {"message": _read_said(raw, is_protobuf)}


def _read_status_update(raw: dict[str, Any], is_protobuf: bool) -> dict[str, Any]:
    """Without `final`: a stream ends when it ends, and whether the task has, its state says."""
    return {"statusUpdate": _without(raw, "kind", "final") | {"status": _read_status(raw.get("status"), is_protobuf)}}


def _read_artifact_update(raw: dict[str, Any], is_protobuf: bool) -> dict[str, Any]:
    return {"artifactUpdate": _without(raw, "kind") | {"artifact": _read_owner(raw.get("artifact"), is_protobuf)}}


_READERS = {
    "task": _read_task,
    "message": _read_message,
    "status-update": _read_status_update,
    "artifact-update": _read_artifact_update,
}


def _read_status(raw: Any, is_protobuf: bool) -> Any:
    if not isinstance(raw, dict):
        return {}
    status = dict(raw)
    if "update" in status and "message" not in status:  # protobuf's name, in servers that keep it
        status["message"] = status.pop("update")
    if (state := _read_state(raw.get("state"))) is not None:
        status["state"] = state
    if "message" in status:
        status["message"] = _read_said(status["message"], is_protobuf)
    return status


def _read_state(spelling: Any) -> Any:
    """1.0's name of it; an unknown spelling stays the agent's own."""
    if spelling == "unknown":
        return _UNKNOWN_STATE
    state = read_state(spelling)
    return spelling if state is None else f"TASK_STATE_{state.value}"


def _read_said(raw: Any, is_protobuf: bool) -> Any:
    """A message."""
    if not isinstance(raw, dict):
        return raw
    message = _without(_read_owner(raw, is_protobuf), "kind")
    if isinstance(role := message.get("role"), str):
        message["role"] = _ROLES.get(role, role)
    return message


def _read_owner(raw: Any, is_protobuf: bool) -> Any:
    """Whatever has parts: a message or an artifact."""
    if not isinstance(raw, dict):
        return raw
    owner = dict(raw)
    if "content" in owner and "parts" not in owner:
        owner["parts"] = owner.pop("content")
    if isinstance(owner.get("parts"), list):
        owner["parts"] = [_read_part(part, is_protobuf) for part in owner["parts"]]
    return owner


def _read_part(raw: Any, is_protobuf: bool) -> Any:
    """One that is malformed stays so, for `answers.py` to say it."""
    if not isinstance(raw, dict):
        return raw
    part = _without(raw, "kind")
    if isinstance(file := part.get("file"), dict):
        return _without(part, "file") | _read_file(file)
    if "data" in part:
        return _read_data(part, is_protobuf and "kind" not in raw)
    return part


def _read_file(file: dict[str, Any]) -> dict[str, Any]:
    names = {"uri": "url", "fileWithUri": "url", "bytes": "raw", "fileWithBytes": "raw"}
    names |= {"name": "filename", "mimeType": "mediaType", "mime_type": "mediaType"}
    read = {names[name]: value for name, value in file.items() if name in names and value not in (None, "")}
    if "fileWithBytes" in file and isinstance(read.get("raw"), str):
        read["raw"] = _encoded_once(read["raw"])
    return read


def _encoded_once(raw: str) -> str:
    """The servers that write `fileWithBytes` encode what is base64 already once more."""
    try:
        inside = base64.b64decode(raw, validate=True)
    except (ValueError, binascii.Error):
        return raw
    return inside.decode("ascii") if inside and _BASE64.fullmatch(inside) else raw


def _read_data(part: dict[str, Any], is_protobuf: bool) -> dict[str, Any]:
    data, metadata = part["data"], part.get("metadata")
    if is_protobuf and isinstance(data, dict) and set(data) <= {"data"}:
        data = data.get("data", {})
    if isinstance(metadata, dict) and metadata.get(WRAPPED) is True and isinstance(data, dict) and "value" in data:
        data, metadata = data["value"], _without(metadata, WRAPPED)
    return _without(part, "data", "metadata") | {"data": data} | ({"metadata": metadata} if metadata else {})


def _without(raw: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in names}
