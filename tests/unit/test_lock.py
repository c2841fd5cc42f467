"""What is installed is named to the byte: every file by its hash, and nothing that pyproject.toml does not allow."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = ("requirements.lock", "requirements-image.lock")


def entries(lock: str) -> list[str]:
    """Each requirement with its hashes on one line, comments left out."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    joined = re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip()]


def versions(lock: str) -> dict[str, set[str]]:
    """By name; more than one where Pythons differ."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.split(" --hash=")[0])
        (pin,) = requirement.specifier
        assert pin.operator == "=="
        found.setdefault(canonicalize_name(requirement.name), set()).add(pin.version)
    return found


def asked_for(*extras: str) -> list[Requirement]:
    """What pyproject.toml asks for, our own extras followed."""
    project = PROJECT["project"]
    found = [Requirement(text) for text in [*project["dependencies"], *PROJECT["build-system"]["requires"]]]
    for extra in extras:
        for text in project["optional-dependencies"][extra]:
            requirement = Requirement(text)
            own = requirement.name == project["name"]
            found += asked_for(*requirement.extras) if own else [requirement]
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_file_has_a_hash(lock: str) -> None:
    """pip takes no other file then, whatever a registry or a mirror hands out."""
    for entry in entries(lock):
        assert re.fullmatch(r"[a-z0-9._-]+==[^\s;]+( ; [^-]+)?\s+(--hash=sha256:[0-9a-f]{64}\s*)+", entry), entry


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_registry(lock: str) -> None:
    """Where the files come from is each installation's own affair."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)", text, flags=re.MULTILINE)


@pytest.mark.parametrize(("lock", "extras"), [(LOCKS[0], ["demo", "dev", "build"]), (LOCKS[1], ["demo", "build"])])
def test_a_lock_is_within_what_the_project_asks_for(lock: str, extras: list[str]) -> None:
    """A range that was changed without `make lock` shows."""
    locked = versions(lock)
    for requirement in asked_for(*extras):
        found = locked.get(canonicalize_name(requirement.name), set())
        assert found, f"{requirement.name} is not in {lock}: run `make lock`"
        assert all(requirement.specifier.contains(each) for each in found), f"{requirement}: run `make lock`"


def test_what_runs_is_what_was_tested() -> None:
    """The image has the same versions, and none of the development tools."""
    all_of_them, image = (versions(lock) for lock in LOCKS)
    assert image.items() <= all_of_them.items()
    assert not {"pytest", "ruff", "mypy", "pip-audit", "trustme"} & set(image)


def test_the_image_installs_by_hash_alone() -> None:
    """From its lock, then the project itself, which then fetches nothing."""
    commands = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "--require-hashes -r requirements-image.lock" in commands
    assert "--no-deps --no-build-isolation ." in commands


def test_what_builds_the_project_is_locked_too() -> None:
    """Its range is written twice: for pip, and for the lock."""
    assert PROJECT["project"]["optional-dependencies"]["build"] == PROJECT["build-system"]["requires"]
