"""Lowers the CPU priority of processes whose work can wait."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def give_way(nice: int) -> None:
    """Lower the priority of this process and its session, as nice(1) does."""
    os.nice(nice)
    with suppress(OSError):  # Linux may schedule sessions (autogroups) instead of processes
        Path("/proc/self/autogroup").write_text(str(nice))
