"""`python -m tests.labs.mutations [--count N] [--seconds N] [--seed N]`, on a real vLLM of
its own."""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from tests.labs.mutations.run import Tally, run  # noqa: E402
from tests.stack.running import up  # noqa: E402


def main() -> None:
    """Run, print the tables, and exit with status 1 if anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.labs.mutations", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="mutants (%(default)s)")
    parser.add_argument("--seconds", type=int, help="begin none after so many")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    console = Console(width=120, highlight=False)
    console.print(f"{options.count} mutants, seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="lorikeet-mutations-") as folder:
        with up(Path(folder) / "var") as stack:
            began = time.monotonic()

            def tell(tally: Tally) -> None:
                console.print(_line(tally, time.monotonic() - began), soft_wrap=True)

            tally = run(stack, options.count, options.seed, options.seconds or math.inf, tell)
            took_s = time.monotonic() - began
    console.print(_table(tally))
    console.print(_line(tally, took_s))
    for one in tally.wrong:
        console.print(f"wrong: {one}", style="red", markup=False)
    sys.exit(1 if tally.wrong else 0)


def _line(tally: Tally, took_s: float) -> str:
    return (
        f"{tally.count} mutants in {took_s:.0f} s, {tally.by_end()['ready']} of them ready; "
        f"meanwhile {tally.answers.total()} answers of neighbours, {len(tally.wrong)} findings"
    )


def _table(tally: Tally) -> Table:
    table = Table("kind", "mutants", "how they ended")
    for kind in sorted({kind for kind, _ in tally.ends}):
        ends = {end: count for (one, end), count in tally.ends.items() if one == kind}
        told = ", ".join(f"{end} {count}" for end, count in sorted(ends.items()))
        table.add_row(kind, str(sum(ends.values())), told)
    return table


if __name__ == "__main__":
    main()
