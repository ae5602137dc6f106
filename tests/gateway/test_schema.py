"""No process runs on a database with another release's schema, and SQL files can be run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

import tenants
from tests import databases
from tests.gateway.test_planes import ROOT


@pytest.mark.parametrize("process", ["gateway", "console", "worker"])
def test_a_process_does_not_start_before_the_migrations(process: str) -> None:
    with databases.empty() as url:
        done = subprocess.run(
            [sys.executable, str(ROOT / "manage.py"), process],
            env=os.environ | {"LORIKEET_DATABASE_URL": url},
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode != 0
    assert "Run `manage.py migrate` first" in done.stderr


REPEATABLE = [
    file
    for file in sorted(Path(str(tenants.__file__)).parent.glob("sql/*.sql"))
    if file.stem != "tables"
]
OBJECTS = """
SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'tenants!_%' ESCAPE '!'
UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT pg_get_viewdef(oid) FROM pg_class WHERE relkind = 'v' AND relname LIKE 'tenants%'
"""


def live() -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(OBJECTS)
        return sorted(cursor.fetchall())


@pytest.mark.django_db
@pytest.mark.parametrize("file", REPEATABLE, ids=lambda file: file.stem)
def test_a_file_of_sql_can_be_run_again(file: Path) -> None:
    before = live()
    with connection.cursor() as cursor:
        cursor.execute(file.read_text())
    assert live() == before
