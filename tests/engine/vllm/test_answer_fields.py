"""The fields with which vLLM says more of an answer: the same as from vLLM's own endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.agent.engines.engine import Engine
from inference.errors import InvalidRequest
from inference.operations.registry import OPERATIONS
from tests.engine.driving import QUESTION, Answer, ask, nameless, said, work_of, written
from tests.engine.vllm.test_resume import NAMED, WEATHER

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

BEGUN = [*QUESTION, {"role": "assistant", "content": "I am a"}]
ONGOING: dict[str, Any] = {
    "messages": BEGUN,
    "add_generation_prompt": False,
    "continue_final_message": True,
}
SEEDED: dict[str, Any] = {"temperature": 1.0, "seed": 7}
CALLING: dict[str, Any] = {
    "tools": [WEATHER], "tool_choice": NAMED, "max_tokens": 150, "ignore_eos": False,
}  # fmt: skip
IDS: dict[str, Any] = {"return_token_ids": True}
NUMBERS: dict[str, Any] = {"return_tokens_as_token_ids": True}
TOP: dict[str, Any] = {"logprobs": True, "top_logprobs": 2}

ADDED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "ids": ("chat", {}, IDS),
    "ids of two choices": ("chat", SEEDED | {"n": 2}, IDS),
    "ids beside log-probabilities": ("chat", SEEDED | TOP | {"n": 2}, IDS),
    "ids of a call": ("chat", CALLING, IDS),
    "numbers": ("chat", TOP, NUMBERS),
    "echo": ("chat", ONGOING, {"echo": True}),
    "echo of a question": ("chat", {"add_generation_prompt": False}, {"echo": True}),
    "echo beside log-probabilities": ("chat", ONGOING | TOP, {"echo": True}),
    "echo and ids": ("chat", ONGOING, IDS | {"echo": True}),
    "ids of a completion": ("completion", {}, IDS),
    "ids of prompts": ("completion", SEEDED | {"prompt": ["Who?", "The fox"], "n": 2}, IDS),
    "ids of prompts, scored": ("completion", {"prompt": ["Who?", "A"], "logprobs": 2}, IDS),
    "ids of an echo": ("completion", {"echo": True, "logprobs": 1}, IDS),
    "numbers of a completion": ("completion", {"logprobs": 2}, NUMBERS),
    "numbers of an echo": ("completion", {"echo": True, "logprobs": 2}, NUMBERS | IDS),
}  # fmt: skip
"""Operation, a request, and fields that add something to its answer."""
SCORED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "prompt": ("chat", {}, {"prompt_logprobs": 2}),
    "prompt of two choices": ("chat", SEEDED | {"n": 2}, {"prompt_logprobs": 0}),
    "prompt beside log-probabilities": ("chat", TOP, {"prompt_logprobs": 1} | IDS),
    "prompt of an echo": ("chat", ONGOING, {"prompt_logprobs": 1, "echo": True}),
    "prompt of a completion": ("completion", {}, {"prompt_logprobs": 2}),
    "prompts": ("completion", SEEDED | {"prompt": ["Who?", "A"], "n": 2}, {"prompt_logprobs": 1}),
    "prompt, echo, log-probabilities": (
        "completion", {"echo": True, "logprobs": 1}, {"prompt_logprobs": 3},
    ),
}  # fmt: skip
"""Those that no stream has."""


async def plain(engine: Any, kind: str, **given: Any) -> list[dict[str, Any]]:
    """The answer of vLLM's own endpoint: the chunks of a stream, or the body alone."""
    from inference.agent.engines.vllm.runners.registry import RUNNERS

    runner = RUNNERS[kind]
    work = work_of(kind, **given)
    endpoint = engine._serving.endpoint(runner)
    result = await runner.create(endpoint, runner.request_model.model_validate(work.body))
    if not given.get("stream"):
        body = result.model_dump(mode="json")
        if "prompt_logprobs" not in given:  # an echo's are in its `logprobs` already
            for choice in body["choices"]:
                choice.pop("prompt_logprobs", None)
        return [body]
    events = [json.loads(event[6:]) async for event in result if "[DONE]" not in event]
    return [event for event in events if event["choices"]]


def shown(kind: str, bodies: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[int, Any]]:
    """What the bodies say beside their choices, and in each choice, however it was cut."""
    beside: dict[str, Any] = {}
    for body in bodies:
        for name in ("prompt_token_ids", "prompt_logprobs"):
            if body.get(name) is not None:
                beside[name] = nameless(body)[name]
        for choice in body["choices"]:
            OPERATIONS.named(kind).conform(choice)
            _even(choice.get("message", {}))
    return beside, said(bodies)


def _even(message: dict[str, Any]) -> None:
    """What vLLM writes otherwise beside a whole call: an empty text, which OpenAI has null, and the
    arguments anew."""
    for call in message.get("tool_calls", ()):
        message["content"] = message["content"] or None
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def bodies_of(answer: Answer, *, stream: bool) -> list[dict[str, Any]]:
    return answer.chunks if stream else [answer.response]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", ADDED)
async def test_an_answer_has_what_vllm_says(vllm: Engine, name: str, stream: bool) -> None:
    kind, asked, added = ADDED[name]
    given = asked | {"stream": stream}
    ours = shown(kind, bodies_of(await ask(vllm, kind, **given, **added), stream=stream))
    assert ours == shown(kind, await plain(vllm, kind, **given, **added))
    assert ours != shown(kind, await plain(vllm, kind, **given)), "the fields have an effect"


@pytest.mark.parametrize("name", SCORED)
async def test_a_whole_answer_scores_its_prompt(vllm: Engine, name: str) -> None:
    kind, asked, added = SCORED[name]
    answer = await ask(vllm, kind, **asked, **added)
    assert shown(kind, [answer.response]) == shown(kind, await plain(vllm, kind, **asked, **added))
    assert "prompt_logprobs" in json.dumps(answer.response)
    assert answer.response["usage"]["prompt_tokens"] == answer.meter.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["chat", "completion"])
async def test_a_gateway_writes_them(vllm: Engine, kind: str, stream: bool) -> None:
    given: dict[str, Any] = IDS | {"stream": stream}
    if not stream:
        given |= {"prompt_logprobs": 1}
    answer = await ask(vllm, kind, **given)
    operation, work = OPERATIONS.named(kind), work_of(kind, **given)
    call = operation.parse(json.dumps(work.body | {"model": "m"}).encode())
    bodies = written(call, answer)
    ids = [
        id for body in bodies for choice in body["choices"] for id in choice.get("token_ids", ())
    ]
    assert len(ids) == 8
    assert shown(kind, bodies[: len(answer.chunks)] if stream else bodies) == shown(
        kind, bodies_of(answer, stream=stream)
    )


async def test_prompts_are_returned_and_scored_within_bounds(
    vllm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from inference.agent.engines.vllm import serving

    with pytest.raises(InvalidRequest, match="5000 log-probabilities") as refused:
        await ask(vllm, "completion", prompt=[[5] * 32] * 9, prompt_logprobs=20)
    assert refused.value.param == "prompt_logprobs"
    with pytest.raises(InvalidRequest, match="do not set `echo`") as refused:
        long = [{"role": "user", "content": "a b " * 60}]
        await ask(vllm, echo=True, messages=long, n=30, temperature=1.0)
    monkeypatch.setattr(serving, "MAX_PROMPT_IDS", 100)
    with pytest.raises(InvalidRequest, match="more than 100 ids") as refused:
        await ask(
            vllm, "completion", prompt=[[5] * 30] * 2, n=2, return_token_ids=True, temperature=1.0
        )
    assert refused.value.param == "return_token_ids"


async def test_a_stream_that_echoes_reuses_its_prompt(vllm: Engine) -> None:
    """vLLM would compute the prompt again for log-probabilities that no chunk has."""
    given = ONGOING | {"echo": True, "stream": True, "salt": "of-an-echo"}
    long = [{"role": "user", "content": "The quick brown fox. " * 20}, BEGUN[-1]]
    await ask(vllm, **given | {"messages": long})
    assert (await ask(vllm, **given | {"messages": long})).meter.cached_tokens > 0
