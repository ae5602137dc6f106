"""What `manage.py` does before Django reads the settings: secrets, private folder, database."""

from __future__ import annotations

import faulthandler
import os
import secrets
import stat
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import frontend
from gateway.process_secrets import environment_of
from inference.process import gc_tuning
from inference.process.environ import BadSetting

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, if it is one."""
IS_CHECKOUT = (ROOT / "manage.py").is_file()
MANAGE = [sys.executable, *([str(ROOT / "manage.py")] if IS_CHECKOUT else ["-P", "-m", "gateway"])]
"""Runs one of Lorikeet's commands, whose name follows."""
SECRETS = (
    "LORIKEET_SECRET_KEY",
    "LORIKEET_KEY_PEPPER",
    "LORIKEET_DISPATCH_KEY",
    "LORIKEET_WORKER_TOKEN",
    "LORIKEET_INTERNAL_TOKEN",
    "LORIKEET_RECEIPT_KEY",
    "LORIKEET_CONTENT_KEY",
    "LORIKEET_METRICS_TOKEN",
)
PRODUCTION = {"gateway", "console", "worker", "trainer"}
"""Commands that run in production: they are given their secrets and never generate them."""
WITHOUT_DJANGO = {
    "calibrate": "gateway.local.calibrate",
    "check_profile": "gateway.local.profile_check",
    "engine": "inference.agent.__main__",
    "engines": "gateway.scaling.ray_serve",
    "load": "gateway.local.load",
    "scaledown": "gateway.scaling.kubernetes",
}
"""Commands that need neither Django nor settings, and the modules with their `main`."""
process = ""
"""The command that runs in this process; empty if it was not started by `manage.py`."""


def var_folder() -> Path:
    """The folder that this installation writes to: `var` in a checkout, otherwise the user's folder
    for data (XDG)."""
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return Path(
        os.environ.get("LORIKEET_VAR") or (ROOT / "var" if IS_CHECKOUT else data / "lorikeet")
    )


def documents_folder() -> Path:
    """The documentation: `docs` in a checkout, `frontend/docs` in a wheel."""
    here = ROOT / "docs"
    return here if here.is_dir() else Path(frontend.__file__).with_name("docs")


def settings_file() -> Path:
    """Settings that the environment lacks: `.env` of the checkout, otherwise in `var_folder`."""
    return (ROOT if IS_CHECKOUT else var_folder()) / ".env"


def command() -> None:
    """`lorikeet`, as the wheel installs it."""
    main(sys.argv)


def main(arguments: list[str]) -> None:
    """Run one command; a bad setting ends the process with one line that says what to do."""
    global process
    gc_tuning.start()
    process = arguments[1] if len(arguments) > 1 else "help"
    faulthandler.enable()  # a crash outside Python writes where it happened to the log
    os.umask(0o077)  # files are readable only by their owner
    _forget_others_secrets()
    try:
        if process in WITHOUT_DJANGO:
            run: Callable[[list[str]], None] = import_module(WITHOUT_DJANGO[process]).main
            return run(arguments[2:])
        _prepare()
        if process == "gateway":  # needs only Django's settings
            from gateway.planes.process import main as run_gateway

            return run_gateway(arguments[2:])
        from django.core.management import execute_from_command_line

        execute_from_command_line(arguments)
    except BadSetting as error:
        sys.exit(f"lorikeet: {error}")
    return None


def _forget_others_secrets() -> None:
    """Remove other processes' secrets from the environment of this process and its children."""
    for name in os.environ.keys() - environment_of(process, os.environ):
        del os.environ[name]


def _prepare() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    load_settings(settings_file())
    var = var_folder()
    _make_private(var)
    if process not in PRODUCTION:
        _ensure_secrets(var / "secrets.env")
    if not os.environ.get("LORIKEET_DATABASE_URL", "").strip():
        from gateway.database import start_embedded

        os.environ["LORIKEET_DATABASE_URL"] = start_embedded(var / "postgres")


def _make_private(folder: Path) -> None:
    """Restrict access to the folder to its owner; creates it if necessary.

    Raises:
        BadSetting: it is a shared folder, such as /tmp.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_mode & stat.S_ISVTX:
        raise BadSetting(
            f"LORIKEET_VAR={str(folder)!r} is a shared folder: it must be one that only "
            "Lorikeet uses"
        )
    if found.st_uid == os.geteuid():
        folder.chmod(0o700)


def load_settings(file: Path) -> None:
    """Set the file's variables that the environment lacks, except other processes' secrets."""
    import dotenv

    found = {name: value or "" for name, value in dotenv.dotenv_values(file).items()}
    for name, value in environment_of(process, found).items():
        os.environ.setdefault(name, value)


def _ensure_secrets(file: Path) -> None:
    """Generate the secrets that this installation lacks; the file is readable only by its owner."""
    import dotenv

    missing = [name for name in SECRETS if name not in dotenv.dotenv_values(file)]
    if not missing:
        return
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "a") as out:
        out.write("".join(f"{name}={secrets.token_urlsafe(48)}\n" for name in missing))
