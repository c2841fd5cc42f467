"""A TCP proxy in this process that can fall silent without closing, as a NAT that forgot its connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Gate:
    """Passes bytes between its own port and another on 127.0.0.1, until it is told to swallow them."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        self._dead_before = 0  #: connections with a lower number pass nothing
        self._swallows_new = False
        self._ends = False

    def fall_silent(self) -> None:
        """Every connection, those to come included, stays open and passes nothing."""
        self._dead_before = len(self._open)
        self._swallows_new = True

    def let_new_ones_through(self) -> None:
        """Connections from now on pass; the silent ones stay silent."""
        self._dead_before = len(self._open)
        self._swallows_new = False

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        while not self._ends:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target_port))
            number = len(self._open)
            self._open += [client, server]
            self._start(self._pump, client, server, number)
            self._start(self._pump, server, client, number)

    def _pump(self, source: socket.socket, target: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if number >= self._dead_before and not self._swallows_new:
                    target.sendall(data)
        if number >= self._dead_before and not self._swallows_new:
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    @staticmethod
    def _start(run: object, *arguments: object) -> None:
        threading.Thread(target=run, args=arguments, daemon=True).start()  # type: ignore[arg-type]
