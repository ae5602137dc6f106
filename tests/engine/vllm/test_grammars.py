"""The event loop keeps running while vLLM compiles the grammars of structured outputs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from threading import Event
from typing import Any

import pytest
import pytest_asyncio

from inference.agent.engines.engine import Engine
from inference.errors import InvalidRequest
from tests.engine.driving import ask

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^[ab]{1,9}$"}}}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f>"],
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "f"}}

WAYS: dict[str, dict[str, Any]] = {
    "schema": {"response_format": JSON_SCHEMA},
    "json": {"structured_outputs": {"json": SCHEMA}},
    "regex": {"structured_outputs": {"regex": "[ab]{1,9}"}},
    "grammar": {"structured_outputs": {"grammar": 'root ::= "a" | "b"'}},
    "choice": {"structured_outputs": {"choice": ["a", "b"]}},
    "tag": {"response_format": TAG},
    "schema, on the full path": {"response_format": JSON_SCHEMA, "logprobs": True},
    "required tool": {"tools": TOOLS, "tool_choice": "required"},
    "named tool": {"tools": TOOLS, "tool_choice": NAMED},
    "tools or a schema": {"tools": TOOLS, "tool_choice": "auto", "response_format": JSON_SCHEMA},
}


@pytest_asyncio.fixture(loop_scope="session")
async def loop_went_on(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each conversion, whether the event loop ran during it."""
    import xgrammar

    loop, seen = asyncio.get_running_loop(), list[bool]()

    def watched(convert: Callable[..., Any]) -> Callable[..., Any]:
        def converting(*args: Any, **kwargs: Any) -> Any:
            turned = Event()
            loop.call_soon_threadsafe(turned.set)
            seen.append(turned.wait(5))
            return convert(*args, **kwargs)

        return converting

    for name in ("json_schema", "regex", "ebnf", "lark", "structural_tag"):
        name = f"from_{name}"
        convert = watched(getattr(xgrammar.Grammar, name))
        monkeypatch.setattr(xgrammar.Grammar, name, staticmethod(convert))
    return seen


@pytest.mark.parametrize("way", WAYS)
async def test_the_loop_goes_on(vllm: Engine, loop_went_on: list[bool], way: str) -> None:
    await ask(vllm, **WAYS[way], ignore_eos=False, max_tokens=24)
    assert loop_went_on and all(loop_went_on)


async def test_it_reports_that_it_constrains_answers(vllm: Engine) -> None:
    assert vllm.info.structured_outputs
    answer = await ask(vllm, structured_outputs={"choice": ["left", "right"]}, ignore_eos=False)
    assert answer.text in {"left", "right"}


@pytest.mark.parametrize("more", [{}, {"logprobs": True}], ids=["lean path", "full path"])
async def test_what_cannot_be_converted_is_refused(vllm: Engine, more: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="grammar"):
        await ask(vllm, structured_outputs={"grammar": "root ::= ("}, **more)
    assert (await ask(vllm)).tokens == 8


async def test_what_stands_beside_a_keyword_is_enforced_too(vllm: Engine) -> None:
    number = {"type": "integer", "minimum": 3}
    schema = {"allOf": [number, {"maximum": 4}], "anyOf": [{"enum": [2, 4]}, {"const": "a"}]}
    for way in (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": schema},
            }
        },
        {"structured_outputs": {"json": json.dumps(schema)}},
    ):
        assert (await ask(vllm, **way, ignore_eos=False, max_tokens=24)).text.strip() == "4"
