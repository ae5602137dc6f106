"""Lets vLLM continue an answer that another engine began, by patches.

The tokens generated so far are replayed into the engine's state. Appended to the prompt instead,
they would count as prompt for penalties, `min_tokens` and `max_tokens`, the grammar, the seed, stop
strings and log-probabilities, and each of these would then continue in another way.

The tokens travel as an extra argument of the sampling parameters, which vLLM passes on unchanged
from its front end through the engine core to its workers. Each of these uses them:

1. The core's scheduler: the request begins with these outputs, as if it had been preempted.
2. The V1 model runner: so does its state, and a seeded generator has drawn for them. The V2 runner
   (GPUs) needs nothing: it gets all tokens of a request, and draws by their positions.
3. The grammar: it has accepted them.
4. The front end: it detokenizes them one by one, so that stop strings, the serving layer and its
   parsers are in the state that they had reached. The outputs of this are marked as replayed
   (`is_replayed`). A choice that had ended, by its tokens or by `ended`, never reaches the core.

With speculative decoding a generator draws more than once for a token, so that a seeded answer
continues with other tokens, of the same distribution.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import numpy as np
import torch
from vllm.outputs import RequestOutput
from vllm.v1.core.sched.utils import check_stop
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason, async_llm
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.outputs import LogprobsLists, LogprobsTensors
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.gpu_input_batch import CachedRequestState

from inference.agent.engines.vllm.replay import AT_ONCE, ENDED, tokens_of

OFFSET_PER_DRAW = 4
"""How far a GPU's generator advances when vLLM draws for a token (`gpu_model_runner.py`)."""

_request_of = Request.from_engine_core_request
_init_state = CachedRequestState.__post_init__
_create_grammar = StructuredOutputManager._create_grammar
_add_request = AsyncLLM._add_request


def install() -> None:
    """Patch this process; may be called again. Processes forked from it are patched too."""
    Request.from_engine_core_request = staticmethod(request_of)
    CachedRequestState.__post_init__ = init_state
    StructuredOutputManager._create_grammar = create_grammar
    async_llm.RequestOutputCollector = Collector
    AsyncLLM._add_request = add_request


def is_installed() -> bool:
    """Whether this process is patched."""
    return CachedRequestState.__post_init__ is init_state


# --- engine core and workers ---------------------------------------------------------------------


def request_of(request: EngineCoreRequest, block_hasher: Any) -> Request:
    """vLLM's `Request.from_engine_core_request`, for a request with tokens."""
    made = _request_of(request, block_hasher)
    if tokens := tokens_of(made.sampling_params):
        made.append_output_token_ids(tokens)
        # Else the core crashes: vLLM asserts that a new request's cached prefix is of its prompt.
        made.num_preemptions = 1
    return made


def init_state(state: CachedRequestState) -> None:
    """vLLM's `CachedRequestState.__post_init__`, for a request with tokens."""
    if tokens := tokens_of(state.sampling_params):
        state.output_token_ids = list(tokens)
        if state.generator is not None:
            advance(state.generator, len(tokens))
    _init_state(state)


def advance(generator: torch.Generator, draws: int) -> None:
    """Bring the generator to its state after sampling so many tokens."""
    if generator.device.type == "cpu":
        torch.randint(0, 2**31, (draws,), generator=generator, dtype=torch.long)
    else:
        generator.set_offset(generator.get_offset() + OFFSET_PER_DRAW * draws)


def create_grammar(manager: StructuredOutputManager, request: Request) -> Any:
    """vLLM's `StructuredOutputManager._create_grammar`, for a request with tokens.

    As in `accept_tokens`, which needs a grammar that is already set.
    """
    grammar = _create_grammar(manager, request)
    if tokens := tokens_of(request.sampling_params):
        bounds = manager._get_constraint_bounds(request, tokens, spec_tokens_committed=True)
        if (start := bounds.grammar_start) <= len(tokens):
            request.structured_output_request.reasoning_ended = True
            if not grammar.accept_tokens(request.request_id, tokens[start:]):
                raise ValueError("the grammar does not allow the tokens generated so far")
    return grammar


# --- front end -----------------------------------------------------------------------------------


class Collector(RequestOutputCollector):  # type: ignore[misc]  # vLLM is untyped here
    """The outputs of a request; those of the replay come first and are not merged."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.replayed: deque[RequestOutput] = deque()

    def get_nowait(self) -> RequestOutput | None:
        """The next output, if there is one; vLLM asks this first."""
        return self.replayed.popleft() if self.replayed else super().get_nowait()


class _Replay:
    """Takes the outputs of a replay, in place of the collector."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def put(self, output: RequestOutput) -> None:
        output.replayed = True
        self._collector.replayed.append(output)


async def add_request(
    llm: AsyncLLM, request: EngineCoreRequest, prompt: Any, parent: Any, index: int, queue: Any
) -> None:
    """vLLM's `AsyncLLM._add_request`; a request with tokens reaches the core after their replay."""
    if not (tokens := tokens_of(request.sampling_params)):
        await _add_request(llm, request, prompt, parent, index, queue)
        return
    llm.output_processor.add_request(request, prompt, parent, index, queue)
    try:
        if not await _replay(llm, request, tokens, queue):
            await llm.engine_core.add_request_async(request)
    except BaseException:
        await llm.abort(request.request_id, internal=True)
        raise


async def _replay(
    llm: AsyncLLM, request: EngineCoreRequest, tokens: list[int], queue: Collector
) -> bool:
    """Replay the tokens to the front end; returns whether they are a complete answer."""
    processor, id = llm.output_processor, request.request_id
    state = processor.request_states[id]
    state.queue = _Replay(queue)
    *before, last = outputs_of(request, tokens, llm.model_config.max_model_len)
    for at, output in enumerate(before):
        processor.process_outputs([output])
        if at % AT_ONCE == AT_ONCE - 1:
            await asyncio.sleep(0)
    processor.process_outputs([last])
    if id in processor.request_states and (reason := request.sampling_params.extra_args[ENDED]):
        finish = FinishReason.LENGTH if reason == "length" else FinishReason.STOP
        processor.process_outputs([EngineCoreOutput(id, [], finish_reason=finish)])
    # The first new output counts as the first of all: it says what of the prompt was cached.
    state.queue, state.is_prefilling = queue, True
    return id not in processor.request_states


def outputs_of(
    request: EngineCoreRequest, tokens: list[int], max_model_len: int
) -> list[EngineCoreOutput]:
    """What the core put out when it generated these, except for the values of log-probabilities.

    Finding stop strings is left to the front end. Mutates the request: the core is not asked for
    its prompt's log-probabilities again.
    """
    params, id = request.sampling_params, request.request_id
    logprobs = params.num_logprobs is not None
    outputs = [
        EngineCoreOutput(id, [token], new_logprobs=_logprobs(token) if logprobs else None)
        for token in tokens
    ]
    if params.prompt_logprobs is not None:
        outputs[0].new_prompt_logprobs_tensors = _prompt_logprobs(request.prompt_token_ids)
        params.prompt_logprobs = None  # told by now: the core need not compute them
    again = request_of(request, None)
    if check_stop(again, max_model_len):
        outputs[-1].finish_reason = again.get_finished_reason()
        outputs[-1].stop_reason = again.stop_reason
    return outputs


def _logprobs(token: int) -> LogprobsLists:
    return LogprobsLists(np.array([[token]]), np.zeros((1, 1), np.float32), np.ones(1, np.int64))


def _prompt_logprobs(prompt: list[int]) -> LogprobsTensors:
    """Of all tokens but the first, which has none."""
    ids = torch.tensor(prompt[1:], dtype=torch.long).unsqueeze(1)
    return LogprobsTensors(ids, torch.zeros(ids.shape), torch.ones(len(ids), dtype=torch.long))
