"""A rollout between two real vLLM engines whose profiles differ."""

from __future__ import annotations

import httpx
import pytest

from demo import MODEL_NAME, TENANTS
from tests.stack.asking import CHAT, ask, until
from tests.stack.engines import another_engine
from tests.stack.rolling import FIRST, POLL_S, answered_by, api, ask_all, revisions
from tests.stack.running import Stack

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

SECOND = "newer"
NEWER = ("--max-lora-rank", "32", "--tool-parser", "hermes")
START_S = 600.0
"""Timeout of a second vLLM's start beside the first one, on a busy machine."""


def answers(stack: Stack) -> dict[tuple[str, str], str]:
    """The greedy answers of each demo tenant's adapter and of the base model."""
    heard: dict[tuple[str, str], str] = {}
    for tenant in TENANTS:
        with stack.client(stack.key(tenant.slug)) as client:
            for model in (tenant.adapter, MODEL_NAME):
                answer = client.post(CHAT, json=ask(model, max_tokens=24))
                assert answer.status_code == 200, answer.text
                heard[tenant.slug, model] = answer.json()["choices"][0]["message"]["content"]
    return heard


def test_tenants_move_to_another_vllm_and_hear_the_same(
    stack: Stack, operator: httpx.Client
) -> None:
    everywhere = {tenant.slug: {FIRST} for tenant in TENANTS}
    assert answered_by(stack) == everywhere
    before = answers(stack)
    assert len(set(before.values())) > len(TENANTS), "adapters change what is said"
    (old,) = revisions(operator, standing="serving")
    with another_engine(stack, SECOND, *NEWER, engine="vllm"):
        until(lambda: revisions(operator, standing="waiting", engines=1), START_S)
        (new,) = revisions(operator, standing="waiting", engines=1)
        assert new["tried"] == 0 and answered_by(stack) == everywhere

        plan = {"steps": [50, 100], "step_s": 1, "min_requests": 1, "max_ttft_ratio": None}
        rollout = api(operator, "POST", "rollouts", {"revision": new["id"], **plan})
        path = f"rollouts/{rollout['id']}"

        def finished() -> bool:
            ask_all(stack)  # requests for the guards to compare, none of which fails
            told = api(operator, "GET", path)
            assert told["state"] in ("running", "finished"), told
            return bool(told["state"] == "finished")

        until(finished, START_S, longest_pause_s=POLL_S)
        assert answered_by(stack) == {tenant.slug: {SECOND} for tenant in TENANTS}
        assert answers(stack) == before
        (now,) = revisions(operator, id=new["id"])
        assert now["tried"] >= len(TENANTS), "each adapter was, before its tenant moved"
    until(lambda: answered_by(stack) == everywhere, START_S)
    api(operator, "PATCH", f"revisions/{old['id']}", {"standing": "serving"})
