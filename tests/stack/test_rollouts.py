"""Rollouts on a whole Lorikeet: two synthetic engines of two revisions, a worker, real requests."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest

from demo import TENANTS
from tests.stack.asking import until
from tests.stack.engines import another_engine
from tests.stack.rolling import FIRST, POLL_S, answered_by, api, ask_all, revisions
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

SECOND, SLOW = "second", "slow"
NEWER = ("--max-lora-rank", "32")
SLOWER = ("--max-lora-rank", "64", "--tokens-per-second", "2")
"""Another revision, slow enough to fail the guard of first tokens."""


def test_tenants_move_by_weight_after_their_adapters_were_tried(
    stack: Stack, operator: httpx.Client
) -> None:
    everywhere = {tenant.slug: {FIRST} for tenant in TENANTS}
    with another_engine(stack, SECOND, *NEWER):
        until(lambda: revisions(operator, standing="waiting", engines=1))
        (new,) = revisions(operator, standing="waiting")
        assert answered_by(stack) == everywhere, "it waits for its rollout"
        assert new["tried"] == 0

        plan = {"steps": [1, 100], "step_s": 1, "min_requests": 1, "max_ttft_ratio": None}
        rollout = api(operator, "POST", "rollouts", {"revision": new["id"], **plan})
        path = f"rollouts/{rollout['id']}"
        first = TENANTS[0].slug
        assert api(operator, "PUT", f"{path}/tenants/{first}", {"turn": "first"})["turn"] == "first"

        def moved() -> bool:
            return bool(answered_by(stack)[first] == {SECOND})

        until(moved, longest_pause_s=POLL_S)
        (now,) = revisions(operator, id=new["id"])
        assert now["tried"] >= 1, "before it moved"

        def at_weight(weight: int) -> bool:
            told = api(operator, "GET", path)
            assert told["state"] in ("running", "finished"), told
            ask_all(stack)  # requests for the guards to compare
            return bool(told["weight"] >= weight)

        def finished() -> bool:
            return at_weight(100) and bool(api(operator, "GET", path)["state"] == "finished")

        until(lambda: at_weight(1), longest_pause_s=POLL_S)
        until(finished, longest_pause_s=POLL_S)
        assert answered_by(stack) == {tenant.slug: {SECOND} for tenant in TENANTS}
        (now,) = revisions(operator, standing="serving")
        assert now["id"] == new["id"] and now["tried"] >= len(TENANTS)
        checks = api(operator, "GET", path)["needs_isolation"]
        assert checks, "and isolation was checked on it at each weight"
    until(lambda: answered_by(stack) == everywhere)


def test_a_guard_that_fails_brings_everybody_back(stack: Stack, operator: httpx.Client) -> None:
    answered_by(stack, times=5)  # the usual times, for comparison
    with another_engine(stack, SLOW, *SLOWER):
        until(lambda: revisions(operator, standing="waiting", max_lora_rank=64, engines=1))
        (new,) = revisions(operator, max_lora_rank=64)
        (old,) = revisions(operator, max_lora_rank=16)
        api(operator, "PATCH", f"revisions/{old['id']}", {"standing": "serving"})
        plan = {"steps": [100], "step_s": 600, "needs_isolation": False, "max_ttft_ratio": 2}
        rollout = api(operator, "POST", "rollouts", {"revision": new["id"], **plan})
        path = f"rollouts/{rollout['id']}"
        until(lambda: api(operator, "GET", path)["weight"] == 100)
        engines: Counter[str] = Counter()

        def rolled_back() -> bool:
            for names in answered_by(stack).values():
                engines.update(names)
            return bool(api(operator, "GET", path)["state"] == "rolled back")

        until(rolled_back, longest_pause_s=POLL_S)
        assert engines[SLOW] > 0
        assert "The TTFT p95" in api(operator, "GET", path)["reason"]
        (new,) = revisions(operator, max_lora_rank=64)
        assert new["standing"] == "withdrawn"
        until(lambda: SLOW not in set().union(*answered_by(stack).values()))
