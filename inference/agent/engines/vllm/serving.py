"""vLLM's own serving layer without its HTTP server, which answers requests on the full path.

Tools, reasoning, log-probabilities and n > 1 are handled by vLLM's endpoints (`OpenAIServingChat`,
...) from end to end. vLLM builds them all once, as for its own server; each request gets a shallow
copy whose engine client is a `RequestClient`, which adds the adapter, counts tokens and tells from
which of them each chunk was made (`steps.py`). An answer that another engine began is framed from
its beginning, and what that engine sent is dropped.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from copy import copy
from typing import Any, Self

import msgspec
from starlette.datastructures import State
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.logprobs import PromptLogprobs
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.async_utils import merge_async_iterators
from vllm.v1.engine.async_llm import AsyncLLM

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser  # since 0.33
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

from inference.agent.engines.assembly import IDS, Assembly, whole_reason
from inference.agent.engines.engine import EngineOutput, EngineWork, Meter
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.vllm.cache_events import reporting
from inference.agent.engines.vllm.errors import as_error, of_info
from inference.agent.engines.vllm.grammars import Grammars
from inference.agent.engines.vllm.handover import fetching
from inference.agent.engines.vllm.replay import AT_ONCE, is_replayed, resumed
from inference.agent.engines.vllm.runners.pooling import Pooler
from inference.agent.engines.vllm.runners.runner import Inquiry, Runner
from inference.agent.engines.vllm.steps import EngineStep, Steps, reasons_of
from inference.errors import EngineFailed, InferenceError, InvalidRequest
from inference.link.wire import Resume
from inference.operations.openai import drop_unasked, usage_body

VLLM_ONLY = (
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
    "service_tier",
    "system_fingerprint",
)
"""Keys of vLLM's answers and chunks that clients don't get, or that gateways fill."""

MAX_LOGPROBS = 200_000
"""Log-probabilities of one answer: 20 for each of 9,500 tokens. vLLM keeps all until its end. The
queue decides how many one step may yield (`scheduler.capacity`)."""

MAX_LOGPROBS_AT_ONCE = 5_000
"""Log-probabilities of which vLLM makes objects in one go, while all streams stall: those of
prompts, and of a whole answer that can't be assembled from chunks (`Assembly`)."""

MAX_PROMPT_IDS = 1 << 18
"""Ids of prompts that an answer returns: each choice of a stream may begin with them."""

ABORTED, FAILED = "abort", "error"
"""Finish reasons that no client asked for: the engine is closing, or failed on the request."""

NO_TOKEN_FITS = (
    "The answer cannot continue: its constraint (`response_format`, `structured_outputs` "
    "or a tool's parameters) cannot be compiled, or allows no token that the other fields "
    "allow."
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class PromptCounter:
    """Counts one request's tokens into its meter and into the engine's lifetime totals."""

    __slots__ = ("_meter", "_prompt_tokens", "_prompts", "_totals")

    def __init__(self, meter: Meter, totals: Meter) -> None:
        self._meter, self._totals = meter, totals
        self._prompts, self._prompt_tokens = set[int](), 0

    def count(self, output: RequestOutput, *, prompt: int = 0, held: bool = False) -> int:
        """Count what `output` (a delta) adds; returns the number of its new output tokens.

        Each prompt, by its number, counts once, when its first token appears, whatever n is.
        `held`: the answer is constrained to a schema or a grammar.

        Raises:
            EngineFailed: the engine gave the request up.
            InvalidRequest: it did, because no token may come next.
        """
        self.count_prompt(output, prompt)
        if is_replayed(output):
            return 0
        tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self._meter.completion_tokens += tokens
        self._totals.completion_tokens += tokens
        for completion in output.outputs:
            if completion.finish_reason == FAILED and held:
                raise InvalidRequest(NO_TOKEN_FITS, param="response_format")
            if completion.finish_reason in (ABORTED, FAILED):
                raise EngineFailed
        return tokens

    def count_prompt(self, output: RequestOutput, prompt: int = 0) -> None:
        """Count the prompt with this number, if the output is its first; not what other engines
        have counted into the meter already."""
        if prompt in self._prompts or output.prompt_token_ids is None:
            return
        self._prompts.add(prompt)
        cached = output.num_cached_tokens or 0
        self._prompt_tokens += len(output.prompt_token_ids)
        new = max(0, self._prompt_tokens - self._meter.prompt_tokens)
        for meter in (self._meter, self._totals):
            meter.prompt_tokens += new
            meter.cached_tokens += min(cached, new)


class RequestClient:
    """The engine client that vLLM's serving layer sees while it works on one request.

    It always asks the engine for deltas, so that the meter is right at every moment; a request
    that doesn't stream gets their sum at the end.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        work: EngineWork,
        lora: LoRARequest | None,
        *,
        grammars: Grammars,
        totals: Meter,
        reports_ids: bool,
        request: Any,
    ) -> None:
        """`request` is vLLM's request object."""
        self.work = work
        self.returns_ids = bool(request.return_token_ids)
        self._scores_prompt = request.prompt_logprobs is not None
        self.steps = Steps(work, reports_ids=reports_ids)
        self._llm, self._lora, self._grammars = llm, lora, grammars
        self._counter = PromptCounter(work.meter, totals)
        self._requests: list[str] = []
        self._prompts = 0
        self._taken = work.meter.completion_tokens
        self._logprobs = self._prompt_logprobs = self._prompt_ids = 0
        self.error: InferenceError | None = None
        """Why the engine failed or refused; the serving layer only saw the deltas end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM's, with this request's adapter and priority. Each further prompt has the
        priority of a request whose tenant runs the choices before it too (`Queue.priority`)."""
        try:
            self._check_prompt_ids(prompt, sampling_params)
            self._check_prompt_logprobs(prompt, sampling_params)
        except InvalidRequest as error:
            self.error = error
            return
        number, self._prompts = self._prompts, self._prompts + 1
        choices_before = number * (sampling_params.n or 1)
        held = sampling_params.structured_outputs is not None
        streams = sampling_params.output_kind == RequestOutputKind.DELTA
        sampling_params.output_kind = RequestOutputKind.DELTA
        kwargs |= {
            "lora_request": self._lora,
            "priority": self.work.priority + choices_before,
            "session_id": self.work.key,
        }
        of_prompt: PromptLogprobs | None = None
        whole: RequestOutput | None = None
        try:
            await self._grammars.check(sampling_params)
            reported = fetching(reporting(sampling_params), self.work)
            deltas = self._deltas(prompt, reported, request_id, choices_before, kwargs)
            async for delta in deltas:
                self._counter.count(delta, prompt=number, held=held)
                self._count_logprobs(delta, sampling_params, at_once=not streams)
                # vLLM gives them to the first choice alone, but its stream needs them in others.
                of_prompt = delta.prompt_logprobs = delta.prompt_logprobs or of_prompt
                if streams:
                    self.steps.follow(delta, choices_before)
                    yield delta
                    continue
                self.steps.hold(delta, choices_before)
                if whole is None:
                    whole = delta
                else:
                    whole.add(delta, aggregate=True)
        except Exception as error:
            # Not raised through the serving layer, which logs a traceback of it and goes on.
            self.error = as_error(error)
            return
        if whole is not None:
            whole.outputs.sort(key=lambda completion: completion.index)
            whole.prompt_logprobs = of_prompt
            yield whole

    def _deltas(
        self,
        prompt: Any,
        params: SamplingParams,
        request_id: str,
        choices_before: int,
        kwargs: dict[str, Any],
    ) -> AsyncGenerator[RequestOutput, None]:
        """The deltas of one prompt; each choice is a request of its own if it is continued."""
        if self.work.resume is None:
            self._requests.append(request_id)
            deltas: AsyncGenerator[RequestOutput, None]
            deltas = self._llm.generate(prompt, params, request_id, **kwargs)
            return deltas
        several = [
            own_params(params, choice, self.work.resume, choices_before + choice)
            for choice in range(params.n or 1)
        ]
        ids = [f"{request_id}-{choice}" for choice in range(len(several))]
        self._requests += ids
        return _merged(
            self._llm.generate(prompt, own, id, **kwargs)
            for own, id in zip(several, ids, strict=True)
        )

    def _check_prompt_ids(self, prompt: Any, params: SamplingParams) -> None:
        """Count the ids of the prompt that the answer will have.

        Raises:
            InvalidRequest: there would be too many.
        """
        if not self.returns_ids:
            return
        self._prompt_ids += len(prompt["prompt_token_ids"]) * (params.n or 1)
        if self._prompt_ids > MAX_PROMPT_IDS:
            raise InvalidRequest(
                f"`return_token_ids`: the answer would have more than {MAX_PROMPT_IDS} ids of its "
                "prompts over all choices: reduce `n`.",
                param="return_token_ids",
            )

    def _check_prompt_logprobs(self, prompt: Any, params: SamplingParams) -> None:
        """Count the prompt's log-probabilities before they are made.

        Raises:
            InvalidRequest: there would be too many.
        """
        if params.prompt_logprobs is None:
            return
        of_each = len(prompt["prompt_token_ids"]) * (1 + params.prompt_logprobs)
        self._prompt_logprobs += of_each * (params.n or 1)
        if self._prompt_logprobs > MAX_LOGPROBS_AT_ONCE:
            raise InvalidRequest(
                f"The prompt would have more than {MAX_LOGPROBS_AT_ONCE} log-probabilities: reduce "
                "`prompt_logprobs`, `logprobs` or `top_logprobs`, or do not set `echo`.",
                param="prompt_logprobs" if self._scores_prompt else "logprobs",
            )

    def _count_logprobs(
        self, delta: RequestOutput, params: SamplingParams, *, at_once: bool
    ) -> None:
        """Count the delta's log-probabilities. `at_once`: vLLM frames them all at the end.

        Raises:
            InvalidRequest: there are too many.
        """
        if params.logprobs is None:
            return
        tokens = [token for choice in delta.outputs for token in choice.logprobs or ()]
        replayed = is_replayed(delta)  # then without their alternatives
        self._logprobs += len(tokens) * params.logprobs if replayed else 0
        self._logprobs += sum(map(len, tokens))
        if self._logprobs > (most := MAX_LOGPROBS_AT_ONCE if at_once else MAX_LOGPROBS):
            raise InvalidRequest(
                f"The answer would have more than {most} log-probabilities: reduce "
                "`logprobs`, `top_logprobs`, `n` or "
                f"`max_tokens`{', or set `stream`' if at_once else ''}.",
                param="logprobs",
            )

    def take_tokens(self) -> int:
        """How many tokens were generated since the last call."""
        before, self._taken = self._taken, self.work.meter.completion_tokens
        return self._taken - before

    async def abort(self) -> None:
        """End whatever still runs in the engine; no error if nothing does."""
        await self._llm.abort(self._requests)


def own_params(params: SamplingParams, choice: int, resume: Resume, number: int) -> SamplingParams:
    """The parameters of one choice of a prompt, which has this number in the whole answer: those
    with which vLLM would generate it beside the others."""
    own = params.clone()
    own.n = 1
    if own.seed is not None:
        own.seed += choice
    tokens = resume.ids.get(number)
    return resumed(own, tokens, resume.finished.get(number)) if tokens else own


async def _merged(
    several: Iterable[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of all choices, as they come."""
    async with aclosing(merge_async_iterators(*several)) as outputs:
        replayed = 0
        async for choice, output in outputs:
            output.outputs[0].index = choice
            yield output
            if is_replayed(output):
                replayed += 1
                if replayed % AT_ONCE == 0:
                    await asyncio.sleep(0)  # else no other task has a turn until all is framed


class Serving:
    """The endpoints of one engine."""

    def __init__(self, state: State, *, reasons: bool) -> None:
        """`state` is vLLM's application state; `reasons`: reasoning is separated from answers."""
        self._state, self._reasons = state, reasons

    @classmethod
    async def start(cls, llm: AsyncLLM, profile: EngineProfile) -> Self:
        """Let vLLM build its endpoints: half a second once, and no need to know how it's done."""
        state = State()
        tasks = await llm.get_supported_tasks()
        await init_app_state(llm, state, server_arguments(llm, profile), tasks)
        return cls(state, reasons=profile.reasoning_parser is not None)

    def endpoint(self, runner: Runner | Inquiry | Pooler) -> Any:
        """The endpoint that the runner uses."""
        return getattr(self._state, runner.endpoint)

    def has(self, runner: Runner | Inquiry | Pooler) -> bool:
        """Whether vLLM built the endpoint: which ones there are depends on the kind of model."""
        return getattr(self._state, runner.endpoint, None) is not None

    async def outputs(
        self, runner: Runner, request: Any, client: RequestClient
    ) -> AsyncGenerator[EngineOutput, None]:
        """Answer one request on the full path; yields its chunks, or its whole response.

        Raises:
            InferenceError: the request or the engine is at fault.
        """
        if client.work.resume is not None and _must_begin_anew(runner, request):
            raise EngineFailed(
                "The log-probabilities of tokens that another engine generated are not available."
            )
        endpoint = copy(self.endpoint(runner))
        endpoint.engine_client = client
        assembly = self._assembly(runner, request)
        client.steps.whole = assembly is not None
        framing = asyncio.create_task(_frame(runner, endpoint, request, client))
        try:
            async for step in client.steps:
                yield _output(step, client, assembly)
            whole = await framing
            if assembly is not None:
                whole = _openai(assembly.body(), client)
            if whole is None:
                yield EngineOutput(finish_reason=whole_reason(client.steps.reasons))
            else:
                yield _answer(whole, client)
        finally:
            framing.cancel()
            await asyncio.gather(framing, return_exceptions=True)
            # Closing the outer generator doesn't close vLLM's inner ones, so the engine is told.
            await client.abort()

    def _assembly(self, runner: Runner, request: Any) -> Assembly | None:
        """What assembles this answer, if it must be assembled. The request is then changed to one
        for a stream."""
        if request.stream or runner.returns_prompt_logprobs(request):
            return None
        scored = runner.wants_logprobs(request)
        if not runner.must_call(request) and (
            not scored or self._reasons or runner.uses_tools(request)
        ):
            return None
        request.stream = True
        return Assembly(runner.answers)


def server_arguments(llm: AsyncLLM, profile: EngineProfile) -> Namespace:
    """The arguments of `vllm serve`: its defaults, overridden by the profile."""
    arguments: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    arguments.model, arguments.served_model_name = profile.model, [profile.name]
    arguments.chat_template = str(profile.chat_template) if profile.chat_template else None
    arguments.tool_call_parser = profile.tool_parser
    arguments.enable_auto_tool_choice = profile.tool_parser is not None
    # A required or named tool's arguments are constrained to their schema.
    arguments.tool_strict_level = "parameter"
    # Vectors of tokens are compared here: a worker would have to be told how a request ended.
    arguments.enable_flash_late_interaction = False
    arguments.structured_outputs_config = llm.vllm_config.structured_outputs_config
    return arguments


async def _create(runner: Runner, endpoint: Any, request: Any, client: RequestClient) -> Any:
    try:
        result = await runner.create(endpoint, request)
    except AssertionError:
        if client.error is None:  # else vLLM only asserts that there was an output
            raise
        raise client.error from None
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        # vLLM answers a cancellation with an error body instead of letting it through.
        raise asyncio.CancelledError
    return result


async def _chunks(
    events: AsyncGenerator[str, None], client: RequestClient
) -> AsyncGenerator[dict[str, Any], None]:
    """The decoded chunks of a stream that have choices."""
    async for event in events:
        data = event.removeprefix("data: ").strip()
        if data == "[DONE]":
            break
        chunk = _decode(data)
        if "error" in chunk:
            raise client.error or of_info(ErrorInfo.model_validate(chunk["error"]))
        if usage := chunk.pop("usage", None):
            client.work.meter.reasoning_tokens = _reasoning_tokens(usage)
        if chunk["choices"]:
            yield _openai(chunk, client)
    if client.error is not None:
        raise client.error


async def _frame(
    runner: Runner, endpoint: Any, request: Any, client: RequestClient
) -> dict[str, Any] | None:
    """Have vLLM frame the answer into the client's steps; returns the body of a whole one."""
    try:
        result = await _create(runner, endpoint, request, client)
        if client.error is not None:
            raise client.error
        if isinstance(result, ErrorResponse):
            raise of_info(result.error)
        if not request.stream:
            body: dict[str, Any] = result.model_dump(mode="json")
            client.work.meter.reasoning_tokens = _reasoning_tokens(body["usage"])
            if not runner.returns_prompt_logprobs(request):  # an echo's are in its `logprobs`
                for choice in body["choices"]:
                    choice.pop("prompt_logprobs", None)
            return _openai(body, client)
        async with aclosing(result):
            async for chunk in _chunks(result, client):
                client.steps.add(chunk)
        return None
    finally:
        client.steps.end()


def _output(step: EngineStep, client: RequestClient, assembly: Assembly | None) -> EngineOutput:
    tokens, ids = client.take_tokens(), step.ids
    if assembly is None:
        chunks = tuple(_encode(chunk | client.work.identity) for chunk in step.chunks)
        return EngineOutput(chunks=chunks, tokens=tokens, ids=ids)
    for chunk in step.chunks:
        assembly.add(chunk)
    return EngineOutput(tokens=tokens, ids=ids)


def _answer(body: dict[str, Any], client: RequestClient) -> EngineOutput:
    body |= client.work.identity | {"usage": usage_body(client.work.meter)}
    return EngineOutput(
        response=_encode(body),
        tokens=client.take_tokens(),
        finish_reason=whole_reason(reasons_of(body)),
    )


def _must_begin_anew(runner: Runner, request: Any) -> bool:
    """Whether it is whole and has log-probabilities: those of another engine are not known."""
    scored = runner.wants_logprobs(request) or runner.returns_prompt_logprobs(request)
    return not request.stream and scored


def _openai(body: dict[str, Any], client: RequestClient) -> dict[str, Any]:
    """Bring `body` into its operation's form, without vLLM's own keys. Mutates and returns it."""
    for choice in body["choices"]:
        client.work.operation.conform(choice)
        if not client.returns_ids:  # vLLM returns those of an echo unasked
            for key in IDS:
                choice.pop(key, None)
    for key in VLLM_ONLY:
        body.pop(key, None)
    drop_unasked(body)
    return body


def _reasoning_tokens(usage: dict[str, Any]) -> int:
    return int((usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0)
