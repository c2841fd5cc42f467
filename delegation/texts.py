"""Text of agents, made fit to be read: by a model, in a log, on a terminal, on a page. Pure.

There are two ways, and one table of characters for both:

- :func:`clean`, for whatever stands inside a line, a prompt or a page of ours: one line, no tags, nothing unseen, cut.
- :func:`printable`, for a whole text that is shown as itself, such as a result on a terminal: its lines, its tags and
  its spelling are the user's data; only what could steer a terminal, or hide, goes.

Records, ``--json`` and the Python handles hold texts as agents sent them; both ways are for showing them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

NAME_CHARS = 80
DESCRIPTION_CHARS = 500
SKILL_DESCRIPTION_CHARS = 200
TAG_CHARS = 40
MOST_TAGS = 10
SUMMARY_CHARS = 500

#: Control, format (zero width, bidirectional, tags), surrogate, private, unassigned; line and paragraph separators.
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
#: Marks and letters that are as invisible (Unicode's Default_Ignorable_Code_Point): grapheme joiner, Hangul fillers,
#: Khmer inherent vowels, Mongolian and other variation selectors.
_UNSEEN_EXTRAS = frozenset(
    map(chr, (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
#: A symbol that looks like a space: the braille pattern without dots.
_BLANK = "\u2800"
#: Marks, embeddings, overrides and isolates of the bidirectional algorithm (UAX #9): they turn the writing direction.
_TURNS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CUT = "…"
#: After NFKC, never before it: four more characters become `<` and `>` there. These two stay what they are.
#: Also the two characters that a reader who decomposes text would take apart into one of those and a stroke.
_NO_TAGS = str.maketrans("<>≮≯", "‹›‹›")
_QUERY = re.compile(r"(https?://[^\s?]*)\?\S*", re.IGNORECASE)

#: How much is looked at for each character of the limit, so that a long text costs no more than a short one: first
#: as sent, much of which may be unseen; then of what is seen, where NFKC makes one character of four at the most.
_RAW_FACTOR = 20
_SEEN_FACTOR = 4

_SKIN_TONES = frozenset(map(chr, range(0x1F3FB, 0x1F400)))
_JAMO_THAT_FOLLOW = frozenset(map(chr, (*range(0x1160, 0x1200), *range(0xD7B0, 0xD7FC))))
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


def clean(text: object, limit: int, *, secrets: Iterable[str] = (), with_queries: bool = True) -> str:
    """One line of at most `limit` (up to some thousand) characters; "" for what is no string.

    Unseen characters are left out, blanks become one space; NFKC, so that look-alikes of ASCII are ASCII; then `‹›`
    for `<>`. What is too long ends in `…`, between two graphemes. Each of `secrets` is replaced by `***`, however it
    was written; `with_queries=False` leaves out the queries of URLs. Cleaning twice changes nothing more.
    """
    return _clean(text, limit, tuple(secrets), with_queries)[0]


def clean_and_tell(text: object, limit: int) -> tuple[str, bool]:
    """As :func:`clean`, and whether it was cut."""
    return _clean(text, limit, (), True)


def printable(text: str) -> str:
    """A whole text for a terminal: newlines and tabs stay; what steers, or cannot be read, is shown as U+FFFD, and
    what has no look of its own is left out."""
    return text.replace("\r\n", "\n").translate(_WHOLE)


def is_unseen(char: str) -> bool:
    """Whether a character steers, hides, or has no look that everybody agrees on."""
    return unicodedata.category(char) in _UNSEEN_CATEGORIES or char in _UNSEEN_EXTRAS


class _Flat:
    """Of :func:`clean`: a blank for every kind of blank, nothing for what is unseen."""

    def __getitem__(self, code: int) -> int | str | None:
        char = chr(code)
        if char.isspace() or char == _BLANK:
            return " "
        return None if is_unseen(char) else code


class _Whole:
    """Of :func:`printable`."""

    def __getitem__(self, code: int) -> int | str | None:
        char = chr(code)
        if char in "\n\t":
            return code
        if char == _BLANK or (char.isspace() and is_unseen(char)):
            return " "
        if not is_unseen(char):
            return code
        is_harmless = unicodedata.category(char) == "Cf" or char in _UNSEEN_EXTRAS
        return None if is_harmless and char not in _TURNS else _REPLACEMENT


_FLAT, _WHOLE = _Flat(), _Whole()


def _clean(text: object, limit: int, secrets: tuple[str, ...], with_queries: bool) -> tuple[str, bool]:
    """The line, and whether it was cut."""
    if not isinstance(text, str):
        return "", False
    raw = _hide(text[: limit * _RAW_FACTOR], secrets)  # as it is: a mark after it would change its last letter
    flat = _flatten(raw)
    is_sliced = len(text) > limit * _RAW_FACTOR or len(flat) > limit * _SEEN_FACTOR
    line = _normalize(flat[: limit * _SEEN_FACTOR])
    if secrets:
        spelled = tuple(_normalize(_flatten(secret)) for secret in secrets)
        line = _hide(line, spelled)
        line = _without_beginnings(line, spelled) if is_sliced else line
    if not with_queries:
        line = _QUERY.sub(r"\1", line)
    is_cut = is_sliced or len(line) > limit
    return _cut(line, limit) if is_cut else line, is_cut


def _flatten(text: str) -> str:
    return " ".join(text.translate(_FLAT).split())


def _normalize(flat: str) -> str:
    """NFKC, but for `…`, which would become three dots: it is what a cut line ends with. NFKC makes new blanks."""
    pieces = (unicodedata.normalize("NFKC", piece) for piece in flat.split(_CUT))
    return " ".join(_CUT.join(pieces).translate(_NO_TAGS).split())


def _hide(text: str, secrets: tuple[str, ...]) -> str:
    """The longest first: one may be the beginning of another."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _without_beginnings(line: str, secrets: tuple[str, ...]) -> str:
    """Without the beginning of a secret whose rest was not looked at."""
    for secret in secrets:
        sizes = range(min(len(secret), len(line)), 0, -1)
        size = next((size for size in sizes if line.endswith(secret[:size])), 0)
        line = line[: len(line) - size]
    return line


def _cut(line: str, limit: int) -> str:
    """Without the last grapheme in any case, since not all of it may have been looked at."""
    end = max(0, min(limit, len(line)) - 1)
    while end > 0 and _continues(line, end):
        end -= 1
    return line[:end].rstrip(" ") + _CUT


def _continues(line: str, at: int) -> bool:
    """Whether the character belongs to the one before it (UAX #29, as far as joiners are gone)."""
    char = line[at]
    if char in _FLAG_LETTERS:
        before = line[:at]
        return (len(before) - len(before.rstrip(_FLAG_LETTERS))) % 2 == 1
    return unicodedata.category(char).startswith("M") or char in _SKIN_TONES or char in _JAMO_THAT_FOLLOW
