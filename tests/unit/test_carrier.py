"""Whatever `celery.app` names, an operator reads one line about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from delegation.errors import ConfigurationError
from workers.carrier import named_app


def refusal(name: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        named_app(name)
    detail = str(caught.value)
    assert detail.startswith("celery.app: ")
    assert detail.isprintable()
    return detail


@pytest.mark.parametrize("name", ["json:dumps", "json:decoder", "os:sep"])
def test_what_is_no_celery_app_is_refused(name: str) -> None:
    """An attribute may be anything; the refusal says what it is."""
    assert f"{name!r} is not a Celery app but a " in refusal(name)


@pytest.mark.parametrize("name", ["no_such_module:app", "json:no_such_attribute"])
def test_what_is_not_there_is_refused(name: str) -> None:
    """A misspelt name is the operator's to correct."""
    assert f"cannot import {name!r}" in refusal(name)


@pytest.mark.parametrize("body", ["1 / 0", "raise RuntimeError('two\\nlines')", "def broken(:"])
def test_a_module_that_fails_on_import_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Its own error is named, without its traceback."""
    (tmp_path / "shop_that_fails.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    assert "cannot import 'shop_that_fails:app': " in refusal("shop_that_fails:app")


def test_an_app_without_delegations_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take our messages and know none of them."""
    (tmp_path / "bare_shop.py").write_text("from celery import Celery\napp = Celery('bare', set_as_current=False)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "call workers.install(app)" in refusal("bare_shop:app")


def test_our_own_app_is_carried_by_default() -> None:
    """The default needs no configuration."""
    assert named_app("workers.app:app").main == "delegation"
