"""Where a secret comes from, when it is read, and that no error shows it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from delegation.errors import ConfigurationError
from delegation.secret_values import LONGEST, REFERENCE, file_of, read_secret


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return tmp_path / "secret"


def refusal(reference: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_secret(reference)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None, "a traceback would show it"
    return str(caught.value)


def test_a_variable_is_read_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rotated secret counts from the next use on."""
    for value in ("first", "second"):
        monkeypatch.setenv("A_SECRET", value)
        assert read_secret("env:A_SECRET") == value


def test_a_file_is_read_at_use(secret_file: Path) -> None:
    """So does one in a file, as mounted secrets are replaced while we run."""
    for value in ("first", "second"):
        secret_file.write_text(value)
        assert read_secret(f"file:{secret_file}") == value


@pytest.mark.parametrize("written", ["s3cret\n", " s3cret ", "\ts3cret\r\n\n"])
def test_white_space_around_a_secret_is_none_of_it(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """Editors end a file with a line break."""
    secret_file.write_text(written)
    monkeypatch.setenv("A_SECRET", written)
    assert read_secret(f"file:{secret_file}") == read_secret("env:A_SECRET") == "s3cret"


def test_a_secret_may_have_spaces_inside(secret_file: Path) -> None:
    """A password is free text, as far as a header can carry it."""
    secret_file.write_text("a b: c=~\n")
    assert read_secret(f"file:{secret_file}") == "a b: c=~"


def test_a_path_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a shell."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "token").write_text("s3cret")
    assert read_secret("file:~/token") == "s3cret"
    assert file_of("file:~/token") == tmp_path / "token"


@pytest.mark.parametrize("value", [None, "", "  ", "\n"])
def test_a_variable_without_a_value_is_named(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """An operator learns what to set."""
    monkeypatch.delenv("A_SECRET", raising=False)
    if value is not None:
        monkeypatch.setenv("A_SECRET", value)
    assert refusal("env:A_SECRET") == "env:A_SECRET is empty or not set"


def test_an_empty_file_holds_no_secret(secret_file: Path) -> None:
    """An unauthenticated call is not what was asked for."""
    secret_file.write_text("\n")
    assert refusal(f"file:{secret_file}").endswith(f"file:{secret_file} is empty or not set")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With what the system says."""
    assert refusal(f"file:{tmp_path}/none").endswith(f"file:{tmp_path}/none cannot be read: No such file or directory")
    assert refusal(f"file:{tmp_path}").endswith(f"file:{tmp_path} cannot be read: Is a directory")


@pytest.mark.parametrize("written", ["s3cret\r\nX-Other: 1", "s3cret\nmore", "s3cr\0et", "s3cret\x7f", "s3crét"])
def test_what_cannot_stand_in_a_header_is_refused_and_not_shown(
    secret_file: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    """A line break in a secret would be a header of its own."""
    secret_file.write_text(written, encoding="utf-8", newline="")
    references = [f"file:{secret_file}"]
    if "\0" not in written:
        monkeypatch.setenv("A_SECRET", written)
        references.append("env:A_SECRET")
    for reference in references:
        detail = refusal(reference)
        assert detail.endswith(f"{reference} is not one line of printable ASCII")
        assert "s3cr" not in detail.replace(str(secret_file), "")


def test_bytes_that_are_no_text_are_refused(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a file, and from a variable in whatever encoding."""
    secret_file.write_bytes(b"s3cret\xff")
    monkeypatch.setitem(os.environ, "A_SECRET", os.fsdecode(b"s3cret\xff"))
    for reference in (f"file:{secret_file}", "env:A_SECRET"):
        assert refusal(reference).endswith("is not one line of printable ASCII")


def test_a_long_file_is_not_read_to_its_end(secret_file: Path) -> None:
    """A wrong path may lead to anything."""
    secret_file.write_bytes(b"a" * LONGEST)
    assert len(read_secret(f"file:{secret_file}")) == LONGEST
    secret_file.write_bytes(b"a" * (LONGEST + 1))
    assert refusal(f"file:{secret_file}").endswith(f"is longer than {LONGEST} bytes")
    assert refusal("file:/dev/zero").endswith(f"is longer than {LONGEST} bytes")


@pytest.mark.parametrize("reference", ["env:A", "env:_a1", "file:a", "file:/a b/ü", "file:~/x"])
def test_references(reference: str) -> None:
    """A variable's name, or any path."""
    assert REFERENCE.fullmatch(reference)


@pytest.mark.parametrize(
    "text", ["", "A", "env:", "env:1A", "env:A B", "env:A\n", "file:", "file:a\n", "File:a", "file:\0"]
)
def test_what_is_no_reference(text: str) -> None:
    """Whatever else somebody writes may be the secret itself."""
    assert not REFERENCE.fullmatch(text)
