"""Runs requests as an engine does, without a model.

Deterministic, and with the contract of the real one. An answer names the adapter and repeats the
prompt, so that a test sees at once whose answer it got. One timer steps all running streams, as an
engine core does; at unlimited rate a token costs a few microseconds.

It continues what another engine generated only if it would have generated the same: a token that
was lost or duplicated on the way fails the request. So does a handover of another tenant, adapter
or prompt.

Failures are configured in `Behaviour`, which may be replaced while the engine runs.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Self

import msgspec

from inference.agent.engines.cache_news import News
from inference.agent.engines.engine import (
    UNBOUNDED_STEP,
    EngineOutput,
    EngineProbeReport,
    EngineWork,
    LoadReport,
    LocalAdapter,
    Meter,
)
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.synthetic.answers import (
    Options,
    answer_to,
    gathered_tokens,
    options_of,
    with_choices,
)
from inference.agent.engines.synthetic.model import (
    llama_modules,
    operations_of,
    revision_of_profile,
)
from inference.agent.engines.synthetic.prefix_cache import BLOCK_TOKENS, PrefixCache
from inference.agent.engines.synthetic.tokens import (
    TOKEN_CHARS,
    Tokenizer,
    ids_of,
    length_of,
    tokens_in,
)
from inference.agent.engines.synthetic.vectors import vector_of
from inference.content import FILES, WEIGHTS
from inference.errors import AdapterLoadFailed, ContextLengthExceeded, EngineFailed
from inference.link.engine_info import EngineStats, ModelInfo
from inference.link.wire import MAX_HANDOVER_BYTES, PREFILLED, Handover, Resume
from inference.operations.instant import InstantOperation
from inference.operations.operation import PlainPrompt
from inference.operations.pooling.pooling import AnswerMetadata, PoolingOperation, Text

SHORTEST_TICK_S = 0.001
"""Timers are no finer; at higher rates a tick yields several tokens."""

KEPT_S = 60.0
"""How long a computed prompt is kept for another engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the engine acts. Adapters are given by LoRA name (`tenant/adapter@digest`)."""

    tokens_per_second: float | None = None
    """Per stream, at most: a busy process does not catch up on ticks that it missed, as a real
    engine doesn't. None is as fast as the event loop runs."""
    latency_s: float = 0.0
    """From submission to the first token."""
    load_s: float = 0.0
    wake_s: float = 0.0
    fail_loads: frozenset[str] = frozenset()
    inert: frozenset[str] = frozenset()
    """Adapters that a probe finds to change nothing."""
    corrupt: frozenset[str] = frozenset()
    """Adapters that a probe finds to give NaN."""
    fail_after_tokens: int | None = None
    """Every request fails in the engine after this many tokens."""
    stall_after_tokens: int | None = None
    """No request gets beyond this many tokens."""
    hangs: bool = False
    """No request gets any further, and pings are not answered."""
    deadly: str = ""
    """A prompt that contains this kills the engine when it is computed."""


class _Stream:
    """One request: its whole answer is known from the start, `at` says how much is generated.

    `prompt` is kept until it is counted. The first `resumed` tokens are another engine's.
    """

    __slots__ = (
        "answer", "at", "due_at", "error", "finish_reason", "length", "prompt", "resumed", "waiter"
    )  # fmt: skip

    def __init__(self, prompt: str, answer: str, finish_reason: str, due_at: float) -> None:
        self.prompt = prompt
        self.answer, self.finish_reason = answer, finish_reason
        self.length = max(1, tokens_in(answer))
        self.at = self.resumed = 0
        self.due_at = due_at
        self.error: EngineFailed | None = None
        self.waiter: asyncio.Future[None] | None = None

    @property
    def over(self) -> bool:
        return self.at >= self.length or self.error is not None

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def resume(self, resume: Resume) -> None:
        """Continue after these tokens.

        Raises:
            EngineFailed: this answer does not begin with them.
        """
        longest = max(resume.ids.values(), key=len, default=[])
        own = ids_of(self.answer)
        if any(ids != own[: len(ids)] for ids in resume.ids.values()):
            raise EngineFailed(
                "The tokens that another engine generated differ from this engine's."
            )
        self.at = self.resumed = len(longest)

    async def wait(self) -> None:
        self.waiter = asyncio.get_running_loop().create_future()
        await self.waiter


class SyntheticEngine:
    """See `inference.agent.engines.engine.Engine` for the contract."""

    def __init__(
        self,
        info: ModelInfo,
        behaviour: Behaviour | None = None,
        *,
        max_running: int = 256,
        max_loaded: int = 16,
    ) -> None:
        self.info = info
        self.behaviour = behaviour or Behaviour()
        self.alive = True
        self.step_tokens = UNBOUNDED_STEP
        self._max_running, self._max_loaded = max_running, max_loaded
        self._loaded: dict[int, LocalAdapter] = {}
        self._running: dict[_Stream, None] = {}
        self._waiting: list[tuple[int, int, _Stream]] = []
        self._order = count()
        self._timer: asyncio.Handle | None = None
        self._tick_at = 0.0
        """When the last step was due."""
        self._totals = Meter()
        self._prefixes = PrefixCache(info.kv_tokens // BLOCK_TOKENS)

    @classmethod
    def of(cls, profile: EngineProfile, *, tokens_per_second: float | None = None) -> Self:
        """An engine that pretends to serve `profile`; a local folder's config.json gives shapes."""
        info = ModelInfo(
            name=profile.name,
            max_model_len=profile.max_model_len or 4096,
            max_loras=profile.max_loras,
            max_lora_rank=profile.max_lora_rank,
            kv_tokens=1 << 16,
            modules=llama_modules(Path(profile.model) / "config.json"),
            engine="synthetic",
            revision=revision_of_profile(profile),
            engine_version="1",
            operations=operations_of(profile.runner),
            profile=profile.named,
            proof=profile.proof,
            role=profile.role,
        )
        return cls(
            info,
            Behaviour(tokens_per_second=tokens_per_second),
            max_running=profile.running,
            max_loaded=profile.loaded_adapters,
        )

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As the contract says; the files must exist."""
        began = time.monotonic()
        if adapter.int_id not in self._loaded:
            await self._load(adapter)
        weight_bytes = (adapter.path / WEIGHTS).stat().st_size
        return LoadReport(time.monotonic() - began, weight_bytes)

    async def _load(self, adapter: LocalAdapter) -> None:
        if len(self._loaded) >= self._max_loaded:
            raise AdapterLoadFailed(
                f"{len(self._loaded)} adapters are loaded: the engine can load no more."
            )
        if self.behaviour.load_s:
            await asyncio.sleep(self.behaviour.load_s)
        missing = [name for name in FILES if not (adapter.path / name).is_file()]
        if missing or adapter.ref.name in self.behaviour.fail_loads:
            raise AdapterLoadFailed(f"The adapter {adapter.ref.name} could not be loaded.")
        self._loaded[adapter.int_id] = adapter

    async def unload(self, adapter: LocalAdapter) -> None:
        """As the contract says."""
        self._loaded.pop(adapter.int_id, None)

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        """As the contract says; `Behaviour` decides what is found."""
        loaded = await self.load(adapter)
        name = adapter.ref.name
        finite = name not in self.behaviour.corrupt
        delta = 0.0 if name in self.behaviour.inert else 1.0
        return EngineProbeReport(
            loaded.load_s,
            loaded.weight_bytes,
            max_logprob_delta=delta if finite else math.nan,
            finite=finite,
            base_text=f"{self.info.name}: hello",
            adapter_text=f"{name}: hello",
        )

    async def ping(self) -> None:
        """As the contract says."""
        if self.behaviour.hangs:
            await asyncio.Event().wait()

    async def sleep(self) -> None:
        """There is no memory to give back."""

    async def wake(self) -> None:
        """Take the behaviour's time."""
        await asyncio.sleep(self.behaviour.wake_s)

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        """As the contract says; tools and log-probabilities are refused."""
        fields = work.take_fields()
        if isinstance(work.operation, InstantOperation):
            if not self.alive:
                raise EngineFailed("The engine stopped.")
            answer = work.operation.plain_answer(fields, Tokenizer(self.info.max_model_len))
            yield EngineOutput(response=msgspec.json.encode(answer), finish_reason="stop")
            return
        if isinstance(work.operation, PoolingOperation):
            async with aclosing(self._pooled(work, work.operation, fields)) as outputs:
                async for output in outputs:
                    yield output
            return
        options = options_of(fields)
        wanted = 1 if work.prefill else work.operation.max_tokens(fields)
        stream = self._stream_of(work, work.operation.plain_prompt(fields), options, wanted)
        del fields
        if work.handover is not None:
            self._fetch(work, stream)
        self._submit(stream, work.priority)
        try:
            if work.prefill:
                yield await self._prefilled(stream, work)
                return
            async with aclosing(self._texts(stream, work, options)) as texts:
                several = (options.n or 1) > 1
                outputs = with_choices(texts, work, options, stream.answer) if several else texts
                async for output in outputs:
                    yield output
        finally:
            self._running.pop(stream, None)
            stream.error = stream.error or EngineFailed("aborted")  # if it still waits

    def stats(self) -> EngineStats:
        """As the contract says."""
        return EngineStats(
            running=len(self._running),
            waiting=sum(not stream.over for _, _, stream in self._waiting),
            kv_usage=min(1.0, len(self._running) / self._max_running),
            prompt_tokens=self._totals.prompt_tokens,
            completion_tokens=self._totals.completion_tokens,
            cached_tokens=self._totals.cached_tokens,
        )

    def cache_news(self) -> list[News]:
        """As the contract says."""
        return self._prefixes.news.take()

    async def close(self) -> None:
        """As the contract says."""
        self.die()

    def die(self) -> None:
        """End as a crashed engine core does: all running and later requests fail."""
        self.alive = False
        for stream in [*self._running, *(stream for _, _, stream in self._waiting)]:
            stream.error = stream.error or EngineFailed("The engine stopped.")
            stream.wake()
        self._waiting.clear()

    async def _pooled(
        self, work: EngineWork, operation: PoolingOperation, fields: dict[str, Any]
    ) -> AsyncGenerator[EngineOutput, None]:
        """Each step computes one of its texts."""
        self._check_ready(work)
        texts = operation.texts(fields)
        for path, text in texts:
            self._check_length(text, path)
        lengths = [length_of(text) for _, text in texts]
        plain = " ".join(text for _, text in texts if isinstance(text, str))
        steps = " " * TOKEN_CHARS * len(texts)
        stream = _Stream(plain, steps, "stop", time.monotonic() + self.behaviour.latency_s)
        self._submit(stream, work.priority)
        computed = 0
        try:
            while computed < stream.length:
                while stream.at == computed and stream.error is None:
                    await stream.wait()
                if stream.error is not None:
                    raise stream.error
                for meter in (work.meter, self._totals):
                    meter.prompt_tokens += sum(lengths[computed : stream.at])
                if not computed:
                    yield EngineOutput()
                computed = stream.at
        finally:
            self._running.pop(stream, None)
            stream.error = stream.error or EngineFailed("aborted")  # if it still waits
        voice = work.adapter.ref.name if work.adapter else self.info.name
        wanted = fields.get("dimensions")
        vectors = [vector_of(text, voice, wanted) for _, text in texts]
        metadata = AnswerMetadata(
            operation.answer_id(work.id), work.created, work.model, work.meter.prompt_tokens
        )
        answer = operation.plain_answer(fields, vectors, metadata)
        yield EngineOutput(response=answer, finish_reason="stop")

    def _check_ready(self, work: EngineWork) -> None:
        if not self.alive:
            raise EngineFailed("The engine stopped.")
        if work.adapter is not None and work.adapter.int_id not in self._loaded:
            raise AdapterLoadFailed(f"The adapter {work.adapter.ref.name} is not loaded.")

    def _check_length(self, text: Text, path: str) -> None:
        if (length := length_of(text)) > (most := self.info.max_model_len):
            raise ContextLengthExceeded(
                f"`{path}` has {length} tokens; the model's context window is {most} tokens.",
                param=path,
            )

    def _stream_of(
        self, work: EngineWork, prompt: PlainPrompt, options: Options, wanted: int | None
    ) -> _Stream:
        self._check_ready(work)
        room = self.info.max_model_len - tokens_in(prompt.whole)
        if room < 1:
            tokens, limit = tokens_in(prompt.whole), self.info.max_model_len
            raise ContextLengthExceeded.of(
                f"The prompt has {tokens} tokens; the model's context window is {limit} tokens.",
                tokens,
                limit,
            )
        voice = work.adapter.ref.name if work.adapter else self.info.name
        most = min(wanted or room, room)
        answer, reason = answer_to(f"{voice}: {prompt.repeated}", most, options)
        due_at = time.monotonic() + self.behaviour.latency_s
        stream = _Stream(prompt.whole, answer, reason, due_at)
        if work.resume is not None:
            stream.resume(work.resume)
        return stream

    async def _texts(
        self, stream: _Stream, work: EngineWork, options: Options
    ) -> AsyncGenerator[EngineOutput, None]:
        """What was generated since the last Output. If not streamed, all after the first comes at
        the end, or in pieces if ids are wanted. Counted as it is generated in any case."""
        given = counted = stream.resumed
        choices, at_once = options.n or 1, gathered_tokens(work, options)
        if given == stream.length:  # only the finish reason was lost
            yield EngineOutput(finish_reason=stream.finish_reason)
        while given < stream.length:
            while stream.at == counted and stream.error is None:
                await stream.wait()
            if stream.error is not None:
                raise stream.error
            if not work.meter.prompt_tokens:
                self._count_prompt(work, stream)
            at = stream.at
            for meter in (work.meter, self._totals):
                meter.completion_tokens += (at - counted) * choices
            counted = at
            if given == stream.resumed or at - given >= at_once or at == stream.length:
                text = stream.answer[given * TOKEN_CHARS : at * TOKEN_CHARS]
                reason = stream.finish_reason if at == stream.length else None
                ids = dict.fromkeys(range(choices), ids_of(text)) if work.wants_ids else {}
                yield EngineOutput(text, (at - given) * choices, finish_reason=reason, ids=ids)
                given = at

    async def _prefilled(self, stream: _Stream, work: EngineWork) -> EngineOutput:
        """Compute the prompt alone."""
        params = _computed(work, stream)
        while not stream.over:
            await stream.wait()
        if stream.error is not None:
            raise stream.error
        self._count_prompt(work, stream)
        return EngineOutput(finish_reason=PREFILLED, handover=Handover(params, KEPT_S))

    def _fetch(self, work: EngineWork, stream: _Stream) -> None:
        """Take the prompt from where another engine computed it.

        Raises:
            EngineFailed: that is another tenant's, adapter's or request's.
        """
        if work.handover is None or work.handover.params != _computed(work, stream):
            raise EngineFailed("The handover is of another prompt.")
        self._reuse(work, stream.prompt)

    def _reuse(self, work: EngineWork, prompt: str) -> int:
        name = work.adapter.ref.name if work.adapter else ""
        return self._prefixes.reuse(work.key, f"{work.salt}\0{name}", prompt)

    def _count_prompt(self, work: EngineWork, stream: _Stream) -> None:
        prompt, stream.prompt = stream.prompt, ""
        cached = self._reuse(work, prompt)
        for meter in (work.meter, self._totals):
            meter.prompt_tokens += tokens_in(prompt)
            meter.cached_tokens += cached

    def _submit(self, stream: _Stream, priority: int) -> None:
        if len(self._running) < self._max_running:
            self._running[stream] = None
        else:
            heapq.heappush(self._waiting, (priority, next(self._order), stream))
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None or not (self._running or self._waiting):
            return
        loop = asyncio.get_running_loop()
        rate, now = self.behaviour.tokens_per_second, time.monotonic()
        idle = self.behaviour.stall_after_tokens is not None or self.behaviour.hangs
        soonest = min((stream.due_at for stream in self._running), default=now)
        if rate is None and soonest <= now and not idle:
            self._timer = loop.call_soon(self._step)
        else:
            tick_s = max(1 / rate, SHORTEST_TICK_S) if rate else SHORTEST_TICK_S
            in_time = self._tick_at + tick_s
            self._tick_at = max(in_time if in_time > now else now + tick_s, soonest)
            self._timer = loop.call_later(self._tick_at - now, self._step)

    def _step(self) -> None:
        """One engine step: admit what waits, move every running stream on."""
        self._timer = None
        while self._waiting and len(self._running) < self._max_running:
            stream = heapq.heappop(self._waiting)[2]
            if not stream.over:
                self._running[stream] = None
        now = time.monotonic()
        for stream in list(self._running) if not self.behaviour.hangs else ():
            self._move(stream, now)
        self._schedule()

    def _move(self, stream: _Stream, now: float) -> None:
        if now < stream.due_at:
            return
        if self.behaviour.deadly and self.behaviour.deadly in stream.prompt:
            self.die()
            return
        rate, limit = self.behaviour.tokens_per_second, self.behaviour.fail_after_tokens
        stall = self.behaviour.stall_after_tokens
        due = stream.at + (max(1, round(rate * SHORTEST_TICK_S)) if rate else 1)
        if limit is not None and due > limit:
            stream.error = EngineFailed()
        furthest = stream.length if stall is None else min(stall, stream.length)
        if (due := min(due, furthest)) > stream.at or stream.error:
            stream.at = due
            stream.wake()
        if stream.over:
            del self._running[stream]


def _computed(work: EngineWork, stream: _Stream) -> bytes:
    """What a handover of this prompt says: whose it is, and which."""
    return f"{work.cache_salt}\0{stream.prompt}".encode()[:MAX_HANDOVER_BYTES]
