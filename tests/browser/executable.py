"""The browser of this machine."""

from __future__ import annotations

import shutil


def chromium() -> str | None:
    """The path of Chromium. The headless shell is the same browser without windows, and takes less
    CPU."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium")
