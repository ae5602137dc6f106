"""`python -m tenants.tuning.child`: one training, in a process of its own.

`tenants.tuning.training` starts it in a folder with the files (`protocol`). It has no settings,
secrets or database, and sets its own limits before it reads anything of a tenant.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from inference.process.priority import give_way
from tenants.tuning.child.protocol import TASK, ChildLimits, TuningProgress, TuningTask, WholeTask

NICE = 10
"""Streams of the same machine go first."""


def main() -> None:
    """Do the task of this folder."""
    give_way(NICE)
    told = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print too
    whole = msgspec.json.decode(Path(TASK).read_bytes(), type=WholeTask)
    _limit(whole.limits)

    def say(message: TuningProgress) -> None:
        told.write(msgspec.json.encode(message) + b"\n")

    try:
        _train(whole.task, say)
    except BrokenPipeError:  # the trainer was killed
        sys.exit(1)


def _limit(limits: ChildLimits) -> None:
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


def _train(task: TuningTask, say: Callable[[TuningProgress], None]) -> None:
    from tenants.tuning.child import learning  # takes seconds

    try:
        learning.train(task, say, _wanted)
    except learning.Stopped:
        pass
    except learning.CannotTrain as fault:
        code, message, param = fault.code, fault.message, fault.param
        say(TuningProgress(kind="failed", code=code, message=message, param=param))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        message = "Training needs more memory than there is: use a smaller batch or shorter rows."
        say(TuningProgress(kind="failed", code="out_of_memory", message=message))


def _wanted() -> bool:
    """Whether standard input is open."""
    return not select.select([0], [], [], 0)[0]


if __name__ == "__main__":
    main()
