"""Which static files there are, and how they are stored: compressed, and under names that change
with their content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.staticfiles.finders import AppDirectoriesFinder
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
