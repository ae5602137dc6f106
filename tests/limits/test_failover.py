"""Redis goes away and comes back: nothing hangs, nothing leaks, and it is logged once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from inference.errors import RateLimitExceeded, Unavailable
from inference.interfaces.directory import Grant
from inference.link.accounts import Usage
from tenants.limits.commands import (
    AnyCommand,
    Peek,
    Release,
    Renew,
    Rooms,
    Seed,
    SettleReservation,
    StoreDown,
    Unseeded,
)
from tenants.limits.failover import Failover
from tenants.limits.limiter import StoreLimiter
from tenants.limits.memory import MemoryStore
from tenants.limits.redis_store import MAX_WAITING, RedisStore
from tenants.limits.state import LEASE_MS
from tests.limits.asking import (
    TIMEOUT_S,
    Clock,
    FakeSpent,
    FlakyStore,
    ask,
    charge,
    grant,
    granted,
    limits,
    refused,
    scope,
    target,
    wanted,
)
from tests.limits.redis_server import RedisServer

USED = Usage(prompt_tokens=10, completion_tokens=10)
STREAMS = grant(limits(concurrent_streams=2, tokens_per_minute=1000))
HANGS_S = 300.0
"""Seconds. A test that takes this long would never end."""
SOON_S = 0.05
"""Timeout for a Redis that answers nothing at all, in seconds."""


@asynccontextmanager
async def gateway(
    server: RedisServer,
    *,
    refuse: bool = False,
    redis: RedisStore | None = None,
) -> AsyncIterator[StoreLimiter]:
    """A limiter as a gateway process has it, but with more patience for a slow Redis."""
    redis = redis or RedisStore(server.url, timeout_s=TIMEOUT_S)
    failover = Failover(MemoryStore(), redis, refuse=refuse, retry_s=0.01)
    async with asyncio.timeout(HANGS_S), StoreLimiter(failover, FakeSpent(), "usd") as limiter:
        yield limiter


async def until(condition: Callable[[], bool]) -> None:
    """Wait for the condition; the gateway's own timeout ends the test if it never holds."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def outcomes(limiter: StoreLimiter, caller: Grant, count: int, name: str) -> list[object]:
    asks = (limiter.reserve(f"{name}{n}", caller, target(), wanted()) for n in range(count))
    return await asyncio.gather(*asks, return_exceptions=True)


def passed(results: list[object]) -> int:
    return sum(not isinstance(result, Exception) for result in results)


# --- several gateways ----------------------------------------------------------------------------


async def test_parallel_bursts_at_two_gateways_pass_the_limit_exactly(
    redis_server: RedisServer,
) -> None:
    caller = grant(limits(requests_per_minute=100))
    async with gateway(redis_server) as one, gateway(redis_server) as two:
        results = await asyncio.gather(
            outcomes(one, caller, 250, "a"), outcomes(two, caller, 250, "b")
        )
    assert passed(results[0] + results[1]) == 100
    refusals = [each for each in results[0] + results[1] if isinstance(each, Exception)]
    assert all(isinstance(each, RateLimitExceeded) for each in refusals)


async def test_parallel_bursts_never_reserve_more_tokens_than_there_are(
    redis_server: RedisServer,
) -> None:
    caller = grant(limits(tokens_per_minute=100))

    async def burst(limiter: StoreLimiter, name: str) -> int:
        """What its requests hold at the end. Each takes what it can get, and some give it back."""
        held = 0
        for number in range(60):
            id = f"{name}{number}"
            try:
                got = await limiter.reserve(id, caller, target(), wanted(1, 7, 1))
            except RateLimitExceeded:
                continue
            if number % 3:
                limiter.release(id)
            else:
                held += 1 + (got.output_tokens or 0)
        await limiter.flushed()
        return held

    async with gateway(redis_server) as one, gateway(redis_server) as two:
        names = [f"{gate}-{n}-" for gate in "ab" for n in range(5)]
        bursts = [burst(one if name[0] == "a" else two, name) for name in names]
        held = sum(await asyncio.gather(*bursts))
        tokens = (await one.peek(caller.limits)).rooms["tokens"]
        assert held == 100 - tokens.remaining <= 100


async def test_a_report_to_another_gateway_does_not_end_a_running_request(
    redis_server: RedisServer,
) -> None:
    """It hears of an attempt whose engine was lost, while the request runs on another engine."""
    async with gateway(redis_server) as one, gateway(redis_server) as other:
        stream = await one.reserve("r1", STREAMS, target(), wanted(10, 20))
        other.settle("r1", USED)
        await other.flushed()
        await one.extend(stream, 30)
        one.settle("r1", Usage(prompt_tokens=10, completion_tokens=45))
        await one.flushed()
        tokens = (await other.peek(STREAMS.limits)).rooms["tokens"]
        assert tokens.remaining == 945


async def test_a_request_that_has_ended_does_not_grow_and_count_again(
    redis_server: RedisServer,
) -> None:
    """Another gateway may learn first that the engine has finished."""
    async with gateway(redis_server) as slow, gateway(redis_server) as other:
        stream = await slow.reserve("r1", STREAMS, target(), wanted(10, 20))
        slow.settle("r1", USED)
        await slow.flushed()
        other.settle("r1", USED)
        await other.flushed()
        await slow.extend(stream, 30)
        tokens = (await other.peek(STREAMS.limits)).rooms["tokens"]
        assert tokens.remaining == 980


async def test_a_leaving_gateway_settles_and_then_releases_its_reservations(
    redis_server: RedisServer,
) -> None:
    async with gateway(redis_server) as other:
        async with gateway(redis_server) as leaving:
            await leaving.reserve("r1", STREAMS, target(), wanted(10, 500))
            await leaving.reserve("r2", STREAMS, target(), wanted(10, 10))
            leaving.settle("r1", USED)
        reservation = await other.reserve("r3", STREAMS, target(), wanted(10, 10))
        await other.reserve("r4", STREAMS, target(), wanted(10, 10))
        assert reservation.rooms["tokens"].remaining == 1000 - 20 - 20


# --- Redis goes ----------------------------------------------------------------------------------


async def test_without_redis_each_gateway_counts_for_itself(mortal_redis: RedisServer) -> None:
    caller = grant(limits(requests_per_minute=5))
    async with AsyncExitStack() as stack:
        gates = [await stack.enter_async_context(gateway(mortal_redis)) for _ in range(2)]
        assert passed(await outcomes(gates[0], caller, 5, "before")) == 5
        mortal_redis.kill()
        with capture_logs() as logs:
            for number, gate in enumerate(gates):
                assert passed(await outcomes(gate, caller, 20, f"{number}-")) == 5
                assert gate.degraded and gate.redis_failures >= 1
                assert gate.degraded_decisions >= 20
        assert [log["event"] for log in logs] == ["limits_degraded"] * 2


async def test_requests_without_redis_can_be_refused_by_a_setting(
    mortal_redis: RedisServer,
) -> None:
    async with gateway(mortal_redis, refuse=True) as gate:
        reservation = await gate.reserve("r1", STREAMS, target(), wanted())
        mortal_redis.kill()
        results = await outcomes(gate, STREAMS, 20, "late")
        assert all(isinstance(each, Unavailable) and each.retry_after_s for each in results)
        assert gate.degraded_decisions >= 20
        with pytest.raises(Unavailable):
            await gate.extend(reservation, 10)
        with pytest.raises(Unavailable):
            await gate.peek(STREAMS.limits)
        await gate.reserve("free", grant(), target(), wanted())


@pytest.mark.parametrize("refuse", [False, True])
async def test_a_gateway_starts_without_redis(mortal_redis: RedisServer, refuse: bool) -> None:
    mortal_redis.kill()
    async with gateway(mortal_redis, refuse=refuse) as gate:
        assert gate.degraded
        assert passed(await outcomes(gate, STREAMS, 5, "r")) == (0 if refuse else 2)
        mortal_redis.start()
        await until(lambda: not gate.degraded)
        assert passed(await outcomes(gate, STREAMS, 5, "s")) == 2


@pytest.mark.parametrize("refuse", [False, True])
async def test_redis_is_killed_and_comes_back_amid_a_storm(
    mortal_redis: RedisServer, refuse: bool
) -> None:
    """Each client gets an answer; afterwards no stream is counted and nothing is held."""
    caller = grant(limits(concurrent_streams=20, tokens_per_minute=10**9))

    async def client(gate: StoreLimiter, name: str) -> None:
        for number in range(40):
            try:
                got = await gate.reserve(f"{name}{number}", caller, target(), wanted())
                await gate.extend(got, 50)
            except (RateLimitExceeded, Unavailable):
                await asyncio.sleep(0.001)
            gate.settle(f"{name}{number}", USED)

    async def reaper() -> None:
        for _ in range(3):
            await asyncio.sleep(0.03)
            mortal_redis.kill()
            await asyncio.sleep(0.03)
            mortal_redis.start()

    async with gateway(mortal_redis, refuse=refuse) as one:
        async with gateway(mortal_redis, refuse=refuse) as two:
            clients = [
                client(gate, f"{n}-{gate is one}-") for n in range(20) for gate in (one, two)
            ]
            await asyncio.gather(reaper(), *clients)
            for gate in (one, two):
                await until(lambda: not gate.degraded)  # noqa: B023
                await gate.flushed()
                assert gate.reservations == 0
        assert passed(await outcomes(one, caller, 25, "last")) == 20


async def test_a_frozen_redis_holds_nobody_up_and_leaks_no_slot(mortal_redis: RedisServer) -> None:
    """What Redis did after its caller had given up waiting is undone."""
    redis = RedisStore(mortal_redis.url, timeout_s=TIMEOUT_S)
    async with gateway(mortal_redis, redis=redis) as gate:
        await gate.reserve("before", STREAMS, target(), wanted())
        mortal_redis.freeze()
        redis.timeout_s = SOON_S
        assert passed(await outcomes(gate, STREAMS, 4, "frozen")) == 2  # counted here alone
        gate.settle("before", USED)
        for number in range(4):
            gate.settle(f"frozen{number}", USED)
        redis.timeout_s = TIMEOUT_S
        mortal_redis.thaw()
        await until(lambda: not gate.degraded)
        await gate.flushed()
        assert passed(await outcomes(gate, STREAMS, 4, "after")) == 2


async def test_a_busy_gateway_does_not_take_its_own_silence_for_that_of_redis(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a tenant that sends a large body could get past the limits of one Redis."""
    async with gateway(redis_server) as gate:
        asked = asyncio.create_task(gate.reserve("r1", STREAMS, target(), wanted()))
        with redis_server.client() as client:
            while not client.exists("limits3:r:r1"):  # noqa: ASYNC110
                await asyncio.sleep(0)  # until the command was sent
        later = time.monotonic() + TIMEOUT_S + 1
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later)
        await asked
        assert gate.redis_failures == 0


async def test_a_stream_goes_on_whatever_becomes_of_redis(mortal_redis: RedisServer) -> None:
    caller = grant(limits(tokens_per_minute=200, concurrent_streams=1))
    async with gateway(mortal_redis) as gate:
        stream = await gate.reserve("r1", caller, target(), wanted(10, 20))
        mortal_redis.kill()
        await gate.extend(stream, 30)  # counted here
        assert stream.output_tokens == 50
        mortal_redis.start()
        await until(lambda: not gate.degraded)
        await gate.extend(stream, 30)
        assert stream.output_tokens == 80
        gate.settle("r1", USED)
        await gate.flushed()
        await gate.reserve("r2", caller, target(), wanted(10, 20))
        with pytest.raises(RateLimitExceeded, match="1 concurrent requests"):
            await gate.reserve("r3", caller, target(), wanted(10, 20))


async def test_a_restarted_redis_learns_of_the_streams_that_run(mortal_redis: RedisServer) -> None:
    caller = grant(limits(tokens_per_minute=200, concurrent_streams=1))
    async with gateway(mortal_redis) as gate:
        stream = await gate.reserve("r1", caller, target(), wanted(10, 20))
        mortal_redis.kill()
        mortal_redis.start()
        async with gateway(mortal_redis):  # the loop notices the broken connection
            pass
        await gate.extend(stream, 30)
        assert gate.redis_failures == 0
        with pytest.raises(RateLimitExceeded, match="1 concurrent requests"):
            await gate.reserve("r2", caller, target(), wanted())
        gate.settle("r1", USED)
        await gate.flushed()
        assert passed(await outcomes(gate, caller, 3, "r")) == 1


async def test_a_redis_that_became_a_replica_is_left_for_the_one_at_its_address(
    mortal_redis: RedisServer,
) -> None:
    """It keeps its connections, but executes no command on them."""
    promoted = RedisServer(mortal_redis.folder)
    async with gateway(mortal_redis) as gate:
        await gate.reserve("before", STREAMS, target(), wanted())
        with mortal_redis.client() as client:
            client.replicaof("127.0.0.1", "1")
        try:
            promoted.start()
            assert passed(await outcomes(gate, STREAMS, 3, "meanwhile")) == 2
            await until(lambda: not gate.degraded)
            assert passed(await outcomes(gate, STREAMS, 3, "after")) == 2
        finally:
            promoted.kill()


async def test_a_redis_that_evicts_all_that_expires_leaks_no_slot(
    mortal_redis: RedisServer,
) -> None:
    """Many managed ones do so by default."""
    async with gateway(mortal_redis) as gate:
        await outcomes(gate, STREAMS, 2, "before")
        with mortal_redis.client() as client:
            client.config_set("maxmemory-policy", "volatile-lru")
            client.config_set("maxmemory", 1)
            with pytest.raises(redis.ResponseError, match="maxmemory"):
                client.set("evict", "all")
            client.config_set("maxmemory", 0)
        gate.settle("before0", USED)
        gate.settle("before1", USED)
        await gate.flushed()
        assert passed(await outcomes(gate, STREAMS, 3, "after")) == 2


async def test_ends_that_redis_cannot_be_told_are_left_to_the_lease(clock: Clock) -> None:
    """Although the gateway lives, because it continues under another name."""
    caller, redis = grant(limits(concurrent_streams=5)), FlakyStore(clock)
    failover = Failover(MemoryStore(clock), redis, retry_s=0.001, max_pending=2)
    async with StoreLimiter(failover, FakeSpent(), "usd") as limiter:
        for number in range(5):
            await limiter.reserve(f"r{number}", caller, target(), wanted())
        redis.away = True
        assert passed(await outcomes(limiter, caller, 1, "local")) == 1
        with capture_logs() as logs:
            for number in range(5):
                limiter.settle(f"r{number}", USED)
        assert [log["event"] for log in logs] == ["limits_pending_full"]
        redis.away = False
        await until(lambda: not limiter.degraded)
        await limiter.flushed()
        for _ in range(4):
            clock.pass_s(LEASE_MS / 2000)
            await redis.run(Renew(failover.holder, LEASE_MS))
        assert passed(await outcomes(limiter, caller, 6, "after")) == 5


# --- the store -----------------------------------------------------------------------------------


async def test_answers_come_back_to_those_who_asked(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, timeout_s=TIMEOUT_S)
    scopes = [scope(f"t{n}", requests_per_minute=1000 + n) for n in range(700)]
    looks = await asyncio.gather(*(store.run(Peek((each,)), Peek((each,))) for each in scopes))
    for number, answers in enumerate(looks):
        assert len(answers) == 2
        for answer in answers:
            assert isinstance(answer, Rooms)
            assert answer.left[0].limit == 1000 + number
    await store.close()


async def test_a_store_that_cannot_answer_says_so(mortal_redis: RedisServer) -> None:
    store = RedisStore(mortal_redis.url, timeout_s=TIMEOUT_S)
    await store.run(Renew("g1", LEASE_MS))
    mortal_redis.freeze()
    store.timeout_s = SOON_S
    results = await asyncio.gather(
        *(store.run(Renew("g1", LEASE_MS)) for _ in range(300)), return_exceptions=True
    )
    assert all(isinstance(each, StoreDown) for each in results)
    store.timeout_s = TIMEOUT_S
    mortal_redis.thaw()
    assert await store.run(Renew("g1", LEASE_MS))
    await store.close()


async def test_late_answers_of_redis_are_discarded(mortal_redis: RedisServer) -> None:
    """What a thawed Redis answers to old commands is not taken for the answer to a new one."""
    store = RedisStore(mortal_redis.url, timeout_s=TIMEOUT_S)
    await store.run(Peek(()))
    mortal_redis.freeze()
    store.timeout_s = SOON_S
    for number in range(3):
        with pytest.raises(StoreDown):
            await store.run(Peek((scope(f"t{number}", requests_per_minute=number),)))
    store.timeout_s = TIMEOUT_S
    mortal_redis.thaw()
    answer = await ask(store, Peek((scope("t9", requests_per_minute=9),)))
    assert isinstance(answer, Rooms) and answer.left[0].limit == 9
    await store.close()


async def test_a_command_whose_answer_is_lost_is_not_sent_again(tmp_path: Path) -> None:
    """A Redis hangs up instead of answering a script."""
    scripts = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal scripts
        while data := await reader.read(65_536):
            if found := data.count(b"EVALSHA"):
                scripts += found
                break
            writer.write(b"+OK\r\n" * data.count(b"*"))
        writer.close()

    path = tmp_path / "redis.sock"
    async with await asyncio.start_unix_server(serve, path):
        store = RedisStore(f"unix://{path}", timeout_s=TIMEOUT_S)
        with pytest.raises(StoreDown):
            await store.run(charge("r1", scope(requests_per_minute=5)))
        await store.close()
    assert scripts == 1


async def test_a_server_that_answers_nonsense_is_as_good_as_none() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(b"$1\r\n\xc1\r\n" * data.count(b"EVALSHA"))
            writer.write(b"+OK\r\n" * (data.count(b"CLIENT") + data.count(b"HELLO")))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}?protocol=2"
        store = RedisStore(url, timeout_s=TIMEOUT_S)
        for _ in range(2):
            with pytest.raises(StoreDown, match="malformed"):
                await store.run(Renew("g1", 0))
        await store.close()


async def test_a_redis_that_may_not_write_is_as_good_as_none(mortal_redis: RedisServer) -> None:
    store = RedisStore(mortal_redis.url, timeout_s=TIMEOUT_S)
    with mortal_redis.client() as client:
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreDown, match="maxmemory"):
            await store.run(charge("r1", scope(requests_per_minute=5)))
        client.config_set("maxmemory", 0)
    assert await granted(store, charge("r1", scope(requests_per_minute=5))) == 20
    await store.close()


async def test_too_many_calls_are_turned_away(mortal_redis: RedisServer) -> None:
    store = RedisStore(mortal_redis.url, timeout_s=SOON_S)
    mortal_redis.freeze()
    command: AnyCommand = SettleReservation("r1", 1, 0, 1)
    calls = [asyncio.create_task(store.run(command)) for _ in range(MAX_WAITING + 300)]
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(each) for each in results} >= {"too many calls are waiting for Redis"}
    mortal_redis.thaw()
    await store.close()


async def test_a_cancelled_caller_harms_nobody_else(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, timeout_s=TIMEOUT_S)
    only = scope(requests_per_minute=5)
    calls = [asyncio.create_task(ask(store, charge(f"r{n}", only))) for n in range(4)]
    await asyncio.sleep(0)
    calls[1].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(each, asyncio.CancelledError) for each in results] == [0, 1, 0, 0]
    await store.close()


async def test_redis_s_own_clock_counts_where_no_other_is_given(redis_server: RedisServer) -> None:
    store = RedisStore(redis_server.url, timeout_s=TIMEOUT_S)
    only = scope(requests_per_minute=1)
    await granted(store, charge("r1", only))
    answer = await refused(store, charge("r2", only))
    assert answer.wait_ms is not None and 30_000 < answer.wait_ms <= 61_000
    with redis_server.client() as client:
        seconds, _ = client.time()
        lease = dict(client.zrange("limits3:leases", 0, -1, withscores=True))[b"g1"]
    assert abs(lease - LEASE_MS - seconds * 1000) < 30_000
    await store.close()


async def test_keys_in_redis_expire_except_running_reservations_and_leases(
    redis_server: RedisServer,
) -> None:
    store = RedisStore(redis_server.url, timeout_s=TIMEOUT_S)
    only = scope("t1", requests_per_minute=5, tokens_per_day=100, concurrent_streams=5)
    answer = await ask(store, charge("r1", only))
    assert isinstance(answer, Unseeded)
    await store.run(Seed(answer.budgets[0], 0, 0), Release("r2"))
    await granted(store, charge("r1", only))
    with redis_server.client() as client:
        kept = {key for key in client.scan_iter("limits3:*") if client.ttl(key) < 0}
        assert client.ttl("limits3:w:t1") > 0
    running = {b"limits3:r:r1", b"limits3:streams", b"limits3:held:g1"}
    assert kept == running | {b"limits3:leases"}
    await store.run(SettleReservation("r1", 10, 0, 20), Renew("g1", 0), Renew("g2", LEASE_MS))
    with redis_server.client() as client:
        assert client.zrange("limits3:leases", 0, -1) == [b"g2"]
        assert not client.exists("limits3:streams", "limits3:held:g1", "limits3:r:r1")
    await store.close()
