"""The raw reference of the push endpoint: a Flask view that writes to Redis once and believes everybody."""

from __future__ import annotations

import redis
from flask import Flask, Response

from delegation.settings import load_settings

app = Flask("bare_door", static_folder=None)
_redis = redis.Redis.from_url(load_settings().redis.url)


@app.post("/a2a/push/<delegation_id>")
def receive(delegation_id: str) -> Response:  # noqa: ARG001  Flask gives it
    _redis.incr("bench:pushes")
    return Response(status=202)
