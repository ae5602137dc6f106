"""Pooling requests on vLLM: prompts are computed, a few at a time, and nothing is generated.

vLLM's endpoint reads the request, tokenizes its prompts and compares vectors. In between it would
give the engine all prompts at once; here each request has about a step's worth of them on the
engine, so that requests that come meanwhile are computed in the next step. Prompts are tokenized
one after another as well, because vLLM does that on one thread for all requests.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import uuid4

from pydantic import ValidationError
from vllm.exceptions import VLLMValidationError
from vllm.inputs import tokens_input
from vllm.lora.request import LoRARequest
from vllm.outputs import PoolingRequestOutput
from vllm.pooling_params import PoolingParams
from vllm.v1.engine.async_llm import AsyncLLM

from inference.agent.engines.engine import EngineOutput, EngineWork, Meter
from inference.agent.engines.vllm.errors import as_error, invalid_field
from inference.agent.engines.vllm.runners.pooling import Pooler
from inference.agent.engines.vllm.serving import Serving
from inference.errors import ContextLengthExceeded, EngineFailed, InvalidRequest
from inference.operations.pooling.pooling import AnswerMetadata, PoolingOperation, Text

Prompt = dict[str, Any]
"""vLLM's `PoolingEngineInput`."""
PROBE_SHOWN = 8
"""Numbers of a vector in a probe's report."""


class Pooling:
    """Runs the pooling requests of one engine."""

    def __init__(self, llm: AsyncLLM, serving: Serving, totals: Meter) -> None:
        self._llm, self._serving, self._totals = llm, serving, totals
        scheduler = llm.vllm_config.scheduler_config
        self._at_once: int = scheduler.max_num_batched_tokens

    async def outputs(
        self, pooler: Pooler, work: EngineWork, lora: LoRARequest | None
    ) -> AsyncGenerator[EngineOutput, None]:
        """As the contract of `Engine.generate` says.

        Raises:
            RequestError: the request is at fault.
            EngineFailed: the engine failed on it.
        """
        operation = work.operation
        assert isinstance(operation, PoolingOperation)
        fields = work.take_fields()
        texts = operation.texts(fields)
        self._check_tokens(texts)
        paths = [path for path, _ in texts]
        del texts
        endpoint = self._serving.endpoint(pooler)
        ctx, processor = await self._begun(pooler, endpoint, work, fields)
        prompts = await self._tokenized(processor, ctx, paths)
        kept: list[Any] = [None] * len(prompts)
        computed = self._computed(prompts, work, lora)
        began = False
        async with aclosing(computed):
            async for at, output in computed:
                self._count(output, work.meter)
                kept[at] = pooler.keep(fields, _path(paths, len(prompts), at), at, output)
                if not began:
                    began = True
                    pooler.check(kept[at], len(prompts))
                    yield EngineOutput()
        id = operation.answer_id(work.id)
        metadata = AnswerMetadata(id, work.created, work.model, work.meter.prompt_tokens)
        answer = await pooler.answer(fields, kept, metadata, processor, ctx)
        yield EngineOutput(response=answer, finish_reason="stop")

    def _check_tokens(self, texts: list[tuple[str, Text]]) -> None:
        """Check prompts that are given as tokens. vLLM checks them only when it gives them to the
        engine, and does not name the prompt.

        Raises:
            InvalidRequest: a token is not in this model's vocabulary.
        """
        highest = self._llm.model_config.get_vocab_size() - 1
        for path, text in texts:
            if isinstance(text, list) and (found := max(text)) > highest:
                raise InvalidRequest(
                    f"`{path}` has the token {found}: the highest token of this model is "
                    f"{highest}.",
                    param=path,
                )

    async def probe(self, ids: list[int], lora: LoRARequest | None) -> tuple[str, list[float]]:
        """What the model computes of these tokens, without the prefix cache: as text to show, and
        in numbers."""
        prompt = tokens_input(ids, cache_salt=uuid4().hex)
        config = self._llm.model_config
        task = config.get_pooling_task(await self._llm.get_supported_tasks())
        params, id = PoolingParams(task=task), f"probe-{uuid4().hex}"
        params.verify(config)
        async for output in self._llm.encode(prompt, params, id, lora_request=lora):
            numbers: list[float] = output.outputs.data.flatten().tolist()
        shown = ", ".join(f"{number:.3f}" for number in numbers[:PROBE_SHOWN])
        return f"[{shown}, ...]", numbers if all(map(math.isfinite, numbers)) else [math.nan]

    async def _begun(
        self, pooler: Pooler, endpoint: Any, work: EngineWork, fields: dict[str, Any]
    ) -> tuple[Any, Any]:
        """vLLM's context for this request, and the processor that makes prompts of it."""
        own = {
            "model": endpoint.models.model_name(),
            "request_id": work.key,
            "priority": work.priority,
            "cache_salt": work.cache_salt,
        }
        try:
            request = pooler.read(fields | own)
        except ValidationError as error:
            raise invalid_field(error) from None
        processor = endpoint.get_io_processor(request)
        ctx = await endpoint._init_ctx(processor, request)
        try:
            ctx.pooling_params.verify(endpoint.model_config)
        except VLLMValidationError as error:
            raise InvalidRequest(str(error.args[0]), param="dimensions") from None
        return ctx, processor

    async def _tokenized(self, processor: Any, ctx: Any, paths: Sequence[str]) -> list[Prompt]:
        """The request's prompts; nothing is computed before all of them are valid."""
        found: list[Prompt] = []
        wanted = processor.get_request_factory_online(ctx)
        for at, one in enumerate(wanted):
            try:
                found.append(await processor.render_async(one))
            except VLLMValidationError as error:
                raise _named(error, _path(paths, len(wanted), at)) from None
        ctx.engine_inputs = found
        return found

    async def _computed(
        self, prompts: list[Prompt], work: EngineWork, lora: LoRARequest | None
    ) -> AsyncGenerator[tuple[int, PoolingRequestOutput], None]:
        """Each prompt's number and output, as they are computed."""
        waiting = deque(enumerate(prompts))
        running: dict[asyncio.Task[PoolingRequestOutput], tuple[int, int]] = {}
        room = self._at_once
        try:
            while waiting or running:
                while waiting and (not running or _length(waiting[0][1]) <= room):
                    at, prompt = waiting.popleft()
                    task = asyncio.create_task(self._encode(prompt, f"{work.key}-{at}", work, lora))
                    running[task] = at, _length(prompt)
                    room -= _length(prompt)
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    at, length = running.pop(task)
                    room += length
                    yield at, task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def _encode(
        self, prompt: Prompt, id: str, work: EngineWork, lora: LoRARequest | None
    ) -> PoolingRequestOutput:
        async for output in self._llm.encode(
            prompt["prompts"],
            prompt["params"],
            id,
            lora_request=lora,
            priority=work.priority,
        ):
            found: PoolingRequestOutput = output
        if found.error is not None:
            raise EngineFailed
        return found

    def _count(self, output: PoolingRequestOutput, meter: Meter) -> None:
        tokens = len(output.prompt_token_ids or ())
        for one in (meter, self._totals):
            one.prompt_tokens += tokens
            one.cached_tokens += min(tokens, output.num_cached_tokens or 0)


def _length(prompt: Prompt) -> int:
    return len(prompt["prompts"]["prompt_token_ids"])


def _path(paths: Sequence[str], prompts: int, at: int) -> str:
    """The path of a prompt in the body; of two texts that are read together, the second's."""
    return paths[at if len(paths) == prompts else at - prompts]


def _named(error: VLLMValidationError, path: str) -> InvalidRequest | ContextLengthExceeded:
    """The error, with the input that it is about."""
    found = as_error(error)
    kind = ContextLengthExceeded if isinstance(found, ContextLengthExceeded) else InvalidRequest
    return kind(f"`{path}`: {found.message}", param=path)
