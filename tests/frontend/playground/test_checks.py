"""The settings that are JSON, as the socket checks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.playground.messages import Start, decode
from inference.errors import InvalidRequest
from tests.frontend.playground.settings import EXTRAS, TOOLS


def start(**parameters: Any) -> Start:
    turns = [{"role": "user", "content": "Hello"}]
    message = {"type": "start", "id": "a", "model": "base", "messages": turns}
    found = decode(json.dumps(message | {"parameters": parameters}))
    assert isinstance(found, Start)
    return found


@pytest.mark.parametrize(("tools", "said"), [one for one in TOOLS if isinstance(one[0], list)])
def test_tools_of_a_wrong_shape_are_refused(tools: list[Any], said: str) -> None:
    _is_refused(start(tools=tools), said)


@pytest.mark.parametrize(("extra", "said"), [one for one in EXTRAS if isinstance(one[0], dict)])
def test_fields_that_are_set_elsewhere_are_refused(extra: dict[str, Any], said: str) -> None:
    _is_refused(start(extra=extra, schema={}), said)


def _is_refused(message: Start, said: str) -> None:
    if not said:
        assert message.body()
        return
    with pytest.raises(InvalidRequest) as refused:
        message.body()
    assert refused.value.message == said


def test_other_fields_are_fields_of_the_request() -> None:
    body = json.loads(start(extra={"tool_choice": "none"}, presence_penalty=0.5).body())
    assert (body["tool_choice"], body["presence_penalty"]) == ("none", 0.5)
