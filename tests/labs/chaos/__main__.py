"""`python -m tests.labs.chaos [--seconds N] [--seed N] [--engine synthetic|vllm]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tests.labs.chaos.processes import ROOT, Failed

sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from tests.labs.chaos.plan import STORMS  # noqa: E402
from tests.labs.chaos.stage import Folders  # noqa: E402


def main() -> None:
    """Run, print the tables, and exit with status 1 if any check has faults."""
    options = _options()
    console = Console(width=140, highlight=False)
    folders = Folders(Path(tempfile.mkdtemp(prefix="lorikeet-chaos-")))
    for folder in (folders.archive, folders.root / "log", folders.root / "static"):
        folder.mkdir()
    os.environ |= folders.settings()
    console.print(f"seed {options.seed}, {options.seconds} s; files are in {folders.root}")
    try:
        sound = _run(options, folders, console)
    except Failed as failure:
        console.print(f"chaos: {failure}", style="red", markup=False)
        sound = False
    except KeyboardInterrupt:
        sys.exit(130)
    if sound and not options.keep:
        shutil.rmtree(folders.root, ignore_errors=True)
    if not sound:
        names = ("only_gateways", "without_trainer")
        flags = " ".join(f"--{name.replace('_', '-')}" for name in names if vars(options)[name])
        arguments = f' ARGS="{flags}"' if flags else ""
        again = f"make chaos SECONDS={options.seconds} SEED={options.seed}{arguments}"
        console.print(f"again: {again}")
    sys.exit(0 if sound else 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.chaos", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="how long things are killed")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--engine", choices=sorted(STORMS), default="synthetic")
    parser.add_argument(
        "--only-gateways", action="store_true", help="nothing but gateways dies, with short drains"
    )
    parser.add_argument(
        "--without-trainer", action="store_true", help="no fine-tuning, which takes CPU"
    )
    parser.add_argument("--keep", action="store_true", help="keep the files of a sound run")
    return parser.parse_args()


def _run(options: argparse.Namespace, folders: Folders, console: Console) -> bool:
    from tests.labs.chaos.run import Run  # Django reads its settings from the environment set above

    run = Run(
        options.seed,
        options.seconds,
        options.engine,
        folders,
        console,
        only_gateways=options.only_gateways,
        trains=not (options.only_gateways or options.without_trainer),
    )
    return asyncio.run(run.run())


if __name__ == "__main__":
    main()
