"""Whatever a field of a body contains, each operation either reads it or refuses it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.engines.synthetic.tokens import Tokenizer
from inference.agent.engines.synthetic.vectors import vector_of
from inference.errors import RequestError
from inference.operations.instant import InstantOperation
from inference.operations.operation import Operation
from inference.operations.pooling.pooling import AnswerMetadata, PoolingOperation
from inference.operations.registry import OPERATIONS
from tests.inference.operations.examples import EXAMPLES

pytestmark = pytest.mark.pure

WORDS = st.sampled_from(
    ["", "x", "\0", "user", "text", "function", "auto", "required", "json_schema", "\u20ac" * 300]
)
NAMES = st.sampled_from(
    ["role", "content", "type", "text", "name", "function", "tools", "id", "schema", "arguments"]
)
NUMBERS = st.sampled_from([0, 1, -1, 7, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def fields_of(operation: Any) -> list[str]:
    """Every field that the operation accepts or decodes."""
    return sorted({*operation.accepted, *operation.decoder.type.__struct_fields__})


def take(operation: Operation, body: bytes) -> None:
    """Process the body as a request is processed, as far as no engine is needed.

    Raises:
        RequestError: it is refused.
    """
    call = operation.parse(body)
    operation.estimate(call, 100, 2048)
    operation.bound(call, 100)
    operation.framing(call, "1", 0)
    read = operation.read(call.body, 100)
    operation.max_tokens(read)
    allowed = operation.allowed(read)
    if isinstance(operation, InstantOperation):
        operation.plain_answer(allowed, Tokenizer(2048))
    elif isinstance(operation, PoolingOperation):
        vectors = [vector_of(text, "m", 4) for _, text in operation.texts(allowed)]
        operation.plain_answer(allowed, vectors, AnswerMetadata("1", 0, "m", 7))
    else:
        operation.plain_prompt(allowed)


@pytest.mark.parametrize("operation", [*OPERATIONS], ids=lambda one: one.name)
@given(data=st.data())
def test_a_hostile_value_is_read_or_refused(operation: Operation, data: st.DataObject) -> None:
    body = EXAMPLES[operation.name].body()
    take(operation, json.dumps(body).encode())
    names = st.sampled_from(fields_of(operation))
    hostile = data.draw(st.dictionaries(names, VALUES, min_size=1, max_size=3))
    try:
        take(operation, json.dumps(body | hostile).encode())
    except RequestError as error:
        assert 400 <= error.http_status < 500 and len(error.message) < 2000
