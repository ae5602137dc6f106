"""Sends a plan, each request at its time, and records what came of it.

Nothing waits for the endpoint: a request whose time has come is sent, or, if `concurrency` are
still being answered, recorded as not sent. All times are in seconds from the start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from inference.load.planned import PlannedRequest

NOT_SENT, TIMED_OUT, NO_TEXT, CANCELLED = "not sent", "timeout", "no text", "cancelled"


class LoadRefused(Exception):
    """The endpoint didn't answer; `code` says how, in a few words."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@dataclass(slots=True)
class LoadOutcome:
    """What came of a request. Without an answer `code` says why; times are infinite until then."""

    request: PlannedRequest
    code: str = ""
    sent_s: float = math.inf
    first_s: float = math.inf
    last_s: float = math.inf
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    """As the endpoint counted; without usage, the events with text."""

    @property
    def late_s(self) -> float:
        """How long after its time it was sent: the delay of the sender itself."""
        return self.sent_s - self.request.at_s

    @property
    def ttft_s(self) -> float:
        """From the planned time to the first text."""
        return self.first_s - self.request.at_s

    @property
    def e2e_s(self) -> float:
        """From the planned time to the last text."""
        return self.last_s - self.request.at_s

    @property
    def tpot_s(self) -> float | None:
        """The time of each token after the first; None if there was one alone."""
        if self.output_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.output_tokens - 1)


class AnswerListener(Protocol):
    """Is told of an answer while it comes."""

    def text(self) -> None:
        """Some text has come."""

    def usage(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        """What the endpoint counted."""


class LoadEndpoint(Protocol):
    """Where requests are sent."""

    def prepare(self, request: PlannedRequest) -> bytes:
        """The body; made before the request's time."""

    async def ask(self, request: PlannedRequest, body: bytes, listener: AnswerListener) -> None:
        """Send it and wait for the end of the answer.

        Raises:
            LoadRefused: there was no answer, or only a part.
        """


@dataclass(slots=True)
class _Recording:
    outcome: LoadOutcome
    clock: LoadClock

    def text(self) -> None:
        self.outcome.last_s = self.clock.now_s()
        self.outcome.first_s = min(self.outcome.first_s, self.outcome.last_s)
        self.outcome.output_tokens += 1

    def usage(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> None:
        self.outcome.prompt_tokens = prompt_tokens
        self.outcome.cached_tokens = cached_tokens
        self.outcome.output_tokens = output_tokens


class LoadClock:
    """Seconds since the start."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()

    def now_s(self) -> float:
        return self._loop.time() - self._began

    async def until(self, at_s: float) -> None:
        """Wait until then; returns at once if it has passed, but lets others run."""
        await asyncio.sleep(max(0.0, at_s - self.now_s()))


@dataclass(slots=True)
class LoadRun:
    """Sends plans to an endpoint. `timeout_s` counts from a request's planned time; so everything
    has ended that long after the last one. `outcomes` are in the order of the plan."""

    endpoint: LoadEndpoint
    concurrency: int
    timeout_s: float
    outcomes: list[LoadOutcome] = field(default_factory=list)
    in_flight: int = 0
    ended: int = 0
    failed: int = 0
    wall_s: float = 0.0

    async def send(self, plan: Iterable[PlannedRequest]) -> None:
        """Send all and wait for their ends. If it is cancelled, what was sent is recorded as
        cancelled."""
        clock = LoadClock()
        try:
            async with asyncio.TaskGroup() as tasks:
                for request in plan:
                    body = self.endpoint.prepare(request)
                    await clock.until(request.at_s)
                    outcome = LoadOutcome(request)
                    self.outcomes.append(outcome)
                    if self.in_flight >= self.concurrency:
                        self._end(outcome, NOT_SENT)
                        continue
                    self.in_flight += 1
                    tasks.create_task(self._ask(outcome, body, clock))
                    await asyncio.sleep(0)  # it is sent before the next one is prepared
        finally:
            self.wall_s = clock.now_s()

    async def _ask(self, outcome: LoadOutcome, body: bytes, clock: LoadClock) -> None:
        outcome.sent_s = clock.now_s()
        code = CANCELLED
        try:
            async with asyncio.timeout(outcome.request.at_s + self.timeout_s - clock.now_s()):
                await self.endpoint.ask(outcome.request, body, _Recording(outcome, clock))
            code = "" if outcome.first_s < math.inf else NO_TEXT
        except TimeoutError:
            code = TIMED_OUT
        except LoadRefused as error:
            code = error.code
        finally:
            self.in_flight -= 1
            self._end(outcome, code)

    def _end(self, outcome: LoadOutcome, code: str) -> None:
        outcome.code = code
        self.ended += 1
        self.failed += bool(code)
