"""The contract of `interfaces.answers.Answers`, in PostgreSQL and in memory."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections
from django.db.models import F
from django.utils import timezone
from psycopg.conninfo import make_conninfo
from psycopg.sql import SQL

from inference.errors import IdempotencyKeyReused, Unavailable
from inference.gateway.idempotency import Idempotency, Send
from inference.interfaces.answers import Answers, Claim, KeptAnswer
from tenants.answers import CLAIM_TIME, GIVEN_BACK_TIME, KEPT_TIME, PostgresAnswers
from tenants.database import conninfo
from tenants.models import IdempotentAnswer
from tests.inference.answers import CLAIM_S, GIVEN_BACK_S, KEPT_S, MemoryAnswers
from tests.tenants.making import make_key, make_tenant

SECOND = timedelta(seconds=1)
PATIENT_S = 60.0
"""Timeout of statements that only a busy machine delays."""
BODY = b"data: {}\n\n\x00\xff" * 1000


@dataclass
class Kept:
    """Answers of two gateways over the same rows, two API keys, and a way to let time pass."""

    one: Answers
    other: Answers
    keys: tuple[int, int]
    age: Callable[[timedelta], Awaitable[None]]
    """Make all rows older by this."""

    def claim(self, request: str = "first", **fields: Any) -> Claim:
        made = Claim(self.keys[0], "order 17", hashlib.sha256(b"body").digest(), request)
        return replace(made, **fields)


def answer_of(claim: Claim) -> KeptAnswer:
    return KeptAnswer(claim.request_id, "text/event-stream; charset=utf-8", BODY)


async def in_memory() -> AsyncIterator[Kept]:
    answers = MemoryAnswers()

    async def age(by: timedelta) -> None:
        answers.now += by.total_seconds()

    yield Kept(answers, answers, (1, 2), age)


async def in_postgres() -> AsyncIterator[Kept]:
    @sync_to_async
    def age(by: timedelta) -> None:
        IdempotentAnswer.objects.update(
            created_at=F("created_at") - by, claimed_until=F("claimed_until") - by
        )

    @sync_to_async
    def keys() -> tuple[int, int]:
        tenant = make_tenant("acme")
        return make_key(tenant)[0].pk, make_key(tenant)[0].pk

    async with PostgresAnswers(PATIENT_S) as one, PostgresAnswers(PATIENT_S) as other:
        yield Kept(one, other, await keys(), age)
    await sync_to_async(connections.close_all)()


DATABASE = pytest.mark.django_db(transaction=True)


@pytest.fixture(params=[in_memory, pytest.param(in_postgres, marks=DATABASE)])
async def kept(request: pytest.FixtureRequest) -> AsyncIterator[Kept]:
    async for made in request.param():
        yield made


def test_the_memory_has_the_same_times() -> None:
    assert (CLAIM_S, KEPT_S) == (CLAIM_TIME.total_seconds(), KEPT_TIME.total_seconds())
    assert GIVEN_BACK_S == GIVEN_BACK_TIME.total_seconds()


async def test_the_first_wins_the_others_wait_and_get_its_answer(kept: Kept) -> None:
    first, second = kept.claim("first"), kept.claim("second")
    assert await kept.one.claim(first) is True
    assert await kept.one.claim(second) is False
    assert await kept.other.claim(second) is False
    assert await kept.one.keep(first, answer_of(first)) is True
    assert await kept.other.claim(second) == answer_of(first)
    assert await kept.one.claim(kept.claim("third")) == answer_of(first)


async def test_of_many_that_race_exactly_one_wins(kept: Kept) -> None:
    for round in range(5):
        claims = [kept.claim(f"{round}-{i}", name=f"key {round}") for i in range(40)]
        found = await asyncio.gather(
            *((kept.one, kept.other)[i % 2].claim(claim) for i, claim in enumerate(claims))
        )
        assert (found.count(True), found.count(False)) == (1, 39)


async def test_of_many_that_race_for_a_dead_ones_claim_exactly_one_wins(kept: Kept) -> None:
    assert await kept.one.claim(kept.claim("dead")) is True
    await kept.age(CLAIM_TIME)
    found = await asyncio.gather(
        *((kept.one, kept.other)[i % 2].claim(kept.claim(f"{i}")) for i in range(40))
    )
    assert (found.count(True), found.count(False)) == (1, 39)


async def test_another_body_is_refused_while_it_runs_and_afterwards(kept: Kept) -> None:
    first = kept.claim("first")
    other = kept.claim("other", digest=hashlib.sha256(b"another body").digest())
    await kept.one.claim(first)
    with pytest.raises(IdempotencyKeyReused):
        await kept.other.claim(other)
    await kept.one.keep(first, answer_of(first))
    with pytest.raises(IdempotencyKeyReused):
        await kept.other.claim(other)
    assert await kept.other.claim(kept.claim("second")) == answer_of(first)


async def test_other_names_and_other_api_keys_are_strangers(kept: Kept) -> None:
    other = hashlib.sha256(b"another body").digest()
    assert await kept.one.claim(kept.claim("a")) is True
    assert await kept.one.claim(kept.claim("b", name="another")) is True
    assert await kept.one.claim(kept.claim("c", key_id=kept.keys[1], digest=other)) is True


async def test_a_released_key_is_anybodys_with_any_body(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    await kept.one.release(first)
    other = kept.claim("other", digest=hashlib.sha256(b"another body").digest())
    assert await kept.other.claim(other) is True
    assert await kept.one.keep(first, answer_of(first)) is False


async def test_a_kept_answer_is_not_released(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    await kept.one.keep(first, answer_of(first))
    await kept.one.release(first)
    assert await kept.one.claim(kept.claim("second")) == answer_of(first)


async def test_a_claim_runs_out_unless_it_is_renewed(kept: Kept) -> None:
    claims = [kept.claim("a", name="a"), kept.claim("b", name="b")]
    for claim in claims:
        await kept.one.claim(claim)
    for _ in range(3):
        await kept.age(CLAIM_TIME - SECOND)
        await kept.one.renew(claims)
    for claim in claims:
        assert await kept.other.claim(replace(claim, request_id="retry")) is False
    await kept.age(CLAIM_TIME)
    for claim in claims:
        assert await kept.other.claim(replace(claim, request_id="retry")) is True


async def test_a_lost_claim_can_change_nothing(kept: Kept) -> None:
    slow, quick = kept.claim("slow"), kept.claim("quick")
    await kept.one.claim(slow)
    await kept.age(CLAIM_TIME)
    assert await kept.other.claim(quick) is True
    await kept.one.release(slow)
    assert await kept.one.keep(slow, answer_of(slow)) is False
    assert await kept.one.claim(kept.claim("third")) is False
    await kept.age(CLAIM_TIME - SECOND)
    await kept.one.renew([slow])
    await kept.age(SECOND)
    assert await kept.one.claim(kept.claim("third")) is True


async def test_a_claim_that_ran_out_but_was_not_taken_over_can_still_be_kept(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    await kept.age(CLAIM_TIME * 2)
    assert await kept.one.keep(first, answer_of(first)) is True
    assert await kept.one.keep(first, answer_of(first)) is True
    assert await kept.other.claim(kept.claim("second")) == answer_of(first)


async def test_an_answer_is_kept_for_a_day(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    await kept.one.keep(first, answer_of(first))
    await kept.age(KEPT_TIME - SECOND * 60)
    assert await kept.one.claim(kept.claim("late")) == answer_of(first)
    await kept.age(SECOND * 60)
    newer = kept.claim("newer", digest=hashlib.sha256(b"another body").digest())
    assert await kept.one.claim(newer) is True
    assert await kept.other.claim(replace(newer, request_id="x")) is False
    await kept.one.keep(newer, answer_of(newer))
    assert await kept.other.claim(replace(newer, request_id="x")) == answer_of(newer)


async def test_a_claim_is_taken_over_in_the_next_turn_by_one(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    found = await asyncio.gather(
        *(
            (kept.one, kept.other)[i % 2].take_over(kept.claim(f"{i}"), {"x": 1, "first": 1})
            for i in range(20)
        )
    )
    taken = [one for one in found if one is not None]
    assert taken == [replace(first, turn=2)]
    assert await kept.other.claim(kept.claim("waits")) is False
    assert await kept.one.renew([first]) == [first], "who had it hears that it is elsewhere"
    assert await kept.other.renew(taken) == []
    assert await kept.one.keep(first, answer_of(first)) is False
    await kept.one.release(first)
    assert await kept.other.keep(taken[0], answer_of(first)) is True
    assert await kept.one.claim(kept.claim("late")) == answer_of(first)
    assert await kept.one.renew([first]) == [first]


@pytest.mark.parametrize(
    ("fields", "turns"),
    [
        ({"name": "another"}, {"first": 1}),
        ({"digest": hashlib.sha256(b"another body").digest()}, {"first": 1}),
        ({}, {"first": 2}),
        ({}, {"another": 1}),
        ({}, {}),
    ],
)
async def test_a_claim_of_a_different_request_is_not_taken_over(
    kept: Kept, fields: dict[str, Any], turns: dict[str, int]
) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    assert await kept.other.take_over(kept.claim("other", **fields), turns) is None
    assert await kept.one.keep(first, answer_of(first)) is True


async def test_no_other_api_key_takes_it_over_and_nobody_what_has_its_answer(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    stranger = kept.claim("other", key_id=kept.keys[1])
    assert await kept.other.take_over(stranger, {"first": 1}) is None
    await kept.one.keep(first, answer_of(first))
    assert await kept.other.take_over(kept.claim("other"), {"first": 1}) is None


async def test_a_claim_whose_heir_died_too_is_taken_over_when_it_ran_out(kept: Kept) -> None:
    await kept.one.claim(kept.claim("first"))
    heir = await kept.other.take_over(kept.claim("heir"), {"first": 1})
    assert heir is not None
    assert await kept.one.take_over(kept.claim("third"), {"first": 1}) is None
    await kept.age(CLAIM_TIME)
    third = await kept.one.take_over(kept.claim("third"), {"first": 1})
    assert third is not None and (third.request_id, third.turn) == ("first", 3)
    assert await kept.other.renew([heir]) == [heir]


async def test_a_claim_given_back_belongs_to_its_first_holder_again(kept: Kept) -> None:
    first = kept.claim("first")
    await kept.one.claim(first)
    heir = await kept.other.take_over(kept.claim("heir"), {"first": 1})
    assert heir is not None
    await kept.other.give_back(heir)
    await kept.other.give_back(heir)
    assert await kept.other.claim(kept.claim("heir")) is False
    assert await kept.one.renew([first]) == []
    await kept.age(GIVEN_BACK_TIME)
    assert await kept.other.claim(kept.claim("heir")) is False, "it lives"
    assert await kept.one.keep(first, answer_of(first)) is True
    again = kept.claim("first", name="order 18")
    await kept.one.claim(again)
    heir = await kept.other.take_over(kept.claim("heir", name="order 18"), {"first": 1})
    assert heir is not None
    await kept.other.give_back(heir)
    await kept.age(GIVEN_BACK_TIME)
    assert await kept.other.claim(kept.claim("heir", name="order 18")) is True, "it is dead"


async def test_a_claim_lost_to_another_request_is_not_renewed(
    kept: Kept,
) -> None:
    slow = kept.claim("slow")
    await kept.one.claim(slow)
    await kept.one.take_over(slow, {"slow": 1})
    await kept.age(CLAIM_TIME)
    assert await kept.other.claim(kept.claim("anew")) is True
    assert await kept.one.renew([slow]) == []
    assert await kept.other.take_over(kept.claim("x"), {"anew": 1}) is not None, "it has turn 1"


# --- PostgreSQL alone ----------------------------------------------------------------------------


@pytest.fixture
async def postgres(transactional_db: None) -> AsyncIterator[Kept]:
    async for made in in_postgres():
        yield made


async def never() -> None:
    """The disconnect of a client that stays connected."""
    await asyncio.Event().wait()


async def test_two_gateways_that_are_asked_at_once_make_one_answer(postgres: Kept) -> None:
    made: list[str] = []

    async def ask(gateway: Idempotency, i: int) -> bytes:
        claim = postgres.claim(f"{i}")
        async with gateway.turn(claim, never()) as turn:
            if isinstance(turn, KeptAnswer):
                return turn.body
            made.append(claim.request_id)
            await respond(turn.tee(nobody))
        return BODY

    both = [Idempotency(answers, wait_s=PATIENT_S) for answers in (postgres.one, postgres.other)]
    found = await asyncio.gather(*(ask(both[i % 2], i) for i in range(40)))
    assert found == [BODY] * 40
    assert len(made) == 1


async def nobody(message: dict[str, Any]) -> None:
    """The `send` of a client that has disconnected."""


async def respond(send: Send) -> None:
    headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": BODY, "more_body": False})


async def test_rows_say_whose_they_are_and_how_old(postgres: Kept) -> None:
    before = await sync_to_async(timezone.now)()
    first = postgres.claim("first")
    await postgres.one.claim(first)
    row = await IdempotentAnswer.objects.aget()
    assert (row.key_id, row.name, row.request_id) == (first.key_id, first.name, "first")
    assert (bytes(row.body_digest), row.answer, row.content_type) == (first.digest, None, "")
    assert row.claimed_until - row.created_at == CLAIM_TIME
    assert before - SECOND < row.created_at


async def test_a_poll_does_not_rewrite_the_row(postgres: Kept) -> None:
    await postgres.one.claim(postgres.claim("first"))

    @sync_to_async
    def place() -> Any:
        with connection.cursor() as cursor:
            cursor.execute("SELECT ctid::text FROM tenants_idempotentanswer")
            return cursor.fetchall()

    before = await place()
    for i in range(5):
        assert await postgres.other.claim(postgres.claim(f"poll {i}")) is False
    assert await place() == before


TAKE_OVER = """
UPDATE tenants_idempotentanswer SET request_id = 'quick', body_digest = 'another', answer = NULL,
       claimed_until = now() + interval '15 seconds', created_at = now()
"""


@pytest.mark.parametrize(
    ("older_by", "answered", "change", "found"),
    [
        (CLAIM_TIME, False, TAKE_OVER, False),
        (KEPT_TIME, True, TAKE_OVER, False),
        (SECOND, False, "DELETE FROM tenants_idempotentanswer", True),
    ],
    ids=["claim taken over", "old answer overwritten", "claim released"],
)
async def test_a_claim_sees_concurrent_changes(
    postgres: Kept, older_by: timedelta, answered: bool, change: str, found: bool
) -> None:
    """The claim's statement waits for another transaction's row lock, with a snapshot from before
    that transaction."""
    first = postgres.claim("first")
    second = postgres.claim("second", digest=hashlib.sha256(b"another body").digest())
    await postgres.one.claim(first)
    if answered:
        await postgres.one.keep(first, answer_of(first))
    await postgres.age(older_by)
    async with await psycopg.AsyncConnection.connect(conninfo("quick")) as quick:
        await quick.execute(change)
        claiming = asyncio.create_task(postgres.one.claim(second))
        async with asyncio.timeout(PATIENT_S):
            while not await someone_waits_for_a_lock():
                pass
        await quick.commit()
        assert await claiming is found


@sync_to_async
def someone_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return bool(cursor.fetchone()[0])


async def test_a_restart_of_the_database_is_survived(postgres: Kept) -> None:
    first = postgres.claim("first")
    await postgres.one.claim(first)

    @sync_to_async
    def restart() -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'lorikeet' AND datname = current_database()"
            )

    await restart()
    assert await postgres.one.keep(first, answer_of(first)) is True


async def test_the_database_is_there_again_as_soon_as_it_is_back(postgres: Kept) -> None:
    """However long the outage: a pool with an exponential backoff would still be waiting."""
    tries = (postgres.claim(name=f"order {number}") for number in itertools.count())

    async def allow(connections: str) -> None:
        elsewhere = make_conninfo(conninfo("tests"), dbname="postgres")
        async with await psycopg.AsyncConnection.connect(elsewhere, autocommit=True) as admin:
            name = SQL(connection.settings_dict["NAME"])
            await admin.execute(SQL("ALTER DATABASE {} " + connections).format(name))
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s "
                "AND application_name = 'lorikeet'",
                [name.as_string()],
            )

    async with PostgresAnswers(answer_s=2.0) as answers:
        try:
            await allow("ALLOW_CONNECTIONS false")
            for claim in itertools.islice(tries, 4):
                with pytest.raises(Unavailable):
                    await answers.claim(claim)
        finally:
            await allow("ALLOW_CONNECTIONS true")
        for claim in itertools.islice(tries, 3):
            with suppress(Unavailable):
                assert await answers.claim(claim) is True
                return
    pytest.fail("it was asked for almost as long as it was away and is not there yet")


async def test_a_database_that_does_not_answer_is_unavailable(postgres: Kept) -> None:
    first = postgres.claim("first")
    hung = await psycopg.AsyncConnection.connect(conninfo("hung"))
    async with PostgresAnswers(answer_s=0.2) as answers, hung:
        await hung.execute("LOCK TABLE tenants_idempotentanswer")
        for call in (
            answers.claim(first),
            answers.renew([first]),
            answers.take_over(first, {"first": 1}),
            answers.give_back(first),
            answers.keep(first, answer_of(first)),
            answers.release(first),
        ):
            with pytest.raises(Unavailable):
                await call
    assert await postgres.one.claim(first) is True
