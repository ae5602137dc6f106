"""The product's engine: vLLM's `AsyncLLM` with many LoRA adapters, without vLLM's HTTP server.

A request that wants one text takes the lean path: vLLM's renderer and sampling parameters, then
the engine's deltas as they come. Everything else takes vLLM's serving layer (`serving.py`). What
differs between operations is in their `Runner`.
"""

from __future__ import annotations

# Sets environment variables that vLLM and torch read while they are imported.
from inference.agent.engines.vllm import environment as _environment  # isort: skip  # noqa: F401

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import msgspec
from pydantic import ValidationError
from vllm import __version__ as vllm_version
from vllm.config import VllmConfig
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import get_max_tokens
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from inference.agent.engines.cache_news import News
from inference.agent.engines.engine import (
    IDS_AT_ONCE,
    EngineNotStarted,
    EngineOutput,
    EngineProbedPrompt,
    EngineProbeReport,
    EngineWork,
    LoadReport,
    LocalAdapter,
    Meter,
)
from inference.agent.engines.probing import (
    PROBE_PROMPTS,
    PROBE_TOKENS,
    all_finite,
    largest_difference,
)
from inference.agent.engines.profile import POOLING, BadProfile, EngineProfile
from inference.agent.engines.vllm.cache_events import CacheEvents, reporting
from inference.agent.engines.vllm.causes import cause_of
from inference.agent.engines.vllm.errors import as_error, invalid_field, of_info
from inference.agent.engines.vllm.fitting import fitted
from inference.agent.engines.vllm.grammars import Grammars
from inference.agent.engines.vllm.handover import fetching, handed_over, keeping
from inference.agent.engines.vllm.pooling import Pooling
from inference.agent.engines.vllm.reliances import Part
from inference.agent.engines.vllm.replay import is_replayed
from inference.agent.engines.vllm.requests import EngineBounds, is_held, request_of
from inference.agent.engines.vllm.runners.pooling import Pooler
from inference.agent.engines.vllm.runners.registry import INQUIRIES, POOLERS, RUNNERS
from inference.agent.engines.vllm.runners.runner import Inquiry, Runner
from inference.agent.engines.vllm.selfcheck import failing
from inference.agent.engines.vllm.serving import (
    ABORTED,
    FAILED,
    PromptCounter,
    RequestClient,
    Serving,
    own_params,
)
from inference.agent.engines.vllm.start import (
    LoadOptions,
    adapter_modules,
    model_revision,
    start_llm,
)
from inference.errors import (
    AdapterLoadFailed,
    ContextLengthExceeded,
    EngineFailed,
    InferenceError,
    InvalidRequest,
)
from inference.link.engine_info import PREFILL, EngineStats, ModelInfo
from inference.link.wire import PREFILLED
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.process import gc_tuning

log = logging.getLogger(__name__)
_encode = msgspec.json.Encoder().encode

STEPS_AHEAD = 2
"""Steps' worth of prompts that an engine without a KV cache can hold."""

SHUTDOWN_S = 5.0
"""How long the engine core may take to end before it is killed."""


@dataclass(frozen=True, slots=True)
class _Probed:
    """What was computed of the probe's prompts: the first one's answer, and the values of each."""

    text: str
    values: tuple[list[float], ...]


class VLLMEngine:
    """One vLLM engine; see `inference.agent.engines.engine.Engine` for the contract."""

    def __init__(
        self,
        profile: EngineProfile,
        llm: AsyncLLM,
        load: LoadOptions,
        serving: Serving,
        info: ModelInfo,
        events: CacheEvents,
        lacking: set[Part],
    ) -> None:
        """`lacking`: the parts that this vLLM can't have."""
        self.info, self._events, self._lacking = info, events, lacking
        self._profile, self._llm, self._load, self._serving = profile, llm, load, serving
        self._grammars = Grammars(llm, checks=Part.GRAMMARS not in lacking)
        self._bounds = EngineBounds(
            choices=llm.vllm_config.scheduler_config.max_num_seqs,
            tools=profile.tool_parser is not None,
            reasons=profile.reasoning_parser is not None,
        )
        self._loaded: dict[int, tuple[LoRARequest, int]] = {}
        self._loading = asyncio.Lock()
        self._probed_base: _Probed | None = None
        self._totals = Meter()
        self._pooling = Pooling(llm, serving, self._totals)
        self._closed = False

    @classmethod
    async def start(cls, profile: EngineProfile) -> Self:
        """Start vLLM and wait until it can generate.

        Raises:
            BadProfile: vLLM doesn't take a setting, or the model does not fit this machine.
            EngineNotStarted: vLLM failed, or Lorikeet can't work with it.
        """
        events = CacheEvents()
        try:
            profile, cut = await asyncio.to_thread(fitted, profile)
            llm, load, lacking = await asyncio.to_thread(start_llm, profile, events.settings)
        except BaseException as error:
            events.close()
            if isinstance(error, BadProfile) or not isinstance(error, Exception):
                raise
            raise EngineNotStarted(f"vLLM did not start: {cause_of(error)}") from error
        if cut:
            log.warning("%s", cut)
        if Part.CACHE_EVENTS not in lacking:
            events.listen()
        await llm.collective_rpc("lorikeet_follow_parent")
        (wrapped, *_) = await llm.collective_rpc("lorikeet_adapter_modules")
        if not all(await llm.collective_rpc("lorikeet_separates")):
            llm.shutdown()
            raise EngineNotStarted(f"vLLM {vllm_version}: {Part.CPU.value}")
        if not all(await llm.collective_rpc("lorikeet_resumes")):
            lacking.add(Part.RESUME)
        config = llm.vllm_config
        serving = await Serving.start(llm, profile)
        known: dict[str, Runner | Pooler | Inquiry] = {**RUNNERS, **POOLERS, **INQUIRIES}
        operations = [name for name, runner in known.items() if serving.has(runner)]
        info = ModelInfo(
            name=profile.name,
            max_model_len=llm.model_config.max_model_len,
            max_loras=profile.max_loras,
            max_lora_rank=profile.max_lora_rank,
            kv_tokens=_kv_tokens(config),
            modules=adapter_modules(llm.model_config, wrapped),
            engine="vllm",
            revision=await asyncio.to_thread(model_revision, llm.model_config, profile),
            engine_version=vllm_version,
            operations=operations,
            parsers=profile.parsers,
            structured_outputs=CHAT.name in operations,
            degraded=[cut] if cut else [],
            profile=profile.named,
            proof=profile.proof,
            role=profile.role,
        )
        engine = cls(profile, llm, load, serving, info, events, lacking)
        await engine._try_parts()
        return engine

    @property
    def step_tokens(self) -> int:
        """vLLM's `max_num_batched_tokens`."""
        tokens: int = self._llm.vllm_config.scheduler_config.max_num_batched_tokens
        return tokens

    @property
    def alive(self) -> bool:
        """False once the engine core is gone."""
        return not self._closed and not self._llm.errored

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As the contract says; loads run one after another, as they do inside vLLM."""
        began = time.monotonic()
        async with self._loading:
            if (known := self._loaded.get(adapter.int_id)) is None:
                known = await self._add(adapter)
                self._loaded[adapter.int_id] = known
        return LoadReport(time.monotonic() - began, known[1])

    async def unload(self, adapter: LocalAdapter) -> None:
        """As the contract says."""
        async with self._loading:
            if self._loaded.pop(adapter.int_id, None) is not None:
                await self._remove(adapter.int_id)

    async def probe(
        self, adapter: LocalAdapter, rows: Sequence[list[int]] = ()
    ) -> EngineProbeReport:
        """As the contract says; greedy, comparing the tokens of the same prompt."""
        loaded = await self.load(adapter)
        lora = self._loaded[adapter.int_id][0]
        if self._probed_base is None:
            self._probed_base = await self._probe_runs(None)
        base, adapted = self._probed_base, await self._probe_runs(lora)
        prompts = list(map(EngineProbedPrompt, self._probe_ids(), base.values, adapted.values))
        compared = [largest_difference(one.base, one.adapted) for one in prompts]
        finite = all(math.isfinite(one) for one in compared)
        return EngineProbeReport(
            loaded.load_s,
            loaded.weight_bytes,
            max(compared) if finite else math.nan,
            finite,
            base.text,
            adapted.text,
            of_vector=self._pools,
            prompts=prompts if finite and not self._pools else [],
            rows=[] if self._pools else [await self._probe_row(ids, lora) for ids in rows],
        )

    async def _probe_row(self, ids: list[int], lora: LoRARequest) -> EngineProbedPrompt:
        base, adapted = [(await self._probe_run(ids, 1, one))[1] for one in (None, lora)]
        return EngineProbedPrompt(ids, base, adapted)

    @property
    def _pools(self) -> bool:
        return bool(self._llm.model_config.runner_type == POOLING)

    async def ping(self) -> None:
        """As the contract says, by a call that costs the core nothing."""
        await self._llm.is_sleeping()

    async def generate(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        """As the contract says."""
        if work.operation.name not in self.info.operations:
            raise InvalidRequest(f"This model does not support {work.operation.path}.")
        try:
            if (inquiry := INQUIRIES.get(work.operation.name)) is not None:
                yield await self._answer_inquiry(inquiry, work)
                return
            async with aclosing(await self._outputs(work)) as outputs:
                async for output in outputs:
                    yield output
        except InferenceError:
            raise
        except Exception as error:
            raise as_error(error) from error

    async def sleep(self) -> None:
        """Move the weights and adapters to the host's memory, and forget the KV cache."""
        await self._llm.sleep(1)

    async def wake(self) -> None:
        """Move them back."""
        await self._llm.wake_up()

    def stats(self) -> EngineStats:
        """As the contract says; the engine core's counts as of its last step."""
        return EngineStats(
            running=self._load.running,
            waiting=self._load.waiting,
            kv_usage=self._load.kv_usage,
            prompt_tokens=self._totals.prompt_tokens,
            completion_tokens=self._totals.completion_tokens,
            cached_tokens=self._totals.cached_tokens,
            drafted_tokens=self._load.drafted,
            accepted_tokens=self._load.accepted,
        )

    def cache_news(self) -> list[News] | None:
        """As the contract says."""
        return None if Part.CACHE_EVENTS in self._lacking else self._events.take()

    async def close(self) -> None:
        """As the contract says."""
        if not self._closed:
            self._closed = True
            self._grammars.close()
            self._events.close()
            await self._llm.abort(list(self._llm.output_processor.request_states), internal=True)
            if (handler := self._llm.output_handler) is not None:
                handler.cancel()  # else it reports the end of the core as a failure
            await asyncio.to_thread(self._llm.shutdown, SHUTDOWN_S)
            # AsyncLLM shuts down again when it is collected, which fails at interpreter exit.
            del self._llm, self._serving, self._grammars, self._pooling
            gc_tuning.release()

    async def _try_parts(self) -> None:
        """Find out what doesn't work, and say so in `info`. Nothing of it is counted.

        Raises:
            EngineNotStarted: it works so little that vLLM's core ended.
        """
        if COMPLETION.name in self.info.operations:
            self._lacking |= await failing(self.generate)
        if not self.alive:
            await self.close()
            cause = cause_of(EngineDeadError())
            raise EngineNotStarted(f"vLLM failed on its first prompt: {cause}")
        self._totals.prompt_tokens = self._totals.cached_tokens = 0
        self._totals.completion_tokens = 0
        if self._lacking:
            self.info = msgspec.structs.replace(
                self.info,
                resumes=Part.RESUME not in self._lacking,
                degraded=[*self.info.degraded, *sorted(part.value for part in self._lacking)],
            )

    async def _add(self, adapter: LocalAdapter) -> tuple[LoRARequest, int]:
        """Load into vLLM and check that it has an effect, else remove what may be left of it.
        Returns vLLM's request for it, and the size of its weights in bytes."""
        if len(self._loaded) >= self._profile.loaded_adapters:
            # vLLM would evict the least recently used one unasked, and read its files
            # again inside a step, where a failure kills the engine core.
            raise AdapterLoadFailed(
                f"{len(self._loaded)} adapters are loaded: the engine can load no more."
            )
        lora = LoRARequest(adapter.ref.name, adapter.int_id, str(adapter.path))
        try:
            await self._llm.add_lora(lora)
            sizes = await self._llm.collective_rpc("lorikeet_adapter_bytes", args=(adapter.int_id,))
        except BaseException as error:
            await self._remove(adapter.int_id)
            if isinstance(error, Exception):
                raise self._load_failure(adapter, str(error)) from error
            raise
        if None in sizes or not any(sizes):
            await self._remove(adapter.int_id)
            raise self._load_failure(adapter, "none of its weights fit this model")
        return lora, sum(sizes)

    async def _probe_runs(self, lora: LoRARequest | None) -> _Probed:
        """All prompts at the same time."""
        runs = (
            self._probe_run(ids, 1 if i else PROBE_TOKENS, lora)
            for i, ids in enumerate(self._probe_ids())
        )
        texts, values = zip(*await asyncio.gather(*runs), strict=True)
        return _Probed(texts[0], values)

    async def _probe_run(
        self, ids: list[int], tokens: int, lora: LoRARequest | None
    ) -> tuple[str, list[float]]:
        """An answer of so many tokens, and the log-probabilities of the prompt's own tokens.

        The prompt's tokens are the same with and without an adapter, so they can be compared one by
        one. Of a pooling model, the numbers of the prompt's vector.
        """
        if self._pools:
            return await self._pooling.probe(ids, lora)
        prompt = tokens_input(ids, cache_salt=uuid4().hex)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=min(tokens, self.info.max_model_len - len(ids)),
            logprobs=0,
            prompt_logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        id = f"probe-{uuid4().hex}"
        async for output in self._llm.generate(prompt, params, id, lora_request=lora):
            final = output
        answer = final.outputs[0]
        found = [*(final.prompt_logprobs or []), *(answer.logprobs or [])]
        values = [_chosen(entry) for entry in found if entry]
        return answer.text, values[: len(ids) - 1] if all_finite(values) else [math.nan]

    def _probe_ids(self) -> Iterator[list[int]]:
        """The fixed prompts in the form of tenants' prompts: as chats, if the model has chats."""
        tokenizer = self._llm.get_tokenizer()
        for prompt in PROBE_PROMPTS:
            if getattr(tokenizer, "chat_template", None):
                chat = [{"role": "user", "content": prompt}]
                ids = tokenizer.apply_chat_template(
                    chat, add_generation_prompt=True, return_dict=False
                )
            else:
                ids = tokenizer.encode(prompt)
            yield list(ids)[: self.info.max_model_len // 2]

    def _load_failure(self, adapter: LocalAdapter, why: str) -> InferenceError:
        if not self.alive:
            return EngineFailed("The engine stopped.")
        reason = why.strip().splitlines()[-1] if why.strip() else "unknown cause"
        return AdapterLoadFailed(f"The adapter {adapter.ref.name} could not be loaded: {reason}")

    async def _remove(self, int_id: int) -> None:
        if self.alive:
            await self._llm.remove_lora(int_id)

    def _lora_of(self, work: EngineWork) -> LoRARequest | None:
        if work.adapter is None:
            return None
        loaded = self._loaded.get(work.adapter.int_id)
        if loaded is None:
            # vLLM would read its files inside a step, where a failure kills the engine core.
            raise AdapterLoadFailed(f"The adapter {work.adapter.ref.name} is not loaded.")
        return loaded[0]

    async def _answer_inquiry(self, inquiry: Inquiry, work: EngineWork) -> EngineOutput:
        """The answer of an operation for which no token is generated."""
        endpoint = self._serving.endpoint(inquiry)
        try:
            answer = await inquiry.answer(endpoint, work.take_fields())
        except ValidationError as error:
            raise invalid_field(error) from None
        return EngineOutput(response=_encode(answer), finish_reason="stop")

    async def _outputs(self, work: EngineWork) -> AsyncGenerator[EngineOutput, None]:
        if work.resume is not None and Part.RESUME in self._lacking:
            raise EngineFailed("This engine cannot continue an answer that another engine began.")
        lora = self._lora_of(work)
        if (pooler := POOLERS.get(work.operation.name)) is not None:
            return self._pooling.outputs(pooler, work, lora)
        runner = RUNNERS[work.operation.name]
        request = await self._request(work, runner)
        if work.prefill:
            return self._prefilled(runner, request, work, lora)
        if runner.is_lean(request) and not self._profile.reasoning_parser:
            return self._lean(runner, request, work, lora)
        client = RequestClient(
            self._llm,
            work,
            lora,
            grammars=self._grammars,
            totals=self._totals,
            reports_ids=Part.TOKEN_IDS not in self._lacking,
            request=request,
        )
        return self._serving.outputs(runner, request, client)

    async def _request(self, work: EngineWork, runner: Runner) -> Any:
        """vLLM's request object. It is read on a thread if the answer is constrained, because only
        then may that take long."""
        fields, endpoint = work.take_fields(), self._serving.endpoint(runner)
        if not is_held(fields):
            return request_of(work, fields, runner, endpoint, self._bounds)
        return await self._grammars.run(
            lambda: request_of(work, fields, runner, endpoint, self._bounds)
        )

    async def _lean(
        self, runner: Runner, request: Any, work: EngineWork, lora: LoRARequest | None
    ) -> AsyncGenerator[EngineOutput, None]:
        """One text. Unless it streams, all but the first token come in one last Output, or in
        pieces of IDS_AT_ONCE tokens if their ids are wanted."""
        prompt, params = await self._rendered(runner, request)
        await self._grammars.check(params)
        if work.resume is not None:
            params = own_params(params, 0, work.resume, 0)
        deltas = self._llm.generate(
            prompt,
            fetching(reporting(params), work),
            work.key,
            lora_request=lora,
            priority=work.priority,
            session_id=work.key,
        )
        at_once = 1 if request.stream else IDS_AT_ONCE if work.wants_ids else math.inf
        counter, is_held = (
            PromptCounter(work.meter, self._totals),
            params.structured_outputs is not None,
        )
        del request, prompt, params  # large, and of no more use
        held, held_tokens, held_ids, first = "", 0, list[int](), True
        async with aclosing(deltas):
            async for delta in deltas:
                (completion,) = delta.outputs
                tokens, reason = counter.count(delta, held=is_held), completion.finish_reason
                if is_replayed(delta):
                    if reason is not None:  # only the finish reason was lost
                        yield EngineOutput(finish_reason=reason)
                    continue
                held, held_tokens = held + completion.text, held_tokens + tokens
                if work.wants_ids:
                    held_ids += completion.token_ids
                if first or held_tokens >= at_once or reason:
                    ids = {0: held_ids} if held_ids else {}
                    yield EngineOutput(held, held_tokens, finish_reason=reason, ids=ids)
                    held, held_tokens, held_ids, first = "", 0, [], False

    async def _prefilled(
        self, runner: Runner, request: Any, work: EngineWork, lora: LoRARequest | None
    ) -> AsyncGenerator[EngineOutput, None]:
        """The prompt, computed for another engine: vLLM generates one token, which counts as
        nothing and goes nowhere."""
        if self.info.role != PREFILL:
            raise EngineFailed("This engine does not compute prompts for others.")
        prompt, _ = await self._rendered(runner, request)
        counter, kept = PromptCounter(work.meter, self._totals), None
        deltas = self._llm.generate(
            prompt,
            reporting(keeping()),
            work.key,
            lora_request=lora,
            priority=work.priority,
            session_id=work.key,
        )
        async with aclosing(deltas):
            async for delta in deltas:
                counter.count_prompt(delta)
                if delta.outputs[0].finish_reason in (ABORTED, FAILED):
                    raise EngineFailed
                kept = delta.kv_transfer_params
        yield EngineOutput(finish_reason=PREFILLED, handover=handed_over(kept))

    async def _rendered(self, runner: Runner, request: Any) -> tuple[Any, SamplingParams]:
        """The tokenized prompt and its sampling parameters, which always ask for deltas."""
        endpoint = self._serving.endpoint(runner)
        prompts = await runner.prompts(endpoint, request)
        if isinstance(prompts, ErrorResponse):
            raise of_info(prompts.error)
        (prompt,) = prompts
        defaults, wanted = endpoint.default_sampling_params, runner.max_tokens(request)
        length, limit = endpoint._extract_prompt_len(prompt), self.info.max_model_len
        if length >= limit:
            raise ContextLengthExceeded.of(
                f"The prompt has {length} tokens, which leaves no room for an answer in "
                f"the model's context window of {limit} tokens.",
                length,
                limit,
            )
        room = get_max_tokens(limit, wanted, length, defaults, endpoint.override_max_tokens)
        params = request.to_sampling_params(room, defaults)
        params.output_kind = RequestOutputKind.DELTA
        return prompt, params


def _kv_tokens(config: VllmConfig) -> int:
    """The capacity of the KV cache in tokens. A pooling model may have none: then it can hold one
    step's prompts while they are computed, and those of the next."""
    held = int((config.cache_config.num_gpu_blocks or 0) * config.cache_config.block_size)
    if config.model_config.runner_type != POOLING:
        return held
    return int(max(held, STEPS_AHEAD * config.scheduler_config.max_num_batched_tokens))


def _chosen(entry: dict[int, Any]) -> float:
    """The log-probability of the actual token, which vLLM puts first."""
    return float(next(iter(entry.values())).logprob)
