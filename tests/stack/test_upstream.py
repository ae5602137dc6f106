"""The model of another server: here of the same Lorikeet, with a key of another tenant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from openai import BadRequestError, OpenAI

from demo import MODEL_NAME, TENANTS
from tests.stack.asking import until
from tests.stack.engines import another_engine
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

MINE, CARRIER = (tenant.slug for tenant in TENANTS[:2])
RELAY = "relay"


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[OpenAI]:
    """A client of one tenant, while an engine serves RELAY with the other's key."""
    upstream = ("--engine", "upstream", "--upstream-url", f"{stack.url}/v1")
    with (
        pytest.MonkeyPatch.context() as patch,
        OpenAI(base_url=stack.facts["base_url"], api_key=stack.key(MINE), max_retries=0) as client,
    ):
        patch.setenv("LORIKEET_UPSTREAM_KEY", stack.key(CARRIER))
        model = (RELAY, Path(RELAY))
        options = (*upstream, "--upstream-model", MODEL_NAME)
        with another_engine(stack, RELAY, *options, model=model):
            until(lambda: RELAY in {one.id for one in client.models.list()})
            yield client


def billed(stack: Stack, slug: str, model: str, completion_tokens: int) -> int:
    """How many requests with so many output tokens the ledger has of the tenant and base model."""
    query = (
        "SELECT 1 FROM tenants_usageevent e JOIN tenants_tenant t ON t.id = e.tenant_id "
        "WHERE t.slug = %s AND e.base_model = %s AND e.completion_tokens = %s"
    )
    with psycopg.connect(stack.database_url, autocommit=True) as ledger:
        return ledger.execute(query, [slug, model, completion_tokens]).rowcount


def test_its_answers_are_the_servers_and_both_are_billed(client: OpenAI, stack: Stack) -> None:
    asked = {"messages": [{"role": "user", "content": "Who is it? " * 9}], "max_tokens": 17}
    direct = client.chat.completions.create(model=MODEL_NAME, **asked)
    whole = client.chat.completions.create(model=RELAY, **asked)
    streamed = list(
        client.chat.completions.create(
            model=RELAY, **asked, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(one.choices[0].delta.content or "" for one in streamed if one.choices)
    assert text == whole.choices[0].message.content == direct.choices[0].message.content
    assert whole.usage and direct.usage and streamed[-1].usage
    for used in (whole.usage, streamed[-1].usage):
        assert used.completion_tokens == direct.usage.completion_tokens == 17
        assert used.prompt_tokens == direct.usage.prompt_tokens
    assert {one.model for one in streamed} == {whole.model} == {RELAY}
    until(lambda: billed(stack, MINE, RELAY, 17) == 2 == billed(stack, CARRIER, MODEL_NAME, 17))
    said = client.responses.create(model=RELAY, input="Who is it?", max_output_tokens=17)
    assert said.output_text.startswith(f"{MODEL_NAME}: Who is it?")


def test_what_it_cannot_do_is_refused(client: OpenAI) -> None:
    question = [{"role": "user", "content": "x"}]
    with pytest.raises(BadRequestError, match="`top_k` is not supported") as refused:
        client.chat.completions.create(model=RELAY, messages=question, extra_body={"top_k": 3})
    assert refused.value.param == "top_k"
    with pytest.raises(BadRequestError, match="context window"):
        client.chat.completions.create(
            model=RELAY, messages=[{"role": "user", "content": "word " * 5000}]
        )
    card = client.models.retrieve(RELAY).model_dump()
    assert sorted(card["operations"]) == [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    ]


def test_the_operator_sees_what_it_is(client: OpenAI, operator: httpx.Client) -> None:
    engines = operator.get("/api/v1/engines").raise_for_status().json()["results"]
    (relay,) = (one for one in engines if one["id"] == RELAY)
    assert relay["kind"] == "upstream"
    assert any("its answers don't move" in sentence for sentence in relay["degraded"])
