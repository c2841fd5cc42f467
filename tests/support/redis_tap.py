"""Every command that a Redis server runs while one listens, also those that scripts run; and what its AOF holds."""

from __future__ import annotations

import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import redis

from tests.support.child import wait_until

_ARGUMENT = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPE = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)
_LETTERS = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}
#: ``<time> [<database> <client>] "COMMAND" "argument" …``
_LINE = re.compile(rb"[\d.]+ \[(\d+) [^\]]*\] (.*)", re.DOTALL)

Command = tuple[bytes, ...]


class RedisTap:
    """``with RedisTap(client) as tap: …; tap.commands()``: those of one database, as lists of arguments."""

    def __init__(self, client: redis.Redis, db: int = 0) -> None:
        self._client = client
        self._db = db
        self._commands: list[Command] = []
        settings = {**client.connection_pool.connection_kwargs, "decode_responses": False, "socket_timeout": None}
        self._connection = redis.Connection(**settings)
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def commands(self) -> list[Command]:
        """Everything until now."""
        marker = uuid.uuid4().hex.encode()
        self._client.echo(marker.decode())
        wait_until(lambda: any(marker in command for command in reversed(self._commands)), 20, what="the tap's marker")
        return [command for command in self._commands if command[0].upper() != b"ECHO"]

    def __enter__(self) -> Self:
        self._connection.connect()
        self._connection.send_command("MONITOR")
        self._connection.read_response()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection._sock.shutdown(2)
        self._thread.join(10)
        self._connection.disconnect()

    def _listen(self) -> None:
        try:
            while line := _LINE.fullmatch(self._connection.read_response()):
                if int(line[1]) == self._db:
                    self._commands.append(tuple(_unescaped(each) for each in _ARGUMENT.findall(line[2])))
        except (redis.ConnectionError, OSError):
            return


def commands_in_aof(directory: Path, db: int = 0) -> Iterator[Command]:
    """The write commands of one database in a server's append-only files, oldest first."""
    for file in sorted(directory.glob("appendonlydir/*.incr.aof")):
        data, at, selected = file.read_bytes(), 0, 0
        while at < len(data):
            count, at = _number(data, at)
            arguments = []
            for _ in range(count):
                length, at = _number(data, at)
                arguments.append(data[at : at + length])
                at += length + 2
            if arguments[0].upper() == b"SELECT":
                selected = int(arguments[1])
            elif selected == db:
                yield tuple(arguments)


def _number(data: bytes, at: int) -> tuple[int, int]:
    """What stands behind the ``*`` or ``$`` at this place, and where the next line begins."""
    end = data.index(b"\r\n", at)
    return int(data[at + 1 : end]), end + 2


def _unescaped(text: bytes) -> bytes:
    return _ESCAPE.sub(_meaning, text)


def _meaning(escape: re.Match[bytes]) -> bytes:
    if len(escape[1]) == 3:
        return bytes.fromhex(escape[1][1:].decode())
    return _LETTERS.get(escape[1], escape[1])
