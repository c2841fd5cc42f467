"""Nothing leaves this machine: Python imports this at the start of every child process of the tests.

A connection to any other address, or a name that would have to be asked of a server, is refused as by a network that
is down, and reported; the test that runs at that moment fails. What is not Python, and Python told to be isolated
(`-I`), is not seen.
"""

from __future__ import annotations

import os
import socket
import sys

#: Where the reports go. Without it nothing is watched.
REPORT = "TESTS_LEAVING_REPORT"
_HOME = frozenset({"", "::", "::1", "0.0.0.0", "localhost", "localhost.", socket.gethostname()})


class _Watch:
    """An audit hook (PEP 578): it sees every connection of this process, whatever opens it."""

    def __init__(self, report: str) -> None:
        self._report = report

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            address = arguments[1]
            if isinstance(address, tuple) and not _is_here(address[0]):
                self._refuse(f"{event} to {address[0]}")
        elif event == "socket.getaddrinfo" and _asks_a_server(arguments[0]):
            self._refuse(f"{event} of {arguments[0]!r}")

    def _refuse(self, what: str) -> None:
        with open(self._report, "a", encoding="utf-8") as report:  # noqa: PTH123  every child imports this: keep it light
            report.write(f"{what} by {os.getpid()}: {' '.join(sys.argv)[:200]}\n")
        raise PermissionError(f"no test may leave this machine: {what}")


def _text(host: object) -> str:
    """Empty for what is no host: the kernel has addresses of other kinds."""
    return host.decode("latin-1") if isinstance(host, bytes) else host if isinstance(host, str) else ""


def _is_here(host: object) -> bool:
    return _text(host) in _HOME or _text(host).startswith("127.")


def _asks_a_server(host: object) -> bool:
    return not _is_here(host) and not _is_address(_text(host))


def _is_address(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False


if REPORT in os.environ:
    sys.addaudithook(_Watch(os.environ[REPORT]))
