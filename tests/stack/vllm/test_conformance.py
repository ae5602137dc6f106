"""A conformance suite and SDKs against the demo of `make up`, without settings made for them."""

from __future__ import annotations

import dataclasses
from typing import Any

import httpx
import pytest
from llm_comply import runner, schema
from llm_comply.config import ComplianceConfig
from llm_comply.specs import __path__ as specs
from llm_comply.tests import anthropic, open_responses, openai_chat

from demo import MODEL_NAME, TENANTS
from tests.labs.clients import with_anthropic, with_responses
from tests.stack.running import Stack

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.stack,
    pytest.mark.filterwarnings("ignore:jsonschema.RefResolver:DeprecationWarning"),  # in the suite
]

CASES = {
    "openai_chat.json": openai_chat.OPENAI_CHAT_TESTS,
    "anthropic.json": anthropic.ANTHROPIC_TESTS,
    "openresponses.json": open_responses.OPEN_RESPONSES_TESTS,
}
SEES = {"anth-image-input", "chat-image-input", "image-input"}
"""Cases that need a vision model."""
OF_NAMES = {"chat-reasoning-summary", "anth-thinking-display", "reasoning-summary"}
"""Cases that the suite runs only for models whose names it knows."""
ELSEWHERE = {"compact-response"}
"""A case that most servers lack: an endpoint that compacts conversations."""
UNSUITABLE = SEES | OF_NAMES | ELSEWHERE
SUPPORT = TENANTS[0]


def bounded(case: Any) -> Any:
    """The case with a single call and a bound on its text. The demo model was not trained to call
    tools: it tries to end its answer inside the string, where the schema allows only a quotation
    mark as the end, and so continues until the context is full."""

    def build(config: ComplianceConfig) -> dict[str, Any]:
        body: dict[str, Any] = case.build_request(config)
        for tool in body.get("tools", ()):
            function = tool.get("function", tool)
            schema_of = function.get("input_schema") or function["parameters"]
            schema_of["properties"]["location"]["maxLength"] = 20
        if case.id in ("chat-tool-calling", "tool-calling"):
            body["parallel_tool_calls"] = False
        if case.id == "anth-tool-calling":
            body["tool_choice"]["disable_parallel_tool_use"] = True
        return body

    return dataclasses.replace(case, build_request=build)


def config_of(stack: Stack) -> ComplianceConfig:
    key = stack.key(SUPPORT.slug)
    return ComplianceConfig(stack.facts["base_url"], key, MODEL_NAME, timeout=120)


def test_it_is_the_suite_that_we_know() -> None:
    known = {case.id for cases in CASES.values() for case in cases}
    assert known >= UNSUITABLE


@pytest.mark.parametrize(
    ("spec", "case"),
    [
        pytest.param(spec, case, id=case.id)
        for spec, cases in CASES.items()
        for case in cases
        if case.id not in UNSUITABLE
    ],
)
def test_a_case_of_the_suite_passes(stack: Stack, spec: str, case: Any) -> None:
    run_case(config_of(stack), spec, bounded(case))


def run_case(config: ComplianceConfig, spec: str, case: Any) -> None:
    """Run one case; warnings count as failures."""
    loader = schema.SpecLoader(f"{specs[0]}/{spec}")
    result = runner.TestRunner(config, [], loader).run_one(case)
    assert not result.errors + result.warnings, "; ".join(result.errors + result.warnings)
    assert result.status.value == "passed"


@pytest.mark.parametrize("case", sorted(SEES))
def test_a_picture_is_refused_clearly(stack: Stack, case: str) -> None:
    (found,) = [one for cases in CASES.values() for one in cases if one.id == case]
    body = found.build_request(config_of(stack))
    with stack.client(stack.key(SUPPORT.slug)) as client:
        answer = client.post(f"/v1{found.endpoint}", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert "not images" in error["message"]
    assert error["param"].startswith(("messages[0].content", "input[0].content"))


@pytest.mark.parametrize("model", [MODEL_NAME, SUPPORT.adapter])
def test_anthropics_sdk(stack: Stack, model: str) -> None:
    with_anthropic.check(stack.url, stack.key(SUPPORT.slug), model)


@pytest.mark.parametrize("model", [MODEL_NAME, SUPPORT.adapter])
def test_openais_sdk_and_its_newer_api(stack: Stack, model: str) -> None:
    with_responses.check(stack.facts["base_url"], stack.key(SUPPORT.slug), model)


def test_tokens_there_and_back(stack: Stack) -> None:
    with stack.client(stack.key(SUPPORT.slug)) as client:

        def post(path: str, **body: Any) -> dict[str, Any]:
            answer: httpx.Response = client.post(path, json={"model": MODEL_NAME} | body)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        made = post("/v1/tokenize", prompt="Hello there", return_token_strs=True)
        assert made["count"] == len(made["tokens"]) == len(made["token_strs"])
        assert "Hello there" in post("/v1/detokenize", tokens=made["tokens"])["prompt"]
        messages = [{"role": "user", "content": "Hello there"}]
        chat = post("/v1/tokenize", messages=messages)
        usage = post("/v1/chat/completions", messages=messages, max_tokens=1)["usage"]
        assert chat["count"] == usage["prompt_tokens"] > made["count"]
        card = client.get(f"/v1/models/{MODEL_NAME}").json()
        assert card["max_model_len"] == chat["max_model_len"]
        assert card["capabilities"]["tools"]
        assert {"/v1/messages", "/v1/responses"} <= {*card["operations"]}
        far = client.post("/v1/detokenize", json={"model": MODEL_NAME, "tokens": [10**9]})
        assert (far.status_code, far.json()["error"]["param"]) == (400, "tokens")
