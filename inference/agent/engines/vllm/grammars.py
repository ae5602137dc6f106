"""Checks schemas and grammars on a thread, not on the agent's event loop.

vLLM checks an answer's constraint by converting it to a grammar, which takes up to hundreds of
milliseconds in code that releases the GIL. It does so on the loop in three places: where it reads a
structural tag, where it adds a request to the engine, and where an answer may be a tool call or
follow a schema.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from vllm.exceptions import VLLMValidationError
from vllm.parser import abstract_parser
from vllm.sampling_params import SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from xgrammar import Grammar

from inference.operations.bodies.keywords import UnsupportedSchema
from inference.operations.bodies.schemas import rewrite

MAX_WHITESPACE = 2
"""Characters between two parts of JSON with a schema. An uncertain model that is allowed nothing
else would otherwise generate blanks until the context is full."""
TAG = '{"type": "structural_tag", "format": {"type": "json_schema", "json_schema": %s}}'
"""Constrains an answer to a schema and can bound blanks, which vLLM's other way to do so can't."""
_LENGTHS = re.compile('"(?:min|max)Length"')
_ANY_CHARACTER, _PLAIN_CHARACTER = r"[^\"\\\r\n]", r"[^\0-\x1f\"\\]"
"""The characters of a string with a length, in xgrammar's grammars, and those of JSON."""
MAX_KNOWN = 64
"""Answers of `_xgrammar_supports` to remember: at least those of requests just being read."""

Result = TypeVar("Result")
Enforce = Callable[[Any], Any]
"""Rewrites a schema so that xgrammar enforces it."""


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
        outputs = params.structured_outputs
        try:
            use_tag(outputs, _enforced if outputs.json is None else rewrite)
        except UnsupportedSchema as refused:
            raise VLLMValidationError(f"The schema is refused: {refused}") from None
        params._validate_structured_outputs(config, self._config, tokenizer)

    def close(self) -> None:
        """Call it once."""
        self._thread.shutdown(wait=False, cancel_futures=True)


def _enforced(schema: Any) -> Any:
    """The schema rewritten, or as it is if it can't be. Then it is a tool's that isn't strict: the
    gateway has refused others."""
    try:
        return rewrite(schema)
    except UnsupportedSchema:
        return schema


def use_tag(outputs: Any, enforce: Enforce = _enforced) -> None:
    """Have xgrammar enforce the whole schema, if the outputs have one: as a structural tag, and as
    `for_engine` says. What is no JSON is left to vLLM to refuse.

    Raises:
        UnsupportedSchema: `enforce` refuses a schema.
    """
    schema = outputs.json
    try:
        schema = json.loads(schema) if isinstance(schema, str) else schema
        if isinstance(schema, dict):
            outputs.json, outputs.structural_tag = None, TAG % json.dumps(schema)
        if outputs.structural_tag is not None:
            outputs.structural_tag = for_engine(outputs.structural_tag, enforce)
    except (ValueError, RecursionError):
        return


def for_engine(structural_tag: str, enforce: Enforce = _enforced) -> str:
    """The tag with all its schemas rewritten by `enforce` so that xgrammar enforces them, and at
    most MAX_WHITESPACE blanks between two parts of its JSON.

    Raises:
        ValueError: it is no JSON.
        UnsupportedSchema: `enforce` refuses a schema.
    """
    return json.dumps(_rewritten(json.loads(structural_tag), enforce))


def _rewritten(part: Any, enforce: Enforce) -> Any:
    if isinstance(part, list):
        return [_rewritten(one, enforce) for one in part]
    if not isinstance(part, dict):
        return part
    if part.get("type") == "json_schema":
        return _format_of(part, enforce) if part.get("style", "json") == "json" else part
    if isinstance(part.get("schema"), dict):  # of a tag in the older notation
        return part | {"schema": enforce(part["schema"])}
    return {name: _rewritten(one, enforce) for name, one in part.items()}


def _format_of(part: dict[str, Any], enforce: Enforce) -> dict[str, Any]:
    """The part of a tag for a schema, rewritten. xgrammar lets control characters into strings
    with a length; so there, its own grammar is used without them."""
    schema = enforce(part["json_schema"])
    part = part | {"json_schema": schema, "max_whitespace_cnt": MAX_WHITESPACE}
    if not _LENGTHS.search(json.dumps(schema)):
        return part
    tag = json.dumps({"type": "structural_tag", "format": part})
    try:
        grammar = str(Grammar.from_structural_tag(tag))
    except RuntimeError:
        return part  # vLLM refuses it
    return {"type": "grammar", "grammar": grammar.replace(_ANY_CHARACTER, _PLAIN_CHARACTER)}


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
    outputs = replace(constraint.outputs)
    use_tag(outputs)
    return _asked(outputs)


def _supports(outputs: Any) -> bool:
    """vLLM's function, with its answers cached."""
    return _known(_Constraint(repr(outputs), outputs))
