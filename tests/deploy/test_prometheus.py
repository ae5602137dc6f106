"""Rules and alerts as checked by promtool, and dashboards compared with their generator's output.
`tests/stack/test_dashboards.py` runs them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.dashboards import DASHBOARDS, FOLDER, made

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus"
prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="Prometheus is not here (Debian's `prometheus`)"
)


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = ["promtool", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=RULES)


@prometheus
def test_rules_and_alerts_are_sound(tmp_path: Path) -> None:
    done = promtool("check", "rules", RULES / "rules.yml", RULES / "alerts.yml")
    assert done.returncode == 0, done.stderr
    shutil.copytree(RULES, tmp_path, dirs_exist_ok=True)
    (tmp_path / "metrics_token").write_text("secret")
    done = promtool("check", "config", tmp_path / "prometheus.yml")
    assert done.returncode == 0, done.stderr


@prometheus
@pytest.mark.parametrize("file", sorted((RULES / "tests").iterdir()), ids=lambda file: file.stem)
def test_alerts_come_when_they_should_and_not_else(file: Path) -> None:
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_tried() -> None:
    """Each fires at least once in the rules' tests."""
    alerts = set(re.findall(r"- alert: (\w+)", (RULES / "alerts.yml").read_text()))
    tests = "".join(file.read_text() for file in (RULES / "tests").iterdir())
    assert set(re.findall(r"alertname: (\w+)\n +exp_alerts:", tests)) == alerts


def test_what_rules_and_dashboards_read_is_documented() -> None:
    told = set(
        re.findall(r"^\| `(lorikeet_\w+)`", (ROOT / "docs" / "observe.md").read_text(), re.M)
    )
    texts = [(RULES / name).read_text() for name in ("rules.yml", "alerts.yml")]
    texts = [re.sub(r"runbook: .*", "", text) for text in texts]
    read = set(re.findall(r"\blorikeet_\w+", " ".join([*texts, *map(made, DASHBOARDS)])))
    read -= {f"{name}_{part}" for name in told for part in ("bucket", "sum", "count")}
    assert read and read - told == set()


def test_every_runbook_is_in_its_document() -> None:
    alerts = (RULES / "alerts.yml").read_text()
    for document, row in re.findall(r"runbook: (\S+), (.+)", alerts):
        assert re.search(rf"\b{row}\b", (ROOT / document).read_text(), re.IGNORECASE), row


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboards_are_those_that_their_source_makes(name: str) -> None:
    file = FOLDER / f"{name}.json"
    assert file.read_text() == made(name), "run `make dashboards`"
    board = json.loads(file.read_text())
    assert board["uid"] == f"lorikeet-{name}"
    assert len({panel["title"] for panel in board["panels"]}) == len(board["panels"])
