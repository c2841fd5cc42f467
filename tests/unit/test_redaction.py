"""What is about to be logged loses its secrets, whatever it looks like, and nothing raises (row D-04)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delegation import redaction
from delegation.redaction import MASK, MOST, conceal, conceal_url, redact, redact_field, redact_text
from delegation.secret_values import read_secret
from delegation.settings import load_settings

SECRET = "c4n4ry+of/the=agent"
NAMES = (
    "authorization",
    "Token",
    "credentials",
    "api_key",
    "X-API-Key",
    "apikey",
    "password",
    "client_secret",
    "Cookie",
)


@pytest.fixture(autouse=True)
def _forgetful() -> Iterator[None]:
    """What one test conceals is no secret to the next."""
    kept = dict(redaction._forms), set(redaction._for_good), redaction._known
    redaction._forms.clear()
    redaction._for_good.clear()
    redaction._known = ()
    yield
    redaction._forms.clear()
    redaction._for_good.clear()
    redaction._forms.update(kept[0])
    redaction._for_good.update(kept[1])
    redaction._known = kept[2]


class Unspeakable:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "text",
    [
        "{name}=c4n4ry",
        "{name}: c4n4ry",
        "https://agent.example/rpc?a=1&{name}=c4n4ry&b=2",
        '{{"{name}": "c4n4ry", "a": 1}}',
        '{{"{name}": "c4n\\"c4n4ry", "a": 1}}',
        "{{'{name}': 'Bearer c4n4ry'}}",
        '"{{\\"{name}\\": \\"c4n4ry\\"}}"',
        "(b'{name}', b'Bearer c4n4ry')",
        "{name}: ['c4n4ry', 'c4n4ry']",
        "{name}='c4n4ry and no end",
    ],
)
def test_the_value_of_a_telling_name_is_masked(name: str, text: str) -> None:
    """In prose, headers, queries, JSON, JSON in JSON, and Python's reprs."""
    assert "c4n4ry" not in redact_text(text.format(name=name))
    assert MASK in redact_text(text.format(name=name))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("sent Bearer c4n4ry to flights", "sent Bearer *** to flights"),
        ("basic dTpwCg==, refused", "basic ***, refused"),
        ("redis://:c4n4ry@redis:6379/0 is down", "redis://***@redis:6379/0 is down"),
        ("https://u:c4n4ry@agent.example/rpc?x=1", "https://***@agent.example/rpc?x=1"),
        ("https://agent.example/rpc?key=c4n4ry&x=1", "https://agent.example/rpc?key=***&x=1"),
        ('Authorization: Digest username="u", response="c4n4ry"', "Authorization: ***"),
        ("https://agent.example/rpc answered 401", "https://agent.example/rpc answered 401"),
        ("agent.credential_unavailable flights", "agent.credential_unavailable flights"),
    ],
)
def test_credentials_are_known_by_their_form(text: str, shown: str) -> None:
    """Schemes of RFC 6750 and RFC 7617, user and password of a URL; what is no secret stays."""
    assert redact_text(text) == shown


@pytest.mark.parametrize(
    "form",
    [
        SECRET,
        base64.b64encode(SECRET.encode()).decode(),
        base64.urlsafe_b64encode(SECRET.encode()).decode(),
        *(base64.b64encode(f"{user}:{SECRET}".encode()).decode() for user in ("u", "us", "use")),
        quote(SECRET, safe=""),
    ],
)
def test_a_known_secret_is_masked_in_each_of_its_forms(form: str) -> None:
    """Raw, base64 with and without a user name before it, percent-encoded."""
    conceal(SECRET)
    assert form not in (shown := redact_text(f"the agent said {form}, twice {form}"))
    assert MASK in shown


def test_what_stands_behind_references_is_known_once_it_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Configured headers, credentials and passwords of URLs."""
    secrets = [f"c4n4ry-number-{number}" for number in range(4)]
    monkeypatch.setenv("HEADER_SECRET", secrets[0])
    (tmp_path / "key").write_text(secrets[1])
    config = tmp_path / "delegation.toml"
    config.write_text(
        f'[redis]\nurl = "redis://user:{secrets[2]}@127.0.0.1/0"\n[[agents]]\nid = "a"\nurl = "http://127.0.0.1"\n'
        f'headers = {{ X-Team = "${{HEADER_SECRET}}", X-Api-Key = "{secrets[3]}", X-Plain = "plain-words" }}\n'
    )
    load_settings(config)
    assert read_secret(f"file:{tmp_path / 'key'}") == secrets[1]
    assert redact_text(" ".join([*secrets, "plain-words"])) == " ".join([MASK] * 4 + ["plain-words"])


def test_what_is_remembered_is_bounded_and_never_a_short_word() -> None:
    """A secret that is rotated each hour must not fill the memory, and `abc` must not black out every line."""
    conceal("abc")
    conceal("told-at-the-start", for_good=True)
    conceal("used-again-and-again")
    for number in range(MOST + 10):
        conceal(f"rotated-secret-{number:04}")
        conceal("used-again-and-again")
    assert len(redaction._forms) == MOST + 1
    assert redact_text("abc") == "abc"
    for known in (f"rotated-secret-{MOST + 9:04}", "told-at-the-start", "used-again-and-again"):
        assert redact_text(known) == MASK


def test_a_passwords_encoded_form_in_a_url_is_known_as_well() -> None:
    """Errors of libraries name it decoded."""
    conceal_url("redis://u:p%40ss%2Fword-1@h/0")
    assert redact_text("p@ss/word-1 p%40ss%2Fword-1") == f"{MASK} {MASK}"
    conceal_url("http://[broken")


def test_a_field_is_masked_by_its_name_however_deep() -> None:
    """Fields of a record, and what is nested in them."""
    assert redact_field("push_token", "c4n4ry") == MASK
    nested = redact({"a": [{"Authorization": "c4n4ry", b"api_key": 1, "n": 1}], "cookie": ["c4n4ry"], "token": None})
    assert nested == {"a": [{"Authorization": MASK, "api_key": MASK, "n": 1}], "cookie": MASK, "token": None}


def test_odd_values_are_shown_somehow() -> None:
    """What holds itself, cannot be shown, or is not text."""
    endless: list[object] = []
    endless.append(endless)
    shown = redact([Unspeakable(), b"token=c4n4ry\xff", endless, {1: Unspeakable()}, float("nan"), ValueError("x")])
    assert shown[0] == "<Unspeakable that cannot be shown>"
    assert shown[1] == f"token={MASK}"
    json.dumps(shown)


PIECES = [
    *NAMES,
    *("=", ":", ": ", '"', "'", "\\", "\\\\", " ", "\n", "Bearer ", "basic", "://", "@", "/", "?", "&", ",", "[", "]"),
    *("{", "}", "b'", "***", "key=", "x", "Set-Cookie:", "%20", "(", ")", "=>", ";"),
]
SOUP = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=25).map("".join)
VALUES = st.recursive(
    SOUP | st.integers() | st.floats() | st.none() | st.binary(max_size=20) | st.builds(Unspeakable),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SOUP | st.binary(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(SOUP)
@example("bearer bearer abc")
@example("token=(a)b")
def test_redacting_twice_changes_nothing(text: str) -> None:
    """A record may pass several handlers."""
    assert redact_text(redact_text(text)) == redact_text(text)


@given(before=SOUP, after=SOUP)
def test_a_known_secret_survives_nowhere(before: str, after: str) -> None:
    """Whatever stands around it."""
    conceal(SECRET)
    for form in (SECRET, base64.b64encode(SECRET.encode()).decode(), quote(SECRET, safe="")):
        assert form not in redact_text(before + form + after)


@given(before=SOUP, name=st.sampled_from(NAMES), secret=st.from_regex(r"[A-Za-z0-9._~+/-]{12}", fullmatch=True))
def test_what_a_telling_name_says_survives_nowhere(before: str, name: str, secret: str) -> None:
    """Also a secret that nobody told us of."""
    shown = redact_text(f"{before} {name}={secret}")
    assert secret not in shown.removeprefix(before)


@given(VALUES)
def test_every_value_can_be_logged(value: object) -> None:
    """Never an error, always JSON, always the same the second time."""
    shown = redact(value)
    assert json.dumps(redact(shown)) == json.dumps(shown)


@pytest.mark.parametrize("piece", ["token", "bearer ", "://", "cookie:", 'token="', "\\", "token: [", "a", "api_"])
@pytest.mark.timeout(60)
def test_a_hostile_text_costs_linear_time(piece: str) -> None:
    """A megabyte of what the rules look for: seconds; anything worse meets the timeout, which is what fails here."""
    redact_text(piece * (2**20 // len(piece)))
