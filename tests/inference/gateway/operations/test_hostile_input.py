"""Whatever a body contains, it is refused in the operation's own error shape, nothing is generated
for it, and the next tenant is answered."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping

from inference.link.accounts import Usage
from inference.operations.bodies.shape import MAX_DEPTH
from inference.operations.operation import Operation
from tests.inference.gateway.operations.every import WITH_ECHO, ask, code_of, each
from tests.inference.operations.examples import EXAMPLES, Body
from tests.inference.rig import Rig

Spoil = Callable[[Body], bytes]
"""Makes an unacceptable body of a valid one."""


def _encoded(body: Body) -> bytes:
    return json.dumps(body).encode()


SPOILT: Mapping[str, tuple[Spoil, set[int]]] = {
    "nothing": (lambda body: b"", {400}),
    "half of it": (lambda body: _encoded(body)[:-5], {400}),
    "two of it": (lambda body: 2 * _encoded(body), {400}),
    "an array": (lambda body: b"[" + _encoded(body) + b"]", {400}),
    "a word": (lambda body: b"null", {400}),
    "not UTF-8": (lambda body: _encoded(body)[:-1] + b',"user":"\xff\xfe"}', {400}),
    "half a character": (lambda body: _encoded(body | {"model": "\ud800"}), {400}),
    "depth": (lambda body: _encoded(body)[:-1] + b',"x":' + b"[" * MAX_DEPTH, {400}),
    "bytes": (lambda body: _encoded(body | {"x": "a" * 200_000}), {413}),
    "no model": (lambda body: _encoded(body | {"model": None}), {400}),
    "an empty model": (lambda body: _encoded(body | {"model": ""}), {400, 404}),
    "a number as model": (lambda body: _encoded(body | {"model": 7}), {400}),
    "a path as model": (lambda body: _encoded(body | {"model": "../../etc/passwd"}), {404}),
    "a zero byte in the model": (lambda body: _encoded(body | {"model": "base\0"}), {404}),
    "a very long model": (lambda body: _encoded(body | {"model": "m" * 50_000}), {404}),
}


@each(WITH_ECHO)
async def test_invalid_bodies_are_refused(stack: Rig, operation: Operation) -> None:
    for name, (spoil, statuses) in SPOILT.items():
        answer = await ask(stack, operation, spoil(EXAMPLES[operation.name].body()))
        assert code_of(answer, operation)[0] in statuses, name
        assert len(answer.content) < 2000, "it is not sent back what it sent"
    await _others_are_answered(stack, operation)


@each(WITH_ECHO)
async def test_a_compressed_body_is_refused_unread(stack: Rig, operation: Operation) -> None:
    content = gzip.compress(_encoded(EXAMPLES[operation.name].body()))
    answer = await ask(stack, operation, content, headers={"Content-Encoding": "gzip"})
    assert code_of(answer, operation) == (415, "unsupported_media_type")


@each(WITH_ECHO)
async def test_a_hostile_value_is_refused_by_its_name(stack: Rig, operation: Operation) -> None:
    example = EXAMPLES[operation.name]
    assert example.hostile
    for name, values in example.hostile.items():
        for value in values:
            answer = await ask(stack, operation, example.body(**{name: value}))
            error = answer.json()["error"]
            assert code_of(answer, operation) == (400, "invalid_request"), value
            assert str(error.get("param", name)).startswith(name) and name in error["message"]
    await _others_are_answered(stack, operation)


async def _others_are_answered(stack: Rig, operation: Operation) -> None:
    """Check that another tenant is answered, and that it alone is charged."""
    answer = await ask(stack, operation, key="globex")
    assert answer.status_code == 200
    paid = {id: usage for id, usage in stack.gateway.limits.settled.items() if _tokens(usage)}
    assert [f"req_{id}" for id in paid] in ([], [answer.headers["x-request-id"]])


def _tokens(usage: Usage | None) -> int:
    return usage.prompt_tokens + usage.completion_tokens if usage is not None else 0
