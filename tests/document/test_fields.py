"""The tables of OpenAI's and Anthropic's fields in `docs/api.md` match what the code does."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

import pytest
from anthropic.types.message_create_params import (
    MessageCreateParamsBase,
    MessageCreateParamsStreaming,
)
from openai.types import EmbeddingCreateParams
from openai.types.chat.completion_create_params import (
    CompletionCreateParamsBase,
    CompletionCreateParamsStreaming,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsStreaming,
)

from gateway.start import ROOT
from inference.errors import InvalidRequest
from inference.operations.bodies import fields
from inference.operations.chat import CHAT
from inference.operations.completion import COMPLETION
from inference.operations.messages import messages
from inference.operations.messages.messages import MESSAGES
from inference.operations.openai import StreamFields
from inference.operations.operation import Operation
from inference.operations.pooling.embeddings import EMBEDDINGS
from inference.operations.responses import responses
from inference.operations.responses.responses import RESPONSES
from tests.inference.operations.examples import EXAMPLES

pytestmark = pytest.mark.pure
NAME = re.compile(r"`(\w+)`")
CACHING = {"prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"}
"""Fields of OpenAI for its prefix cache. Each tenant has its own, whatever they are."""
CLIENTS = {"safety_identifier", "user"}
"""Fields of OpenAI that name its client's user. The key alone identifies the client, and nothing
searches for misuse."""


@dataclass(frozen=True)
class Api:
    """An API: the fields that its SDK knows, and those that the code handles."""

    heading: str
    served: str
    operation: Operation
    known: Set[str]
    unserved: Mapping[str, tuple[Any, str]]
    without_effect: Set[str]
    """Fields that change no answer, there or here; a few are repeated in it."""

    def rows(self) -> dict[str, str]:
        """What the documentation's table says about each field."""
        section = (ROOT / "docs" / "api.md").read_text().partition(f"### {self.heading}\n")[2]
        found: dict[str, str] = {}
        for line in section.partition("\n### ")[0].splitlines():
            if line.startswith("| `"):
                names, said, *_ = line.strip("| ").split(" | ")
                for name in NAME.findall(names):
                    assert name not in found
                    found[name] = said.strip("| ")
        return found

    def does(self, name: str) -> str:
        """What the code does with a field."""
        if name in self.unserved:
            return "refused"
        if name in self.without_effect:
            return "no effect"
        read = {*self.operation.accepted, *self.operation.decoder.type.__struct_fields__}  # type: ignore[attr-defined]
        return self.served if name in read else "nothing"


APIS = [
    Api(
        "OpenAI's fields",
        "as OpenAI's",
        CHAT,
        CompletionCreateParamsBase.__annotations__.keys()
        | CompletionCreateParamsStreaming.__annotations__.keys(),
        fields.UNSERVED,
        CACHING | CLIENTS,
    ),
    Api(
        "Responses",
        "as OpenAI's",
        RESPONSES,
        ResponseCreateParamsBase.__annotations__.keys()
        | ResponseCreateParamsStreaming.__annotations__.keys(),
        responses.UNSERVED,
        CACHING | CLIENTS | {"max_tool_calls", "metadata", "stream_options"},
    ),
    Api(
        "Embeddings",
        "as OpenAI's",
        EMBEDDINGS,
        EmbeddingCreateParams.__annotations__.keys(),
        {},
        {"user"},
    ),
    Api(
        "Anthropic's API",
        "as Anthropic's",
        MESSAGES,
        MessageCreateParamsBase.__annotations__.keys()
        | MessageCreateParamsStreaming.__annotations__.keys(),
        messages.UNSERVED,
        # Every prefix of a prompt is cached, whether `cache_control` marks it or not.
        {"cache_control", "metadata", "service_tier", "user_profile_id", "workspace_id"},
    ),
]
EACH = pytest.mark.parametrize("api", APIS, ids=lambda api: api.operation.name)


@EACH
def test_each_field_of_the_sdk_is_in_the_table_with_what_is_done(api: Api) -> None:
    rows = api.rows()
    assert rows == {name: api.does(name) for name in api.known | rows.keys()}


@pytest.mark.vllm
def test_each_field_of_vllm_is_done_refused_or_documented_as_without_effect() -> None:
    """Also of a release of vLLM that has new ones."""
    from vllm.entrypoints.generate.base.protocol import StreamOptions
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    section = (ROOT / "docs" / "api.md").read_text().partition("### vLLM's fields\n")[2]
    documented = set(NAME.findall(section.partition("\n### ")[0]))
    assert documented >= fields.OF_VLLM.keys() | fields.IGNORED_OF_VLLM
    handled = {*fields.UNSERVED, *fields.OF_VLLM, *fields.IGNORED_OF_VLLM}
    for operation, request in ((CHAT, ChatCompletionRequest), (COMPLETION, CompletionRequest)):
        read = {*operation.accepted, *operation.decoder.type.__struct_fields__}
        assert set(request.model_fields) - read - handled - {"chat_template_kwargs"} == set()
        assert not operation.accepted & fields.IGNORED_OF_VLLM
    assert set(StreamOptions.model_fields) == set(StreamFields.__struct_fields__)


@pytest.mark.parametrize("name", fields.OF_VLLM)
@pytest.mark.parametrize("operation", [CHAT, COMPLETION, RESPONSES], ids=lambda one: one.name)
def test_fields_of_vllm_that_are_not_served_are_refused(operation: Operation, name: str) -> None:
    harmless, _ = fields.OF_VLLM[name]
    body = EXAMPLES[operation.name].body("m")
    assert operation.allowed(body | {name: harmless})
    if name not in operation.accepted:
        with pytest.raises(InvalidRequest, match=f"`{name}` is not supported") as caught:
            operation.allowed(body | {name: [{"any": "thing"}]})
        assert caught.value.param == name


@EACH
def test_what_has_no_effect_reaches_no_engine(api: Api) -> None:
    assert not api.operation.accepted & api.without_effect
    assert not api.operation.accepted & api.unserved.keys()


@EACH
def test_what_is_refused_is_refused_by_its_name(api: Api) -> None:
    for name, (harmless, _) in api.unserved.items():
        body = EXAMPLES[api.operation.name].body("m")
        with pytest.raises(InvalidRequest, match=f"`{name}`") as caught:
            api.operation.allowed(body | {name: {"any": "thing"}})
        assert caught.value.param == name
        assert name not in api.operation.allowed(body | {name: harmless})
        assert name not in api.operation.allowed(body | {name: None})


@EACH
def test_what_has_no_effect_is_taken(api: Api) -> None:
    given: dict[str, Callable[[], Any]] = {
        "metadata": lambda: {"user_id": "x"},
        "max_tool_calls": lambda: 3,
        "store": lambda: True,
        "stream_options": lambda: {"include_obfuscation": False},
        "service_tier": lambda: "auto",
    }
    body = EXAMPLES[api.operation.name].body("m")
    for name in api.without_effect:
        whole = body | {name: given.get(name, lambda: "x")()}
        api.operation.parse(json.dumps(whole).encode())
        assert api.operation.allowed(whole) == api.operation.allowed(body)
