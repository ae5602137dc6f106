"""vLLM's own serving layer without its HTTP server: what answers on the full path.

Tools, reasoning, log-probabilities and n > 1 are vLLM's endpoints (`OpenAIServingChat`, ...) from
end to end. vLLM builds them all once, as for its own server; each request gets a shallow copy whose
engine client is a `RequestClient`, which adds the adapter and counts tokens.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import AsyncGenerator
from copy import copy
from typing import Any, Self

import msgspec
from starlette.datastructures import State
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.logprobs import PromptLogprobs
from vllm.lora.request import LoRARequest
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM

from inference.agent.engines.engine import Meter, Output, Work
from inference.agent.engines.profile import EngineProfile
from inference.agent.engines.vllm.assembly import Assembly
from inference.agent.engines.vllm.grammars import Grammars
from inference.agent.engines.vllm.requests import as_error, of_info
from inference.agent.engines.vllm.runner import Runner
from inference.errors import EngineFailed, InferenceError, InvalidRequest
from inference.operations.openai import OpenAIOperation, usage_body

VLLM_ONLY = (
    "prompt_logprobs",
    "prompt_token_ids",
    "prompt_text",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
)
"""Keys of vLLM's answers and chunks that OpenAI's don't have."""

VLLM_ONLY_IN_CHOICE = ("prompt_logprobs", "prompt_token_ids", "routed_experts", "token_ids")
"""The same for one choice."""

MAX_LOGPROBS = 200_000
"""Log-probabilities of one answer: 20 for each of 9,500 tokens. vLLM keeps them all to its end. How
many may come of one step is the queue's to say (`scheduler.capacity`)."""

MAX_LOGPROBS_AT_ONCE = 5_000
"""Of which vLLM makes objects in one go, and everybody's streams stand still meanwhile: those of
prompts, and of a whole answer that can't be put together of chunks (`Assembly`)."""

ABORTED, FAILED = "abort", "error"
"""Finish reasons that no client asked for: the engine is closing, or failed on the request."""

NO_TOKEN_FITS = (
    "The answer cannot go on: what it is held to (`response_format`, `structured_outputs` or a "
    "tool's parameters) cannot be compiled, or allows no token that the other fields allow."
)

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Counter:
    """Counts one request's tokens into its meter and into the engine's lifetime totals."""

    __slots__ = ("_held", "_meter", "_prompt_counted", "_totals")

    def __init__(self, meter: Meter, totals: Meter, params: SamplingParams) -> None:
        self._meter, self._totals = meter, totals
        self._held = params.structured_outputs is not None
        """To a schema or a grammar."""
        self._prompt_counted = False

    def count(self, output: RequestOutput) -> int:
        """Count what `output` (a delta) adds; its new output tokens are returned.

        The prompt counts once, when its first token appears, whatever n is.

        Raises:
            EngineFailed: the engine gave the request up.
            InvalidRequest: it did, because no token may come next.
        """
        if not self._prompt_counted and output.prompt_token_ids is not None:
            self._prompt_counted = True
            for meter in (self._meter, self._totals):
                meter.prompt_tokens += len(output.prompt_token_ids)
                meter.cached_tokens += output.num_cached_tokens or 0
        tokens = sum(len(completion.token_ids) for completion in output.outputs)
        self._meter.completion_tokens += tokens
        self._totals.completion_tokens += tokens
        for completion in output.outputs:
            if completion.finish_reason == FAILED and self._held:
                raise InvalidRequest(NO_TOKEN_FITS, param="response_format")
            if completion.finish_reason in (ABORTED, FAILED):
                raise EngineFailed
        return tokens


class RequestClient:
    """The engine client that vLLM's serving layer sees while it works on one request.

    It always asks the engine for deltas, so that the meter is right at every moment; a request
    that doesn't stream gets their sum at the end.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        work: Work,
        lora: LoRARequest | None,
        *,
        grammars: Grammars,
        totals: Meter,
    ) -> None:
        self.work = work
        self._llm, self._lora, self._grammars, self._totals = llm, lora, grammars, totals
        self._requests: list[str] = []
        self._token_ids: dict[int, list[int]] = {}
        self._logprobs = self._prompt_logprobs = 0
        self.error: InferenceError | None = None
        """Why the engine failed or refused; the serving layer only saw the deltas end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **kwargs: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM's, for this request's adapter and priority. Each prompt comes after those of
        others that find their tenant with as many choices running (`Queue.priority`)."""
        try:
            self._check_prompt_logprobs(prompt, sampling_params)
        except InvalidRequest as error:
            self.error = error
            return
        choices_before = len(self._requests) * (sampling_params.n or 1)
        priority = self.work.priority + choices_before
        self._requests.append(request_id)
        streams = sampling_params.output_kind == RequestOutputKind.DELTA
        sampling_params.output_kind = RequestOutputKind.DELTA
        kwargs |= {"lora_request": self._lora, "priority": priority}
        counter = Counter(self.work.meter, self._totals, sampling_params)
        of_prompt: PromptLogprobs | None = None
        whole: RequestOutput | None = None
        try:
            await self._grammars.check(sampling_params)
            deltas = self._llm.generate(prompt, sampling_params, request_id, **kwargs)
            async for delta in deltas:
                counter.count(delta)
                if self.work.wants_ids:
                    self._note_ids(delta, choices_before)
                self._count_logprobs(delta, at_once=not streams)
                # vLLM gives them to the first choice alone, and its stream misses them in others.
                of_prompt = delta.prompt_logprobs = delta.prompt_logprobs or of_prompt
                if streams:
                    yield delta
                elif whole is None:
                    whole = delta
                else:
                    whole.add(delta, aggregate=True)
        except Exception as error:
            # Not raised through the serving layer, which logs a traceback of it and goes on.
            self.error = as_error(error)
            return
        if whole is not None:
            whole.outputs.sort(key=lambda completion: completion.index)
            yield whole

    def take_ids(self) -> dict[int, list[int]]:
        """The ids of the tokens generated since the last time, by choice as the answer has it."""
        taken, self._token_ids = self._token_ids, {}
        return taken

    def _note_ids(self, delta: RequestOutput, choices_before: int) -> None:
        for completion in delta.outputs:
            choice = choices_before + completion.index
            self._token_ids.setdefault(choice, []).extend(completion.token_ids)

    def _check_prompt_logprobs(self, prompt: Any, params: SamplingParams) -> None:
        """Before they are made.

        Raises:
            InvalidRequest: there would be too many.
        """
        if params.prompt_logprobs is None:
            return
        of_each = len(prompt["prompt_token_ids"]) * (1 + params.prompt_logprobs)
        self._prompt_logprobs += of_each * (params.n or 1)
        if self._prompt_logprobs > MAX_LOGPROBS_AT_ONCE:
            raise InvalidRequest(
                f"The prompt has more than {MAX_LOGPROBS_AT_ONCE} log-probabilities: ask for fewer "
                "by `logprobs`, or without `echo`.",
                param="logprobs",
            )

    def _count_logprobs(self, delta: RequestOutput, *, at_once: bool) -> None:
        """`at_once`: they are kept for vLLM to frame them at the end.

        Raises:
            InvalidRequest: there are too many.
        """
        tokens = (token for choice in delta.outputs for token in choice.logprobs or ())
        self._logprobs += sum(map(len, tokens))
        if self._logprobs > (most := MAX_LOGPROBS_AT_ONCE if at_once else MAX_LOGPROBS):
            raise InvalidRequest(
                f"The answer has more than {most} log-probabilities: ask for fewer by `logprobs`, "
                f"`top_logprobs`, `n` or `max_tokens`{', or set `stream`' if at_once else ''}.",
                param="logprobs",
            )

    def identity(self) -> dict[str, Any]:
        """What every chunk and answer says of the request."""
        id = self.work.operation.answer_id(self.work.id)
        return {"id": id, "created": self.work.created, "model": self.work.model}

    async def abort(self) -> None:
        """End whatever still runs in the engine; no error if nothing does."""
        await self._llm.abort(self._requests)


class Serving:
    """The endpoints of one engine."""

    def __init__(self, state: State, *, reasons: bool) -> None:
        """`state` is vLLM's application state; `reasons`: thoughts are told apart from answers."""
        self._state, self._reasons = state, reasons

    @classmethod
    async def start(cls, llm: AsyncLLM, profile: EngineProfile) -> Self:
        """Let vLLM build its endpoints: half a second once, against knowing how each is built."""
        state = State()
        tasks = await llm.get_supported_tasks()
        await init_app_state(llm, state, server_arguments(llm, profile), tasks)
        return cls(state, reasons=profile.reasoning_parser is not None)

    def endpoint(self, runner: Runner) -> Any:
        """The endpoint that this runner uses."""
        return getattr(self._state, runner.endpoint)

    async def outputs(
        self, runner: Runner, request: Any, client: RequestClient
    ) -> AsyncGenerator[Output, None]:
        """Answer one request on the full path; its chunks, or its whole response.

        Raises:
            InferenceError: the request or the engine is at fault.
        """
        endpoint = copy(self.endpoint(runner))
        endpoint.engine_client = client
        events: AsyncGenerator[str, None] | None = None
        assembly = self._assembly(runner, request, client)
        try:
            result = await _create(runner, endpoint, request, client)
            if client.error is not None:
                raise client.error
            if isinstance(result, ErrorResponse):
                raise of_info(result.error)
            if not request.stream:
                yield _response(result.model_dump(mode="json"), client)
                return
            events = result
            outputs = (
                _outputs(events, client) if assembly is None else _whole(assembly, events, client)
            )
            async for output in outputs:
                yield output
        finally:
            # Closing the outer generator doesn't close vLLM's inner ones, so the engine is told.
            await client.abort()
            if events is not None:
                await events.aclose()

    def _assembly(self, runner: Runner, request: Any, client: RequestClient) -> Assembly | None:
        """What puts this answer together, if anything must: it is then asked for as a stream."""
        operation = client.work.operation
        if request.stream or not runner.wants_logprobs(request) or runner.uses_tools(request):
            return None
        if self._reasons or not isinstance(operation, OpenAIOperation):
            return None
        request.stream = True
        return Assembly(operation)


def server_arguments(llm: AsyncLLM, profile: EngineProfile) -> Namespace:
    """The arguments of `vllm serve`: its defaults, and what the profile says of them."""
    arguments: Namespace = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    arguments.model, arguments.served_model_name = profile.model, [profile.name]
    arguments.chat_template = str(profile.chat_template) if profile.chat_template else None
    arguments.tool_call_parser = profile.tool_parser
    arguments.enable_auto_tool_choice = profile.tool_parser is not None
    # A required or named tool's arguments are held to their schema.
    arguments.tool_strict_level = "parameter"
    arguments.structured_outputs_config = llm.vllm_config.structured_outputs_config
    return arguments


async def _create(runner: Runner, endpoint: Any, request: Any, client: RequestClient) -> Any:
    try:
        result = await runner.create(endpoint, request)
    except AssertionError:
        if client.error is None:  # else vLLM has only found that no output came
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
    """What a stream says of its choices."""
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
            yield _openai(chunk)
    if client.error is not None:
        raise client.error


async def _outputs(
    events: AsyncGenerator[str, None], client: RequestClient
) -> AsyncGenerator[Output, None]:
    meter, counted, reasons = client.work.meter, 0, set[str]()
    async for chunk in _chunks(events, client):
        reasons |= _reasons(chunk)
        body = _encode(chunk | client.identity())
        tokens, counted = meter.completion_tokens - counted, meter.completion_tokens
        yield Output(chunks=(body,), tokens=tokens, ids=client.take_ids())
    yield Output(finish_reason=_reason(reasons), ids=client.take_ids())


async def _whole(
    assembly: Assembly, events: AsyncGenerator[str, None], client: RequestClient
) -> AsyncGenerator[Output, None]:
    """A whole answer that was asked for as a stream."""
    async for chunk in _chunks(events, client):
        assembly.add(chunk)
    yield _answer(assembly.body(), client)


def _response(body: dict[str, Any], client: RequestClient) -> Output:
    """A whole answer as vLLM makes it."""
    client.work.meter.reasoning_tokens = _reasoning_tokens(body["usage"])
    return _answer(_openai(body), client)


def _answer(body: dict[str, Any], client: RequestClient) -> Output:
    meter = client.work.meter
    body |= client.identity() | {"usage": usage_body(meter)}
    reason = _reason(_reasons(body))
    return Output(
        response=_encode(body),
        tokens=meter.completion_tokens,
        finish_reason=reason,
        ids=client.take_ids(),
    )


def _reasons(body: dict[str, Any]) -> set[str]:
    return {reason for choice in body["choices"] if (reason := choice.get("finish_reason"))}


def _reason(reasons: set[str]) -> str:
    """Of a request as a whole: whether any of its choices was cut is what matters most."""
    return "length" if "length" in reasons else min(reasons, default="stop")


def _openai(body: dict[str, Any]) -> dict[str, Any]:
    """`body` without what only vLLM has; it is changed."""
    for choice in body["choices"]:
        for key in VLLM_ONLY_IN_CHOICE:
            choice.pop(key, None)
    for key in VLLM_ONLY:
        body.pop(key, None)
    return body


def _reasoning_tokens(usage: dict[str, Any]) -> int:
    return int((usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0)
