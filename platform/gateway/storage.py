"""Which static files there are, and how they are stored: compressed, and under names that change
with their content."""

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
"""Folders of packages: another reader of the API's document, and DRF's pages, for people."""


class ServedFiles(AppDirectoriesFinder):
    """Those of all apps that a page loads: to hash and compress the others would be half of what a
    start does."""

    def list(self, ignore_patterns: Iterable[str] | None) -> Iterator[Any]:
        yield from super().list([*(ignore_patterns or ()), *NEVER_SERVED])


class HashedStaticFiles(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Also the imports inside of ES modules name the hashed files, so that browsers keep those
    for ever too and never mix modules of two releases."""

    support_js_module_import_aggregation = True


def collect() -> None:
    """Collect all static files, unless those that there are were collected: to hash and compress
    them again would take each start seconds."""
    if not are_collected():
        call_command("collectstatic", interactive=False, verbosity=0)


def are_collected() -> bool:
    """Whether these files and no others were collected since they came here. That is the time of
    their inodes: an installer may date files back."""
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
