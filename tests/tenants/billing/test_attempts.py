"""A request's highest attempt is billed, in whatever order, how often and by whichever gateway its
attempts are written."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from inference.interfaces.directory import TokenPrice
from inference.link.accounts import LedgerEntry, Usage
from tenants.billing.journals import JournalReport
from tenants.billing.ledger import connect
from tenants.billing.lines import StatementLine
from tenants.billing.receipts import describe
from tenants.billing.reconciliation import (
    drifts,
    journal_differences,
    month_differences,
    rollup_differences,
)
from tenants.billing.statements import write, write_reports
from tenants.models import EngineJournal, SupersededAttempt, UsageEvent, UsageMonth, UsageRollup
from tenants.models.usage.sums import FIGURES
from tenants.utc import month_end, month_start
from tests.tenants.billing.test_ledger import NOON, Customer, Told, make_customer, waits_for_a_lock
from tests.tenants.spending import patient_ledger

HOUR = timedelta(hours=1)
PRICE = TokenPrice(3, 2, 7)
COUNTED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
examples = itertools.count()


class Attempt(NamedTuple):
    """Attempt `number` of request `request`: it continued after `inherited` of its `tokens`."""

    request: int
    number: int
    tokens: int
    inherited: int
    engine: str


def entry(who: Customer, attempt: Attempt, example: int = 0) -> LedgerEntry:
    """The attempt as its engine's journal has it. Requests are half an hour apart."""
    id = f"{example:06}-{attempt.request}"
    usage = Usage(100, attempt.number, attempt.tokens, attempt.tokens // 3, ttft_s=0.5)
    made = who.entry(
        id,
        NOON + attempt.request * HOUR / 2,
        usage=usage,
        price=(PRICE.prompt, PRICE.cached_prompt, PRICE.output),
        finish_reason=f"reason-{attempt.number}",
    )
    return LedgerEntry(
        made.id, made.account, made.model, made.usage, made.finish_reason,
        attempt.number, attempt.inherited,
    )  # fmt: skip


def line(who: Customer, attempt: Attempt, example: int = 0) -> StatementLine:
    return StatementLine(
        attempt.engine, f"{example:06}-{attempt.engine}", entry(who, attempt, example)
    )


# --- A model -------------------------------------------------------------------------------------

Bill = tuple[Any, ...]
"""A request's attempt, journal, output tokens, cost, finish reason and regenerated tokens."""
State = tuple[
    dict[str, Bill],
    set[tuple[str, int, str, int]],
    Counter[tuple[datetime, str]],
    Counter[tuple[str, str]],
]
"""Events and superseded attempts; sums by hour; sums by journal."""


def expected(lines: Iterable[StatementLine]) -> State:
    """The ledger's state after all of these lines were written."""
    known = {(one.entry.id, one.entry.attempt): one for one in lines}
    requests: defaultdict[str, list[StatementLine]] = defaultdict(list)
    for key in sorted(known):
        requests[key[0]].append(known[key])
    billed: dict[str, Bill] = {}
    superseded: set[tuple[str, int, str, int]] = set()
    hours: Counter[tuple[datetime, str]] = Counter()
    for id, attempts in requests.items():
        *lower, (_, journal, top) = attempts
        taken_over = [one.entry.inherited_tokens for one in attempts[1:]]
        excess = [
            max(0, one.entry.usage.completion_tokens - taken)
            for one, taken in zip(lower, taken_over, strict=True)
        ]
        tokens, cost = top.usage.completion_tokens, PRICE.cost(top.usage)
        billed[id] = (top.attempt, journal, tokens, cost, top.finish_reason, sum(excess))
        superseded |= {
            (id, one.entry.attempt, one.journal, one.entry.usage.completion_tokens) for one in lower
        }
        at = datetime.fromtimestamp(top.account.started_at, NOON.tzinfo)
        figures = (1, *counts(top.usage), top.usage.reasoning_tokens, cost)
        hours.update(
            {(at.replace(minute=0), name): n for name, n in zip(FIGURES, figures, strict=True)}
        )
    journals: Counter[tuple[str, str]] = Counter()
    for one in known.values():
        counted = (1, *counts(one.entry.usage))
        journals.update({(one.journal, name): n for name, n in zip(COUNTED, counted, strict=True)})
    return billed, superseded, +hours, +journals


def counts(usage: Usage) -> tuple[int, int, int]:
    return usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens


def found(who: Customer, example: int = 0) -> State:
    prefix = f"{example:06}-"
    billed = {
        event.id: (
            event.attempt, event.journal, event.completion_tokens, event.cost,
            event.finish_reason, event.regenerated_tokens,
        )
        for event in UsageEvent.objects.filter(id__startswith=prefix)
    }  # fmt: skip
    superseded = {
        (one.request_id, one.attempt, one.journal, one.completion_tokens)
        for one in SupersededAttempt.objects.filter(request_id__startswith=prefix)
    }
    hours = Counter({
        (row.hour, name): int(getattr(row, name))
        for row in UsageRollup.objects.filter(key_id=who.key_id) for name in FIGURES
    })  # fmt: skip
    journals = Counter({
        (row.journal, name): getattr(row, f"ledger_{name}")
        for row in EngineJournal.objects.filter(journal__startswith=prefix) for name in COUNTED
    })  # fmt: skip
    return billed, superseded, +hours, +journals


# --- One after another ---------------------------------------------------------------------------

FIRST = Attempt(0, 1, 10, 0, "e1")
SECOND = Attempt(0, 2, 20, 8, "e2")
THIRD = Attempt(0, 3, 30, 17, "e3")


@pytest.fixture
def acme(transactional_db: None) -> Customer:
    return make_customer("acme")


@async_to_sync
async def written(*batches: Sequence[StatementLine]) -> None:
    async with await connect() as connection:
        for batch in batches:
            await write(connection, batch)


@pytest.mark.parametrize("order", [*itertools.permutations([FIRST, SECOND, THIRD])])
def test_the_highest_attempt_is_the_bill_in_whatever_order_they_come(
    acme: Customer, order: Sequence[Attempt]
) -> None:
    written(*([line(acme, one)] for one in order))
    event = UsageEvent.objects.get()
    assert (event.attempt, event.completion_tokens, event.engine_id) == (3, 30, "e3")
    assert event.regenerated_tokens == (10 - 8) + (20 - 17)
    assert found(acme) == expected(line(acme, one) for one in order)


def test_a_receipt_says_which_attempt_is_billed(acme: Customer) -> None:
    written([line(acme, FIRST)])
    early = describe(UsageEvent.objects.get())
    written([line(acme, SECOND)])
    told = describe(UsageEvent.objects.get())
    assert (early["attempt"], early["engine"], early["completion_tokens"]) == (1, "e1", 10)
    assert (told["attempt"], told["engine"], told["completion_tokens"]) == (2, "e2", 20)
    assert told["cost_pico"] == PRICE.cost(entry(acme, SECOND).usage)


def test_an_attempt_whose_journal_is_lost_costs_nothing(acme: Customer) -> None:
    written([line(acme, FIRST)], [line(acme, THIRD)])
    event = UsageEvent.objects.get()
    assert (event.completion_tokens, event.regenerated_tokens) == (30, 0)


def test_one_that_went_on_from_nothing_generated_all_of_it_again(acme: Customer) -> None:
    written([line(acme, FIRST)], [line(acme, SECOND._replace(inherited=0))])
    assert UsageEvent.objects.get().regenerated_tokens == 10


def test_the_same_id_at_another_time_is_another_request(acme: Customer) -> None:
    later = acme.entry("000000-0", NOON + HOUR, price=(0, 0, 0))
    written([line(acme, SECOND)], [StatementLine("e1", "000000-e1", later)])
    assert [one.attempt for one in UsageEvent.objects.order_by("started_at")] == [2, 1]


# --- At the same time ----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [*itertools.permutations([FIRST, SECOND, THIRD])])
def test_a_writer_that_waited_for_another_gateway_sees_its_attempts(
    acme: Customer, order: Sequence[Attempt]
) -> None:
    """One attempt is there; two gateways write the others, the second one before the first has
    committed."""
    there, one, other = (line(acme, attempt) for attempt in order)

    async def play() -> None:
        async with await connect() as early, await connect() as late:
            await write(early, [there])
            async with early.transaction():
                await write(early, [one])
                waiting = asyncio.create_task(write(late, [other]))
                await waits_for_a_lock(early)
            await waiting

    async_to_sync(play)()
    assert found(acme) == expected([there, one, other])
    assert UsageEvent.objects.get().regenerated_tokens == (10 - 8) + (20 - 17)


# --- Arbitrary orders ----------------------------------------------------------------------------

ATTEMPTS = st.builds(
    Attempt,
    st.integers(0, 3),
    st.integers(1, 4),
    st.integers(0, 50),
    st.integers(0, 50),
    st.sampled_from(["e1", "e2"]),
)
ROUNDS = st.lists(st.tuples(*[st.lists(st.integers(0, 99), max_size=5)] * 2), max_size=6)
"""What each of two gateways writes at the same time, as indexes into the list of attempts."""


def reports(state: State) -> list[JournalReport]:
    """The engines' final counts, when everything is acknowledged."""
    journals = sorted({journal for journal, _ in state[3]})
    return [
        JournalReport(journal, "e", requests, prompt, cached, output, 0, 0, 0, 0)
        for journal in journals
        for requests, prompt, cached, output in [[state[3][journal, name] for name in COUNTED]]
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attempts=st.lists(ATTEMPTS, min_size=1, max_size=9, unique_by=lambda one: one[:2]),
    rounds=ROUNDS,
    last=st.randoms(),
)
def test_the_ledger_is_what_follows_from_the_attempts_that_it_had(
    acme: Customer,
    attempts: list[Attempt],
    rounds: list[tuple[list[int], list[int]]],
    last: random.Random,
) -> None:
    example = next(examples)
    who = Customer(acme.tenant_id, 10**6 + example, acme.adapter_id)
    lines = [line(who, one, example) for one in attempts]
    plan = [tuple([lines[place % len(lines)] for place in side] for side in two) for two in rounds]
    rest = last.sample(lines, len(lines))
    plan.append((rest, rest[::-1]))

    async def play() -> None:
        had: list[StatementLine] = []
        async with await connect() as one, await connect() as other:
            for left, right in plan:
                had += [*left, *right]
                await asyncio.gather(write(one, left), write(other, right))
                assert await sync_to_async(found)(who, example) == expected(had)
            await write_reports(one, reports(expected(lines)))

    async_to_sync(play)()
    assert not any(drifts())
    start = month_start(NOON)
    assert rollup_differences(start, month_end(start)) == []
    assert month_differences(start, month_end(start)) == []
    assert journal_differences() == []
    months = UsageMonth.objects.filter(key_id=who.key_id)
    assert sum(month.requests for month in months) == len({one.request for one in attempts})


def test_two_gateways_with_the_same_requests_never_wait_for_each_other_for_ever(
    acme: Customer,
) -> None:
    """Each writes all attempts of many requests, in its own order and in small batches."""
    attempts = [
        Attempt(request, number, 10 * number, 10 * number - 12, f"e{number}")
        for request in range(40)
        for number in (1, 2, 3)
    ]
    lines = [line(acme, one) for one in attempts]
    regenerated = list[int]()

    async def gateway(seed: int) -> None:
        mixed, told = random.Random(seed).sample(lines * 2, 2 * len(lines)), Told()
        async with patient_ledger(linger_s=0) as recorder:
            for start in range(0, len(mixed), 7):
                for one in mixed[start : start + 7]:
                    recorder.record(one.engine_id, one.journal, [one.entry], told)
                await asyncio.sleep(0)
        assert Counter(told.ids) == Counter(one.entry.id for one in mixed)
        regenerated.append(recorder.regenerated_tokens)

    async def both() -> None:
        await asyncio.gather(*map(gateway, range(3)))

    with capture_logs() as logs:
        async_to_sync(both)()
    assert logs == []
    assert found(acme) == expected(lines)
    assert journal_differences() == []
    events = UsageEvent.objects.filter(tenant_id=acme.tenant_id)
    assert sum(regenerated) == sum(event.regenerated_tokens for event in events) > 0, (
        "each of them is counted by one gateway"
    )
