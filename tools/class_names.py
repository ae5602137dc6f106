"""Requires that no two classes of the product have the same name: `python tools/class_names.py`.

Exempt are private classes, nested ones, the shapes of OpenAI's API, which have OpenAI's names, and
Django's own conventions.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("inference", "tenants", "platform", "frontend")
SHAPES = ROOT / "tenants/api/openai/shapes"
CONVENTIONS = {"Command", "Migration"}


def main() -> int:
    """Print the names that occur more than once, each with its modules."""
    where: defaultdict[str, list[str]] = defaultdict(list)
    for folder in PRODUCT:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if SHAPES not in file.parents:
                for name in classes(file):
                    where[name].append(str(file.relative_to(ROOT)))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    for name, files in sorted(twice.items()):
        print(f"The class name {name} is used in {', '.join(files)}.")
    return 1 if twice else 0


def classes(file: Path) -> list[str]:
    """The names of a module's public classes."""
    return [
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and node.name not in CONVENTIONS
    ]


if __name__ == "__main__":
    sys.exit(main())
