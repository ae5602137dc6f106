"""What the agent needs of an engine.

`vllm.engine.VLLMEngine` is the product; `upstream.engine.UpstreamEngine` serves the model of
another server; `synthetic.engine.SyntheticEngine` is for unit tests and gateway benchmarks only.
Only modules in `vllm` import vLLM.

Call order: `load` an adapter and await it before `generate` uses it; `unload` only what no running
work uses (the agent's slots see to both). `close` ends the engine; nothing may follow it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec

from inference.agent.engines.cache_news import News
from inference.link.engine_info import AdapterRef, EngineStats, ModelInfo
from inference.link.wire import Handover, Resume
from inference.operations.operation import Operation

UNBOUNDED_STEP = 1 << 60
"""`Engine.step_tokens` of an engine that computes no prompts itself."""
IDS_AT_ONCE = 32
"""Tokens in an Output of a whole (non-streaming) answer: at most these are lost with an engine."""


@dataclass(frozen=True, slots=True)
class LocalAdapter:
    """An adapter version whose checked files lie in the folder `path`, named by its digest.

    `int_id` is the integer by which the engine selects weights: positive, never used for two
    digests by one process, nor again for a version whose load failed.
    """

    ref: AdapterRef
    int_id: int
    path: Path


@dataclass(slots=True)
class Meter:
    """What one request has cost so far; the engine counts here as tokens leave it.

    Up to date at every moment, so that an aborted request is billed for what was generated.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False
    """Whether these are estimates."""


@dataclass(slots=True)
class EngineWork:
    """One admitted request. `body` is the client's decoded JSON, nothing in it trusted.

    `model` is the name shown in the answer; `created` a unix time in seconds; `priority` as vLLM's
    (lower goes first). `id` is shown in the answer; two attempts of it may run at once. With
    `wants_ids` each Output says which tokens it holds, and a whole answer comes in Outputs of about
    IDS_AT_ONCE tokens, so that another engine can continue it too. `resume` is what other engines
    generated of it, which the meter already includes. With `prefill` only its prompt is computed,
    for another engine; `handover` is what such an engine computed of it, which the meter includes.
    """

    id: str
    operation: Operation
    body: dict[str, Any]
    model: str
    salt: str
    adapter: LocalAdapter | None = None
    priority: int = 0
    created: int = 0
    meter: Meter = field(default_factory=Meter)
    attempt: int = 1
    wants_ids: bool = False
    resume: Resume | None = None
    prefill: bool = False
    handover: Handover | None = None

    @property
    def key(self) -> str:
        """Names this attempt in the engine."""
        return key_of(self.id, self.attempt)

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that identify the request in every chunk and answer."""
        id = self.operation.answer_id(self.id)
        return {"id": id, "created": self.created, "model": self.model}

    @property
    def cache_salt(self) -> str | None:
        """What caches of keys and values must tell apart: the tenant and the adapter's content.

        vLLM's own prefix cache also has the adapter's name in its keys; a KV connector may key on
        tokens and salt alone. A digest, because vLLM takes at most 128 characters.
        """
        if self.adapter is None:
            return self.salt or None
        return hashlib.sha256(f"{self.salt}\0{self.adapter.ref.digest}".encode()).hexdigest()

    def take_fields(self) -> dict[str, Any]:
        """Take out the fields of the body that an engine may see. The body is no longer kept then:
        work lives as long as its answer, and a body may be large.

        Raises:
            InvalidRequest: see `Operation.allowed`.
        """
        body, self.body = self.body, {}
        return self.operation.allowed(body)


def key_of(id: str, attempt: int) -> str:
    """Names one attempt of a request where a queue or an engine knows ids alone."""
    return id if attempt == 1 else f"{id}-{attempt}"


class EngineOutput(msgspec.Struct, frozen=True):
    """What one engine step added to a request.

    Lean path (n = 1, no tools, no log-probabilities, ...): `text`, streaming or not; the gateway
    makes the chunks or the whole answer. Full path: `chunks`, finished JSON bodies of stream
    chunks (without a usage chunk, which the gateway adds), or, when the client does not stream,
    one Output with `response`, the whole JSON body. The last Output has the `finish_reason`.
    `ids` are those of the tokens in it by choice, if the work wants them; choices are numbered as
    in the answer. Text and chunks of an Output are exactly what follows from its ids and all
    earlier ones, so an engine that continues after any Output continues the answer exactly. An
    Output may therefore have ids alone, if a parser made nothing of them yet, or if the `response`
    will hold them.

    A pooling operation yields an empty Output once its first prompt is computed, and one with the
    `response`.

    A continued answer (`EngineWork.resume`) yields only what is new of the text, chunks, ids and
    tokens. A `response` is whole all the same, and the `finish_reason` is that of all choices,
    including those that had ended before.

    Work that is only a `prefill` yields one Output, with the `handover` and the finish reason
    PREFILLED; its meter counts the prompt alone.
    """

    text: str = ""
    tokens: int = 0
    chunks: tuple[bytes, ...] = ()
    response: bytes | None = None
    finish_reason: str | None = None
    ids: dict[int, list[int]] = {}
    handover: Handover | None = None


@dataclass(frozen=True, slots=True)
class LoadReport:
    """`load_s` in seconds, `weight_bytes` on the engine."""

    load_s: float
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class EngineProbedPrompt:
    """A prompt's tokens, and the log-probability of each but the first, without and with the
    adapter."""

    ids: list[int]
    base: list[float]
    adapted: list[float]


@dataclass(frozen=True, slots=True)
class EngineProbeReport:
    """What fixed prompts showed: does the adapter change the base model's log-probabilities?

    `max_logprob_delta` is the largest difference over the compared tokens; not finite if any
    log-probability was not. For a pooling model the numbers of the prompt's vector are compared
    instead (`of_vector`). `prompts` is empty then, and if a log-probability was not finite. The
    texts are the answers to the first prompt. `rows` are those that were asked for, unless it is a
    pooling model.
    """

    load_s: float
    weight_bytes: int
    max_logprob_delta: float
    finite: bool
    base_text: str
    adapter_text: str
    of_vector: bool = False
    prompts: list[EngineProbedPrompt] = field(default_factory=list)
    rows: list[EngineProbedPrompt] = field(default_factory=list)


class EngineNotStarted(Exception):
    """The engine can't start; the message is one line that says why."""


class Engine(Protocol):
    """One base model and the adapters loaded on it."""

    @property
    def info(self) -> ModelInfo:
        """What is served; constant over the engine's life."""
        ...

    @property
    def step_tokens(self) -> int:
        """Tokens that one step computes at most, prompts and answers together."""
        ...

    @property
    def alive(self) -> bool:
        """False once the engine is unusable; the agent then exits and is started again."""
        ...

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """Load the adapter; returns at once if it is loaded already.

        Raises:
            AdapterLoadFailed: it cannot be served, or the profile's `loaded_adapters` are loaded
                already; nothing of it stays registered.
        """
        ...

    async def unload(self, adapter: LocalAdapter) -> None:
        """Forget the adapter; no error if it was not loaded."""
        ...

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        """Load the adapter and compare its output with the base model's on fixed prompts, and on
        rows of tokens if any are given.

        Raises:
            AdapterLoadFailed: as `load`.
        """
        ...

    async def ping(self) -> None:
        """Wait for a reply of the engine's core, which comes between two steps."""
        ...

    def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        """Run one request; closing the generator or cancelling its task aborts it in the engine.

        Mutates `work.meter`; the prompt counts once its first token is generated, and not again if
        `work.resume` continues it. Of a pooling operation each prompt counts once it is computed,
        and prompts of about `step_tokens` tokens are computed at a time. Takes the fields out of
        the work and keeps them no longer than it needs them.

        Raises:
            RequestError: the request is at fault (bad parameter, prompt too long, ...).
            EngineFailed: the engine failed on it.
            AdapterLoadFailed: its adapter is not loaded.
        """
        ...

    def stats(self) -> EngineStats:
        """The state now; cheap enough to call ten times a second. `queued` and `resident` stay
        empty."""
        ...

    def cache_news(self) -> list[News] | None:
        """What its prefix cache stored and removed since the last call; None if the engine never
        reports that. Cheap enough to call ten times a second."""
        ...

    async def close(self) -> None:
        """Abort everything and free the engine."""
        ...
