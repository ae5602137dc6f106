"""`up` collects static files unless it has already collected exactly these."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.staticfiles.storage import staticfiles_storage
from pytest_django import Settings

from gateway import storage


@pytest.fixture
def source(settings: Settings, tmp_path: Path) -> Path:
    """A folder with one file to collect."""
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "a.css").write_text("a {}")
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    settings.STATICFILES_DIRS = [str(folder)]
    settings.STATIC_ROOT = str(tmp_path / "static")
    return folder


def collect(source: Path) -> int:
    """Collect static files; returns the modification time of the manifest."""
    _tick(source)
    storage.collect()
    _tick(source)
    return Path(staticfiles_storage.path("staticfiles.json")).stat().st_mtime_ns


def _tick(source: Path) -> None:
    """Wait until new files get a later modification time than existing ones."""
    probe = source.with_name("probe")
    probe.touch()
    began = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == began:
        probe.touch()


def test_collected_files_are_not_collected_again(source: Path) -> None:
    assert not storage.are_collected()
    first = collect(source)
    assert storage.are_collected()
    assert collect(source) == first


def _change(source: Path) -> None:
    (source / "a.css").write_text("b {}")


def _date_back(source: Path) -> None:
    _change(source)
    os.utime(source / "a.css", (0, 0))


def _add(source: Path) -> None:
    (source / "b.css").write_text("b {}")


def _rename(source: Path) -> None:
    (source / "a.css").rename(source / "b.css")


@pytest.mark.parametrize("change", [_change, _date_back, _add, _rename])
def test_a_change_is_collected(source: Path, change: Callable[[Path], None]) -> None:
    first = collect(source)
    change(source)
    assert not storage.are_collected()
    assert collect(source) > first
    assert storage.are_collected()
    collected: Any = staticfiles_storage
    for file in source.iterdir():
        assert Path(collected.path(collected.stored_name(file.name))).exists()
