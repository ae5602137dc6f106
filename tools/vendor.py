"""Downloads the browser's pinned libraries to `frontend/static/vendor`, and writes `VENDOR.json`.

    python tools/vendor.py          download PACKAGES with npm, and write all files again
    python tools/vendor.py --check  check whether the files match VENDOR.json

Needed only to change a version; requires npm. Its output is committed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "frontend" / "static" / "vendor"
LIST = FOLDER / "VENDOR.json"
DRAWN = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)
"""The drawing inside an icon's file."""
SOURCE_MAP = re.compile(rb"(?m)^\s*(//|/\*)[#@] sourceMappingURL=.*$\n?")
"""A reference to a source map, which is not vendored: Django's manifest storage would fail on
it."""


@dataclass(frozen=True)
class Package:
    """An npm package; `files` maps the paths of the files taken from it to their new names."""

    name: str
    version: str
    files: dict[str, str] = field(default_factory=dict)
    icons: tuple[str, ...] = ()
    """Names of its icons that become symbols in the one file SPRITE."""


SPRITE = "icons.svg"
LANGUAGES = ("bash", "javascript", "json", "python", "sql", "xml")
ICONS = (
    "archive", "arrow-down", "arrow-left", "arrow-up", "bell", "book-open", "bookmark", "box",
    "building-2", "chart-column", "check", "chevron-down", "chevrons-up-down", "code", "download",
    "file-text", "gauge", "house", "key-round", "layers", "list", "menu", "message-circle", "plus",
    "search", "server", "shield-alert", "sliders-horizontal", "tag", "triangle-alert", "user-cog",
    "users", "x",
)  # fmt: skip
PACKAGES = [
    Package("htmx.org", "2.0.11", {"dist/htmx.min.js": "htmx.js"}),
    Package(
        "uplot", "1.6.32", {"dist/uPlot.iife.min.js": "uplot.js", "dist/uPlot.min.css": "uplot.css"}
    ),
    Package("idiomorph", "0.8.0", {"dist/idiomorph.min.js": "idiomorph.js"}),
    Package("streaming-markdown", "0.2.15", {"smd.min.js": "streaming-markdown.js"}),
    Package(
        "@highlightjs/cdn-assets",
        "11.12.0",
        {"es/core.min.js": "highlight/core.js"}
        | {f"es/languages/{one}.min.js": f"highlight/{one}.js" for one in LANGUAGES},
    ),
    Package(
        "@fontsource-variable/inter",
        "5.3.0",
        {"files/inter-latin-wght-normal.woff2": "inter-latin.woff2"},
    ),
    Package("lucide-static", "1.62.0", icons=ICONS),
]


def main() -> None:
    if sys.argv[1:] == ["--check"]:
        sys.exit(check())
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    listed = [entry for package in PACKAGES for entry in fetch(package)]
    LIST.write_text(json.dumps(listed, indent=2) + "\n")
    print(f"{len(listed)} files in {FOLDER}")


def fetch(package: Package) -> list[dict[str, Any]]:
    """Write the package's files and its licence; returns their entries in VENDOR.json."""
    with tempfile.TemporaryDirectory() as temporary:
        spec = f"{package.name}@{package.version}"
        subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", temporary, spec],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        (archive,) = Path(temporary).glob("*.tgz")
        with tarfile.open(archive) as tar:
            tar.extractall(temporary, filter="data")
        root = Path(temporary) / "package"
        about = json.loads((root / "package.json").read_text())
        licence = next(file for file in sorted(root.iterdir()) if file.stem.upper() == "LICENSE")
        taken = package.files | {licence.name: f"licences/{package.name.strip('@')}.txt"}
        files = {target: _content(root / source) for source, target in taken.items()}
        if package.icons:
            files[SPRITE] = _sprite(root / "icons", package.icons)
        return [
            _write(target, content, package, about["license"]) for target, content in files.items()
        ]


def _content(source: Path) -> bytes:
    content = source.read_bytes()
    return SOURCE_MAP.sub(b"", content) if source.suffix in (".js", ".css") else content


def _sprite(folder: Path, names: tuple[str, ...]) -> bytes:
    """The icons as symbols of one file; the page's CSS sets their stroke and fill."""
    symbols = ""
    for name in names:
        drawn = DRAWN.search((folder / f"{name}.svg").read_text())
        assert drawn is not None, name
        inside = " ".join(drawn[1].split())
        symbols += f'<symbol id="{name}" viewBox="0 0 24 24">{inside}</symbol>\n'
    return f'<svg xmlns="http://www.w3.org/2000/svg">\n{symbols}</svg>\n'.encode()


def _write(target: str, content: bytes, package: Package, licence: str) -> dict[str, Any]:
    file = FOLDER / target
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return {
        "file": target,
        "package": package.name,
        "version": package.version,
        "licence": licence,
        "sha256": hashlib.sha256(content).hexdigest(),
    }


def check() -> str | None:
    """A message that names the files that differ from VENDOR.json; None if none do."""
    listed = {entry["file"]: entry["sha256"] for entry in json.loads(LIST.read_text())}
    found = {
        str(file.relative_to(FOLDER)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in FOLDER.rglob("*")
        if file.is_file() and file != LIST
    }
    wrong = sorted(name for name in listed | found if listed.get(name) != found.get(name))
    return f"not as VENDOR.json says: {', '.join(wrong)}" if wrong else None


if __name__ == "__main__":
    main()
