"""`python -m tests.labs.chaos.agent RECORD [options of the agent]`: an engine agent with a
recorder.

RECORD is a folder, in which each run of the process writes its own file.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from inference.agent.__main__ import main, start_engine
from inference.agent.engines.engine import Engine
from inference.agent.engines.profile import EngineProfile
from tests.labs.chaos.judging.sources.recorder import Record, Recorded


def run(folder: Path, arguments: list[str]) -> None:
    """Run the agent to its end."""

    async def start(options: argparse.Namespace, profile: EngineProfile) -> Engine:
        file = folder / f"{options.id}-{os.getpid()}.jsonl"
        return Recorded(await start_engine(options, profile), Record(file))

    main(arguments, start)


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2:])
