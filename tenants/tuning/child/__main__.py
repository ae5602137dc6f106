"""`python -m tenants.tuning.child`: one training, in a process of its own.

`tenants.tuning.training` starts it in a folder with the files and `task.json`. Messages about the
progress are lines of JSON on standard output. Standard input has nothing: when it is closed, also
because the trainer was killed, the process saves its state and ends. It has no settings, secrets or
database, and sets its own limits before it reads anything of a tenant.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from inference.process.priority import give_way

TASK = "task.json"
NICE = 10
"""Streams of the same machine go first."""


class ChildLimits(msgspec.Struct):
    """What the process may use; `memory_bytes` is of what it allocates, not of a GPU's memory."""

    memory_bytes: int
    file_bytes: int
    open_files: int = 256

    def set(self) -> None:
        """Limit this process."""
        for kind, most in (
            (resource.RLIMIT_DATA, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.open_files),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (most, most))


def main() -> None:
    """Do the task of this folder."""
    give_way(NICE)
    told = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print too
    asked = msgspec.json.decode(Path(TASK).read_bytes())
    msgspec.convert(asked["limits"], ChildLimits).set()

    def say(message: Mapping[str, Any]) -> None:
        told.write(msgspec.json.encode(message) + b"\n")

    try:
        _train(asked["task"], say)
    except BrokenPipeError:  # the trainer was killed
        sys.exit(1)


def _train(asked: Mapping[str, Any], say: Any) -> None:
    from tenants.tuning.child import learning  # takes seconds

    task = msgspec.convert(asked, learning.TuningTask)
    try:
        learning.train(task, say, _wanted)
    except learning.Stopped:
        pass
    except learning.CannotTrain as fault:
        say({"kind": "failed", "code": fault.code, "message": fault.message, "param": fault.param})
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        message = "Training needs more memory than there is: use a smaller batch or shorter rows."
        say({"kind": "failed", "code": "out_of_memory", "message": message, "param": None})


def _wanted() -> bool:
    """Whether standard input is open."""
    return not select.select([0], [], [], 0)[0]


if __name__ == "__main__":
    main()
