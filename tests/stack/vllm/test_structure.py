"""Answers with a structure on real vLLM: what is counted for the adapter's version that gave them,
and what is asked for again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from demo import TENANTS
from tests.stack.asking import CHAT, ask, until
from tests.stack.running import Stack, signed_in

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

TENANT = TENANTS[0]
OUTCOMES = ("conformed", "malformed", "unchecked")
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["unit"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {"response_format": {"type": "json_schema", "json_schema": {
    "name": "weather", "strict": True, "schema": WEATHER}}}  # fmt: skip
CALL: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_tokens": 400,
}
CUT: dict[str, Any] = SCHEMA | {"max_tokens": 2}
STOPPED: dict[str, Any] = SCHEMA | {"stop": ["unit"]}
"""Ends before the schema is complete, whatever is sampled."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What the management API has of a key's requests."""

    manager: httpx.Client
    key: int

    def structures(self) -> dict[tuple[str, int, str], int]:
        """How many answers had each outcome, by adapter and version."""
        return {
            (line["adapter"], line["version"], outcome): line[outcome]
            for line in self._lines("metrics", by="adapter,version")
            for outcome in OUTCOMES
        }

    def billed(self) -> tuple[int, int]:
        """Requests and their output tokens."""
        lines = self._lines("usage")
        counted = [(line["requests"], line["completion_tokens"]) for line in lines]
        return counted[0] if counted else (0, 0)

    def _lines(self, what: str, **query: Any) -> list[dict[str, Any]]:
        asked: dict[str, Any] = {"bucket": "all", "key": self.key} | query
        answer = self.manager.get(f"/api/v1/{what}", params=asked).raise_for_status()
        lines: list[dict[str, Any]] = answer.json()["results"]
        return lines


def test_answers_are_counted_for_their_version_and_a_malformed_one_is_asked_for_again(
    stack: Stack,
) -> None:
    body = {"name": "structure", "scopes": ["inference", "usage:read"]}
    with signed_in(stack) as office:
        made = office.post("/api/v1/keys", params={"tenant": TENANT.slug}, json=body).json()
    with stack.client(made["secret"]) as client, stack.manager(made["secret"]) as manager:

        def answered(repair: str = "never", **fields: Any) -> tuple[Any, str | None, int]:
            """The choice, the header of a repair, and the output tokens."""
            answer = client.post(
                CHAT,
                json=ask(TENANT.adapter, **fields),
                headers={"Structure-Repair": repair},
            ).raise_for_status()
            (choice,), usage = answer.json()["choices"], answer.json()["usage"]
            return choice, answer.headers.get("structure-repair"), usage["completion_tokens"]

        said, _, tokens = answered(**SCHEMA)
        assert json.loads(said["message"]["content"])["unit"]
        called, _, more = answered(**CALL)
        (call,) = called["message"]["tool_calls"]
        assert json.loads(call["function"]["arguments"])["unit"]
        cut, _, two = answered(**CUT)
        assert cut["finish_reason"] == "length" and two == 2
        stopped, header, once = answered(**STOPPED)
        assert (stopped["finish_reason"], header) == ("stop", None)
        _, header, twice = answered("once", **STOPPED)
        assert (header, twice) == ("failed", 2 * once)

        figures = Figures(manager, made["id"])
        version = TENANT.adapter, 1
        counted = {"conformed": 2, "malformed": 3, "unchecked": 1}
        told = {(*version, outcome): count for outcome, count in counted.items()}
        until(lambda: sum(figures.structures().values()) == sum(told.values()), 60)
        assert figures.structures() == told
        until(lambda: figures.billed()[0] == 6, 60)
        assert figures.billed() == (6, tokens + more + two + once + twice)
