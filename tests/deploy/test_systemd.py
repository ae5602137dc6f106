"""The units of `deploy/systemd`: systemd's own analysis of them, and their properties."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.process_secrets import SECRETS_OF

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("lorikeet*.[st]*"))
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
MOST_EXPOSED = 30
"""Bound on systemd's exposure score, which is 100 for a service without any restriction."""
systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder with the units, adapted to this machine's paths."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/lorikeet/.venv/bin/python", sys.executable)
        (tmp_path / unit.name).write_text(text.replace("/opt/lorikeet", str(ROOT)))
    return tmp_path


def analyzed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


@systemd
@pytest.mark.parametrize("unit", [unit.name for unit in UNITS if unit.suffix != ".sysusers"])
def test_systemd_has_nothing_to_say_against_a_unit(unit: str, installed: Path) -> None:
    done = analyzed("verify", "--man=no", str(installed / unit.replace("@.", "@1.")))
    ours = [line for line in done.stderr.splitlines() if "lorikeet" in line]
    assert (done.returncode, ours) == (0, [])


@systemd
@pytest.mark.parametrize("unit", [unit.name for unit in SERVICES])
def test_a_service_reaches_little_of_the_machine(unit: str, installed: Path) -> None:
    threshold = f"--threshold={MOST_EXPOSED}"
    done = analyzed("security", "--offline=yes", threshold, str(installed / unit))
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_what_drains_has_time_for_it(unit: Path) -> None:
    text = unit.read_text()
    if drain := re.search(r"--drain (\d+)", text):
        (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.M)
        assert int(stop) >= int(drain[1]) + 30


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_process_reads_its_own_secrets_alone(unit: Path) -> None:
    text = unit.read_text()
    (process, *_) = re.findall(r"manage\.py (\w+)", text)
    settings, secrets = re.findall(r"^EnvironmentFile=/etc/lorikeet/([\w-]+)", text, re.M)
    assert settings == "settings"
    assert secrets.rstrip("-") == (process if process in SECRETS_OF else "operator")


def test_systemd_waits_until_a_process_is_ready() -> None:
    kinds = {unit.name: re.findall(r"^Type=(\w+)$", unit.read_text(), re.M) for unit in SERVICES}
    assert kinds.pop("lorikeet-migrate.service") == ["oneshot"]
    assert set(map(tuple, kinds.values())) == {("notify",)}
