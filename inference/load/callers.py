"""Who asks: a TOML file with a table for each tenant, the most popular one first.

    [acme]
    key = "lk_..."
    models = ["acme-support", "lorikeet-demo"]

Keys are only ever read from this file, so that no command line and no list of processes shows them.
"""

from __future__ import annotations

import stat
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inference.load.planned import BadLoadPlan

MAX_FILE_BYTES = 16 << 20
MAX_TENANTS = 100_000


@dataclass(frozen=True, slots=True)
class LoadCaller:
    """A tenant, its key and the models that it asks for, the most popular one first."""

    tenant: str
    models: tuple[str, ...]
    key: str = field(default="", repr=False)


def read_callers(path: Path) -> list[LoadCaller]:
    """The file's tenants in its order.

    Raises:
        BadLoadPlan: it can't be read, others than its owner may read its keys, or a table is wrong.
    """
    try:
        found = path.stat()
        if found.st_size > MAX_FILE_BYTES:
            raise BadLoadPlan(f"{path} has {found.st_size} bytes: at most {MAX_FILE_BYTES}")
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadLoadPlan(f"{path} can't be read: {error}") from None
    callers = [_caller(path, name, table) for name, table in tables.items()]
    if not 1 <= len(callers) <= MAX_TENANTS:
        raise BadLoadPlan(f"{path} has {len(callers)} tenants: it must have 1 to {MAX_TENANTS}")
    if any(one.key for one in callers) and found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadLoadPlan(f"{path} holds keys and others may use it: run chmod 600 {path}")
    return callers


def _caller(path: Path, tenant: str, table: Any) -> LoadCaller:
    if not isinstance(table, dict):
        raise BadLoadPlan(f"{path}: {tenant} must be a table, [{tenant}]")
    if unknown := sorted(table.keys() - {"key", "models"}):
        raise BadLoadPlan(f"{path}: [{tenant}] has an unknown field {unknown[0]}")
    key, models = table.get("key", ""), table.get("models")
    # In a header, and so what headers can hold.
    if not isinstance(key, str) or not key.isascii() or not (key.isprintable() or not key):
        raise BadLoadPlan(f"{path}: key of [{tenant}] must be a text of printable ASCII characters")
    if not isinstance(models, list) or not models or not all(isinstance(m, str) for m in models):
        raise BadLoadPlan(f"{path}: models of [{tenant}] must be a list of at least one name")
    return LoadCaller(tenant, tuple(models), key)
