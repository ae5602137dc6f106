"""A second pool, as in `make up`, through OpenAI's SDK: a tenant's adapter is tried and used, and
everything is billed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from demo import EMBEDDING, EMBEDDING_NAME, TENANTS
from gateway.local import seed
from tests.engine.factory import AdapterFactory
from tests.stack.asking import until
from tests.stack.engines import another_engine
from tests.stack.rolling import api
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

ENGINE = "embedding"
MINE, OTHER = (tenant.slug for tenant in TENANTS[:2])


@pytest.fixture(scope="module")
def embedding(stack: Stack, operator: httpx.Client) -> Iterator[Stack]:
    """The stack while it has an embedding engine, whose model has its price."""
    model = (EMBEDDING_NAME, EMBEDDING)
    with (
        another_engine(stack, ENGINE, "--runner", "pooling", model=model),
        sdk(stack, MINE) as client,
    ):
        until(lambda: EMBEDDING_NAME in {model.id for model in client.models.list()})
        api(operator, "POST", "prices", {"base_model": EMBEDDING_NAME, **seed.EMBEDDING_PRICE})
        yield stack


def sdk(stack: Stack, tenant: str) -> OpenAI:
    return OpenAI(base_url=stack.facts["base_url"], api_key=stack.key(tenant), max_retries=0)


def vectors(client: OpenAI, texts: list[str], model: str = EMBEDDING_NAME) -> list[list[float]]:
    return [one.embedding for one in client.embeddings.create(model=model, input=texts).data]


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def test_a_model_says_what_it_does(embedding: Stack) -> None:
    with sdk(embedding, MINE) as client:
        card: dict[str, Any] = client.models.retrieve(EMBEDDING_NAME).model_dump()
        assert "/v1/embeddings" in card["operations"]
        with pytest.raises(BadRequestError, match="/v1/embeddings"):
            client.completions.create(model=EMBEDDING_NAME, prompt="x")


async def uploaded(stack: Stack, folder: Path) -> None:
    """Upload the folder in the same way as the demo's own adapters."""
    async with httpx.AsyncClient(base_url=stack.console_url, timeout=60) as client:
        await seed.adapter(client, stack.key(MINE), "near", folder, EMBEDDING_NAME)


def test_an_adapter_is_tried_and_has_vectors_of_its_own(embedding: Stack, tmp_path: Path) -> None:
    folder = AdapterFactory(EMBEDDING, tmp_path).make(seed=3).path
    config = folder / "adapter_config.json"
    named = json.loads(config.read_text()) | {"base_model_name_or_path": EMBEDDING_NAME}
    config.write_text(json.dumps(named))
    asyncio.run(uploaded(embedding, folder))
    with sdk(embedding, MINE) as client, sdk(embedding, OTHER) as other:
        (plain,) = vectors(client, ["How much is the kayak?"])
        (adapted,) = vectors(client, ["How much is the kayak?"], model="near")
        with pytest.raises(NotFoundError):
            vectors(other, ["x"], model="near")
    assert likeness(plain, adapted) < 0.99


def test_prompts_are_billed_at_the_pools_own_price(embedding: Stack) -> None:
    with sdk(embedding, OTHER) as client:
        answer = client.embeddings.with_raw_response.create(model=EMBEDDING_NAME, input=["a", "b"])
    where = f"/v1/usage/receipts/{answer.headers['x-request-id']}"
    with embedding.client(embedding.key(OTHER)) as client:
        until(lambda: client.get(where).is_success)  # the ledger is written after the answer
        receipt = client.get(where).json()["receipt"]
    assert receipt["prompt_tokens"] == answer.parse().usage.prompt_tokens
    assert (receipt["completion_tokens"], receipt["base_model"]) == (0, EMBEDDING_NAME)
    assert receipt["prompt_price"] == seed.EMBEDDING_PRICE["prompt"]
