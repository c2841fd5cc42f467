"""Keep the JSON that a message carries as its author wrote it: by way of protobuf its integers would become floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from delegation.agent_task import OutgoingMessage
from delegation.replies import JSONRPC


def with_sender(message: OutgoingMessage, participant_id: str) -> dict[str, Any]:
    """What a delegation was opened with wins over our settings: agents know its sender by that id."""
    return {"participant_id": participant_id, **message.metadata}


def json_restorer(message: OutgoingMessage, participant_id: str, binding: str) -> Callable[[bytes], bytes] | None:
    """What puts the message's own JSON into a request that the SDK built; None where there is nothing to restore."""
    if not message.data and all(isinstance(value, str) for value in message.metadata.values()):
        return None

    def restore(body: bytes) -> bytes:
        request = json.loads(body)
        sent = (request["params"] if binding == JSONRPC else request)["message"]
        for part, given in zip(sent["parts"][len(message.texts) :], message.data, strict=True):
            part["data"] = given.value
        sent["metadata"] = with_sender(message, participant_id)
        return json.dumps(request, allow_nan=False).encode()

    return restore
