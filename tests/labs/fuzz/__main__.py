"""`python -m tests.labs.fuzz [--requests N] [--seed N] [--first N] [--pooling]`."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from pathlib import Path

from inference.agent.engines.profile import POOLING, EngineProfile
from inference.agent.engines.vllm import environment  # noqa: F401  before torch is imported
from tests.engine.factory import AdapterFactory, make_base
from tests.labs.fuzz.kinds import CONTEXT, STEP
from tests.labs.fuzz.run import Report, Run

sys.path.append(str(Path(__file__).parents[3] / "platform"))  # for the demo's model that embeds

ADAPTERS = 2
BATCH = 250
"""Requests between two lines of progress."""


def main() -> None:
    """Run, print the findings, and exit with status 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.labs.fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--pooling", action="store_true", help="a model that embeds and scores")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.requests} requests", flush=True)
    with tempfile.TemporaryDirectory(prefix="lorikeet-fuzz-") as folder:
        report = asyncio.run(_run(Path(folder), options))
    for finding in report.findings:
        print(f"\n{finding}")
    if report.findings:
        print(f"\nagain: make fuzz REQUESTS={options.requests} SEED={options.seed}")
    sys.exit(1 if report.findings else 0)


async def _run(folder: Path, options: argparse.Namespace) -> Report:
    from demo import EMBEDDING
    from inference.agent.engines.vllm.engine import VLLMEngine

    (folder / "base").mkdir()
    (folder / "adapters").mkdir()
    base = EMBEDDING if options.pooling else make_base(folder / "base")
    factory = AdapterFactory(base, folder / "adapters")
    kind = {"runner": POOLING} if options.pooling else {"tool_parser": "hermes"}
    profile = EngineProfile.on_cpu(
        str(factory.base),
        served_name="tiny",
        max_model_len=CONTEXT,
        max_loras=ADAPTERS,
        max_num_seqs=32,
        max_num_batched_tokens=STEP,
        kv_cache_memory_bytes=16 << 20,
        **kind,
    )
    engine = await VLLMEngine.start(profile)
    try:
        adapters = [factory.make(seed=seed) for seed in range(ADAPTERS)]
        for adapter in adapters:
            await engine.load(adapter)
        run = Run(engine, adapters, options.seed)
        for first in range(options.first, options.first + options.requests, BATCH):
            most = min(BATCH, options.first + options.requests - first)
            report = await run.run(most, first)
            print(f"{first + most}: {_line(report)}", flush=True)
            if not engine.alive:
                break
        return report
    finally:
        await engine.close()


def _line(report: Report) -> str:
    ended = ", ".join(f"{' '.join(how)} {times}" for how, times in sorted(report.answers.items()))
    return f"{ended}; {report.compared} answers of neighbours; {len(report.findings)} findings"


if __name__ == "__main__":
    main()
