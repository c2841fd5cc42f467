"""Named places where a test may kill, raise or hang this process; nothing happens unless the environment says so.

``DELEGATION_FAILPOINT=name:action[:nth]`` with action ``kill`` (SIGKILL to itself), ``stop`` (SIGSTOP to itself, until
a test lets it go on), ``raise`` or ``hang`` (until killed); ``nth`` (default 1) is the pass at which it fires.
Durability is a claim until a worker dies at each of these.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

_name, _, _rest = os.environ.get("DELEGATION_FAILPOINT", "").partition(":")
_action, _, _nth = _rest.partition(":")
_passes: Counter[str] = Counter()
_lock = threading.Lock()


class FailpointReached(RuntimeError):
    """Raised by a failpoint whose action is ``raise``; never seen in production."""


def failpoint(name: str) -> None:
    """Do what DELEGATION_FAILPOINT asks for at this place; a no-op otherwise."""
    if name != _name:
        return
    with _lock:
        _passes[name] += 1
        if _passes[name] != int(_nth or 1):
            return
    if _action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif _action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
        threading.Event().wait(0.2)  # another thread may take the signal, and this one run on until all are stopped
    elif _action == "hang":
        threading.Event().wait()
    else:
        raise FailpointReached(name)
