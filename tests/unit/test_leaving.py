"""What is watched in every test: no connection to another machine, in this process and in those it starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

# TEST-NET-1 (RFC 5737): nobody is there, should the watch ever fail.
ELSEWHERE = "192.0.2.1"
_CONNECT = f"""
import socket
try:
    socket.create_connection(({ELSEWHERE!r}, 9), timeout=0.01)
except PermissionError as error:
    print(error)
"""


def taken_report() -> str:
    """What was reported, taken away: here it is what was wanted."""
    report = Path(os.environ["TESTS_LEAVING_REPORT"])
    text = report.read_text(encoding="utf-8")
    report.unlink()
    return text


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_connection_to_another_machine_is_refused_and_reported(kind: socket.SocketKind) -> None:
    """Before a packet is sent."""
    with socket.socket(socket.AF_INET, kind) as sock, pytest.raises(PermissionError, match="leave this machine"):
        sock.connect((ELSEWHERE, 9))
    assert f"socket.connect to {ELSEWHERE}" in taken_report()


def test_a_name_is_asked_of_no_server() -> None:
    """A query of the resolver would leave the machine as well."""
    with pytest.raises(PermissionError, match="leave this machine"):
        socket.getaddrinfo("agent.example", 80)
    assert "agent.example" in taken_report()


def test_a_child_process_is_watched_too() -> None:
    """Whatever starts it, as long as it hands its environment on."""
    done = subprocess.run([sys.executable, "-c", _CONNECT], capture_output=True, text=True, timeout=60, check=True)
    assert "leave this machine" in done.stdout
    assert ELSEWHERE in taken_report()


def test_what_stays_on_this_machine_is_let_through() -> None:
    """The whole of 127.0.0.0/8, by name as well."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        for host in ("127.0.0.1", "localhost"):
            socket.create_connection((host, server.getsockname()[1]), timeout=5).close()
    assert not Path(os.environ["TESTS_LEAVING_REPORT"]).exists()
