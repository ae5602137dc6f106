"""Prepared folders for stacks that many tests share, which save the work of each first start: the
database is migrated, and the static files are collected. `test_up` starts from nothing."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.databases import CARELESS
from tests.environment import POSTGRES
from tests.stack.running import ROOT, settings_free

MADE = POSTGRES.with_name("furnished")
"""The folder that a run prepares once, in whichever of its processes needs it first."""
PARTS = ("postgres", "static")
SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.stack.settings"}
MAKE = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
call_command("collectstatic", verbosity=0, interactive=False)
"""


def furnished(var: Path) -> Path:
    """Create this folder and copy the prepared parts into it."""
    with MADE.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not MADE.exists():
            _make(MADE.with_suffix(".draft")).rename(MADE)
    var.mkdir(mode=0o700)
    subprocess.run(["cp", "--archive", *(MADE / part for part in PARTS), var], check=True)
    return var


def _make(var: Path) -> Path:
    """Prepare the parts; the database server stops with the command that needed it."""
    command = [sys.executable, str(ROOT / "manage.py"), "shell", "--no-imports", "-c", MAKE]
    environment = settings_free() | SETTINGS | {"LORIKEET_VAR": str(var)}
    subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    with (var / "postgres" / "postgresql.auto.conf").open("a") as settings:
        settings.writelines(f"{name} = off\n" for name in CARELESS)
    return var
