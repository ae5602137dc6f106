"""One attempt of a request, or a probe, from the gateway's frame to the final frame back to it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from inference.agent.engines.engine import EngineOutput, Meter, key_of
from inference.agent.link import AgentLink
from inference.errors import GenerationTimeout, InferenceError, Overloaded
from inference.link.accounts import Account, Usage
from inference.link.wire import Delta, Done, Fault, Handover, Load, Loaded, Resume, Submit

CANCELLED = "cancelled"
"""The finish reason of requests that were cancelled."""

NOTHING = Usage()
UNDERWAY_S = 15.0
"""How long a gateway's frame may have been on its way: a link is lost after 10 s of silence."""


@dataclass(slots=True, eq=False)
class Job:
    """What is asked for, and how far it has come. Times are monotonic, in seconds."""

    request: Submit
    """As it came, without what was taken since (`take_body`); that of a probe has no body. An
    adoption changes neither its attempt nor its account, but those of the job."""
    link: AgentLink | None
    """None while it has no gateway."""
    is_probe: bool = False
    digest: str = ""
    """Names what is asked for (`inference.link.suspects`); empty until it is computed."""
    on_trial: bool = False
    received_at: float = field(default_factory=time.monotonic)
    meter: Meter = field(default_factory=Meter)
    queued_at: float | None = None
    admitted_at: float | None = None
    submitted_at: float | None = None
    first_token_at: float | None = None
    """When the engine's first output came; for an answer that doesn't stream, that is its end."""
    counted_at: float | None = None
    """When its first tokens were counted; for such an answer, accurate to a tenth of a second."""
    turn: asyncio.Future[None] | None = None
    cancel_reason: str = CANCELLED
    journaled: bool = False
    """Whether the journal has it, as it does from the moment at which it may cost something."""
    reported: Meter = field(default_factory=Meter)
    """How much of the meter was reported to the gateway."""
    inherited: Usage = NOTHING
    """What the lower attempts used that this one continues; the meter begins with it."""
    opened: Usage = NOTHING
    """What its entry in the journal begins with: `inherited`, or, once another gateway has adopted
    it, all that it had used by then."""
    id: str = field(init=False)
    attempt: int = field(init=False)
    account: Account = field(init=False)
    key: str = field(init=False)
    """Its name inside the agent: that of its first attempt here, even once it is adopted."""

    def __post_init__(self) -> None:
        request = self.request
        self.id, self.attempt, self.account = request.id, request.attempt, request.account
        self.key = key_of(self.id, self.attempt)

    @classmethod
    def of(cls, frame: Submit | Load, link: AgentLink) -> Job:
        """The job that the gateway at the other end of `link` asks for."""
        if isinstance(frame, Load):
            probe = Submit(frame.id, "", b"", "", "", "", frame.adapter)
            return cls(probe, link, is_probe=True)
        if frame.prefix is not None and not frame.prefix.is_sound:
            frame = msgspec.structs.replace(frame, prefix=None)
        handover = frame.handover
        inherited = inherited_of(frame.resume) if handover is None else handover.usage
        return cls(
            frame,
            link,
            meter=_meter_of(inherited),
            reported=Meter() if handover else _meter_of(inherited),
            inherited=inherited,
            opened=inherited,
        )

    def take_body(self) -> tuple[bytes, Resume | None]:
        """The body, and where it continues. Both are dropped from here: a job lives as long as its
        answer, and they may have many megabytes."""
        request = self.request
        self.request = msgspec.structs.replace(request, body=b"", resume=None)
        return request.body, request.resume if self.inherited.completion_tokens else None

    def handover(self, now: float) -> Handover | None:
        """The prompt as a prefill engine computed it, valid from `now` on; None if that engine may
        have let go of it by now."""
        handover = self.request.handover
        if handover is None:
            return None
        valid_s = handover.valid_s - UNDERWAY_S - (now - self.received_at)
        return msgspec.structs.replace(handover, valid_s=valid_s) if valid_s > 0 else None

    @property
    def movable(self) -> bool:
        """Whether its gateway can have another engine continue it."""
        return self.request.ids and self.link is not None

    @property
    def phase(self) -> str:
        """Its current phase: those of `wire.Wait`, then `generating`."""
        if self.first_token_at is not None:
            return "generating"
        if self.submitted_at is not None:
            return "prefill"
        if self.admitted_at is not None:
            return "loading"
        return "fetching" if self.turn is None else "queued"

    def parts(self, now: float) -> Iterator[tuple[str, float, float]]:
        """The parts of its life until now: the name of each, when it began and when it ended."""
        adapter = self.request.adapter is not None
        marks = [
            ("fetch adapter" if adapter else "queue", self.received_at),
            ("queue", self.queued_at if adapter else None),
            ("load adapter" if adapter else "prefill", self.admitted_at),
            ("prefill", self.submitted_at if adapter else None),
            ("decode", self.counted_at),
        ]
        reached = [(name, since) for name, since in marks if since is not None]
        for (name, since), (_, until) in pairwise([*reached, ("", now)]):
            yield name, since, until

    def usage(self) -> Usage:
        """The figures so far, including those of lower attempts."""
        now, before = time.monotonic(), self.inherited
        admitted = self.admitted_at or now
        submitted = self.submitted_at or admitted
        first, ttft_s = self.first_token_at, before.ttft_s
        if ttft_s is None and first is not None:
            ttft_s = before.total_s + first - self.received_at
        return Usage(
            prompt_tokens=self.meter.prompt_tokens,
            cached_tokens=self.meter.cached_tokens,
            completion_tokens=self.meter.completion_tokens,
            reasoning_tokens=self.meter.reasoning_tokens,
            is_estimated=self.meter.is_estimated,
            queue_s=before.queue_s + admitted - self.received_at,
            load_s=before.load_s + submitted - admitted,
            ttft_s=ttft_s,
            total_s=before.total_s + now - self.received_at,
        )

    def delta(self, output: EngineOutput | None = None) -> Delta | None:
        """The next delta for the gateway: this output, and what the meter counted since the last
        one; None if there is neither."""
        meter, reported = self.meter, self.reported
        tokens = meter.completion_tokens - reported.completion_tokens
        text, chunks, ids = (output.text, output.chunks, output.ids) if output else ("", (), {})
        if not (text or tokens or chunks or ids):
            return None
        if self.counted_at is None:
            self.counted_at = time.monotonic()
        prompt = meter.prompt_tokens - reported.prompt_tokens
        cached = meter.cached_tokens - reported.cached_tokens
        reported.completion_tokens = meter.completion_tokens
        reported.prompt_tokens, reported.cached_tokens = meter.prompt_tokens, meter.cached_tokens
        return Delta(self.id, text, tokens, list(chunks), prompt, cached, self.attempt, ids)

    def final_frame(
        self, *, finish_reason: str | None = None, fault: Fault | None = None
    ) -> Done | Loaded:
        """The final frame for the gateway, of a job that did not end by itself."""
        if self.is_probe:
            return Loaded(self.id, {}, fault or Fault.of(Overloaded("The probe was cancelled.")))
        return Done(self.id, self.usage(), finish_reason, None, fault, self.attempt)


def inherited_of(resume: Resume | None) -> Usage:
    """What the lower attempts used of the answer that `resume` continues; of the output tokens,
    only those that its reader was given."""
    if resume is None or not (tokens := sum(map(len, resume.ids.values()))):
        return NOTHING
    return msgspec.structs.replace(resume.usage, completion_tokens=tokens)


def _meter_of(usage: Usage) -> Meter:
    return Meter(
        usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, usage.reasoning_tokens
    )


def fault_of(error: BaseException) -> Fault:
    """The exception as sent over the link; one outside our error tree shows no detail."""
    if isinstance(error, TimeoutError):
        error = GenerationTimeout()
    if not isinstance(error, InferenceError):
        error = InferenceError("The engine had an unexpected error while running this request.")
    return Fault.of(error)


def reason_of(done: Done, cancel_reason: str) -> str:
    """The finish reason that the journal has for a request."""
    if done.fault is not None:
        return done.fault.code
    return cancel_reason if done.finish_reason == CANCELLED else done.finish_reason or "stop"
