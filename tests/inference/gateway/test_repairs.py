"""Malformed answers that are asked for again: what the client gets, what is billed and noted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from inference.gateway.second_answers import with_usage_of
from inference.gateway.structures.child import StructureResult, StructureTask
from inference.gateway.structures.process import CheckingProcess
from inference.operations.structure import StructureOutcome
from tests.inference.rig import Rig, chat, rig, until

CONFORMED, MALFORMED, UNCHECKED = StructureOutcome
ONCE, NEVER = {"Structure-Repair": "once"}, {"Structure-Repair": "never"}
HEADER = "structure-repair"
FORMAT: dict[str, Any] = {"response_format": {"type": "json_object"}}
PATHS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", chat(**FORMAT)),
    ("/v1/responses", {"model": "base", "input": "Hello there", "text": {
        "format": {"type": "json_object"}}}),
]  # fmt: skip


class Found(CheckingProcess):
    """Finds these outcomes, one after the other."""

    def __init__(
        self, outcomes: Iterable[StructureOutcome], found: Callable[[], object] = lambda: None
    ) -> None:
        """Calls `found` with each."""
        super().__init__()
        self._outcomes, self._found = iter(outcomes), found

    async def check(self, task: StructureTask) -> StructureResult:
        self._found()
        return StructureResult(next(self._outcomes), 0.001)


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as one:
        yield one


def finds(stack: Rig, *outcomes: StructureOutcome, **more: Any) -> None:
    stack.gateway.hub.structures._process = Found(outcomes, **more)


async def ask(
    stack: Rig,
    path: str = "/v1/chat/completions",
    body: dict[str, Any] | None = None,
    headers: dict[str, str] = ONCE,
) -> httpx.Response:
    async with stack.gateway.client() as client:
        return await client.post(path, json=body or chat(**FORMAT), headers=headers)


def noted(stack: Rig) -> tuple[int, int, int]:
    """Requests, and how many were malformed and conformed."""
    tallies = stack.gateway.hub.outcomes._tallies
    sums = list(tallies._of.values())
    return (
        sum(one.requests for one in sums),
        sum(one.malformed for one in sums),
        sum(one.conformed for one in sums),
    )


def tokens(answer: httpx.Response) -> int:
    found: int = answer.json()["usage"]["total_tokens"]
    return found


@pytest.mark.parametrize(("path", "body"), PATHS)
@pytest.mark.parametrize("second", [CONFORMED, MALFORMED])
async def test_the_second_answer_is_sent(
    stack: Rig, path: str, body: dict[str, Any], second: StructureOutcome
) -> None:
    finds(stack, MALFORMED, MALFORMED, second)
    first = await ask(stack, path, body, NEVER)
    answer = await ask(stack, path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER] == ("repaired" if second == CONFORMED else "failed")
    assert tokens(answer) == 2 * tokens(first)
    assert answer.headers["x-request-id"].removeprefix("req_") in answer.json()["id"]
    await until(lambda: noted(stack)[0] == 3)
    assert noted(stack) == ((3, 2, 1) if second == CONFORMED else (3, 3, 0))
    ledger = stack.gateway.ledger
    await until(lambda: len(ledger.entries) == 3)
    billed = [one.usage.completion_tokens for one in ledger.entries.values()]
    assert billed == [billed[0]] * 3
    assert stack.gateway.hub.structures.room.total == 0


@pytest.mark.parametrize("outcome", [CONFORMED, UNCHECKED])
async def test_another_answer_is_not(stack: Rig, outcome: StructureOutcome) -> None:
    finds(stack, outcome)
    answer = await ask(stack)
    assert answer.status_code == 200 and HEADER not in answer.headers


async def test_a_tenant_chooses_and_a_request_overrides(stack: Rig) -> None:
    finds(stack, *[MALFORMED] * 5)
    for repairing, headers, repaired in (
        (False, {}, False), (True, NEVER, False), (True, {}, True), (False, NEVER, False),
    ):  # fmt: skip
        stack.gateway.keys.repairing = {"acme"} if repairing else set()
        answer = await ask(stack, headers=headers)
        assert (HEADER in answer.headers) == repaired


async def test_a_stream_and_a_request_without_a_schema_are_not_repaired(stack: Rig) -> None:
    finds(stack, MALFORMED)
    for body in (chat(stream=True, **FORMAT), chat()):
        answer = await ask(stack, body=body)
        assert answer.status_code == 200 and HEADER not in answer.headers
    await until(lambda: noted(stack)[0] == 2)


async def test_without_a_second_answer_the_first_is_sent(stack: Rig) -> None:
    finds(stack, MALFORMED, found=lambda: stack.gateway.keys.revoked.add("acme"))
    answer = await ask(stack)
    assert answer.status_code == 200 and answer.headers[HEADER] == "failed"
    assert answer.headers["x-request-id"].removeprefix("req_") in answer.json()["id"]
    await until(lambda: noted(stack) == (1, 1, 0))


async def test_a_second_answer_that_fails_is_recorded(stack: Rig) -> None:
    finds(stack, MALFORMED, found=stack.engine.die)  # type: ignore[attr-defined]
    answer = await ask(stack)
    assert answer.status_code == 200 and answer.headers[HEADER] == "failed"
    await until(lambda: noted(stack)[0] >= 1)


@pytest.mark.parametrize("header", ["", "ONCE", "twice"])
async def test_a_wrong_header_is_refused(stack: Rig, header: str) -> None:
    answer = await ask(stack, headers={"Structure-Repair": header})
    assert answer.status_code == 400
    assert "must be `once` or `never`" in answer.json()["error"]["message"]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ({"usage": {"a": 1, "b": {"c": 2}}}, {"usage": {"a": 3, "b": {"c": 4}}, "x": 1},
         {"usage": {"a": 4, "b": {"c": 6}}, "x": 1}),
        ({"usage": {"a": None}}, {"usage": {"a": 3, "d": "s"}}, {"usage": {"a": 3, "d": "s"}}),
        ({}, {"usage": {"a": 3}}, {"usage": {"a": 3}}),
        ({"usage": {"a": 3}}, {"x": 1}, {"x": 1}),
    ],
)  # fmt: skip
def test_usage_adds_up(first: Any, second: Any, both: Any) -> None:
    found = with_usage_of(json.dumps(first).encode(), json.dumps(second).encode())
    assert json.loads(found) == both
