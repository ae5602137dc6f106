"""What the synthetic engine answers, and how an answer with several choices is written."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from inference.agent.engines.engine import IDS_AT_ONCE, EngineOutput, EngineWork
from inference.agent.engines.synthetic.tokens import TOKEN_CHARS, tokens_in
from inference.errors import InvalidRequest
from inference.operations.openai import OpenAIOperation, usage_body


class Options(msgspec.Struct):
    """The sampling parameters that have an effect here, and others whose types are checked."""

    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    ignore_eos: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


def gathered_tokens(work: EngineWork, options: Options) -> float:
    """How many tokens are gathered before an Output."""
    if options.stream:
        return 1
    return IDS_AT_ONCE if work.wants_ids else math.inf


def options_of(fields: dict[str, Any]) -> Options:
    """The options in what `Operation.allowed` returned.

    Raises:
        InvalidRequest: one has a wrong type or value, or is not supported.
    """
    for name in ("tools", "logprobs", "prompt_logprobs", "return_token_ids"):
        if fields.get(name):
            raise InvalidRequest(f"`{name}` is not supported by the synthetic engine.", param=name)
    given = {name: fields[name] for name in Options.__struct_fields__ if name in fields}
    try:
        options = msgspec.convert(given, Options)
    except msgspec.ValidationError as error:
        what, _, at = str(error).partition(" - at `$.")
        param = at.rstrip("`").split("[")[0] or None
        raise InvalidRequest(f"`{param}`: {what[0].lower()}{what[1:]}.", param=param) from None
    for name in ("max_tokens", "max_completion_tokens", "n"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InvalidRequest(f"`{name}` is {value}: it must be at least 1.", param=name)
    return options


def answer_to(text: str, limit: int, options: Options) -> tuple[str, str]:
    """The answer cut where it ends, and why it ends there."""
    if options.ignore_eos:
        text = (text + " ") * (limit * TOKEN_CHARS // len(text) + 1)
    stops = [options.stop] if isinstance(options.stop, str) else options.stop or []
    stops = [*stops, *(options.stop_sequences or ())]
    ends = [at for stop in stops if stop and (at := text.find(stop)) >= 0]
    reason = "stop"
    if tokens_in(text[: min(ends, default=len(text))]) > limit or (options.ignore_eos and not ends):
        return text[: limit * TOKEN_CHARS], "length"
    return text[: min(ends, default=len(text))], reason


async def with_choices(
    texts: AsyncGenerator[EngineOutput, None], work: EngineWork, options: Options, answer: str
) -> AsyncGenerator[EngineOutput, None]:
    """The full path for n > 1: all choices have the same text, the whole of which is `answer`."""
    operation = work.operation
    if not isinstance(operation, OpenAIOperation):
        raise InvalidRequest(f"{operation.path} does not support `n`.", param="n")
    async for output in texts:
        reason = output.finish_reason
        if not options.stream:
            yield EngineOutput(tokens=output.tokens, ids=output.ids)
        elif output.text:
            chunk = operation.delta(output.text) | {"finish_reason": reason}
            encoded = msgspec.json.encode(_body(work, operation.chunk_object, chunk, options))
            yield EngineOutput(chunks=(encoded,), tokens=output.tokens, ids=output.ids)
        if reason is None:
            continue
        if options.stream:
            yield EngineOutput(finish_reason=reason)
            return
        choice = operation.choice(answer) | {"finish_reason": reason}
        body = _body(work, operation.whole_object, choice, options)
        response = msgspec.json.encode(body | {"usage": usage_body(work.meter)})
        yield EngineOutput(response=response, finish_reason=reason)


def _body(
    work: EngineWork, object: str, choice: dict[str, Any], options: Options
) -> dict[str, Any]:
    """A chunk or a whole answer with `n` times the same choice."""
    return {
        "id": work.operation.answer_id(work.id),
        "object": object,
        "created": work.created,
        "model": work.model,
        "choices": [{"index": i, "logprobs": None} | choice for i in range(options.n or 1)],
    }
