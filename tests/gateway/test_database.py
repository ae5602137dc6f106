"""The embedded PostgreSQL ends with its last user, even if an earlier one was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from tests.environment import ROOT
from tests.stack.asking import until
from tests.stack.running import gone

USER = """
import sys; sys.path[:0] = [{root!r}, {root!r} + "/platform"]
from pathlib import Path
from gateway.database import start_embedded
print(start_embedded(Path(sys.argv[1])), flush=True)
sys.stdin.read()
"""


def user(folder: Path) -> subprocess.Popen[str]:
    """A process that uses the server until its standard input ends; ready."""
    code = USER.format(root=str(ROOT))
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("postgresql://")
    return process


def test_a_killed_user_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    folder = tmp_path / "postgres"
    first = user(folder)
    server = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert server.is_running()
    second, third = user(folder), user(folder)
    second.communicate()
    assert server.is_running(), "the third still uses it"
    third.communicate()
    until(lambda: gone(server), 10)
