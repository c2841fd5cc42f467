"""Take secrets out of what is about to be logged: by a field's name, by their form in a text, and the known ones.

Pure but for the short list of secrets this process has read. It cannot find a secret that nobody named: what must not
be logged is not given to a logger in the first place.
"""

from __future__ import annotations

import base64
import json
import os
import re
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

MASK = "***"
SHORTEST = 8  #: a shorter secret would take ordinary words out of every line
MOST = 64  #: secrets known beside those told for good; the one not used for longest goes, as a rotated one does
DEEPEST = 8

_NAME = r"(?:authorization|token|credential|api[_-]?key|passwd|password|secret|cookie)"
_SECRET_NAME = re.compile(_NAME, re.IGNORECASE)
#: Without one of these no rule can match: a line of ours seldom has any, and is looked at for a microsecond.
_TELLING = ("author", "token", "credential", "api", "passw", "secret", "cookie", "bearer", "basic", "://", "=")
_ANY_CASE = re.IGNORECASE | re.ASCII
_ESCAPED_QUOTE = r"\\{1,8}[\"']"
#: Quantifiers have bounds: a hostile text must not cost quadratic time.
_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    # A header's line: all of it, whatever its scheme.
    (
        re.compile(r"\b((?:proxy-)?authorization|(?:set-)?cookie)(\s{0,8}:\s{0,8})[^\s\"'][^\r\n]*", _ANY_CASE),
        rf"\1\2{MASK}",
    ),
    # name=value, name: value, "name": "value", and the same inside a JSON string or as a pair of bytes.
    (
        re.compile(
            rf"""({_NAME}[\w.-]{{0,64}}\\{{0,8}}["']?\s{{0,8}}(?:=>?|:|,(?=\s{{0,8}}b?\\{{0,8}}["']))\s{{0,8}})
            (?: b?(?P<quote>["'])(?:\\.|(?!(?P=quote))[^\\])*(?:(?P=quote)|\Z|\\\Z)
              | b?(?P<escaped>{_ESCAPED_QUOTE}).*?(?:(?P=escaped)|\Z)
              | [\[({{][^\])}}\r\n]*[^\s&"'<>]*
              | (?:(?:bearer|basic)\s{{1,8}})*[^\s&"'<>]+ )""",
            _ANY_CASE | re.DOTALL | re.VERBOSE,
        ),
        rf"\1\g<quote>\g<escaped>{MASK}\g<quote>\g<escaped>",
    ),
    # The credentials of RFC 6750 and RFC 7617.
    (re.compile(r"(\b(?:(?:bearer|basic)(?:\s|%20|\+){1,8})+)[^\s\"'<>,;]+", _ANY_CASE), rf"\1{MASK}"),
    (re.compile(r"([?&;](?:key|auth|code|sig|signature|pass|pwd)=)[^\s&\"'<>#]+", _ANY_CASE), rf"\1{MASK}"),
    (re.compile(r"(://)[^\s\"'<>/?#]+@"), rf"\1{MASK}@"),
)

_lock = threading.Lock()
_forms: dict[str, tuple[str, ...]] = {}
_for_good: set[str] = set()
_known: tuple[str, ...] = ()


def conceal(secret: str, *, for_good: bool = False) -> None:
    """From now on this process logs it as `***`, also in base64, percent-encoded, or escaped.

    ``for_good``: told once, at the start; the others are told again whenever they are used.
    """
    global _known
    if len(secret) < SHORTEST:
        return
    with _lock:
        known_before = _forms.pop(secret, None)
        _forms[secret] = known_before or _forms_of(secret)  # the latest used is the last
        if for_good:
            _for_good.add(secret)
        if known_before:
            return
        for rotated in [each for each in _forms if each not in _for_good][:-MOST]:
            del _forms[rotated]
        # The longest first: a form may be part of another, which would then be masked in part.
        _known = tuple(sorted({form for forms in _forms.values() for form in forms}, key=len, reverse=True))


def conceal_url(url: str) -> None:
    """The password of a URL that has one, for good."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    given = [parts.password or "", *(value for name, value in parse_qsl(parts.query) if is_secret_name(name))]
    for password in given:
        conceal(password, for_good=True)
        conceal(unquote(password), for_good=True)


def _forget_locks() -> None:
    """In a forked child: the parent may have held it at that moment."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_locks)


def is_secret_name(name: str) -> bool:
    """Whether a field, header or parameter of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def redact_text(text: str) -> str:
    """The text without secrets. Idempotent."""
    text = mask_known(text)
    lowered = text.lower()
    if any(word in lowered for word in _TELLING):
        for pattern, replacement in _RULES:
            text = pattern.sub(replacement, text)
    return text


def mask_known(text: str) -> str:
    """The text without the secrets that this process has read, in each of their forms."""
    for form in _known:
        text = text.replace(form, MASK)
    return text


def redact(value: Any, depth: int = 0) -> Any:
    """A value of a log record without secrets, as plain str, numbers, lists and dicts. Never raises."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if depth < DEEPEST and isinstance(value, Mapping):
        return {
            redact_text(text_of(name)): redact_field(text_of(name), each, depth + 1) for name, each in value.items()
        }
    if depth < DEEPEST and isinstance(value, list | tuple | set | frozenset):
        return [redact(each, depth + 1) for each in value]
    return redact_text(text_of(value))


def redact_field(name: str, value: Any, depth: int = 0) -> Any:
    """The same, all of it masked when its name says that it is a secret."""
    return MASK if value is not None and is_secret_name(name) else redact(value, depth)


def text_of(value: object) -> str:
    """For a log: a text as it is, bytes read as UTF-8, anything else its repr, or its type when that raises."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return value.decode("utf-8", "backslashreplace")
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  the objects of others; a log line must not fail
        return f"<{type(value).__name__} that cannot be shown>"


def _forms_of(secret: str) -> tuple[str, ...]:
    raw = secret.encode("utf-8", "surrogatepass")
    encoded = [_in_base64(raw, offset) for offset in range(3)]
    urlsafe = [form.replace("+", "-").replace("/", "_") for form in encoded]
    escaped = [json.dumps(secret)[1:-1], repr(secret)[1:-1], quote(raw, safe=""), quote(raw)]
    return tuple({secret, *encoded, *urlsafe, *escaped})


def _in_base64(raw: bytes, offset: int) -> str:
    """What is constant of it in base64, ``offset`` bytes after a multiple of three: as in `user:password`."""
    text = base64.b64encode(bytes(offset) + raw).decode()
    return text[(0, 2, 3)[offset] : (offset + len(raw)) * 8 // 6]
