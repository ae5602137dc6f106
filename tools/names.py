"""Checks names of the product: `python tools/names.py`.

No two classes have the same name. Exempt are private classes, nested ones, the shapes of OpenAI's
API, which have OpenAI's names, and Django's own conventions. No name has one of VERBS, which tell
how a value was come by instead of what it is.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("inference", "tenants", "platform", "frontend")
OTHERS = ("clients", "tools")
SHAPES = ROOT / "tenants/api/openai/shapes"
CONVENTIONS = {"Command", "Migration"}
VERBS = {"told", "said", "heard", "took"}
WORD = re.compile("[A-Z]?[a-z]+|[A-Z]+")


def main() -> int:
    """Print the classes with the same name, and the names with a verb, each with its modules."""
    modules: defaultdict[str, list[str]] = defaultdict(list)
    faults = []
    for file in files(*PRODUCT):
        for name in classes(file):
            modules[name].append(str(file.relative_to(ROOT)))
    for name, where in sorted(modules.items()):
        if len(where) > 1:
            faults.append(f"The class name {name} is used in {', '.join(where)}.")
    for file in files(*PRODUCT, *OTHERS):
        for name in sorted(verbs(file)):
            faults.append(f"{file.relative_to(ROOT)}: {name} does not say what the value is.")
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def files(*folders: str) -> Iterator[Path]:
    """The modules in these folders, but for SHAPES."""
    for folder in folders:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if SHAPES not in file.parents:
                yield file


def classes(file: Path) -> list[str]:
    """The names of a module's public classes."""
    return [
        node.name
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and node.name not in CONVENTIONS
    ]


def verbs(file: Path) -> set[str]:
    """The names defined in a module that contain one of VERBS."""
    found = {_defined(node) for node in ast.walk(ast.parse(file.read_text()))}
    return {name for name in found if VERBS & {word.lower() for word in WORD.findall(name)}}


def _defined(node: ast.AST) -> str:
    """The name that the node defines; empty if it defines none."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return node.name
        case ast.Name(ctx=ast.Store()):
            return node.id
        case ast.Attribute(ctx=ast.Store()):
            return node.attr
        case ast.arg():
            return node.arg
        case _:
            return ""


if __name__ == "__main__":
    sys.exit(main())
