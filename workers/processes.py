"""The processes of a deployment on one machine: the command of each, and where each listens."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from ipaddress import ip_address
from urllib.parse import urlsplit

from delegation.errors import ConfigurationError
from delegation.settings import Settings
from workers.children import Child

FLOWER_PORT = 5555
WEB_PORT = 8080
CONCURRENCY = 32  #: threads, most of which wait for an agent's answer (docs/design.md §10)

#: Of each line's beginning: times and process ids that the line's prefix or its place in a log says already.
_STAMP = re.compile(
    r"^(\d{4}-\d\d-\d\dT[\d:.]+Z \[(?P<level>\w+)\s*\]\s*"  # ours
    r"|\[\d{4}-[^]]+\] \[\d+\] \[\w+\] "  # gunicorn's
    r"|\[\d{4}-[\d:, -]+: (?P<celery_level>\w+)/[^]]+\] "  # Celery's, of a worker whose app is not ours
    r"|\[\w \d{6} [\d:]+ [\w.]+:\d+\] "  # Flower's
    r"|\d+:\w \d\d \w{3} \d{4} [\d:.]+ [*#.-] )"  # Valkey's
)


#: An app may fail to be imported for what only its worker is given; that is left to the worker to tell.
_REFUSED = 78
_CHECK_APP = f"""
import sys
from delegation.errors import ConfigurationError
from workers.carrier import named_app
from workers.printable import one_line
try:
    named_app(sys.argv[1])
except (AttributeError, ConfigurationError, SyntaxError) as error:
    text = str(error)
    if not isinstance(error, ConfigurationError):
        text = f"celery.app: cannot import {{sys.argv[1]!r}}: {{error}}"
    print("", one_line(text), sep="\\n", file=sys.stderr)
    sys.exit({_REFUSED})
"""

#: Flower asks workers over remote control, which we switch off: anyone who reaches Redis could stop them with it.
_NOISE = re.compile(r"Inspect method \w+ failed")


def worker_command(settings: Settings, *options: str) -> list[str]:
    """Without -Q: in a project's own app the worker consumes that app's queues and ours."""
    command = [sys.executable, "-m", "celery", "--quiet", "-A", settings.celery.app, "worker"]
    command += ["-P", "threads", "-c", str(CONCURRENCY), "--without-gossip", "--without-mingle", "-E", "-l", "INFO"]
    return [*command, *options]


def check_app(settings: Settings) -> None:
    """Raises ConfigurationError when the worker could not import its app: tried in a process that ends with it."""
    command = [sys.executable, "-c", _CHECK_APP, settings.celery.app]
    tried = subprocess.run(command, env=child_environment({}), capture_output=True, text=True, check=False)
    if tried.returncode == _REFUSED:
        raise ConfigurationError(tried.stderr.splitlines()[-1])


def web_command(address: str) -> list[str]:
    """No control socket: its path is one per user, which two deployments would fight over."""
    return [sys.executable, "-m", "gunicorn", "-c", "python:web.server", "--bind", address, "--no-control-socket"]


def follower_command() -> list[str]:
    return [sys.executable, "-m", "workers.cli", "follower"]


def flower_command(settings: Settings, port: int) -> list[str]:
    """Loopback only: it shows what runs and has no password."""
    command = [sys.executable, "-m", "celery", "--quiet", "-A", settings.celery.app, "flower"]
    return [*command, "--address=127.0.0.1", f"--port={port}"]


def has_flower() -> bool:
    """An optional extra."""
    return find_spec("flower") is not None


def child_environment(extra: Mapping[str, str], *, inherit_settings: bool = True) -> dict[str, str]:
    """Our own, plus what is given; without any DELEGATION_ setting of the user's unless asked for."""
    kept = {n: v for n, v in os.environ.items() if inherit_settings or not n.startswith("DELEGATION_")}
    # Celery warns every superuser of pickle, which we never accept; in a container everybody is one.
    quiet = ",".join(filter(None, [kept.get("PYTHONWARNINGS"), "ignore:You're running the worker with superuser"]))
    return {**kept, "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": quiet, **extra}


def is_noise(line: str) -> bool:
    """A line of a child's log that would only worry its reader."""
    return _NOISE.search(line) is not None


def without_stamp(line: str) -> str:
    """A line of a child's log without its time: the reader's side has one; a level above info stays."""
    match = _STAMP.match(line)
    if match is None:
        return line
    level = (match["level"] or match["celery_level"] or "info").lower()
    return ("" if level in ("info", "debug") else f"{level}: ") + line[match.end() :]


def web_address(settings: Settings) -> str:
    """Where web listens: the port of server.base_url, on loopback unless that names another host without TLS.

    An https address is a proxy's, which comes to us over loopback. Raises ConfigurationError when it is taken.
    """
    parts = urlsplit(settings.server.base_url or "")
    is_direct = parts.scheme == "http" and not _is_loopback(parts.hostname or "")
    host, port = "0.0.0.0" if is_direct else "127.0.0.1", parts.port or WEB_PORT
    if not is_free(host, port):
        taken = f"port {port}, where web listens, is taken; stop what listens there, or"
        if settings.server.base_url is None:
            raise ConfigurationError(f'{taken} set server.base_url = "http://127.0.0.1:{port + 1}"')
        raise ConfigurationError(f"server.base_url: {taken} name another port")
    return f"{host}:{port}"


def flower_port() -> int:
    """The usual one, or any that is free."""
    return FLOWER_PORT if is_free("127.0.0.1", FLOWER_PORT) else free_port()


def is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """A port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until_web_is_ready(child: Child) -> None:
    """Raises ProcessFailed."""
    child.wait_for_line("Booting worker")


def wait_until_worker_is_ready(child: Child) -> None:
    """Raises ProcessFailed."""
    child.wait_for_line(r"\S+@\S+ ready\.")


def wait_until_follower_is_ready(child: Child) -> None:
    """Raises ProcessFailed."""
    child.wait_for_line("follower ready")


def wait_until_flower_is_ready(child: Child) -> None:
    """Raises ProcessFailed."""
    child.wait_for_line("Connected to")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host in ("", "localhost")
