"""Attempts of a request on two engines, through their journals and two gateways, are one bill."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone

from inference.agent.engines.synthetic import SyntheticEngine
from inference.gateway.fleet.hub import Hub
from inference.gateway.fleet.order import Order
from inference.gateway.fleet.stream import Stream
from inference.grants import Grant, Price, Reservation, Target
from inference.link.wire import Done
from tenants.billing.receipts import describe
from tenants.billing.reconciliation import drifts, journal_differences
from tenants.models import EngineJournal, SupersededAttempt, UsageEvent, UsageRollup
from tenants.models import Price as PriceRow
from tests.inference.rig import agent_on, chat, gateway, until
from tests.inference.samples import MODEL
from tests.tenants.billing.test_ledger import Customer, make_customer
from tests.tenants.making import make_base
from tests.tenants.spending import patient_ledger

PRICE = Price(3, 2, 7)


@pytest.fixture
async def acme(async_db: None) -> Customer:
    return await sync_to_async(make_customer)("acme")


def order(who: Customer, tokens: int) -> Order:
    grant = Grant(who.key_id, who.tenant_id, "acme", frozenset(), None, 1.0, "salt")
    target = Target(MODEL.name, MODEL.name, price=PRICE)
    body = msgspec.json.encode(chat(max_tokens=tokens, stream=True))
    return Order(grant, target, Reservation("r1"), "chat", body, "interactive", 60.0)


async def generated(hub: Hub, order: Order) -> Done:
    """Read the attempt to its end."""
    stream: Stream = hub.submit(order)
    while True:
        if isinstance(got := await stream.read(), Done):
            return got


@pytest.mark.parametrize("order_of_attempts", [(1, 2), (2, 1)])
async def test_two_attempts_on_two_engines_end_with_one_bill(
    acme: Customer, tmp_path: Path, order_of_attempts: tuple[int, int]
) -> None:
    tokens = {1: 3, 2: 5}
    first = order(acme, tokens[1])
    orders = {1: first, 2: replace(first, attempt=2, body=order(acme, tokens[2]).body)}
    engines = {attempt: SyntheticEngine(MODEL) for attempt in tokens}
    async with AsyncExitStack() as stack:
        ledgers = [await stack.enter_async_context(patient_ledger()) for _ in tokens]
        made = [await stack.enter_async_context(gateway(recorder=one)) for one in ledgers]
        for attempt, one in zip(order_of_attempts, made, strict=True):
            root = tmp_path / str(attempt)
            root.mkdir()
            engine = engines[attempt]
            async with agent_on(engine, root, [one], id=f"engine-{attempt}") as rig:
                done = await generated(one.hub, orders[attempt])
                assert done.usage.completion_tokens == tokens[attempt]
                await until(lambda: not rig.agent.stats().unbilled.requests)
    for engine in engines.values():
        await engine.close()
    await sync_to_async(judge)(tokens)


def judge(tokens: dict[int, int]) -> None:
    event = UsageEvent.objects.get()
    assert (event.id, event.attempt, event.engine_id) == ("r1", 2, "engine-2")
    assert event.completion_tokens == tokens[2]
    assert event.regenerated_tokens == tokens[1], "the second one began from nothing"
    cost = event.prompt_tokens * PRICE.prompt + tokens[2] * PRICE.output
    assert event.cached_tokens == 0 and event.cost == cost
    lower = SupersededAttempt.objects.get()
    assert (lower.attempt, lower.engine_id) == (1, "engine-1")
    assert lower.completion_tokens == tokens[1]
    assert [(row.requests, int(row.cost)) for row in UsageRollup.objects.all()] == [(1, cost)]
    journals = EngineJournal.objects.order_by("engine_id")
    assert [row.ledger_completion_tokens for row in journals] == [tokens[1], tokens[2]]
    assert not any(drifts()) and journal_differences() == []
    assert describe(event)["attempt"] == 2


async def test_a_price_that_changes_before_the_end_changes_no_bill(
    acme: Customer, tmp_path: Path
) -> None:
    """It is the one that the limits reserved."""
    async with patient_ledger() as ledger, gateway(recorder=ledger) as one:
        engine = SyntheticEngine(MODEL)
        async with agent_on(engine, tmp_path, [one]) as rig:
            await sync_to_async(set_price)()
            await generated(one.hub, order(acme, 4))
            await until(lambda: not rig.agent.stats().unbilled.requests)
        await engine.close()
    event = await UsageEvent.objects.aget()
    assert (event.prompt_price, event.cached_prompt_price, event.output_price) == (3, 2, 7)
    assert event.cost == event.prompt_tokens * 3 + 4 * 7


def set_price() -> None:
    """Of long ago, as whoever looks now finds it."""
    PriceRow.objects.create(
        base_model=make_base(MODEL.name),
        starts_at=timezone.now() - timedelta(days=1),
        prompt=1000,
        cached_prompt=1000,
        output=1000,
    )
