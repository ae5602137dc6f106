"""Calibration against a simulated engine of a known speed, in virtual time; and plans for it."""

from __future__ import annotations

import asyncio
import random
from dataclasses import astuple, dataclass, field, replace
from statistics import fmean

import pytest

from inference.load.arrivals import poisson
from inference.load.calibration import Calibration, fitted
from inference.load.callers import LoadCaller
from inference.load.lengths import PUBLIC
from inference.load.planned import PlannedRequest
from inference.load.scenarios import LoadScenario
from inference.load.sending import AnswerListener, LoadRefused, LoadRun
from inference.sizing import MODELS, Device, EngineSpeed, SizingPlan, Traffic, plan
from tests.inference.load.virtual_time import run

SPEED = EngineSpeed(
    step_s=0.020, sequence_s=0.002, context_s=0.00001, prompt_s=0.0002, request_s=0.005
)
CALLERS = [LoadCaller("acme", ("support", "sales")), LoadCaller("umbra", ("legal",))]
MOST = 16


@dataclass
class SimulatedEngine:
    """Continuous batching: a step computes the prompts that wait, and a token of each sequence."""

    speed: EngineSpeed
    most: int = MOST
    waiting: list[_Sequence] = field(default_factory=list)
    cached: set[object] = field(default_factory=set)

    def prepare(self, request: PlannedRequest) -> bytes:
        return b""

    async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
        await asyncio.sleep(self.speed.request_s)
        sequence = _Sequence(request, listener)
        self.waiting.append(sequence)
        await sequence.ended.wait()
        cached = sequence.cached_tokens
        listener.usage(request.prompt_tokens, cached, request.output_tokens)

    async def work(self) -> None:
        running: list[_Sequence] = []
        while True:
            begun = self.waiting[: self.most - len(running)]
            del self.waiting[: len(begun)]
            running += begun
            if not running:
                await asyncio.sleep(0.001)
                continue
            await asyncio.sleep(self._seconds(running, begun))
            for one in running:
                one.token()
            running = [one for one in running if not one.ended.is_set()]

    def _seconds(self, running: list[_Sequence], begun: list[_Sequence]) -> float:
        computed = 0
        for one in begun:
            known = one.request.pieces in self.cached
            one.cached_tokens = one.request.prompt_tokens if known else 0
            computed += one.request.prompt_tokens - one.cached_tokens
            self.cached.add(one.request.pieces)
        held = fmean(one.held for one in running)
        return self.speed.step(len(running), held) + computed * self.speed.prompt_s


@dataclass
class _Sequence:
    request: PlannedRequest
    listener: AnswerListener
    generated: int = 0
    cached_tokens: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def held(self) -> int:
        return self.request.prompt_tokens + self.generated

    def token(self) -> None:
        self.generated += 1
        self.listener.text()
        if self.generated == self.request.output_tokens:
            self.ended.set()


async def measured(engine: SimulatedEngine, told: list[str]) -> EngineSpeed:
    working = asyncio.create_task(engine.work())
    try:
        return await Calibration(engine, CALLERS, MOST, 512).measure(told.append)
    finally:
        working.cancel()


async def sent(engine: SimulatedEngine, planned: list[PlannedRequest]) -> LoadRun:
    working = asyncio.create_task(engine.work())
    found = LoadRun(engine, 10**6, 1e6)
    await found.send(planned)
    working.cancel()
    return found


def test_a_known_speed_is_found() -> None:
    told: list[str] = []
    found = run(measured(SimulatedEngine(SPEED), told))
    assert astuple(found) == pytest.approx(astuple(SPEED), rel=0.05)
    assert told[0] == "a prompt of 32 tokens: 33.7 ms to the first token"


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_plans_with_a_measured_speed_hold(load: float) -> None:
    """For traffic that the calibration has not seen: lengths of a public trace, at times of a
    Poisson process."""
    speed = run(measured(SimulatedEngine(SPEED), []))
    lengths = PUBLIC["azure-conversation"].shrunk(4)
    drawn = [lengths.draw(random.Random(i)) for i in range(600)]
    traffic = Traffic(1, fmean(p for p, _ in drawn), fmean(o for _, o in drawn), load=0.9)
    full = planned(traffic, speed)
    # All at once: the engine is full until the last of them.
    at_once = [PlannedRequest(0.0, "acme", "m", ((i, p),), o) for i, (p, o) in enumerate(drawn)]
    found = run(sent(SimulatedEngine(SPEED), at_once))
    assert traffic.output * len(drawn) / found.wall_s == pytest.approx(full.tokens_s, rel=0.1)
    rate = load * full.capacity
    expected = planned(replace(traffic, requests_s=rate), speed)
    scenario = LoadScenario(
        callers=CALLERS, times=poisson, rate=rate, duration_s=600.0, lengths=lengths
    )
    answered = run(sent(SimulatedEngine(SPEED), scenario.plan())).outcomes
    assert fmean(one.ttft_s for one in answered) == pytest.approx(expected.ttft_s, rel=0.1)
    tpots = [taken for one in answered if (taken := one.tpot_s)]
    assert fmean(tpots) == pytest.approx(expected.tpot_s, rel=0.1)


def planned(traffic: Traffic, speed: EngineSpeed) -> SizingPlan:
    device = Device(memory=80e9, bandwidth=1.0, flops=1.0)
    return plan(MODELS["SmolLM2 135M"], device, traffic, "float32", "float32", MOST, speed)


def test_what_costs_nothing_is_not_less_than_nothing() -> None:
    steps = [(1, 100.0, 0.010), (4, 100.0, 0.010), (4, 900.0, 0.009), (1, 900.0, 0.010)]
    found = fitted(steps, [(10, 0.02), (110, 0.03)])
    assert found.sequence_s >= 0 and found.context_s == 0
    assert found.step(1, 0) == pytest.approx(0.010, rel=0.1)
    assert found.prompt_s == pytest.approx(0.0001)


class RefusingEndpoint:
    """Answers nothing."""

    def prepare(self, request: PlannedRequest) -> bytes:
        return b""

    async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
        raise LoadRefused("HTTP 429")


def test_a_refusal_ends_the_calibration() -> None:
    with pytest.raises(LoadRefused, match="HTTP 429, for support of acme"):
        run(Calibration(RefusingEndpoint(), CALLERS, 4, 128).measure(print))
