"""Whether `manage.py plan` foretells what an engine does, after `manage.py calibrate` measured it.

Each round calibrates a real vLLM and plans traffic that the calibration has not seen: the lengths
of a public trace, all at once and at times of a Poisson process. Then it sends that traffic.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from asgiref.sync import sync_to_async

from gateway.local.supervisor import Child
from gateway.management.commands.plan import config_of
from inference.load.arrivals import poisson
from inference.load.calibration import Calibration
from inference.load.callers import LoadCaller
from inference.load.endpoint import HTTPEndpoint
from inference.load.lengths import PUBLIC, fixed
from inference.load.planned import PlannedRequest
from inference.load.prompts import PromptText
from inference.load.scenarios import LoadScenario
from inference.load.sending import LoadOutcome, LoadRun
from inference.sizing import Device, EngineSpeed, ModelSize, SizingPlan, Traffic, plan, resident
from tests.labs.bench import thrash
from tests.labs.bench.machinery.processes import Failed
from tests.labs.bench.machinery.report import Figure, Report, Row
from tests.labs.bench.machinery.scale import Scale
from tests.labs.bench.sides import lorikeet
from tests.labs.bench.vllm import DTYPE, demo_on, tenants_with_adapters

SEQUENCES, LONGEST = 16, 512
PROMPT_TOKENS = 64
"""Of a prompt in a step, as `EngineProfile.on_cpu` has it."""
LENGTHS = PUBLIC["azure-conversation"].shrunk(8)
SLOTS, ADAPTERS, RESIDENCY_RATE = 4, 8, 5.0
CONCURRENCY, TIMEOUT_S = 10_000, 600.0
LOADED = '"adapter_loaded"'
"""What an engine logs when it loads an adapter."""


@dataclass(frozen=True, slots=True)
class _Sizing:
    """What is asked, and by whom."""

    url: str
    model: ModelSize
    callers: Sequence[LoadCaller]
    scale: Scale

    async def round(self) -> dict[str, tuple[float, float]]:
        """What was foretold and what was measured, by name."""
        named = {one.tenant: one for one in self.callers}
        text = PromptText(str(time.time_ns()))  # nothing of an earlier round is in the cache
        endpoint = HTTPEndpoint(f"{self.url}/v1", named, text)
        async with aclosing(endpoint):
            await endpoint.measure(self.callers[0])
            speed = await Calibration(
                endpoint, self.callers, SEQUENCES, LONGEST, PROMPT_TOKENS
            ).measure(print)
            print(speed)
            at_once = self._drawn(1.0, SEQUENCES * self.scale.sizing_batches)
            at_once = [replace(one, at_s=0.0) for one in at_once]
            full = self._plan(speed, at_once, 1.0)
            found = await _sent(endpoint, at_once)
            measured = {"tokens/s, full": (full.tokens_s, _full_tokens_s(found))}
            for share in (0.3, 0.6):
                rate = share * full.capacity
                spread = self._drawn(rate, int(rate * self.scale.sizing_s))
                expected = self._plan(speed, spread, len(spread) / spread[-1].at_s)
                found = await _sent(endpoint, spread)
                of = f"at {share:.0%} of it"
                ttft_s = fmean(one.ttft_s for one in found.outcomes)
                measured[f"TTFT {of}"] = expected.ttft_s, ttft_s
                measured[f"TPOT {of}"] = expected.tpot_s, _next_token_s(found.outcomes)
        print(measured)
        return measured

    def _drawn(self, rate: float, count: int) -> list[PlannedRequest]:
        scenario = LoadScenario(
            callers=self.callers,
            times=poisson,
            rate=rate,
            duration_s=2 * count / rate,
            lengths=LENGTHS,
            longest=LONGEST,
            seed=time.time_ns() % 2**31,
        )
        return scenario.plan()[:count]

    def _plan(
        self, speed: EngineSpeed, planned: Sequence[PlannedRequest], rate: float
    ) -> SizingPlan:
        traffic = Traffic(
            requests_s=rate,
            prompt=fmean(one.prompt_tokens for one in planned),
            output=fmean(one.output_tokens for one in planned),
            load=0.95,
        )
        device = Device(memory=80e9, bandwidth=1.0, flops=1.0)  # measured, so only memory counts
        return plan(self.model, device, traffic, DTYPE, DTYPE, SEQUENCES, speed)


async def run(scale: Scale) -> Report:
    """Compare speeds with adapters that all have slots, then the share that has one of too few."""
    served = demo_on(scale.model)
    options = ["--model", str(served.base), "--served-name", served.model_name, "--dtype", DTYPE]
    options += ["--max-num-seqs", str(SEQUENCES), "--max-model-len", "2048"]
    options += ["--max-loras", str(SLOTS), "--max-cpu-loras", str(SLOTS)]
    async with (
        lorikeet.gateway() as gateway,
        lorikeet.engine(gateway, "engine-sizing", *options) as engine,
    ):
        await lorikeet.until_served(gateway, scale.key, served.model_name)
        pairs = await tenants_with_adapters(served)
        callers = [LoadCaller(name, (name,), key) for name, key in pairs[:SLOTS]]
        model = ModelSize.of(config_of(str(served.base)))
        sizing = _Sizing(gateway.url, model, callers, scale)
        rounds = [await sizing.round() for _ in range(scale.sizing_rounds)]
        rows = [row for name in rounds[0] for row in _rows(name, [one[name] for one in rounds])]
        rows += await _residency(scale, gateway, engine)
    return Report(
        f"Plans and what came of them: {SEQUENCES} sequences of {served.model_name} on vLLM",
        rows,
        "Each round calibrates, plans other traffic, and sends it.",
    )


async def _sent(endpoint: HTTPEndpoint, planned: Sequence[PlannedRequest]) -> LoadRun:
    """Send it, with prompts of which nothing is in the cache."""
    endpoint.text = replace(endpoint.text, salt=str(time.time_ns()))
    found = LoadRun(endpoint, CONCURRENCY, TIMEOUT_S)
    await found.send(planned)
    if bad := [one for one in found.outcomes if one.code]:
        raise Failed(f"{len(bad)} of {len(planned)} requests were not answered: {bad[0].code}")
    return found


def _next_token_s(answered: Sequence[LoadOutcome]) -> float:
    """The time of each token that is not the first of its answer, on average over the tokens."""
    taken_s = sum(one.last_s - one.first_s for one in answered)
    return taken_s / sum(one.output_tokens - 1 for one in answered)


def _full_tokens_s(found: LoadRun) -> float:
    """Tokens a second until the last request has begun: until then the engine is full."""
    until = max(one.first_s for one in found.outcomes)
    tokens = sum(
        one.output_tokens * min(1.0, (until - one.first_s) / max(1e-9, one.last_s - one.first_s))
        for one in found.outcomes
    )
    return tokens / until


async def _residency(scale: Scale, gateway: lorikeet.Gateway, engine: Child) -> list[Row]:
    """Ask for more adapters than there are slots, by Zipf, and count what the engine loads."""
    served = demo_on(scale.model)
    with TemporaryDirectory() as folder:
        keys = await sync_to_async(thrash.keys)("sizing", ADAPTERS)
        async with lorikeet.console() as console, lorikeet.worker():
            models = await thrash.upload(console.url, keys, Path(folder), served)
    callers = [LoadCaller(name, (name,), key) for name, key in models]
    named = {one.tenant: one for one in callers}
    rounds = []
    for number in range(scale.sizing_rounds):
        scenario = LoadScenario(
            callers=callers, times=poisson, rate=RESIDENCY_RATE, lengths=fixed(32, 4),
            duration_s=scale.sizing_s * 2, seed=number,
        )  # fmt: skip
        planned = scenario.plan()
        endpoint = HTTPEndpoint(f"{gateway.url}/v1", named, PromptText(str(number)))
        async with aclosing(endpoint):
            await endpoint.measure(callers[0])
            before = engine.log.read_text().count(LOADED)
            await _sent(endpoint, planned)
            loads = engine.log.read_text().count(LOADED) - before
        rounds.append((resident(ADAPTERS, 1.0, SLOTS), 1 - loads / len(planned)))
    return _rows(f"requests whose adapter has a slot, {ADAPTERS} adapters on {SLOTS}", rounds)


def _rows(name: str, rounds: Sequence[tuple[float, float]]) -> list[Row]:
    expected, measured = (Figure.of(values) for values in zip(*rounds, strict=True))
    return [
        Row(f"{name}: planned", expected),
        Row(f"{name}: measured", measured),
        Row(f"{name}: measured over planned", measured.over(expected), "x"),
    ]
