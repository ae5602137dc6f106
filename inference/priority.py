"""Whose work can wait, where cores are few."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def give_way(nice: int) -> None:
    """Let this process and its session give way to others, as by nice(1)."""
    os.nice(nice)
    with suppress(OSError):  # Linux may weigh sessions instead of processes
        Path("/proc/self/autogroup").write_text(str(nice))
