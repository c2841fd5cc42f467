"""What a hostile agent may answer: broken or endless HTTP, JSON that explodes, streams that never end."""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import Callable, Iterator

from tests.support.raw_server import STREAM_HEAD, Behaviour, Seen, chunk, closes, hangs, http, says

MB = 1 << 20
_JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
_CHUNKED_HEAD = _JSON_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_BOMB = gzip.compress(gzip.compress(b"0" * (64 * MB)))
#: A body of any kind that is longer than anybody will read; the sender stops when the reader has gone.
_MOST_SENT = 1 << 30


def _pours(head: bytes, piece: bytes, most: int = _MOST_SENT) -> Behaviour:
    """Sends `head`, then `piece` again and again, as fast as it is taken."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.sendall(head)
        for _piece in range(most // len(piece)):
            connection.sendall(piece)
        return False

    return behave


def _drips(head: bytes, piece: bytes = b" ", every_s: float = 0.02) -> Behaviour:
    """Sends `head`, then `piece` now and then, until the reader has gone."""

    def behave(_: Seen, connection: socket.socket) -> bool:
        connection.sendall(head)
        connection.settimeout(every_s)
        while True:
            try:
                if not connection.recv(1):
                    return False
            except TimeoutError:
                connection.sendall(piece)

    return behave


_TWO_BYTES = chunk(b"  ") * 4096
_INFORMATION = b"HTTP/1.1 102 Processing\r\nX: y\r\n\r\n" * 512

#: On the level of HTTP.
WIRE: dict[str, Behaviour] = {
    "gzip": says(200, _BOMB, {"Content-Encoding": "gzip"}),
    "br": says(200, _BOMB, {"Content-Encoding": "br"}),
    "zstd": says(200, _BOMB, {"Content-Encoding": "zstd"}),
    "nested encodings": says(200, _BOMB, {"Content-Encoding": "gzip, gzip"}),
    "transfer-encoding gzip": closes(_JSON_HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunk(_BOMB)),
    "1 GB, declared": _pours(_JSON_HEAD + b"Content-Length: 1073741824\r\n\r\n", b" " * 65_536),
    "1 GB, undeclared": _pours(_JSON_HEAD + b"\r\n", b" " * 65_536),
    "endless chunks": _pours(_CHUNKED_HEAD, chunk(b" " * 65_000)),
    "chunks of two bytes": _pours(_CHUNKED_HEAD, _TWO_BYTES),
    "a chunk's size without end": _pours(_CHUNKED_HEAD, b"0" * 65_536),
    "trailers without end": _pours(_CHUNKED_HEAD + b"2\r\n{}\r\n0\r\n", b"X: y\r\n" * 4096),
    "silence": hangs(),
    "headers drip": _drips(b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
    "header lines drip": _drips(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "the body drips": _drips(_JSON_HEAD + b"\r\n"),
    "1xx without end": _pours(b"", _INFORMATION),
    "1xx drip": _drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "a header of 10 MB": closes(_JSON_HEAD + b"X: " + b"x" * (10 * MB) + b"\r\n\r\n{}"),
    "10,000 headers": closes(_JSON_HEAD + b"X-Many: 1\r\n" * 10_000 + b"\r\n{}"),
    "204 with a body": closes(b"HTTP/1.1 204 No Content\r\nContent-Length: 1000000\r\n\r\n" + b" " * MB),
    "304 with a body": closes(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1000000\r\n\r\n" + b" " * MB),
    "html": says(200, b"<html>login</html>" * 1000, {"Content-Type": "text/html"}),
    "500": says(500, b"[" * 200_000),
    "400 with deep JSON": says(400, b"[" * 60_000, {"Content-Type": "application/json"}),
    "401 with deep JSON": says(401, b"[" * 60_000, {"Content-Type": "application/json"}),
}


def _in_task(data: bytes) -> bytes:
    parts = b'{"data":' + data + b"}"
    return b'{"id":"t1","status":{},"artifacts":[{"artifactId":"a","parts":[' + parts + b"]}]}"


def _million_keys() -> bytes:
    return b"{" + b",".join(b'"%x":0' % number for number in range(1_000_000)) + b"}"


#: JSON in the place of the task, the card, the token; made when asked for, since some are large.
VALUES: dict[str, Callable[[], bytes]] = {
    "8 MiB of []": lambda: _in_task(b"[" + b"[]," * (8 * MB // 3 - 100) + b"0]"),
    "1 MiB of []": lambda: _in_task(b"[" + b"[]," * (MB // 3 - 100) + b"0]"),
    "1 MiB of small objects": lambda: _in_task(b"[" + b'{"a":{}},' * (MB // 9 - 100) + b"0]"),
    "8 MiB of short strings": lambda: _in_task(b"[" + b'"ab",' * (8 * MB // 5 - 100) + b"0]"),
    "the most values allowed": lambda: _in_task(b"[" + b'{"a":{}},' * 41_650 + b"0]"),
    "a million artifacts": lambda: b'{"id":"t1","status":{},"artifacts":[' + b"{}," * 1_000_000 + b"{}]}",
    "2,000 artifacts": lambda: b'{"id":"t1","status":{},"artifacts":[' + b"{}," * 2_000 + b"{}]}",
    "a million keys": _million_keys,
    "depth 200,000": lambda: _in_task(b"[" * 200_000 + b"]" * 200_000),
    "depth 200,000 of objects": lambda: b'{"a":' * 200_000 + b"0" + b"}" * 200_000,
    "depth 900": lambda: _in_task(b"[" * 900 + b"]" * 900),
    "5,000 digits": lambda: _in_task(b"9" * 5_000),
    "1e999": lambda: _in_task(b"1e999"),
    "NaN": lambda: _in_task(b"[NaN, -Infinity]"),
    "lone surrogates": lambda: _in_task(b'"\\ud800"').replace(b'"t1"', b'"\\udfff"'),
    "keys twice": lambda: b'{"id":"t0","status":null,' + _in_task(b"0")[1:],
    "invalid UTF-8": lambda: _in_task(b'"\xff\xfe\xc0\x80"'),
    "UTF-16": lambda: _in_task(b"0").decode().encode("utf-16"),
    "a byte order mark": lambda: b"\xef\xbb\xbf" + _in_task(b"0"),
    "8 MB of quotes": lambda: b'"' * 8_000_000,
    "8 MB of commas": lambda: b"," * 8_000_000,
    "8 MB of backslashes": lambda: b'"' + b"\\" * 8_000_000,
    "null": lambda: b"null",
    "a list": lambda: b"[]",
}

_LONG = 8 * MB - 1000

#: Nothing wrong with these but their size.
LARGE: dict[str, bytes] = {
    "8 MiB of text": b"x" * _LONG,
    "8 MiB of text with one emoji": b"x" * _LONG + "\N{GRINNING FACE}".encode(),
    "8 MiB of lines and quotes": rb"a,\"b\"\n" * (_LONG // 9),
}


def in_text(text: bytes) -> bytes:
    """The task with one artifact of one text."""
    return b'{"id":"t1","status":{},"artifacts":[{"artifactId":"a","parts":[{"text":"' + text + b'"}]}]}'


#: In the place of a whole JSON-RPC answer; `%s` is the request's id.
ENVELOPES: dict[str, bytes] = {
    "another id": b'{"jsonrpc":"2.0","id":"other","result":{"id":"t1","status":{}}}',
    "no id": b'{"jsonrpc":"2.0","result":{"id":"t1","status":{}}}',
    "a batch": b'[{"jsonrpc":"2.0","id":%s,"result":{"id":"t1","status":{}}}]',
    "a result and an error": b'{"id":%s,"result":{"id":"t1","status":{}},"error":{"code":-32001,"message":"x"}}',
    "an error that is no object": b'{"id":%s,"error":[]}',
    "another task": b'{"id":%s,"result":{"id":"t2","status":{}}}',
}


def _event(data: bytes) -> bytes:
    return chunk(b"data: " + data + b"\n\n")


_ARTIFACT = b'{"artifactUpdate":{"taskId":"t1","artifact":{"artifactId":"a%d","parts":[{"data":[%s0]}]}}}'
_SUBMITTED = b'{"task":{"id":"t1","contextId":"c","status":{"state":"TASK_STATE_SUBMITTED"}}}'


def _tells_values(values: Callable[[], Iterator[bytes]]) -> Behaviour:
    """Each in an event of its own, in a JSON-RPC envelope with the request's id."""

    def behave(request: Seen, connection: socket.socket) -> bool:
        connection.sendall(STREAM_HEAD)
        for value in values():
            connection.sendall(_event(_envelope(request, value)))
        connection.sendall(chunk(b""))
        return True

    return behave


def _kept_artifacts() -> Iterator[bytes]:
    yield _SUBMITTED
    for number in range(1000):
        yield _ARTIFACT % (number, b"[]," * 100_000)


#: Event streams.
STREAMS: dict[str, Behaviour] = {
    "comments alone": _drips(STREAM_HEAD, chunk(b": still here\n\n")),
    "comments as fast as can be": _pours(STREAM_HEAD, chunk(b":\n" * 30_000)),
    "a comment without end": _pours(STREAM_HEAD, chunk(b":" * 65_000)),
    "an event without end": _pours(STREAM_HEAD + chunk(b"data: "), chunk(b"x" * 65_000)),
    "an event of endless lines": _pours(STREAM_HEAD, chunk(b"data: x\n" * 8_000)),
    "an event that drips": _drips(STREAM_HEAD, chunk(b"d")),
    "events without end": _pours(STREAM_HEAD, chunk(b"data: {}\n\n" * 6_000)),
    "empty events without end": _pours(STREAM_HEAD, chunk(b"data:\n\n" * 8_000)),
    "errors without end": _pours(STREAM_HEAD, chunk(b"event: error\ndata: {}\n\n" * 2_000)),
    "artifacts that are kept": _tells_values(_kept_artifacts),
    "chunks of one byte": _pours(STREAM_HEAD, chunk(b":") * 10_000),
    "a compressed stream": closes(STREAM_HEAD[:-2] + b"Content-Encoding: gzip\r\n\r\n" + chunk(_BOMB)),
}


def _envelope(request: Seen, value: bytes) -> bytes:
    if b'"jsonrpc"' not in request.body:
        return value
    mark = b"\xef\xbb\xbf" if value.startswith(b"\xef\xbb\xbf") else b""
    request_id = json.dumps(request.rpc["id"]).encode()
    return mark + b'{"jsonrpc":"2.0","id":' + request_id + b',"result":' + value.removeprefix(mark) + b"}"


def with_value(value: bytes) -> Behaviour:
    """A whole answer: in an envelope to JSON-RPC, in an event to whoever asked for events, else bare."""

    def behave(request: Seen, connection: socket.socket) -> bool:
        answer = _envelope(request, value)
        if "text/event-stream" in request.headers.get("accept", ""):
            connection.sendall(STREAM_HEAD + _event(answer) + chunk(b""))
        else:
            connection.sendall(http(200, answer, {"Content-Type": "application/json"}))
        return True

    return behave


def with_envelope(envelope: bytes) -> Behaviour:
    def behave(request: Seen, connection: socket.socket) -> bool:
        answer = envelope.replace(b"%s", json.dumps(request.rpc["id"]).encode())
        if "text/event-stream" in request.headers.get("accept", ""):
            connection.sendall(STREAM_HEAD + _event(answer) + chunk(b""))
        else:
            connection.sendall(http(200, answer, {"Content-Type": "application/json"}))
        return True

    return behave
