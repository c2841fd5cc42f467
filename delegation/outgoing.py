"""Keep the JSON that a message carries as its author wrote it: by way of protobuf its integers would become floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from delegation.agent_task import OutgoingMessage
from delegation.replies import JSONRPC
from delegation.version_0_3 import VERSION as VERSION_0_3
from delegation.version_0_3 import wrap_data


def with_sender(message: OutgoingMessage, participant_id: str) -> dict[str, Any]:
    """What a delegation was opened with wins over our settings: agents know its sender by that id."""
    return {"participant_id": participant_id, **message.metadata}


def json_restorer(
    message: OutgoingMessage, participant_id: str, binding: str, version: str = "1.0"
) -> Callable[[bytes], bytes] | None:
    """What puts the message's own JSON into a request that the SDK built; None where there is nothing to restore."""
    if not message.data and all(isinstance(value, str) for value in message.metadata.values()):
        return None

    def restore(body: bytes) -> bytes:
        request = json.loads(body)
        is_old = version == VERSION_0_3
        is_protobuf = is_old and binding != JSONRPC
        sent = request["params"]["message"] if binding == JSONRPC else request["request" if is_old else "message"]
        parts = sent["content" if is_protobuf else "parts"]
        for part, given in zip(parts[len(message.texts) :], message.data, strict=True):
            if is_old:
                _put_0_3(part, given.value, is_protobuf=is_protobuf)
            else:
                part["data"] = given.value
        sent["metadata"] = with_sender(message, participant_id)
        return json.dumps(request, allow_nan=False).encode()

    return restore


def _put_0_3(part: dict[str, Any], value: Any, *, is_protobuf: bool) -> None:
    data, metadata = wrap_data(value)
    part["data"] = {"data": data} if is_protobuf else data
    part.pop("metadata", None)
    if metadata:
        part["metadata"] = metadata
