"""All operations that are served, and one that exists only in tests, written as its author would
write it. What holds for these also holds for the next operation."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from inference.errors import InvalidRequest
from inference.operations.instant import InstantOperation
from inference.operations.operation import Operation
from inference.operations.pooling.pooling import PoolingOperation
from inference.operations.registry import OPERATIONS, OperationRegistry
from tests.inference.operations.echo import Echo
from tests.inference.operations.examples import EXAMPLES
from tests.inference.rig import Rig

WITH_ECHO = OperationRegistry([*OPERATIONS, Echo()])
INSTANT = [one for one in WITH_ECHO if isinstance(one, InstantOperation)]
POOLING = [one for one in WITH_ECHO if isinstance(one, PoolingOperation)]
GENERATING = [one for one in WITH_ECHO if one not in (*INSTANT, *POOLING)]


def each(operations: Any) -> pytest.MarkDecorator:
    """Parametrizes a test with each of these operations."""
    return pytest.mark.parametrize("operation", [*operations], ids=lambda one: one.name)


async def ask(
    stack: Rig,
    operation: Operation,
    body: dict[str, Any] | bytes | None = None,
    key: str = "acme",
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """Send `body`, by default the operation's example."""
    body = EXAMPLES[operation.name].body() if body is None else body
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with stack.gateway.client(key) as client:
        return await client.post(operation.path, content=content, headers=headers)


def code_of(answer: httpx.Response, operation: Operation) -> tuple[int, str]:
    """The status and error code, after checking that the body has the shape of the operation's
    errors."""
    body = answer.json()
    assert set(body) == set(json.loads(operation.errors.body(InvalidRequest(), "x")))
    if header := operation.errors.id_header:
        assert answer.headers[header.decode()] == answer.headers["x-request-id"]
    return answer.status_code, body["error"]["code"]
