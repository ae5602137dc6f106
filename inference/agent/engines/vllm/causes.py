"""Says why vLLM did not start: the first exception of any of its processes.

vLLM logs the exception where it occurs, in its core or in a worker, and raises another in this
process that only says that one of them failed. `logging.json` gives this handler to vLLM's logger
in each of them.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path

from inference.agent import runtime_folder

CONFIG = Path(__file__).with_name("logging.json")
FILE = "failure"
MAX_CHARACTERS = 1000
ONLY_A_NOTICE = "root cause"
"""In the messages of exceptions that only say that another process failed."""


class FirstFailure(logging.Handler):
    """Writes the first exception that is logged to FILE in the engine's runtime folder."""

    def emit(self, record: logging.LogRecord) -> None:
        """As `logging` says."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and (file := _file()):
            with suppress(OSError), file.open("x") as target:
                target.write(_description(error))
        if not logging.root.handlers:  # in a process that was spawned: nobody else would write it
            sys.stderr.write(f"{self.format(record)}\n")


def cause_of(error: Exception) -> str:
    """What to tell about an exception of vLLM's start, in one line."""
    if ONLY_A_NOTICE in str(error) and (file := _file()):
        with suppress(OSError):
            return file.read_text()
    return _description(error)


def _description(error: BaseException) -> str:
    """The exception, and the one that it goes back to."""
    root = error
    while root.__cause__ is not None:
        root = root.__cause__
    texts = [f"{type(each).__name__}: {each}" for each in dict.fromkeys((error, root))]
    return " ".join(" because of ".join(texts).split())[:MAX_CHARACTERS]


def _file() -> Path | None:
    folder = os.environ.get(runtime_folder.VARIABLE)
    return Path(folder) / FILE if folder else None
