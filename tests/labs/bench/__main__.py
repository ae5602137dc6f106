"""`python -m tests.labs.bench [names] [--quick]`: run benchmarks and print their tables."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import django
import uvloop
from django.core.management import call_command
from rich.console import Console

os.environ.pop("TEST_DATABASE_URL", None)  # PostgreSQL's CPU time is read too, so it must run here
os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
from tests import environment

django.setup()
from tests.labs.bench import (  # noqa: E402
    batches,
    deciding,
    fairness,
    gateways,
    holding,
    latency,
    ledger,
    measuring,
    metering,
    moving,
    pages,
    planes,
    routing,
    scaling,
    sizing,
    streams,
    thrash,
    throughput,
    traffic,
    tuning,
    vllm,
)
from tests.labs.bench.machinery.processes import Failed  # noqa: E402
from tests.labs.bench.machinery.scale import QUICK, Scale  # noqa: E402
from tests.labs.bench.sides import lorikeet  # noqa: E402

BENCHMARKS = {
    "latency": latency.run,
    "throughput": throughput.run,
    "gateways": gateways.run,
    "vllm": vllm.run,
    "metering": metering.run,
    "measuring": measuring.run,
    "streams": streams.run,
    "fairness": fairness.run,
    "batches": batches.run,
    "thrash": thrash.run,
    "traffic": traffic.run,
    "sizing": sizing.run,
    "ledger": ledger.run,
    "pages": pages.run,
    "planes": planes.run,
    "routing": routing.run,
    "deciding": deciding.run,
    "tuning": tuning.run,
    "holding": holding.run,
    "moves": moving.run,
    "scale": scaling.run,
}
WITHOUT_DATABASE = {"deciding", "tuning"}


def main() -> None:
    """Run the named benchmarks one after another."""
    parser = argparse.ArgumentParser(prog="python -m tests.labs.bench", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all if none")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument(
        "--model",
        help="folder that vLLM serves instead of the tiny demo; only SmolLM2's has adapters",
    )
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}")
    names = options.names or list(BENCHMARKS)
    key = "" if WITHOUT_DATABASE.issuperset(names) else _issue_key()
    scale = Scale(key=key, model=options.model, **(QUICK if options.quick else {}))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(names, scale))
    except Failed as failure:
        sys.exit(f"bench: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)


def _issue_key() -> str:
    call_command("migrate", verbosity=0)
    return lorikeet.issue_key()


async def _run(names: list[str], scale: Scale) -> None:
    console = Console(width=120, highlight=False)
    console.print(f"{os.cpu_count()} CPUs; processes write to {environment.VAR}", style="dim")
    for name in names:
        (await BENCHMARKS[name](scale)).show(console)


if __name__ == "__main__":
    main()
