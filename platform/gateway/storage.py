"""Which static files are served, and how they are stored: compressed, under names that change with
their content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from django.contrib.staticfiles.apps import StaticFilesConfig
from django.contrib.staticfiles.finders import AppDirectoriesFinder, get_finders
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command
from servestatic.storage import CompressedManifestStaticFilesStorage

NEVER_SERVED = ("redoc", "rest_framework")
"""Folders of packages that no page uses: another viewer of the API's document, and DRF's browsable
pages."""


class ServedFiles(AppDirectoriesFinder):
    """The static files of all apps that a page loads. Hashing and compressing the others would be
    half of the work of a start."""

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[Any]:
        yield from super().list([*(ignore_patterns or ()), *NEVER_SERVED])


class HashedStaticFiles(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Imports inside ES modules refer to the hashed files as well, so that browsers can cache those
    for ever and never mix modules of two releases."""

    support_js_module_import_aggregation = True


def collect() -> None:
    """Collect all static files, unless the present ones were already collected: hashing and
    compressing them again would add seconds to each start."""
    if not are_collected():
        call_command("collectstatic", interactive=False, verbosity=0)


def are_collected() -> bool:
    """Whether exactly these files were collected after they were installed. Compares the change
    times of their inodes, because an installer may set older modification times."""
    collected: Any = staticfiles_storage
    manifest = Path(collected.path(collected.manifest_name))
    if not manifest.exists():
        return False
    ignored = StaticFilesConfig.ignore_patterns
    found = {
        str(Path(getattr(storage, "prefix", None) or "") / path): storage.path(path)
        for finder in get_finders()
        for path, storage in finder.list(ignored)
    }
    latest = max(Path(file).stat().st_ctime_ns for file in (*found.values(), __file__))
    return found.keys() == collected.hashed_files.keys() and latest < manifest.stat().st_mtime_ns
