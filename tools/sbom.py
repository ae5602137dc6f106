#!/usr/bin/env python3
"""Write Lorikeet's software bill of materials as CycloneDX 1.6: `make sbom`.

One file for each kind of installation, `dist/lorikeet-cpu.cdx.json` and `-gpu`: the packages that
its lock pins, with their hashes, and the browser's libraries. Licences are those that installed
packages state, so packages that are not installed on this machine have none.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tools.install import requirements  # noqa: E402

VENDORED = ROOT / "frontend" / "static" / "vendor" / "VENDOR.json"
KINDS = ("cpu", "gpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "dist")
    target: Path = parser.parse_args().folder
    target.mkdir(exist_ok=True)
    for kind in KINDS:
        file = target / f"lorikeet-{kind}.cdx.json"
        file.write_text(JsonV1Dot6(bill(kind)).output_as_string(indent=2))
        print(f"lorikeet: {file}")


def bill(kind: str) -> Bom:
    """The bill of materials of one kind of installation."""
    found = Bom(components=[*locked(ROOT / "requirements" / f"{kind}.txt"), *vendored()])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    whole = Component(
        name=project["name"],
        version=project["version"],
        type=ComponentType.APPLICATION,
        purl=PackageURL("pypi", name=project["name"], version=project["version"]),
        licenses=[LicenseFactory().make_from_string(project["license"])],
    )
    found.metadata.component = whole
    found.register_dependency(whole, found.components)
    return found


def locked(lock: Path) -> Iterator[Component]:
    """The packages that the lock pins."""
    for requirement in requirements(lock.read_text()):
        name, version = requirement.split()[0].split("==")
        purl = PackageURL("pypi", name=name, version=version)
        hashes = re.findall(r"--hash=sha256:([0-9a-f]{64})", requirement)
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in hashes],
            licenses=licence_of(name),
        )


def licence_of(name: str) -> list[License]:
    """The licence that the installed package states; empty if it is not installed or states
    none."""
    try:
        stated = metadata(name)
    except PackageNotFoundError:
        return []
    expression = stated.get("License-Expression") or stated.get("License") or ""
    classified = [
        one.rsplit(" :: ", 1)[1]
        for one in stated.get_all("Classifier") or ()
        if one.startswith("License :: ")
    ]
    text = expression if expression and "\n" not in expression else " AND ".join(classified)
    return [LicenseFactory().make_from_string(text)] if text else []


def vendored() -> Iterator[Component]:
    """The browser's libraries, one per npm package."""
    files = json.loads(VENDORED.read_text())
    for name, version, licence in sorted(
        {(f["package"], f["version"], f["licence"]) for f in files}
    ):
        group, _, own = name.rpartition("/")
        purl = PackageURL("npm", namespace=group or None, name=own, version=version)
        yield Component(
            group=group or None,
            name=own,
            version=version,
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
            licenses=[LicenseFactory().make_from_string(licence)],
        )


if __name__ == "__main__":
    main()
