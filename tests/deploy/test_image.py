"""The container file: everything that it copies exists, and nothing else gets into the image."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPE = (ROOT / "deploy" / "Containerfile").read_text()


def copied() -> set[str]:
    """The paths that are copied from the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", RECIPE, re.M)
    return {source for line in lines for source in line.split()[:-1]}


def test_it_holds_what_the_wheel_holds_and_its_locks() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = wheel["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert copied() >= {*packages, "requirements", "manage.py"}
    assert [source for source in copied() if not (ROOT / source).exists()] == []


def test_what_is_copied_is_all_that_the_build_is_shown() -> None:
    shown = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in shown and "**/__pycache__" in shown
    assert {line.removeprefix("!") for line in shown if line.startswith("!")} == copied()


def test_it_runs_as_the_account_of_the_manifests() -> None:
    (account,) = re.findall(r"^USER (\d+):\1$", RECIPE, re.M)
    engine = (ROOT / "deploy" / "kubernetes" / "base" / "engine.yaml").read_text()
    assert f"runAsUser: {account}\n" in engine
    assert RECIPE.count("FROM ${FROM}") == 2
