"""How static files are stored: compressed, and under names that change with their content."""

from __future__ import annotations

from servestatic.storage import CompressedManifestStaticFilesStorage


class HashedStaticFiles(CompressedManifestStaticFilesStorage):  # type: ignore[misc]
    """Also the imports inside of ES modules name the hashed files, so that browsers keep those
    for ever too and never mix modules of two releases."""

    support_js_module_import_aggregation = True
