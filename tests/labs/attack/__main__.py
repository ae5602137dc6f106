"""`python -m tests.labs.attack [--seconds N] [--quiet N] [--settle N] [--only WORDS]
[--strict]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.labs.attack.attacks import STRANGERS, TENANTS, Attack
from tests.labs.attack.raw import Target
from tests.labs.attack.victim import Phase
from tests.labs.bench.machinery.client import Address
from tests.labs.chaos.processes import ROOT

sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
from inference.process.priority import give_way  # noqa: E402
from tests.labs.attack.thousand import prepare  # noqa: E402
from tests.labs.bench.machinery.processes import engine_cores  # noqa: E402
from tests.stack.running import Stack, gone, up  # noqa: E402

PREPARED = {"an engine restarts under a thousand adapters": prepare}
"""Attacks that first change the installation."""
SERVING = ("gateway", "console", "worker", "engine")
MOST_OVER_QUIET = 2.0
LONGEST_MS = 1_000.0
NICEST = 19
"""Priority of the attackers, which would have machines of their own: making an attack must not take
time from the servers."""
MAX_LINE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Round:
    """The victim's measurements beside one attack."""

    name: str
    beside: Phase
    stolen: float
    """Percent of the processor time that the host gave to other guests meanwhile."""
    answers: Counter[str]
    lost: list[str]

    @property
    def faults(self) -> list[str]:
        """What must not happen on any machine."""
        found = [*self.lost, *self.beside.faults]
        return found if self.beside.firsts_ms else [*found, "no answer"]

    def over(self, quiet: Phase) -> list[float]:
        """The 99th percentiles beside the attack, relative to those in quiet."""
        pairs = zip(self.beside.p99s_ms, quiet.p99s_ms, strict=True)
        return [beside / calm for beside, calm in pairs]

    def met(self, quiet: Phase) -> bool:
        slow = max(self.over(quiet)) > MOST_OVER_QUIET
        return not slow and self.beside.longest_ms <= LONGEST_MS


def main() -> None:
    """Attack, print the table, and exit with status 1 if the victim met an error."""
    options = _options()
    console = Console(width=150, highlight=False)
    wanted = re.compile(options.only).search
    chosen = {name: attack for name, attack in (STRANGERS | TENANTS).items() if wanted(name)}
    with tempfile.TemporaryDirectory(prefix="lorikeet-attack-") as folder:
        with up(Path(folder) / "var") as stack:
            chosen |= {name: prepare(stack) for name, prepare in PREPARED.items() if wanted(name)}
            quiet, rounds = asyncio.run(attacked(stack, chosen, options, console))
    _show(quiet, rounds, console)
    faults = [f"{one.name}: {fault}" for one in rounds for fault in one.faults]
    faults += [f"in quiet: {fault}" for fault in quiet.faults]
    for fault in faults:
        console.print(fault, style="red", markup=False)
    missed = [one.name for one in rounds if not one.met(quiet)]
    if missed:
        console.print(f"Targets missed: {', '.join(missed)}")
    sys.exit(1 if faults or (options.strict and missed) else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.labs.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="of each attack")
    parser.add_argument("--quiet", type=float, default=6, help="seconds measured before each")
    parser.add_argument("--settle", type=float, default=4, help="seconds after each")
    parser.add_argument("--only", default="", help="a pattern in the names of those wanted")
    parser.add_argument("--strict", action="store_true", help="a target that is missed fails too")
    return parser.parse_args()


async def attacked(
    stack: Stack, chosen: dict[str, Attack], options: argparse.Namespace, console: Console
) -> tuple[Phase, list[Round]]:
    """Run one attack after another, at a low priority, and measure the victim beside each. All
    quiet times before attacks count as one sample, because a percentile of a few seconds is
    unstable."""
    quiet, rounds = Phase(), []
    victim, attacker = stack.facts["tenants"][:2]
    async with _watching(stack, victim) as look:
        give_way(NICEST)
        await asyncio.sleep(options.settle)
        for name, attack in chosen.items():
            before = _serving(stack)
            await look()
            await asyncio.sleep(options.quiet)
            quiet.add(await look())
            target = Target(
                _address(stack.url),
                _address(stack.console_url),
                attacker["api_key"],
                attacker["models"][-1],
                attacker["models"][0],
            )
            psutil.cpu_times_percent()
            with suppress(TimeoutError):
                async with asyncio.timeout(options.seconds):
                    await attack(target)
            beside, stolen = await look(), psutil.cpu_times_percent().steal
            rounds.append(Round(name, beside, stolen, target.answers, _lost(before)))
            console.print(_line(rounds[-1], quiet), highlight=False, markup=False)
            await asyncio.sleep(options.settle)
    return quiet, rounds


@asynccontextmanager
async def _watching(stack: Stack, victim: dict[str, Any]) -> AsyncIterator[Any]:
    """Run the victim in the block. Yields a function that returns what it measured since the last
    call."""
    host, port = _address(stack.url)
    command = [
        sys.executable,
        "-m",
        "tests.labs.attack.victim",
        "--host",
        host,
        "--port",
        str(port),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, "--model", victim["models"][0], cwd=ROOT,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "VICTIM_KEY": victim["api_key"]}, start_new_session=True,
        limit=MAX_LINE_BYTES,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    to, said = process.stdin, process.stdout

    async def look() -> Phase:
        to.write(b"\n")
        return Phase(**json.loads(await said.readline()))

    try:
        yield look
    finally:
        to.close()
        await process.wait()


def _address(url: str) -> Address:
    host, _, port = url.rpartition("//")[2].partition(":")
    return host, int(port)


def _serving(stack: Stack) -> dict[str, list[psutil.Process]]:
    """Every serving process by name, including those of the engine core."""
    return {
        name: [
            one
            for child in stack.children(name)
            for one in (child, *(engine_cores(child) if name == "engine" else ()))
        ]
        for name in SERVING
    }


def _lost(before: dict[str, list[psutil.Process]]) -> list[str]:
    return [
        f"lost a process: {name}" for name, family in before.items() for one in family if gone(one)
    ]


def _line(one: Round, quiet: Phase) -> str:
    answers = ", ".join(f"{count} x {what}" for what, count in one.answers.most_common(5))
    (first, gap), longest = one.over(quiet), one.beside.longest_ms
    return (
        f"{one.name}: TTFT {first:.2f} x, gap {gap:.2f} x quiet, longest {longest:.0f} ms; "
        f"{answers or 'no answer'}{'; FAULTS' if one.faults else ''}"
    )


def _show(quiet: Phase, rounds: list[Round], console: Console) -> None:
    (first, gap), longest = quiet.p99s_ms, quiet.longest_ms
    calm = f"in quiet {first:.0f} and {gap:.0f} ms, longest {longest:.0f} ms"
    table = Table(title=f"The victim beside each attack; {calm}", title_justify="left")
    figures = ("p99 TTFT, ms", "x quiet", "p99 gap, ms", "x quiet", "longest, ms", "stolen, %")
    for title in ("attack", *figures, ""):
        table.add_column(title, justify="right" if title in figures else "left")
    for one in rounds:
        table.add_row(
            one.name,
            *(
                cell
                for figure, over in zip(one.beside.p99s_ms, one.over(quiet), strict=True)
                for cell in (f"{figure:.0f}", f"{over:.2f}")
            ),
            f"{one.beside.longest_ms:.0f}",
            f"{one.stolen:.1f}",
            "FAULTS" if one.faults else "met" if one.met(quiet) else "missed",
        )
    console.print(table)


if __name__ == "__main__":
    main()
