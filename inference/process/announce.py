"""Reports the state of this process to its supervisor: systemd by its socket, Kubernetes by a file.

`NOTIFY_SOCKET` and `WATCHDOG_USEC` are systemd's (`Type=notify`, sd_notify(3)).
`LORIKEET_READY_FILE` is for processes without a port: it exists from when the process is ready
until it is told to stop, and its modification time is never older than a few seconds. Probes check
both.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from inference.process.supervision import supervised

ALIVE_S = 2.0
"""Interval at which the file's modification time is updated."""
PATIENCE_S = 0.1
"""Timeout of a message to systemd, which serves many services; the loop is blocked meanwhile."""


def ready() -> None:
    """Report that this process is ready."""
    _tell_systemd("READY=1")
    if file := os.environ.get("LORIKEET_READY_FILE"):
        Path(file).touch()


def stopping() -> None:
    """Report that this process is shutting down."""
    _tell_systemd("STOPPING=1")
    if file := os.environ.get("LORIKEET_READY_FILE"):
        Path(file).unlink(missing_ok=True)


async def keep_alive() -> None:
    """Report that the event loop is alive, until cancelled; returns at once if nothing asks for
    it."""
    watchdog_s, file = (
        int(os.environ.get("WATCHDOG_USEC", 0)) / 1e6,
        os.environ.get("LORIKEET_READY_FILE"),
    )
    if watchdog_s or file:
        every_s = min(ALIVE_S, watchdog_s / 3) if watchdog_s else ALIVE_S
        # A failure must not delay the next report, which the watchdog waits for.
        await supervised("keep_alive", partial(_report_always, file, every_s), (every_s, every_s))


async def _report_always(file: str | None, every_s: float) -> NoReturn:
    while True:
        _tell_systemd("WATCHDOG=1")
        if file:
            with suppress(FileNotFoundError):  # not ready yet, or no longer
                os.utime(file)
        await asyncio.sleep(every_s)


def _tell_systemd(state: str) -> None:
    """As sd_notify(3); a socket name that begins with @ is abstract."""
    if name := os.environ.get("NOTIFY_SOCKET"):
        address = "\0" + name[1:] if name.startswith("@") else name
        with suppress(OSError):  # systemd is restarting or does not read, or no file can be opened
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.settimeout(PATIENCE_S)
                channel.connect(address)
                channel.send(state.encode())
