"""Attempts of a request on two engines, through their journals and two gateways, give one bill."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.gateway.requests.admitted import AdmittedRequest
from inference.gateway.requests.held import Holding
from inference.gateway.requests.stream import Stream
from inference.interfaces.directory import Grant, ResolvedTarget, TokenPrice
from inference.interfaces.limiter import Reservation
from inference.link.wire import Delta, Done
from tenants.billing.receipts import describe
from tenants.billing.reconciliation import drifts, journal_differences
from tenants.models import Price as PriceRow
from tenants.models import SupersededAttempt, UsageEvent, UsageRollup
from tests.inference.rig import HANGS_S, Gateway, agent_on, chat, gateway, until
from tests.inference.samples import MODEL
from tests.tenants.billing.test_ledger import Customer, make_customer
from tests.tenants.making import make_base
from tests.tenants.spending import patient_ledger

PRICE = TokenPrice(3, 2, 7)


@pytest.fixture
async def acme(async_db: None) -> Customer:
    return await sync_to_async(make_customer)("acme")


def order(who: Customer, tokens: int) -> AdmittedRequest:
    grant = Grant(who.key_id, who.tenant_id, "acme", frozenset(), None, 1.0, "salt")
    target = ResolvedTarget(MODEL.name, MODEL.name, price=PRICE)
    body = msgspec.json.encode(chat(max_tokens=tokens, stream=True, ignore_eos=True))
    return AdmittedRequest(grant, target, Reservation("r1"), "chat", body, "interactive", 60.0)


async def read_until(stream: Stream, tokens: int) -> None:
    """Read at least this many tokens of the answer, and leave the rest."""
    while tokens > 0:
        delta = await stream.read()
        assert isinstance(delta, Delta)
        tokens -= delta.tokens


async def rest_of(stream: Stream) -> Done:
    """Read the answer to its end."""
    while True:
        if isinstance(got := await stream.read(), Done):
            return got


ALL, LOST = 9, 4
"""Output tokens of the whole answer, and of the part that its first engine had when it was lost."""


def stalls(after_tokens: int) -> Behaviour:
    return Behaviour(tokens_per_second=200.0, stall_after_tokens=after_tokens)


@pytest.mark.parametrize("told_first", [1, 2])
async def test_a_request_that_moves_is_one_bill(
    acme: Customer, tmp_path: Path, told_first: int
) -> None:
    """Its lost engine comes back at another gateway, before or after the second one finishes."""
    first, second = (SyntheticEngine(MODEL, stalls(LOST)) for _ in range(2))
    roots = [tmp_path / "1", tmp_path / "2"]
    for root in roots:
        root.mkdir()
    async with AsyncExitStack() as stack:
        ledgers = [await stack.enter_async_context(patient_ledger()) for _ in range(2)]
        one = await stack.enter_async_context(gateway(recorder=ledgers[0], holding=Holding(60.0)))
        other = await stack.enter_async_context(gateway(recorder=ledgers[1]))
        async with agent_on(first, roots[0], [one], id="engine-1"):
            stream = one.hub.submit(order(acme, ALL))
            await read_until(stream, LOST)
        made = await stack.enter_async_context(agent_on(second, roots[1], [one], id="engine-2"))
        if told_first == 1:
            await tell_elsewhere(stack, first, roots[0], other)
        second.behaviour = Behaviour()
        done = await rest_of(stream)
        assert (done.attempt, done.usage.completion_tokens) == (2, ALL)
        await until(lambda: not made.agent.reports.stats().unbilled.requests)
        if told_first == 2:
            await tell_elsewhere(stack, first, roots[0], other)
        await all_agree()
        assert list(one.limits.settled) == [] and one.limits.offered.count("r1") == 1
    for engine in (first, second):
        await engine.close()
    await sync_to_async(judge)()


async def tell_elsewhere(
    stack: AsyncExitStack, engine: SyntheticEngine, root: Path, gateway: Gateway
) -> None:
    """Start the engine's agent again, and have another gateway bill what its journal holds. The
    agent keeps running: what it reported in its first life may be written after what it reports
    now."""
    again = await stack.enter_async_context(agent_on(engine, root, [gateway], id="engine-1"))
    await until(lambda: not again.agent.reports.stats().unbilled.requests)
    await all_agree()


async def all_agree() -> None:
    """Wait until counts and ledger agree: engines report once a second, perhaps in mid-change."""
    async with asyncio.timeout(HANGS_S):
        while any(await sync_to_async(drifts)()):  # noqa: ASYNC110 - the database does not notify
            await asyncio.sleep(0.02)


def judge() -> None:
    event = UsageEvent.objects.get()
    assert (event.id, event.attempt, event.engine_id) == ("r1", 2, "engine-2")
    assert (event.completion_tokens, event.inherited_tokens) == (ALL, LOST)
    cost = event.prompt_tokens * PRICE.prompt + ALL * PRICE.output
    assert event.cached_tokens == 0 and event.cost == cost
    lower = SupersededAttempt.objects.get()
    assert (lower.attempt, lower.engine_id, lower.completion_tokens) == (1, "engine-1", LOST)
    assert event.given_s > lower.given_s >= 0, "they began one after another"
    assert event.regenerated_tokens == 0
    assert [(row.requests, int(row.cost)) for row in UsageRollup.objects.all()] == [(1, cost)]
    assert [drift for drift in drifts() if drift] == []
    assert journal_differences() == []
    assert describe(event)["attempt"] == 2


async def test_a_price_that_changes_before_the_end_changes_no_bill(
    acme: Customer, tmp_path: Path
) -> None:
    """The price with which the limits reserved is billed."""
    async with patient_ledger() as ledger, gateway(recorder=ledger) as one:
        engine = SyntheticEngine(MODEL)
        async with agent_on(engine, tmp_path, [one]) as rig:
            await sync_to_async(set_price)()
            await rest_of(one.hub.submit(order(acme, 4)))
            await until(lambda: not rig.agent.reports.stats().unbilled.requests)
        await engine.close()
    event = await UsageEvent.objects.aget()
    assert (event.prompt_price, event.cached_prompt_price, event.output_price) == (3, 2, 7)
    assert event.cost == event.prompt_tokens * 3 + 4 * 7


def set_price() -> None:
    """A price that started a day ago, so that a lookup now would find it."""
    PriceRow.objects.create(
        base_model=make_base(MODEL.name),
        starts_at=timezone.now() - timedelta(days=1),
        prompt=1000,
        cached_prompt=1000,
        output=1000,
    )
