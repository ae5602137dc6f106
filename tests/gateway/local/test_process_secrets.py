"""Each process has only the secrets that it needs, however it is started and wherever they are
kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.process_secrets import ALL, SECRETS_OF, environment_of
from gateway.start import SECRETS
from tests.stack.running import ROOT, settings_free

GIVEN = {name: f"the {name} of more than thirty-two characters" for name in ALL} | {
    "LORIKEET_DATABASE_URL": "postgresql:///none",
    "LORIKEET_REDIS_URL": "redis://:password@127.0.0.1:1/0",
}
STARTED = """
import json, sys
from django.core import management
from gateway import start

def tell(arguments):
    import os
    from django.conf import settings
    names = [name for name in dir(settings) if settings.is_overridden(name)]
    print(json.dumps([dict(os.environ), names]))

management.execute_from_command_line = tell  # in place of a server
start.main(sys.argv)
"""


def started(process: str, var: Path) -> tuple[dict[str, str], list[str]]:
    """The environment of a process that got half of all secrets from its environment and half from
    `secrets.env`, and the names of its settings."""
    half = sorted(ALL)[::2]
    rest = "".join(f"{name}='{GIVEN[name]}'\n" for name in GIVEN.keys() - set(half))
    (var / "secrets.env").write_text(rest)
    environment = settings_free() | {name: GIVEN[name] for name in half}
    environment |= {"LORIKEET_VAR": str(var), "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"}
    environment["LORIKEET_DATABASE_URL"] = GIVEN["LORIKEET_DATABASE_URL"]
    command = [sys.executable, "-c", STARTED, process]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, settings = json.loads(done.stdout)
    return found, settings


def test_a_process_keeps_its_own_secrets_and_all_that_is_none() -> None:
    variables = dict.fromkeys(ALL, "x") | {"PATH": "/bin", "LORIKEET_LOG_LEVEL": "info"}
    for process, own in SECRETS_OF.items():
        assert environment_of(process, variables).keys() == own | {"PATH", "LORIKEET_LOG_LEVEL"}
    assert environment_of("migrate", variables) == variables


def test_every_secret_that_up_makes_belongs_to_a_process() -> None:
    assert set(SECRETS) <= ALL


@pytest.mark.parametrize("process", ["console", "worker"])
def test_a_process_that_is_started_by_hand_forgets_the_others_secrets(
    process: str, tmp_path: Path
) -> None:
    environment, settings = started(process, tmp_path)
    assert {name for name in ALL if name in environment} == SECRETS_OF[process]
    known = {f"LORIKEET_{name}" for name in settings}
    assert set(SECRETS) & known == set(SECRETS) & SECRETS_OF[process]


def test_an_operators_command_has_them_all(tmp_path: Path) -> None:
    environment, settings = started("migrate", tmp_path)
    assert environment.keys() >= ALL
    assert {f"LORIKEET_{name}" for name in settings} >= set(SECRETS)


def test_the_documents_say_the_same() -> None:
    text = (ROOT / "docs" / "operate.md").read_text()
    rows = re.findall(r"^\| ((?:`[A-Z0-9_]+`(?:, )?)+) \| .+ \| ([a-z, ]+) \|$", text, re.M)
    told = {
        name: set(holders.split(", "))
        for names, holders in rows
        for name in re.findall("[A-Z0-9_]+", names)
    }
    assert told == {
        name: {process for process, own in SECRETS_OF.items() if name in own} or {"other commands"}
        for name in ALL
    }
