"""Shadows at a gateway: what the candidate gets copies of, who pays, and what is noted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway import shadows
from inference.gateway.measuring.outcomes import SplitObservation
from inference.gateway.records.log_line import SHADOW
from inference.interfaces.directory import Grant, ResolvedTarget, TrafficSplit
from inference.interfaces.limiter import Room
from inference.splitting import StickyBy
from tests.inference.rig import STALLED, Rig, chat, rig, until
from tests.inference.samples import MODEL

SPLIT, ACME, GLOBEX = 7, 4, 6
STABLE, CANDIDATE = 1, 2
"""Ids of versions."""


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig(tmp_path) as one:
        yield one


def shadow(stack: Rig, *, weight: int = 99, key: int = ACME) -> None:
    """Copy requests for the adapter `support` of acme."""
    stack.adapter("acme", "support", 1)
    second = stack.adapter("acme", "second", 2)
    candidate = ResolvedTarget("support", MODEL.name, second, CANDIDATE)
    made = TrafficSplit(SPLIT, weight, StickyBy.USER, "", candidate, key)
    stack.gateway.keys.splits["acme", "support"] = made


async def ask(stack: Rig, **body: Any) -> dict[str, str]:
    """Send a request; returns the headers of its answer."""
    async with stack.gateway.client() as client:
        given = chat("support", user="user 1", max_tokens=2, **body)
        answer = await client.post("/v1/chat/completions", json=given)
    assert answer.status_code == 200, answer.text
    return dict(answer.headers)


async def observed(stack: Rig, count: int) -> list[SplitObservation]:
    found: list[SplitObservation] = []

    def noted() -> bool:
        found.extend(stack.gateway.hub.outcomes.take().observations)
        return len(found) >= count

    await until(noted)
    return found


async def logged_copy(stack: Rig) -> Mapping[str, Any]:
    """Send a request; returns the log line of its copy."""
    found: list[Mapping[str, Any]] = []

    def logged() -> bool:
        found.extend(one for one in logs if one.get("surface") == SHADOW)
        return bool(found)

    with structlog.testing.capture_logs() as logs:
        await ask(stack)
        await until(logged)
    return found[0]


def before_copies(stack: Rig, act: Callable[[], None]) -> None:
    """Act before the next copy is sent."""
    keys, grant_of = stack.gateway.keys, stack.gateway.keys.grant_of

    async def acted(key_id: int) -> Grant:
        act()
        return await grant_of(key_id)

    keys.grant_of = acted  # type: ignore[method-assign]


def engine(stack: Rig) -> SyntheticEngine:
    assert isinstance(stack.engine, SyntheticEngine)
    return stack.engine


@pytest.mark.parametrize("stream", [True, False])
async def test_the_candidate_gets_a_copy(stack: Rig, stream: bool) -> None:
    shadow(stack)
    headers = await ask(stack, stream=stream)
    assert headers["x-lorikeet-adapter"].startswith("support@"), "the stable version's answer"
    original, copy = await observed(stack, 2)
    assert headers["x-request-id"] == f"req_{original.request_id}"
    assert [original.candidate, copy.candidate] == [False, True]
    for one in (original, copy):
        assert (one.split_id, one.key, one.weight) == (SPLIT, None, 99)
        assert one.cut and not one.failed
    accounts = {entry.id: entry.account for entry in await stack.gateway.ledger.settled(2)}
    assert accounts[original.request_id].version_id == STABLE
    assert accounts[copy.request_id].version_id == CANDIDATE
    assert accounts[copy.request_id].key_id == ACME
    await until(lambda: not stack.gateway.limits.open)


async def test_requests_of_other_keys_are_not_copied(stack: Rig) -> None:
    shadow(stack, weight=1)
    await ask(stack)
    await until(lambda: len(stack.gateway.hub.outcomes._tallies) > 0)
    assert stack.gateway.hub.outcomes.take().observations == []


async def test_a_request_that_its_client_gave_up_is_not_copied(stack: Rig) -> None:
    shadow(stack)
    engine(stack).behaviour = Behaviour(stall_after_tokens=1)
    async with stack.gateway.client() as client:
        body = chat("support", user="user 1", stream=True)
        async with client.stream("POST", "/v1/chat/completions", json=body):
            await until(lambda: len(stack.gateway.limits.open) == 1)
    await until(lambda: not stack.gateway.limits.open)
    engine(stack).behaviour = Behaviour()
    await ask(stack)
    assert len(await observed(stack, 2)) == 2, "of the second request alone"


async def test_a_copy_never_goes_to_the_key_of_another_tenant(stack: Rig) -> None:
    shadow(stack, key=GLOBEX)
    copy = await logged_copy(stack)
    assert copy["error"] == "invalid_api_key"
    (entry,) = await stack.gateway.ledger.settled()
    assert entry.account.version_id == STABLE


async def test_a_copy_of_a_shadow_that_has_ended_is_refused(stack: Rig) -> None:
    shadow(stack)
    before_copies(stack, stack.gateway.keys.splits.clear)
    copy = await logged_copy(stack)
    assert (copy["outcome"], copy["error"]) == ("refused", "model_not_found")
    assert [one.candidate for one in stack.gateway.hub.outcomes.take().observations] == [False]


@pytest.mark.parametrize(("original", "key"), [(True, True), (True, False), (False, True)])
async def test_a_copy_is_stored_if_its_original_and_its_key_are(
    stack: Rig, original: bool, key: bool
) -> None:
    shadow(stack)
    keys, grant_of = stack.gateway.keys, stack.gateway.keys.grant_of
    if original:
        keys.keeping.add("acme")

    async def granted(key_id: int) -> Grant:
        return replace(await grant_of(key_id), keeps_content=key)

    keys.grant_of = granted  # type: ignore[method-assign]
    await ask(stack)
    seen = {one.request_id: one.candidate for one in await observed(stack, 2)}
    stored = stack.gateway.hub.contents.take(10, 1 << 20)
    assert [seen[one.id] for one in stored] == [False, True][: original + (original and key)]


async def test_what_fails_counts_for_its_version(stack: Rig) -> None:
    shadow(stack)
    engine(stack).behaviour = Behaviour(fail_after_tokens=1)
    async with stack.gateway.client() as client:
        body = chat("support", user="user 1")
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 500
    assert [one.failed for one in await observed(stack, 2)] == [True, True]


async def test_copies_leave_room_for_what_clients_ask(
    stack: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow(stack)
    limits = stack.gateway.limits
    for left, copied in ((49, 0), (50, 1)):
        rooms = {"requests": Room(100, left, 1.0)}
        monkeypatch.setattr(limits, "_rooms", lambda rooms=rooms: rooms)
        await ask(stack)
        found = await observed(stack, 1 + copied)
        assert sum(one.candidate for one in found) == copied


async def test_without_room_there_is_no_copy(stack: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    shadow(stack)
    own = stack.gateway.dispatcher.shadows
    own._slots.add(ACME, shadows.MOST)
    await ask(stack)
    assert [one.candidate for one in await observed(stack, 1)] == [False]
    own._slots.give_back(ACME, shadows.MOST)
    await ask(stack)
    await observed(stack, 2)
    assert (own._slots.total, own._room.total) == (0, 0)


async def test_a_copy_that_waited_too_long_says_nothing_of_its_version(stack: Rig) -> None:
    shadow(stack)

    def stall() -> None:
        engine(stack).behaviour = STALLED
        stack.gateway.dispatcher.timeout_s = 0.01

    before_copies(stack, stall)
    copy = await logged_copy(stack)
    assert (copy["outcome"], copy["error"]) == ("failed", "generation_timeout")
    assert [one.candidate for one in stack.gateway.hub.outcomes.take().observations] == [False]
