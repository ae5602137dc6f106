"""Tells what started this process how it is: systemd by its socket, Kubernetes by a file.

`NOTIFY_SOCKET` and `WATCHDOG_USEC` are systemd's (`Type=notify`, sd_notify(3)). `READY_FILE` is
for processes without a port: it is there from the time that the process is ready until it is told
to stop, and its time of change is never older than a few seconds. A probe looks at that.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from pathlib import Path

ALIVE_S = 2.0
"""How often the file's time is renewed."""
PATIENCE_S = 0.1
"""How long systemd is waited for, which reads many services' words; the loop stands meanwhile."""


def ready() -> None:
    """This process does its work from now on."""
    _tell_systemd("READY=1")
    if file := os.environ.get("READY_FILE"):
        Path(file).touch()


def stopping() -> None:
    """It was told to stop, and finishes what it has."""
    _tell_systemd("STOPPING=1")
    if file := os.environ.get("READY_FILE"):
        Path(file).unlink(missing_ok=True)


async def keep_alive() -> None:
    """Say that the event loop turns, until cancelled; returns at once where nobody listens."""
    watchdog_s, file = int(os.environ.get("WATCHDOG_USEC", 0)) / 1e6, os.environ.get("READY_FILE")
    while watchdog_s or file:
        if watchdog_s:
            _tell_systemd("WATCHDOG=1")
        if file:
            with suppress(FileNotFoundError):  # not ready yet, or no longer
                os.utime(file)
        await asyncio.sleep(min(ALIVE_S, watchdog_s / 3) if watchdog_s else ALIVE_S)


def _tell_systemd(state: str) -> None:
    """As sd_notify(3); a name that begins with @ is abstract."""
    if name := os.environ.get("NOTIFY_SOCKET"):
        address = "\0" + name[1:] if name.startswith("@") else name
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            with suppress(OSError):  # systemd is started again, or does not read
                channel.settimeout(PATIENCE_S)
                channel.connect(address)
                channel.send(state.encode())
