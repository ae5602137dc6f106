"""Unmodified PEFT and `hf`, in processes that are given only the hub's URL and a key."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.content import FILES
from tenants.models import AdapterVersion, State
from tests.adapters.conftest import FakeGateway
from tests.adapters.working import run_worker
from tests.hub.conftest import Hub
from tests.hub.test_hub import FILES as CONTENT

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("worker", "base_model", "object_storage"),
]
ROOT = Path(__file__).resolve().parents[2]


def environment(hub: Hub, home: Path) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    told = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.token}
    return mine | told | {"HF_HOME": str(home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}


def test_peft_pushes_and_gets_back(hub: Hub, gateway: FakeGateway, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.hub.peft_user", str(tmp_path)],
        env=environment(hub, tmp_path / "home"), cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as user:  # fmt: skip
        assert user.stdin and user.stdout
        pushed = user.stdout.readline().strip()
        version = AdapterVersion.objects.get()
        assert (version.adapter.name, version.state) == ("pirate", State.VALIDATING)
        assert pushed == f"{hub.endpoint}/acme/pirate/commit/{version.digest[:40]}"
        run_worker()
        version.refresh_from_db()
        assert version.state == State.READY, version.report
        user.stdin.write("go on\n")
        user.stdin.flush()
        folder = Path(user.stdout.readline().strip())
        assert user.wait() == 0
    assert {file.name for file in folder.iterdir()} == set(FILES)


def test_hf_uploads_and_downloads(hub: Hub, gateway: FakeGateway, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in CONTENT.items():
        (source / name).write_bytes(data)
    (source / "README.md").write_text("---\nlibrary_name: peft\n---\n")
    hf = [str(Path(sys.executable).with_name("hf"))]

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [*hf, *arguments], env=environment(hub, tmp_path / "home"),
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "acme/pirate/commit/" in run("upload", "acme/pirate", str(source))
    run_worker()
    run("download", "acme/pirate", "--local-dir", str(tmp_path / "got"))
    for name, data in CONTENT.items():
        assert (tmp_path / "got" / name).read_bytes() == data
    assert "acme" in run("auth", "whoami")
