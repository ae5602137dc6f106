"""Open-loop sending to mock servers in virtual time, against what queueing theory says."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from inference.load.arrivals import even, poisson
from inference.load.figures import percentile
from inference.load.planned import PlannedRequest
from inference.load.sending import (
    CANCELLED,
    NO_TEXT,
    NOT_SENT,
    TIMED_OUT,
    AnswerListener,
    LoadRefused,
    LoadRun,
)
from tests.inference.load.virtual_time import run


@dataclass
class OneServer:
    """Answers one request after another; `service_s` draws how long each takes."""

    service_s: Callable[[], float]
    stalls: tuple[float, float] = (math.inf, math.inf)
    """It answers nothing between these times."""
    free: asyncio.Lock = field(default_factory=asyncio.Lock)

    def prepare(self, request: PlannedRequest) -> bytes:
        return b""

    async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
        async with self.free:
            now, (begins, ends) = asyncio.get_running_loop().time(), self.stalls
            if begins <= now < ends:
                await asyncio.sleep(ends - now)
            await asyncio.sleep(self.service_s())
        listener.text()


def plan(times: Iterable[float]) -> list[PlannedRequest]:
    return [PlannedRequest(at, "t", "m", ((0, 1),), 1) for at in times]


def sent(
    server: OneServer, times: Iterable[float], concurrency: int = 10**6, timeout_s: float = 1e6
) -> LoadRun:
    async def send() -> LoadRun:
        found = LoadRun(server, concurrency, timeout_s)
        await found.send(plan(times))
        return found

    return run(send())


def test_latencies_are_those_of_an_m_d_1_queue() -> None:
    rate, service_s = 8.0, 0.1
    found = sent(OneServer(lambda: service_s), itertools.islice(poisson(rate, 1), 12_000))
    used = rate * service_s
    theory = service_s + service_s * used / (2 * (1 - used))  # Pollaczek-Khinchine
    assert fmean(one.ttft_s for one in found.outcomes) == pytest.approx(theory, rel=0.1)


def test_latencies_are_those_of_an_m_m_1_queue() -> None:
    rate, service_rate, rng = 5.0, 10.0, random.Random(1)
    server = OneServer(lambda: rng.expovariate(service_rate))
    found = sent(server, itertools.islice(poisson(rate, 2), 12_000))
    ordered = sorted(one.e2e_s for one in found.outcomes)
    # The time in the system is exponential with rate mu - lambda.
    for share in (0.5, 0.9, 0.99):
        theory = -math.log(1 - share) / (service_rate - rate)
        assert percentile(ordered, share) == pytest.approx(theory, rel=0.15)


def test_a_stall_counts_for_every_request_planned_in_it() -> None:
    # A closed loop with one client would have seen a single slow answer here.
    found = sent(OneServer(lambda: 0.0, stalls=(10.0, 19.95)), itertools.islice(even(10.0), 300))
    slow = [one for one in found.outcomes if one.ttft_s > 1e-6]
    assert [one.request.at_s for one in slow] == [at / 10 for at in range(100, 200)]
    for one in slow:
        assert one.ttft_s == pytest.approx(19.95 - one.request.at_s)
        assert one.late_s == pytest.approx(0.0, abs=1e-6), "it was sent at its time"


def test_what_can_not_be_sent_is_recorded_and_not_delayed() -> None:
    server = OneServer(lambda: 0.0, stalls=(10.0, 19.95))
    found = sent(server, itertools.islice(even(10.0), 300), concurrency=30)
    left_out = [one.request.at_s for one in found.outcomes if one.code == NOT_SENT]
    assert left_out == [at / 10 for at in range(130, 200)]
    assert all(not one.code for one in found.outcomes if one.request.at_s not in left_out)
    assert (found.ended, found.failed, found.in_flight) == (300, 70, 0)


def test_timeouts_count_from_the_planned_time() -> None:
    server = OneServer(lambda: 0.0, stalls=(10.0, 19.95))
    found = sent(server, itertools.islice(even(10.0), 300), timeout_s=4.05)
    late = [one.request.at_s for one in found.outcomes if one.code == TIMED_OUT]
    assert late == [at / 10 for at in range(100, 160)]
    assert found.wall_s == pytest.approx(29.9, abs=0.01)


def test_a_sender_that_is_late_itself_says_so() -> None:
    class Slow(OneServer):
        def prepare(self, request: PlannedRequest) -> bytes:
            asyncio.get_running_loop()._skipping.skipped_s += 0.3  # type: ignore[attr-defined]
            return b""

    found = sent(Slow(lambda: 0.0), [0.0, 0.1, 0.2, 2.0])
    assert [round(one.late_s, 6) for one in found.outcomes] == [0.3, 0.5, 0.7, 0.0]
    assert all(one.ttft_s >= one.late_s for one in found.outcomes)


def test_refusals_and_silence_are_recorded() -> None:
    class Picky(OneServer):
        async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
            if request.at_s == 1:
                raise LoadRefused("HTTP 429")
            if request.at_s == 2:
                return
            listener.text()
            await asyncio.sleep(2.0)
            listener.text()
            listener.usage(100, 64, 5)

    found = sent(Picky(lambda: 0.0), [0.0, 1.0, 2.0])
    assert [one.code for one in found.outcomes] == ["", "HTTP 429", NO_TEXT]
    good = found.outcomes[0]
    assert (good.prompt_tokens, good.cached_tokens, good.output_tokens) == (100, 64, 5)
    assert (good.ttft_s, good.e2e_s, good.tpot_s) == (0.0, 2.0, 0.5)


def test_what_an_interruption_stops_is_recorded() -> None:
    async def interrupted() -> LoadRun:
        found = LoadRun(OneServer(lambda: 100.0), 10, 1e6)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5):
                await found.send(plan([0.0, 1.0, 2.0]))
        return found

    found = run(interrupted())
    assert [one.code for one in found.outcomes] == [CANCELLED, CANCELLED]
    assert found.wall_s == pytest.approx(1.5)
