"""Where a project's own server keeps its data and its address, so that other shells of the project find it."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import SecretStr

from delegation.errors import ConfigurationError
from delegation.settings import CONFIG_VARIABLE, DEFAULT_FILE, Settings

#: What EmbeddedValkey writes; anything else in the file is not an address of ours.
_ADDRESS = re.compile(r"redis://:[0-9a-f]{32,}@127\.0\.0\.1:[0-9]{1,5}/0")


class ProjectDirectory:
    """``.delegation`` beside the configuration file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._address = path / "redis_url"

    @classmethod
    def current(cls) -> ProjectDirectory:
        """Of the configuration this process reads."""
        named = os.environ.get(CONFIG_VARIABLE)
        config = Path(named).expanduser() if named else DEFAULT_FILE
        return cls(config.absolute().parent / ".delegation")

    def create(self) -> None:
        """Only for us, and not for version control. Raises ConfigurationError."""
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            (self.path / ".gitignore").write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(f"{self.path}: {error.strerror}") from None

    @contextmanager
    def locked(self) -> Iterator[int]:
        """For one process at a time; the lock goes with it, and with those it hands the descriptor to.

        Two servers on one directory would ruin each other's file. Raises ConfigurationError naming who holds it.
        """
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                raise ConfigurationError(
                    f"`delegation up` runs here already (process {holder or 'unknown'}); stop that one first"
                ) from None
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            yield descriptor
        finally:
            os.close(descriptor)

    def write_redis_url(self, url: str) -> None:
        """For us alone: it holds a password."""
        fresh = self._address.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(f"{url}\n")
        fresh.replace(self._address)

    def forget_redis_url(self) -> None:
        self._address.unlink(missing_ok=True)

    def redis_url(self) -> str | None:
        """The address of the server that runs here, None when none does."""
        try:
            text = self._address.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return text if _ADDRESS.fullmatch(text) else None


def with_project_redis(settings: Settings) -> Settings:
    """The same settings; where they name no Redis, the one that `delegation up` started for this project."""
    if names_redis(settings):
        return settings
    url = ProjectDirectory.current().redis_url()
    if url is None:
        return settings
    redis = settings.redis.model_copy(update={"secret_url": SecretStr(url)})
    return settings.model_copy(update={"redis": redis})


def names_redis(settings: Settings) -> bool:
    """Whether the file or the environment says where Redis is."""
    return "secret_url" in settings.redis.model_fields_set
