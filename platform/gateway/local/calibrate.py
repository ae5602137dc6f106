"""`manage.py calibrate`: its options; `inference.load.calibration` does the work."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import secrets
import sys
from dataclasses import asdict
from pathlib import Path

import uvloop

from gateway.local.load import number, url
from gateway.start import var_folder
from inference.load.calibration import SHORT_TOKENS, Calibration
from inference.load.callers import LoadCaller, read_callers
from inference.load.endpoint import HTTPEndpoint
from inference.load.planned import BadLoadPlan
from inference.load.prompts import PromptText
from inference.load.sending import LoadRefused
from inference.sizing import EngineSpeed


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write what `manage.py plan --speed` reads."""
    options = _parser().parse_args(arguments)
    try:
        callers = read_callers(options.tenants)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            speed = runner.run(_measure(options, callers))
    except (BadLoadPlan, LoadRefused) as error:
        sys.exit(f"lorikeet calibrate: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(asdict(speed), indent=1) + "\n")
    print(f"Written to {options.out}, for manage.py plan --speed.")


async def _measure(options: argparse.Namespace, callers: list[LoadCaller]) -> EngineSpeed:
    named = {one.tenant: one for one in callers}
    endpoint = HTTPEndpoint(options.base_url, named, PromptText(secrets.token_hex(4)))
    async with contextlib.aclosing(endpoint):
        await endpoint.measure(callers[0])
        calibration = Calibration(
            endpoint,
            callers,
            options.sequences,
            options.prompt,
            options.prompt_tokens,
            options.rounds,
        )
        return await calibration.measure(lambda line: print(line, flush=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="manage.py calibrate",
        description=(
            "Measure how fast one engine is, for manage.py plan --speed. Nothing else may be sent "
            "to it meanwhile. The server must take ignore_eos, as vLLM's do, and keep prompts in "
            "a cache."
        ),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--base-url", required=True, type=url, help="of the API, such as http://host/v1")
    add("--tenants", required=True, type=Path, metavar="FILE",
        help="TOML: [tenant], key, models; all models are asked for in turn")  # fmt: skip
    add("--sequences", type=number(4, 4096, int), default=64, help="at once, at most")
    add("--prompt", type=number(4 * SHORT_TOKENS, 1_000_000, int), default=1024,
        help="tokens of the longest prompt")  # fmt: skip
    add("--prompt-tokens", type=number(SHORT_TOKENS, 1_000_000, int), default=2048,
        help="of a prompt in one step beside others, at most: vLLM's --max-num-batched-tokens, or "
        "what --long-prefill-token-threshold says")  # fmt: skip
    add("--rounds", type=number(1, 100, int), default=3, help="of each measurement")
    add("--out", type=Path, default=var_folder() / "speed.json", metavar="FILE")
    return parser
