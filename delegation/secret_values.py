"""Secrets by reference: `env:NAME` or `file:PATH`, read anew whenever one is needed, so that a rotated one counts."""

from __future__ import annotations

import os
import re
from pathlib import Path

from delegation.errors import ConfigurationError
from delegation.redaction import conceal

LONGEST = 16_384
#: What a reference looks like; the part after the colon names where the secret is, and is none itself.
REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\x00-\x1f\x7f]+")
_PRINTABLE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")


def read_secret(reference: str) -> str:
    """The secret, without white space around it. Raises ConfigurationError, which names the reference and not the
    secret, when there is none or it cannot stand in a header (a line break would be a header of its own)."""
    source, _, name = reference.partition(":")
    text = (_from_environment(name) if source == "env" else _from_file(name)).strip()
    if not text:
        raise ConfigurationError(f"{reference} is empty or not set")
    if not _PRINTABLE.fullmatch(text):
        raise ConfigurationError(f"{reference} is not one line of printable ASCII")
    conceal(text)
    return text


def file_of(reference: str) -> Path:
    """The path in a `file:` reference. Raises RuntimeError where nobody has the home directory that ~ names."""
    return Path(reference.removeprefix("file:")).expanduser()


def _from_environment(name: str) -> str:
    return os.environ.get(name, "")


def _from_file(name: str) -> str:
    try:
        with Path(name).expanduser().open("rb") as file:
            content = file.read(LONGEST + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: nobody has the home directory that ~ names
        why = getattr(error, "strerror", None) or "no such home directory"
        raise ConfigurationError(f"file:{name} cannot be read: {why}") from None
    if len(content) > LONGEST:
        raise ConfigurationError(f"file:{name} is longer than {LONGEST} bytes")
    try:
        return content.decode("ascii")
    except UnicodeDecodeError:
        raise ConfigurationError(f"file:{name} is not one line of printable ASCII") from None
