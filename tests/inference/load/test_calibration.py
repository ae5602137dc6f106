"""Calibration against a simulated engine of a known speed, in virtual time; and plans for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from statistics import fmean

import pytest

from inference.load.arrivals import poisson
from inference.load.calibration import Calibration, fitted, fitted_steps
from inference.load.callers import LoadCaller
from inference.load.lengths import PUBLIC
from inference.load.planned import PlannedRequest
from inference.load.scenarios import LoadScenario
from inference.load.sending import AnswerListener, LoadRefused, LoadRun
from inference.sizing import MODELS, Device, EngineSpeed, SizingPlan, Traffic, plan
from tests.inference.load.virtual_time import run

SPEED = EngineSpeed(
    {1: 0.022, 2: 0.030, 4: 0.033, 16: 0.050},
    context_s=0.00001, prompt_s=0.0002, prompt_tokens=128, request_s=0.005,
)  # fmt: skip
CALLERS = [LoadCaller("acme", ("support", "sales")), LoadCaller("umbra", ("legal",))]
MOST = 16


@dataclass
class SimulatedEngine:
    """Continuous batching: a step computes a part of each new prompt, and a token of all others.

    As with vLLM, the only request's prompt is divided into larger parts.
    """

    speed: EngineSpeed
    most: int = MOST
    waiting: list[_Sequence] = field(default_factory=list)
    cached: set[object] = field(default_factory=set)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def prepare(self, request: PlannedRequest) -> bytes:
        return b""

    async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
        await asyncio.sleep(self.speed.request_s)
        sequence = _Sequence(request, listener)
        self.waiting.append(sequence)
        self.arrived.set()
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
                self.arrived.clear()
                await self.arrived.wait()
                continue
            await asyncio.sleep(self._seconds(running, begun))
            for one in running:
                one.token()
            running = [one for one in running if not one.ended.is_set()]

    def _seconds(self, running: list[_Sequence], begun: list[_Sequence]) -> float:
        for one in begun:
            known = one.request.pieces in self.cached
            one.cached_tokens = one.request.prompt_tokens if known else 0
            one.uncomputed = one.request.prompt_tokens - one.cached_tokens
            self.cached.add(one.request.pieces)
        most = self.speed.prompt_tokens * (4 if len(running) == 1 else 1)
        computed = sum(one.compute(most) for one in running)
        held = fmean(one.held for one in running)
        return self.speed.step(len(running), held) + computed * self.speed.prompt_s


@dataclass
class _Sequence:
    request: PlannedRequest
    listener: AnswerListener
    generated: int = 0
    cached_tokens: int = 0
    uncomputed: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def held(self) -> int:
        return self.request.prompt_tokens + self.generated

    def compute(self, most: int) -> int:
        part = min(most, self.uncomputed)
        self.uncomputed -= part
        return part

    def token(self) -> None:
        if self.uncomputed:
            return
        self.generated += 1
        self.listener.text()
        if self.generated == self.request.output_tokens:
            self.ended.set()


async def measured(engine: SimulatedEngine, told: list[str]) -> EngineSpeed:
    working = asyncio.create_task(engine.work())
    try:
        return await Calibration(engine, CALLERS, MOST, 512, 128).measure(told.append)
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
    assert found.steps == pytest.approx(
        {1: 0.022, 2: 0.030, 4: 0.033, 8: 0.0387, 16: 0.050}, rel=0.02
    )
    others = [(one.context_s, one.prompt_s, one.request_s) for one in (found, SPEED)]
    assert others[0] == pytest.approx(others[1], rel=0.05)
    assert told[0] == "1 sequences of 32 tokens: 22.6 ms for a step"
    assert told[-1].startswith("a prompt of 512 tokens beside 8 sequences: 3")


def test_answers_without_times_are_no_measurement() -> None:
    timeless = EngineSpeed({1: 0.0}, 0.0, 0.0, 128, 0.0)
    with pytest.raises(LoadRefused, match="came at once"):
        run(measured(SimulatedEngine(timeless), []))


@pytest.mark.parametrize("load", [0.3, 0.6, 0.75])
def test_plans_with_a_measured_speed_hold(load: float) -> None:
    """For traffic that the calibration has not seen: lengths of a public trace, at times of a
    Poisson process, and all at once."""
    speed = run(measured(SimulatedEngine(SPEED), []))
    scenario = LoadScenario(
        callers=CALLERS, times=poisson, rate=2.0, duration_s=1000.0,
        lengths=PUBLIC["azure-conversation"].shrunk(4),
    )  # fmt: skip
    asked = scenario.plan()
    prompt = fmean(one.prompt_tokens for one in asked)
    output = fmean(one.output_tokens for one in asked)
    traffic = Traffic(1, prompt, output, load=0.9)
    full = planned(traffic, speed)
    found = run(sent(SimulatedEngine(SPEED), [replace(one, at_s=0.0) for one in asked]))
    assert output * len(asked) / found.wall_s == pytest.approx(full.tokens_s, rel=0.1)
    rate = load * full.capacity
    expected = planned(replace(traffic, requests_s=rate), speed)
    slower = [replace(one, at_s=one.at_s * 2.0 / rate) for one in asked]
    answered = run(sent(SimulatedEngine(SPEED), slower)).outcomes
    assert fmean(one.ttft_s for one in answered) == pytest.approx(expected.ttft_s, rel=0.1)
    tokens = sum(one.output_tokens - 1 for one in answered)
    decoding_s = sum(one.last_s - one.first_s for one in answered)
    assert decoding_s / tokens == pytest.approx(expected.tpot_s, rel=0.1)


def planned(traffic: Traffic, speed: EngineSpeed) -> SizingPlan:
    device = Device(memory=80e9, bandwidth=1.0, flops=1.0)
    return plan(MODELS["SmolLM2 135M"], device, traffic, "float32", "float32", MOST, speed)


def test_what_costs_nothing_is_not_less_than_nothing() -> None:
    steps = [(1, 100.0, 0.010), (4, 100.0, 0.010), (4, 900.0, 0.009), (1, 900.0, 0.010)]
    found = fitted(fitted_steps(steps, 128), [(0, 10, 0.02), (0, 110, 0.03)])
    assert found.context_s == 0
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
        run(Calibration(RefusingEndpoint(), CALLERS, 4, 128, 128).measure(print))
