"""`python -m tenants.tuning.child`: trains jobs on one base model, in a process of its own.

`tenants.tuning.training` starts it in a folder with the files (`protocol`). It has no settings,
secrets or database, and sets its own limits before it reads anything of a tenant.
"""

from __future__ import annotations

import os
import resource
import select
import sys
from pathlib import Path

import msgspec

from inference.process.priority import give_way
from tenants.tuning.child.protocol import (
    PROCESS,
    ChildLimits,
    Instruction,
    SharedTask,
    TuningProgress,
)

NICE = 10
"""Streams of the same machine go first."""
MOST_BYTES = 64 << 10


def main() -> None:
    """Train in this folder."""
    give_way(NICE)
    stdout = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print too
    task = msgspec.json.decode(Path(PROCESS).read_bytes(), type=SharedTask)
    _limit(task.limits)

    def say(message: TuningProgress) -> None:
        stdout.write(msgspec.json.encode(message) + b"\n")

    from tenants.tuning.child.together import Together  # takes seconds

    try:
        Together(task, say).run(Instructions().receive)
    except BrokenPipeError:  # the trainer was killed
        sys.exit(1)


class Instructions:
    """Those that come on standard input."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Instruction)
        self._rest = b""

    def receive(self, wait: bool) -> list[Instruction] | None:
        """See `together.Hear`."""
        if not select.select([0], [], [], None if wait else 0)[0]:
            return []
        part = os.read(0, MOST_BYTES)
        if not part:
            return None
        *lines, self._rest = (self._rest + part).split(b"\n")
        return [*map(self._decoder.decode, lines)]


def _limit(limits: ChildLimits) -> None:
    for kind, most in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))


if __name__ == "__main__":
    main()
