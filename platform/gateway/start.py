"""What `manage.py` does before Django reads the settings: secrets and a database."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from inference.environ import BadSetting

ROOT = Path(__file__).resolve().parents[2]
SECRETS = (
    "SECRET_KEY", "KEY_PEPPER", "DISPATCH_KEY", "WORKER_TOKEN", "INTERNAL_TOKEN", "RECEIPT_KEY",
)  # fmt: skip
PRODUCTION = {"gateway", "console", "worker"}
"""Commands that production runs: they are given their secrets, never make them."""


def var_folder() -> Path:
    """Where this installation writes."""
    return Path(os.environ.get("LORIKEET_VAR") or ROOT / "var")


def main(arguments: list[str]) -> None:
    """Run one command; a bad setting ends the process with one line that says what to do."""
    command = arguments[1] if len(arguments) > 1 else "help"
    if command == "engine":  # needs no Django and no settings
        from inference.agent.__main__ import main as run_agent

        return run_agent(arguments[2:])
    try:
        _prepare(command)
        if command == "gateway":  # needs Django's settings alone
            from gateway.planes.process import main as run_gateway

            return run_gateway(arguments[2:])
        from django.core.management import execute_from_command_line

        execute_from_command_line(arguments)
    except BadSetting as error:
        sys.exit(f"lorikeet: {error}")
    return None


def _prepare(command: str) -> None:
    import dotenv

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    dotenv.load_dotenv(ROOT / ".env")
    var = var_folder()
    if command not in PRODUCTION:
        _ensure_secrets(var / "secrets.env")
    if not os.environ.get("DATABASE_URL", "").strip():
        from gateway.database import start_embedded

        os.environ["DATABASE_URL"] = start_embedded(var / "postgres")


def _ensure_secrets(file: Path) -> None:
    """Make the secrets that this installation lacks; readable by its owner alone."""
    import dotenv

    missing = [name for name in SECRETS if name not in dotenv.dotenv_values(file)]
    if not missing:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(handle, "a") as out:
        out.write("".join(f"{name}={secrets.token_urlsafe(48)}\n" for name in missing))
