"""Checks schemas and grammars on a thread, not on the agent's event loop.

vLLM checks an answer's constraint by converting it to a grammar, which takes up to hundreds of
milliseconds in code that releases the GIL. It does so on the loop in three places: where it reads a
structural tag, where it adds a request to the engine, and where an answer may be a tool call or
follow a schema.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

from vllm.parser import abstract_parser
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

MAX_WHITESPACE = 2
"""Characters between two parts of JSON with a schema. An uncertain model that is allowed nothing
else would otherwise generate blanks until the context is full."""
TAG = '{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": %s}}'
"""Constrains an answer to a schema and can bound blanks, which vLLM's other way to do so can't."""
MAX_KNOWN = 64
"""Answers of `_xgrammar_supports` to remember: at least those of requests just being read."""

Result = TypeVar("Result")


class Grammars:
    """The checks of one engine, one after another: they take one core at most."""

    def __init__(self, llm: AsyncLLM, *, checks: bool) -> None:
        """With `checks` it mutates `llm`, which then leaves the check of constraints to `check`;
        without, vLLM checks them itself, on the loop."""
        self._llm, self._checks = llm, checks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammars")
        if not checks:
            return
        processor = llm.input_processor
        self._config, processor.structured_outputs_config = (
            processor.structured_outputs_config,
            None,
        )
        abstract_parser._xgrammar_supports = _supports

    async def run(self, function: Callable[[], Result]) -> Result:
        """Call `function` on the thread; returns what it returns."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    async def check(self, params: SamplingParams) -> None:
        """Check the constraint as vLLM would when it adds a request to the engine; call it before
        that. Then bound the blanks in JSON.

        Mutates `params`, which then say how the engine makes the grammar.

        Raises:
            VLLMValidationError: no grammar can be made.
        """
        if self._checks and params.structured_outputs is not None:
            await self.run(lambda: self._check(params))

    def _check(self, params: SamplingParams) -> None:
        config, tokenizer = self._llm.model_config, self._llm.get_tokenizer()
        params._validate_structured_outputs(config, self._config, tokenizer)
        outputs = params.structured_outputs
        if outputs.json is not None and outputs._backend == "xgrammar":
            schema = outputs.json if isinstance(outputs.json, str) else json.dumps(outputs.json)
            outputs.json, outputs.structural_tag = None, TAG % schema
        if outputs.structural_tag is not None:
            outputs.structural_tag = with_few_blanks(outputs.structural_tag)

    def close(self) -> None:
        """Call it once."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def with_few_blanks(structural_tag: str) -> str:
    """The tag, with at most MAX_WHITESPACE blanks between two parts of its JSON."""
    tag = json.loads(structural_tag)
    _bound(tag)
    return json.dumps(tag)


def _bound(part: Any) -> None:
    if isinstance(part, list):
        for one in part:
            _bound(one)
    elif isinstance(part, dict) and part.get("type") == "json_schema":
        if part.get("style", "json") == "json":
            part["max_whitespace_cnt"] = MAX_WHITESPACE
    elif isinstance(part, dict):
        for one in part.values():
            _bound(one)


def foresee(request: Any) -> None:
    """Call on a thread: compute what vLLM will ask on the loop of a request that it has read."""
    if getattr(abstract_parser, "_xgrammar_supports", None) is not _supports:
        return
    if request.tool_choice == "auto" and (outputs := request.extract_structured_outputs()):
        _supports(outputs)


@dataclass(frozen=True, slots=True)
class _Constraint:
    text: str
    outputs: Any = field(compare=False)


_asked: Callable[[Any], bool] = getattr(abstract_parser, "_xgrammar_supports", lambda _: True)


@lru_cache(MAX_KNOWN)
def _known(constraint: _Constraint) -> bool:
    return _asked(constraint.outputs)


def _supports(outputs: Any) -> bool:
    """vLLM's function, with its answers cached."""
    return _known(_Constraint(repr(outputs), outputs))
