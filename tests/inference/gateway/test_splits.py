"""Requests of a split at a gateway: which version answers them, and what is noted of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from inference.gateway.measuring.outcomes import SplitObservation
from inference.interfaces.directory import ResolvedTarget, TrafficSplit
from inference.splitting import StickyBy, place
from tests.inference.rig import Rig, chat, rig, until
from tests.inference.samples import MODEL

SPLIT = 7


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as one:
        yield one


def split(stack: Rig, sticky: StickyBy, header: str = "", weight: int = 50) -> None:
    """Split the adapter `support` of acme."""
    stack.adapter("acme", "support", 1)
    second = stack.adapter("acme", "second", 2)
    candidate = ResolvedTarget("support", MODEL.name, second, 2)
    made = TrafficSplit(SPLIT, weight, sticky, header, candidate)
    stack.gateway.keys.splits["acme", "support"] = made


async def asked(
    stack: Rig, path: str, headers: dict[str, str] | None = None, **body: Any
) -> SplitObservation:
    """Send a request, and return what is noted of it."""
    async with stack.gateway.client() as client:
        answer = await client.post(path, json=body, headers=headers or {})
    assert answer.status_code == 200, answer.text
    found: list[SplitObservation] = []

    def noted() -> bool:
        found.extend(stack.gateway.hub.outcomes.take().observations)
        return bool(found)

    await until(noted)
    (one,) = found
    assert answer.headers["x-request-id"] == f"req_{one.request_id}"
    return one


def is_candidates(value: str) -> bool:
    return place(SPLIT, value.encode()) < 1 << 47


@pytest.mark.parametrize("user", [f"user {number}" for number in range(4)])
async def test_users_keep_their_version(stack: Rig, user: str) -> None:
    split(stack, StickyBy.USER)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        body: dict[str, Any] = chat("support", user=user, max_tokens=1)
        if path != "/v1/chat/completions":
            body.pop("messages")
            body["prompt" if path == "/v1/completions" else "input"] = "Hello"
        if path == "/v1/responses":
            body.pop("max_tokens")
        one = await asked(stack, path, **body)
        assert (one.split_id, one.key) == (SPLIT, place(SPLIT, user.encode()))
        assert one.candidate == is_candidates(user)
        assert not one.failed and one.ttft_s is not None and one.weight == 50


async def test_a_header_may_be_the_key(stack: Rig) -> None:
    split(stack, StickyBy.HEADER, "x-team")
    for team in ("red", "blue", "green"):
        body = chat("support", max_tokens=1)
        one = await asked(stack, "/v1/chat/completions", {"X-Team": team}, **body)
        assert one.candidate == is_candidates(team) and one.cut


async def test_a_conversation_keeps_its_version(stack: Rig) -> None:
    split(stack, StickyBy.CONVERSATION)
    said = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    later = [*said, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": "And?"}]
    for messages in (said, later):
        body = chat("support", messages=messages, max_tokens=1)
        one = await asked(stack, "/v1/chat/completions", **body)
        assert one.key == place(SPLIT, b"Hello")


async def test_nothing_is_noted_without_a_split(stack: Rig) -> None:
    split(stack, StickyBy.REQUEST, weight=99)
    stack.gateway.keys.splits.clear()
    async with stack.gateway.client() as client:
        body = chat("support", max_tokens=1)
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    await until(lambda: len(stack.gateway.hub.outcomes._tallies) == 1)
    assert stack.gateway.hub.outcomes.take().observations == []
