"""Runs `manage.py up` as a user does, in a folder of its own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from demo import MODEL_NAME
from gateway.start import SECRETS

ROOT = Path(__file__).resolve().parents[2]
START_S = 600.0
STOP_S = 300.0
"""The time that each of five processes may take to stop, and a margin."""
PORTS = range(10_000, 30_000)
"""Below the kernel's ephemeral ports, which another process may get before they are bound."""


@dataclass
class Stack:
    """A running Lorikeet: what `up.json` says, and its processes."""

    facts: dict[str, Any]
    var: Path
    process: subprocess.Popen[bytes]
    port: int
    """The first gateway's; those of the others and of the console follow."""
    gateways: int
    hooks: dict[str, list[Callable[[httpx.Response], None]]] = field(default_factory=dict)
    """Event hooks of its clients."""

    @property
    def url(self) -> str:
        """The first gateway's own URL, without `/v1`."""
        return self.urls[0]

    def key(self, tenant: str) -> str:
        """The demo key of a tenant, by its slug."""
        return str(next(t["api_key"] for t in self.facts["tenants"] if t["slug"] == tenant))

    @property
    def console_url(self) -> str:
        """The console's URL for its users, without a trailing slash."""
        return str(self.facts["console_url"]).removesuffix("/")

    @property
    def own_console_url(self) -> str:
        """The same without an ingress."""
        return f"http://127.0.0.1:{self.port + self.gateways}"

    def client(self, key: str) -> httpx.Client:
        """A client of the inference API."""
        return self._client(self.url, key)

    def manager(self, key: str) -> httpx.Client:
        """A client of the management API."""
        return self._client(self.console_url, key)

    def _client(self, url: str, key: str) -> httpx.Client:
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=url, headers=headers, timeout=120, event_hooks=self.hooks)

    def children(self, name: str) -> list[psutil.Process]:
        """The running processes of one role (`gateway`, `console`, `engine`, `worker`, `redis`)."""
        return [
            child
            for child in psutil.Process(self.process.pid).children()
            if _is(name, command_of(child))
        ]

    def gateway(self, url: str) -> psutil.Process:
        """The running gateway at one of `urls`."""
        (found,) = (one for one in self.children("gateway") if url in command_of(one))
        return found

    @property
    def urls(self) -> list[str]:
        """The own URLs of all gateways, without `/v1`, whether they run now or not."""
        return [f"http://127.0.0.1:{self.port + i}" for i in range(self.gateways)]

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `manage.py` on this stack's database."""
        environment = settings_free() | {
            "LORIKEET_VAR": str(self.var),
            "LORIKEET_CONSOLE_URL": self.console_url,
            "LORIKEET_DATABASE_URL": self.database_url,
        }
        command = [sys.executable, str(ROOT / "manage.py"), *arguments]
        return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)

    @property
    def database_url(self) -> str:
        """The URL of the embedded PostgreSQL, from a worker's environment."""
        return self.children("worker")[0].environ()["LORIKEET_DATABASE_URL"]

    def log(self, name: str) -> str:
        return (self.var / "log" / f"{name}.log").read_text()

    def reported(self) -> str:
        """Whether `up` still runs, and the end of what it printed: each process that ended, with
        the end of its log."""
        status = self.process.poll()
        return f"exit status of up: {status}\n{(self.var / 'up.log').read_text()[-8000:]}"


def _is(name: str, command: list[str]) -> bool:
    return name in command[1:4] or f"{name}-server" in "".join(command[:1])


def command_of(process: psutil.Process) -> list[str]:
    """The process's command line; empty if it was killed, even if its parent has not noticed."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def gone(process: psutil.Process) -> bool:
    """Whether the process has ended, even if its parent has not reaped it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def free_ports(count: int) -> int:
    """The first of `count` consecutive free ports."""
    while True:
        first = random.choice(PORTS)
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first


def settings_free() -> dict[str, str]:
    """This process's environment without the settings of the test run."""
    names = ("DATABASE_URL", "VAR", "MODEL", "API_URL", "CONSOLE_URL", "CONSOLE_INTERNAL_URL")
    ours = (*SECRETS, *(f"LORIKEET_{name}" for name in names))
    return {name: value for name, value in os.environ.items() if name not in ours}


@contextmanager
def up(var: Path, **settings: str) -> Iterator[Stack]:
    """Run `manage.py up`. Yields once it is ready, and stops it with Ctrl-C at the end."""
    gateways = int(settings.get("LORIKEET_GATEWAYS", "1"))
    port = free_ports(gateways + 1)  # one more for the console
    own = {"LORIKEET_VAR": str(var), "LORIKEET_PORT": str(port), "LORIKEET_EMBEDDING_ENGINES": "0"}
    own |= {"LORIKEET_DEMO": MODEL_NAME}
    environment = settings_free() | own | settings
    var.mkdir(exist_ok=True)
    earlier = _written(var / "up.json")
    with (var / "up.log").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "manage.py"), "up"],
            env=environment, cwd=ROOT, stdout=out, stderr=out,
        )  # fmt: skip
    try:
        yield Stack(_ready(process, var, earlier), var, process, port, gateways)
    finally:
        _stop(process)


def _written(file: Path) -> int:
    """The file's modification time in nanoseconds; 0 if it does not exist."""
    return file.stat().st_mtime_ns if file.exists() else 0


def _ready(process: subprocess.Popen[bytes], var: Path, earlier: int) -> dict[str, Any]:
    """Wait for an `up.json` other than that of an `earlier` start, and return its contents."""
    end = time.monotonic() + START_S
    facts = var / "up.json"
    while _written(facts) == earlier:
        assert process.poll() is None, (var / "up.log").read_text()
        assert time.monotonic() < end, (var / "up.log").read_text()
        time.sleep(0.2)
    loaded: dict[str, Any] = json.loads(facts.read_text())
    return loaded


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_S)
        finally:
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            process.kill()


@contextmanager
def signed_in(stack: Stack) -> Iterator[httpx.Client]:
    """A client of the operator, signed in to the console."""
    login = stack.facts["operator"]
    url = stack.console_url
    with httpx.Client(
        base_url=url, timeout=120, follow_redirects=True, event_hooks=stack.hooks
    ) as client:
        client.get("/account/login/")
        form = {"login": login["username"], "password": login["password"]}
        form |= {"csrfmiddlewaretoken": client.cookies["csrftoken"]}
        page = client.post("/account/login/", data=form, headers={"Referer": url})
        assert "/account/logout/" in page.text
        client.headers.update({"X-CSRFToken": client.cookies["csrftoken"], "Referer": url})
        yield client
