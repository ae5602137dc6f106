"""Runs one request on an engine and collects all of its output."""

from __future__ import annotations

import json
import re
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import msgspec

from inference.agent.engines.engine import Engine, EngineOutput, EngineWork, LocalAdapter, Meter
from inference.link.accounts import Usage
from inference.link.wire import Resume
from inference.operations.operation import Call
from inference.operations.registry import OPERATIONS

CREATED = 1_700_000_000
QUESTION = [{"role": "user", "content": "Who are you, and what can you do?"}]

_ids = count(1)


@dataclass
class Answer:
    """A finished request."""

    work: EngineWork
    outputs: list[EngineOutput] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(output.text for output in self.outputs)

    @property
    def said(self) -> str:
        """The text of a request for one choice that is not streamed, however it came."""
        if not any(output.response for output in self.outputs):
            return self.text
        choice = self.response["choices"][0]
        return str(choice["message"]["content"] if "message" in choice else choice["text"])

    @property
    def tokens(self) -> int:
        return sum(output.tokens for output in self.outputs)

    @property
    def ids(self) -> dict[int, list[int]]:
        """The token ids of each choice."""
        found: dict[int, list[int]] = {}
        for output in self.outputs:
            for choice, ids in output.ids.items():
                found.setdefault(choice, []).extend(ids)
        return found

    @property
    def meter(self) -> Meter:
        return self.work.meter

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[-1].finish_reason

    @property
    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(chunk) for output in self.outputs for chunk in output.chunks]

    @property
    def response(self) -> dict[str, Any]:
        (body,) = [output.response for output in self.outputs if output.response is not None]
        response: dict[str, Any] = json.loads(body)
        return response


def work_of(
    kind: str = "chat",
    *,
    adapter: LocalAdapter | None = None,
    salt: str = "salt-of-acme",
    wants_ids: bool = False,
    **body: Any,
) -> EngineWork:
    """A request; greedy and eight tokens long unless `body` says otherwise."""
    prompt = {"prompt": "Who are you?"} if kind == "completion" else {"messages": QUESTION}
    defaults = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True}
    return EngineWork(
        id=f"request-{next(_ids)}",
        operation=OPERATIONS.named(kind),
        body=prompt | defaults | body,
        model="shown-name",
        salt=salt,
        adapter=adapter,
        created=CREATED,
        wants_ids=wants_ids,
    )


async def run(engine: Engine, work: EngineWork) -> Answer:
    """Run `work` to its end."""
    answer = Answer(work)
    async for output in engine.generate(work):
        answer.outputs.append(output)
    return answer


async def ask(engine: Engine, kind: str = "chat", **given: Any) -> Answer:
    """Run the request that `work_of` builds from `given`."""
    return await run(engine, work_of(kind, **given))


async def goes_on(
    engine: Engine, whole: Answer, cut: int, kind: str = "chat", **given: Any
) -> Answer:
    """The answer of a reader that got the first `cut` outputs of `whole`, and then those of an
    engine that continued from there. `whole` was requested with `wants_ids` and the same fields.

    As in the gateway, received tokens are counted by their ids: vLLM may already have counted
    tokens that it had not framed yet (with several prompts it reads one output ahead).
    """
    got = [
        msgspec.structs.replace(one, tokens=sum(map(len, one.ids.values())))
        for one in whole.outputs[:cut]
    ]
    before = Answer(whole.work, got)
    inherited = Meter(
        whole.meter.prompt_tokens,
        whole.meter.cached_tokens,
        sum(map(len, before.ids.values())),
    )
    usage = Usage(inherited.prompt_tokens, inherited.cached_tokens, inherited.completion_tokens)
    work = replace(
        work_of(kind, wants_ids=True, **given),
        id=whole.work.id,
        attempt=1 + cut,
        meter=inherited,
        resume=Resume(before.ids, {}, usage),
    )
    after = await run(engine, work)
    return Answer(work, before.outputs + after.outputs)


def assert_same(moved: Answer, whole: Answer) -> None:
    """Both answers are equal in tokens, text and usage."""
    assert moved.ids == whole.ids
    assert moved.text == whole.text
    assert said(moved.chunks) == said(whole.chunks)
    assert moved.finish_reason == whole.finish_reason
    assert moved.tokens == whole.tokens
    assert replace(moved.meter, cached_tokens=0) == replace(whole.meter, cached_tokens=0)
    if any(output.response for output in whole.outputs):
        assert nameless(moved.response) == nameless(whole.response)


def said(chunks: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The content of each choice of a stream, however it was cut into chunks."""
    found: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        for choice in nameless(chunk)["choices"]:
            _join(found.setdefault(choice.pop("index"), {}), choice)
    return found


def nameless(body: dict[str, Any]) -> dict[str, Any]:
    """An answer without what varies between runs: vLLM's random ids of tool calls, how much of the
    prompt was cached, and the digits of numbers that depend on the rest of the batch."""
    anonymous = re.sub(r'"(chatcmpl-tool-|call_)[\w-]+"', '"name"', json.dumps(body))
    bare: dict[str, Any] = json.loads(anonymous, parse_float=lambda text: round(float(text), 3))
    (bare.get("usage") or {}).pop("prompt_tokens_details", None)
    return bare


def _join(whole: dict[str, Any], more: dict[str, Any]) -> None:
    """Merge `more` into `whole`: texts and lists are appended, tool calls are matched by index, and
    anything else is set once."""
    for name, value in more.items():
        if isinstance(value, dict):
            whole[name] = whole.get(name) or {}
            _join(whole[name], value)
        elif name == "tool_calls":
            for at, call in enumerate(value or ()):
                number = call.get("index", at)
                _join(whole.setdefault(f"call {number}", {}), call | {"index": ""})
        elif isinstance(value, str | list) and name in whole and whole[name] is not None:
            whole[name] = whole[name] + value
        elif value is not None or name not in whole:
            whole[name] = value


def written(call: Call, answer: Answer) -> list[Any]:
    """What a gateway writes of it: events, or one answer. Each is as the SDK's types say."""
    from tests.document.sdk_types import faults  # needs the SDKs, which `make gpu-check` has not

    operation, meter = call.operation, answer.meter
    framing = operation.framing(call, "1", 0, "r" * 64)
    counts = (meter.prompt_tokens, meter.cached_tokens, meter.completion_tokens)
    usage = Usage(*counts, meter.reasoning_tokens)
    reason = answer.finish_reason or ""
    if not call.stream:
        made = [one.response for one in answer.outputs if one.response is not None]
        body = (
            framing.response(made[0], None) if made else framing.whole(answer.text, reason, usage)
        )
        bodies = [body]
    else:
        full = any(one.chunks for one in answer.outputs)
        data = b"" if full else framing.opening()
        framing.counted(meter.prompt_tokens, meter.cached_tokens)
        for output in answer.outputs:
            data += b"".join(map(framing.chunk, output.chunks))
            data += framing.text(output.text) if output.text else b""
        data += framing.closing(reason) + framing.ending(usage)
        events = [part.rpartition(b"data: ")[2] for part in data.split(b"\n\n")[:-1]]
        bodies = [event for event in events if event != b"[DONE]"]
    for body in bodies:
        assert not (found := faults(operation.name, body, event=call.stream)), (found, body)
    return [json.loads(body) for body in bodies]


async def cut_after(engine: Engine, work: EngineWork, tokens: int) -> Answer:
    """Run `work` and close the iterator once `tokens` tokens have arrived."""
    answer = Answer(work)
    async with aclosing(engine.generate(work)) as outputs:
        async for output in outputs:
            answer.outputs.append(output)
            if work.meter.completion_tokens >= tokens:
                break
    return answer


async def running_after_a_step(engine: Engine) -> int:
    """The engine's count of running requests, reported by a step taken after this call."""
    await ask(engine, max_tokens=1)
    return engine.stats().running
