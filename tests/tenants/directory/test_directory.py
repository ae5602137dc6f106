"""The cached directory, over rows in a dict: caching, freshness, floods, revocation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from inference.errors import (
    ApiKeyRevoked,
    InferenceError,
    InvalidApiKey,
    PermissionDenied,
    Unavailable,
    UnknownModel,
)
from inference.interfaces.directory import Grant, Limits, ResolvedTarget, TokenPrice
from inference.link.engine_info import AdapterRef
from inference.routes import BUCKETS, RouteFit
from tenants.directory.cached import CachedDirectory
from tenants.directory.catalogue import BaseRow, PinRow, RouteRow, VersionRow
from tenants.directory.invalidating_cache import FRESH_S
from tenants.directory.notices import Notice, parse
from tenants.directory.reader import KeyRow, Reader
from tenants.naming import hmac_of, prefix_of

PREFIX = "a" * 12
TEXT = f"lk_{PREFIX}_{'s' * 43}"
WRONG = f"lk_{PREFIX}_{'x' * 43}"
UNKNOWN = f"lk_{'b' * 12}_{'s' * 43}"
BASE = BaseRow("base", 1, 512, [(0.0, 10, 5, 20)])
VERSION = VersionRow(70, "support", "base", 1, 5, 1, "d" * 64, ["live"])
REF = AdapterRef(f"acme/support@{'d' * 64}", "d" * 64)
FIT = RouteFit.of(bytes(4 * 2 * (BUCKETS + 1)), 0.1)
PINNED = PinRow("acme", "support", "base", "d" * 64)


def key_row(**fields: object) -> KeyRow:
    row = KeyRow(
        id=1,
        tenant_id=10,
        tenant="acme",
        status="active",
        weight=2.0,
        cache_secret=b"c" * 32,
        name="ci",
        prefix=PREFIX,
        scopes=["inference"],
        allowed_models=None,
        lane="interactive",
        expires_at=None,
        revoked_at=None,
        secret_hmac=hmac_of(TEXT),
    )
    return replace(row, **fields)  # type: ignore[arg-type]


@dataclass
class Rows(Reader):
    """A Reader over rows in memory that counts its queries; `gate` delays the answer to `key`."""

    stored: dict[str, KeyRow] = field(default_factory=lambda: {PREFIX: key_row()})
    versions: list[VersionRow] = field(default_factory=lambda: [VERSION])
    base: BaseRow = BASE
    kept_routes: list[RouteRow] = field(default_factory=list)
    fits: dict[tuple[int, int], RouteFit] = field(default_factory=dict)
    pins: list[PinRow] = field(default_factory=list)
    away: bool = False
    queries: int = 0
    touched: list[int] = field(default_factory=list)
    gate: asyncio.Event | None = None
    asked: asyncio.Event = field(default_factory=asyncio.Event)

    async def _query(self) -> None:
        self.queries += 1
        self.asked.set()
        if self.away:
            raise Unavailable

    async def key(self, prefix: str) -> KeyRow | None:
        await self._query()
        found = self.stored.get(prefix)
        if self.gate is not None:
            await self.gate.wait()  # the row is read, but its answer is delayed
        return found

    async def keys(self, ids: Collection[int], tenants: Collection[int]) -> list[KeyRow]:
        await self._query()
        rows = self.stored.values()
        return [row for row in rows if row.id in ids or row.tenant_id in tenants]

    async def base_models(self) -> list[BaseRow]:
        await self._query()
        return [self.base]

    async def ready_versions(self, tenant_id: int) -> list[VersionRow]:
        await self._query()
        return self.versions if tenant_id == 10 else []

    async def routes(self, tenant_id: int) -> list[RouteRow]:
        return self.kept_routes if tenant_id == 10 else []

    async def route_fit(self, route_id: int, fit: int) -> RouteFit | None:
        await self._query()
        return self.fits.get((route_id, fit))

    async def pinned(self) -> list[PinRow]:
        await self._query()
        return self.pins

    async def touch(self, ids: Collection[int]) -> None:
        await self._query()
        self.touched += ids


class Told:
    """The calls of `on_revoked`, awaitable."""

    def __init__(self, directory: CachedDirectory) -> None:
        self.queue: asyncio.Queue[tuple[int, InferenceError]] = asyncio.Queue()
        directory.on_revoked(lambda key_id, error: self.queue.put_nowait((key_id, error)))

    async def next(self) -> tuple[int, InferenceError]:
        return await asyncio.wait_for(self.queue.get(), 30)


@pytest.fixture
def rows() -> Rows:
    return Rows()


@pytest.fixture
def directory(rows: Rows) -> CachedDirectory:
    directory = CachedDirectory(rows)
    directory.note_alive(time.monotonic() + 3600)  # a listener that works throughout the test
    return directory


@asynccontextmanager
async def checking(directory: CachedDirectory) -> AsyncIterator[Told]:
    task = asyncio.create_task(directory.check_due())
    try:
        yield Told(directory)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# --- Keys ----------------------------------------------------------------------------------------


async def test_a_key_is_read_once(directory: CachedDirectory, rows: Rows) -> None:
    grants = [await directory.authenticate(TEXT) for _ in range(5)]
    assert rows.queries == 1
    assert len(set(map(id, grants))) == 1
    grant = grants[0]
    scopes, prefix = frozenset({"inference"}), str(prefix_of(TEXT))
    assert grant == Grant(1, 10, "acme", scopes, None, 2.0, grant.salt, key=prefix)
    assert len(grant.salt) == 64 and grant.salt != (b"c" * 32).hex()


@pytest.mark.parametrize("text", ["", "sk-abc", "lk_a_b", TEXT + "x", TEXT[:-1] + "é", "\x00"])
async def test_malformed_keys_are_refused_without_a_query(
    directory: CachedDirectory, rows: Rows, text: str
) -> None:
    with pytest.raises(InvalidApiKey):
        await directory.authenticate(text)
    assert rows.queries == 0


@pytest.mark.parametrize("text", [UNKNOWN, WRONG])
async def test_a_flood_of_one_bad_key_is_one_query(
    directory: CachedDirectory, rows: Rows, text: str
) -> None:
    for _ in range(50):
        with pytest.raises(InvalidApiKey, match="Incorrect API key"):
            await directory.authenticate(text)
    assert rows.queries == 1
    assert (await directory.authenticate(TEXT)).key_id == 1


@pytest.mark.parametrize(
    ("text", "fields", "whose"),
    [
        (UNKNOWN, {}, (0, 0)),
        ("sk-abc", {}, (0, 0)),
        (WRONG, {}, (10, 1)),
        (TEXT, {"revoked_at": datetime(2026, 1, 1, tzinfo=UTC)}, (10, 1)),
        (TEXT, {"status": "suspended"}, (10, 1)),
        (TEXT, {"expires_at": datetime(2026, 1, 1, tzinfo=UTC)}, (10, 1)),
    ],
)
async def test_a_refusal_knows_whose_key_begins_like_the_one_that_was_shown(
    directory: CachedDirectory,
    rows: Rows,
    text: str,
    fields: dict[str, object],
    whose: tuple[int, int],
) -> None:
    rows.stored[PREFIX] = key_row(**fields)
    for _ in range(2):  # the second is answered from the cache
        with pytest.raises(InvalidApiKey) as refused:
            await directory.authenticate(text)
        assert (refused.value.tenant_id, refused.value.key_id) == whose


async def test_all_who_ask_at_once_share_a_query(directory: CachedDirectory, rows: Rows) -> None:
    rows.gate = asyncio.Event()
    calls = [asyncio.create_task(directory.authenticate(TEXT)) for _ in range(20)]
    await rows.asked.wait()
    calls[0].cancel()  # the first caller is cancelled; the others still get their answer
    rows.gate.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert rows.queries == 1
    assert isinstance(results[0], asyncio.CancelledError)
    assert all(getattr(grant, "key_id", None) == 1 for grant in results[1:])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"revoked_at": datetime.now(UTC)}, "This API key was revoked."),
        ({"status": "suspended"}, "The tenant of this API key is suspended."),
        ({"expires_at": datetime.now(UTC) - timedelta(seconds=1)}, "This API key has expired."),
    ],
)
async def test_a_key_that_ended_says_why(
    directory: CachedDirectory, rows: Rows, fields: dict[str, object], message: str
) -> None:
    rows.stored[PREFIX] = key_row(**fields)
    for _ in range(3):
        with pytest.raises(InvalidApiKey) as caught:
            await directory.authenticate(TEXT)
        assert caught.value.message == message
    assert rows.queries == 1


async def test_only_cached_keys_are_accepted_while_the_database_is_down(
    directory: CachedDirectory, rows: Rows
) -> None:
    await directory.authenticate(TEXT)
    rows.away = True
    await directory.authenticate(TEXT)
    with pytest.raises(Unavailable):
        await directory.authenticate(UNKNOWN)
    rows.away = False
    with pytest.raises(InvalidApiKey):
        await directory.authenticate(UNKNOWN)


async def test_cached_values_are_not_used_while_the_listener_is_silent(rows: Rows) -> None:
    directory = CachedDirectory(rows)
    directory.note_alive(time.monotonic() - FRESH_S - 1)
    grant = await directory.authenticate(TEXT)
    await directory.authenticate(TEXT)
    assert rows.queries == 2
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    with pytest.raises(InvalidApiKey):
        await directory.authenticate(TEXT)
    with pytest.raises(ApiKeyRevoked):
        await directory.resolve(grant, "base")
    rows.away = True
    with pytest.raises(Unavailable):
        await directory.authenticate(TEXT)


LONG_S = 300.0


@pytest.fixture
def lasting(rows: Rows) -> CachedDirectory:
    """A directory that goes on for a while without the database; its listener has been silent for
    too long to count as fresh."""
    directory = CachedDirectory(rows, without_database_s=LONG_S)
    directory.note_alive(time.monotonic() - FRESH_S - 1)
    return directory


async def test_recently_used_values_are_valid_while_the_database_is_down(
    lasting: CachedDirectory, rows: Rows
) -> None:
    grant = await lasting.authenticate(TEXT)
    target = await lasting.resolve(grant, "support")
    rows.away = True
    for _ in range(10):
        assert await lasting.authenticate(TEXT) == grant
        assert await lasting.resolve(grant, "support") == target
        assert len(await lasting.models(grant)) == 2
    assert lasting.serves()
    with pytest.raises(Unavailable):
        await lasting.authenticate(UNKNOWN)


async def test_one_asks_in_vain_for_all(lasting: CachedDirectory, rows: Rows) -> None:
    """A query that fails takes seconds, so callers with a cached value use it meanwhile."""
    grant = await lasting.authenticate(TEXT)
    await lasting.resolve(grant, "support")
    rows.away, asked = True, rows.queries
    for _ in range(100):
        await lasting.resolve(await lasting.authenticate(TEXT), "support")
    assert rows.queries == asked + 1


async def test_once_it_is_back_the_database_has_the_word(
    lasting: CachedDirectory, rows: Rows
) -> None:
    grant = await lasting.authenticate(TEXT)
    await lasting.resolve(grant, "base")
    rows.away = True
    await lasting.authenticate(TEXT)
    rows.away = False
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    lasting.note_alive(time.monotonic())
    lasting.reconnected()
    with pytest.raises(InvalidApiKey, match="revoked"):
        await lasting.authenticate(TEXT)
    with pytest.raises(ApiKeyRevoked):
        await lasting.resolve(grant, "base")


async def test_nothing_is_valid_once_the_database_is_down_for_too_long(rows: Rows) -> None:
    directory = CachedDirectory(rows, without_database_s=LONG_S)
    directory.note_alive(time.monotonic() - LONG_S - 1)
    grant = await directory.authenticate(TEXT)
    await directory.resolve(grant, "base")
    rows.away = True
    with pytest.raises(Unavailable):
        await directory.authenticate(TEXT)
    with pytest.raises(Unavailable):
        await directory.resolve(grant, "base")
    assert not directory.serves()


async def test_a_key_expires_without_the_database_as_well(
    lasting: CachedDirectory, rows: Rows
) -> None:
    rows.stored[PREFIX] = key_row(expires_at=datetime.now(UTC) + timedelta(seconds=0.2))
    await lasting.authenticate(TEXT)
    rows.away = True
    with pytest.raises(InvalidApiKey, match="expired"):
        while True:
            await lasting.authenticate(TEXT)
            await asyncio.sleep(0.01)


async def test_a_change_during_the_query_is_not_missed(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.gate = asyncio.Event()
    call = asyncio.create_task(directory.authenticate(TEXT))
    await rows.asked.wait()
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    directory.changed(Notice("key", key_id=1))
    rows.gate.set()
    with pytest.raises(InvalidApiKey, match="revoked"):
        await call
    assert rows.queries == 2


async def test_a_value_that_changes_during_every_read_is_unavailable(
    directory: CachedDirectory, rows: Rows
) -> None:
    class Restless(Rows):
        async def key(self, prefix: str) -> KeyRow | None:
            found = await super().key(prefix)
            directory.changed(Notice("key", key_id=1))
            return found

    directory = CachedDirectory(Restless())
    with pytest.raises(Unavailable):
        await directory.authenticate(TEXT)


async def test_use_is_written_once_a_minute(directory: CachedDirectory, rows: Rows) -> None:
    for _ in range(3):
        await directory.authenticate(TEXT)
    rows.away = True
    await directory.write_used()
    rows.away = False
    await directory.write_used()
    await directory.authenticate(TEXT)
    await directory.write_used()
    assert rows.touched == [1]


# --- Names ---------------------------------------------------------------------------------------


async def test_names_come_from_memory_until_they_change(
    directory: CachedDirectory, rows: Rows
) -> None:
    grant = await directory.authenticate(TEXT)
    for _ in range(3):
        target = await directory.resolve(grant, "support")
        assert target.version_id == 5 and target.adapter is not None
    assert [card.id for card in await directory.models(grant)] == ["base", "support"]
    assert rows.queries == 3  # the key, base models, catalogue
    rows.versions = [replace(VERSION, id=6, number=2, digest="e" * 64)]
    assert (await directory.resolve(grant, "support")).version_id == 5
    directory.changed(Notice("adapters", tenant_id=10))
    assert (await directory.resolve(grant, "support")).version_id == 6
    assert rows.queries == 4


async def test_base_models_are_read_again_when_one_appears(
    directory: CachedDirectory, rows: Rows
) -> None:
    grant = await directory.authenticate(TEXT)
    await directory.resolve(grant, "base")
    directory.changed(Notice("base_models"))
    before = rows.queries
    await directory.resolve(grant, "base")
    assert rows.queries == before + 1


async def test_another_tenants_adapter_is_an_unknown_model(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.stored["b" * 12] = key_row(
        id=2, tenant_id=20, tenant="other", secret_hmac=hmac_of(UNKNOWN)
    )
    grant = await directory.authenticate(UNKNOWN)
    messages = []
    for name in ("support", "support@1", "nothing", "nothing@1"):
        with pytest.raises(UnknownModel) as caught:
            await directory.resolve(grant, name)
        messages.append(caught.value.message.replace(name, "?"))
    assert len(set(messages)) == 1


async def test_a_management_key_cannot_infer(directory: CachedDirectory, rows: Rows) -> None:
    rows.stored[PREFIX] = key_row(scopes=["admin", "adapters:write", "usage:read"])
    grant = await directory.authenticate(TEXT)
    for call in (directory.resolve(grant, "base"), directory.models(grant)):
        with pytest.raises(PermissionDenied):
            await call


# --- Limits and prices ---------------------------------------------------------------------------


async def test_a_grant_has_the_limits_of_tenant_and_key(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.stored[PREFIX] = key_row(
        lane="batch",
        tenant_limits={"default": {"tokens_per_day": 9}, "operator": {"cost_per_day": 8}},
        key_limits={"operator": {"requests_per_minute": 7}, "tenant": {"requests_per_minute": 70}},
    )
    grant = await directory.authenticate(TEXT)
    assert grant.lane == "batch"
    assert grant.limits == (
        Limits("t10", "tenant `acme`", {"tokens_per_day": 9, "cost_per_day": 8}),
        Limits("k1", f"key `ci` (lk_{PREFIX}…)", {"requests_per_minute": 7}),
    )
    assert rows.queries == 1


@pytest.mark.parametrize("notice", [Notice("limits", tenant_id=10), Notice("limits")])
async def test_new_limits_hold_for_the_next_request(
    directory: CachedDirectory, rows: Rows, notice: Notice
) -> None:
    assert (await directory.authenticate(TEXT)).limits == ()
    rows.stored[PREFIX] = key_row(key_limits={"tenant": {"requests_per_minute": 7}})
    directory.changed(Notice("limits", tenant_id=11))
    assert (await directory.authenticate(TEXT)).limits == ()
    directory.changed(notice)
    assert (await directory.authenticate(TEXT)).limits[0].values == {"requests_per_minute": 7}


@pytest.mark.parametrize("notice", [Notice("limits", tenant_id=10), Notice("limits")])
async def test_a_new_limit_ends_nothing(
    directory: CachedDirectory, rows: Rows, notice: Notice
) -> None:
    """It does not even cause a check whether the keys are still valid."""
    grant = await directory.authenticate(TEXT)
    rows.stored[PREFIX] = key_row(key_limits={"tenant": {"requests_per_minute": 0}})
    async with checking(directory) as told:
        directory.changed(notice)
        before = rows.queries
        await directory.resolve(grant, "base")  # the key is still valid, at the old limits
        rows.stored["b" * 12] = key_row(id=2, revoked_at=datetime.now(UTC))
        directory.changed(Notice("key", key_id=2))
        assert (await told.next())[0] == 2
        assert told.queue.empty()
    assert rows.queries == before + 4  # the key once more, base models, catalogue, the revoked key


async def test_a_targets_price_and_limits_follow_their_changes(
    directory: CachedDirectory, rows: Rows
) -> None:
    grant = await directory.authenticate(TEXT)
    expected = ResolvedTarget(
        "support", "base", REF, 5, 70, (), TokenPrice(10, 5, 20), 512, created=1
    )
    assert await directory.resolve(grant, "support") == expected
    limits = {"operator": {"concurrent_streams": 2}}
    rows.versions = [replace(VERSION, prices=[(0.0, 1, 1, 1)], limits=limits)]
    assert await directory.resolve(grant, "support") == expected
    directory.changed(Notice("adapters", tenant_id=10))
    assert await directory.resolve(grant, "support") == msgspec.structs.replace(
        expected,
        limits=(Limits("a70", "adapter `support`", {"concurrent_streams": 2}),),
        price=TokenPrice(1, 1, 1),
    )
    rows.versions = [VERSION]
    directory.changed(Notice("limits", tenant_id=10))
    assert await directory.resolve(grant, "support") == expected


async def test_a_price_is_chosen_by_the_clock(directory: CachedDirectory, rows: Rows) -> None:
    now = time.time()
    rows.base = replace(BASE, prices=[(0.0, 1, 1, 1), (now - 1, 2, 2, 2), (now + 3600, 3, 3, 3)])
    grant = await directory.authenticate(TEXT)
    assert (await directory.resolve(grant, "base")).price == TokenPrice(2, 2, 2)


async def test_cached_names_are_resolved_without_awaiting(
    directory: CachedDirectory, rows: Rows
) -> None:
    """So that nothing can happen between a stream's last check and its start."""
    grant = await directory.authenticate(TEXT)
    await directory.resolve(grant, "support")
    with pytest.raises(StopIteration) as done:
        directory.resolve(grant, "support").send(None)
    assert done.value.value.version_id == 5


# --- Pins ----------------------------------------------------------------------------------------


class Pinned:
    """The calls of `on_pinned`."""

    def __init__(self, directory: CachedDirectory) -> None:
        self.queue: asyncio.Queue[dict[str, list[AdapterRef]]] = asyncio.Queue()
        directory.on_pinned(lambda pins, tried: self.queue.put_nowait(pins))

    async def next(self) -> dict[str, list[AdapterRef]]:
        return await asyncio.wait_for(self.queue.get(), 30)


@asynccontextmanager
async def pinning(directory: CachedDirectory) -> AsyncIterator[Pinned]:
    pinned = Pinned(directory)
    task = asyncio.create_task(directory.tell_pins())
    try:
        yield pinned
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pins_are_told_at_the_start_also_where_there_are_none(
    directory: CachedDirectory, rows: Rows
) -> None:
    async with pinning(directory) as pinned:
        assert await pinned.next() == {}


@pytest.mark.parametrize(
    "notice", [Notice("adapters", tenant_id=99), Notice("tenant", tenant_id=99), None]
)
async def test_pins_are_told_when_they_change(
    directory: CachedDirectory, rows: Rows, notice: Notice | None
) -> None:
    async with pinning(directory) as pinned:
        assert await pinned.next() == {}
        rows.pins = [PINNED]
        directory.changed(notice)
        assert await pinned.next() == {"base": [REF]}


async def test_pins_that_did_not_change_are_not_told_again(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.pins = [PINNED]
    async with pinning(directory) as pinned:
        assert await pinned.next() == {"base": [REF]}
        rows.asked.clear()
        for _ in range(100):
            directory.changed(Notice("adapters", tenant_id=10))
        await rows.asked.wait()
        assert rows.queries == 2  # a burst of changes causes one query
        rows.pins = []
        directory.changed(Notice("adapters", tenant_id=10))
        assert await pinned.next() == {}


async def test_pins_that_could_not_be_read_are_read_again(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.pins, rows.away = [PINNED], True
    async with pinning(directory) as pinned:
        await rows.asked.wait()
        rows.away = False
        assert await pinned.next() == {"base": [REF]}


# --- Revocation ----------------------------------------------------------------------------------

ENDS: dict[str, dict[str, Any]] = {
    "revoked": {"revoked_at": datetime.now(UTC)},
    "expired": {"expires_at": datetime.now(UTC) - timedelta(seconds=1)},
    "lacks the scope": {"scopes": ["admin"]},
    "suspended": {"status": "suspended"},
}


@pytest.mark.parametrize("notice", [Notice("key", key_id=1), Notice("tenant", tenant_id=10), None])
@pytest.mark.parametrize("why", ENDS)
async def test_the_end_of_a_key_is_told(
    directory: CachedDirectory, rows: Rows, why: str, notice: Notice | None
) -> None:
    grant = await directory.authenticate(TEXT)
    async with checking(directory) as told:
        rows.stored[PREFIX] = key_row(**ENDS[why])
        directory.changed(notice)
        key_id, error = await told.next()
    assert key_id == 1 and isinstance(error, ApiKeyRevoked) and why in error.message
    with pytest.raises((InvalidApiKey, PermissionDenied)):
        await directory.resolve(grant, "base")


async def test_a_deleted_key_is_told(directory: CachedDirectory, rows: Rows) -> None:
    await directory.authenticate(TEXT)
    async with checking(directory) as told:
        rows.stored.clear()
        directory.changed(Notice("key", key_id=1))
        assert (await told.next())[0] == 1
    with pytest.raises(InvalidApiKey):
        await directory.authenticate(TEXT)


async def test_a_grant_from_before_a_revocation_resolves_nothing(
    directory: CachedDirectory, rows: Rows
) -> None:
    """`on_revoked` does not end a stream that has not begun, so it must not begin."""
    grant = await directory.authenticate(TEXT)
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    directory.changed(Notice("key", key_id=1))
    with pytest.raises(InvalidApiKey):
        await directory.authenticate(TEXT)  # in the cache again, as a revoked key
    with pytest.raises(ApiKeyRevoked):
        await directory.resolve(grant, "base")


async def test_a_change_that_ends_nothing_is_not_told(
    directory: CachedDirectory, rows: Rows
) -> None:
    await directory.authenticate(TEXT)
    async with checking(directory) as told:
        rows.stored[PREFIX] = key_row(weight=5.0)
        directory.changed(Notice("tenant", tenant_id=10))
        assert (await directory.authenticate(TEXT)).weight == 5.0
        rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
        directory.changed(Notice("key", key_id=1))
        assert "revoked" in (await told.next())[1].message
        assert told.queue.empty()


async def test_a_return_asks_again_for_every_key_that_was_used(
    directory: CachedDirectory, rows: Rows
) -> None:
    await directory.authenticate(TEXT)
    directory.changed(Notice("tenant", tenant_id=10))  # evicted; its streams may still run
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    async with checking(directory) as told:
        directory.reconnected()
        assert (await told.next())[0] == 1


async def test_a_key_that_a_check_finds_ended_is_refused_before_the_notice_of_its_end(
    directory: CachedDirectory, rows: Rows
) -> None:
    directory.changed(Notice("key", key_id=1))  # it was created
    await directory.authenticate(TEXT)
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    async with checking(directory) as told:
        assert (await told.next())[0] == 1
    with pytest.raises(InvalidApiKey, match="revoked"):
        await directory.authenticate(TEXT)


async def test_a_check_that_failed_is_made_again(directory: CachedDirectory, rows: Rows) -> None:
    rows.stored[PREFIX] = key_row(revoked_at=datetime.now(UTC))
    rows.away = True
    async with checking(directory) as told:
        directory.changed(Notice("key", key_id=1))
        await rows.asked.wait()
        rows.away = False
        assert (await told.next())[0] == 1


async def test_a_key_that_expires_is_told_when_it_does(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.stored[PREFIX] = key_row(expires_at=datetime.now(UTC) + timedelta(milliseconds=900))
    await directory.authenticate(TEXT)
    async with checking(directory) as told:
        task = asyncio.create_task(directory.tick())
        _, error = await told.next()
        task.cancel()
    assert "expired" in error.message
    with pytest.raises(InvalidApiKey, match="expired"):
        await directory.authenticate(TEXT)


def test_an_archived_version_is_told(directory: CachedDirectory) -> None:
    digests: list[str] = []
    directory.on_archived(digests.append)
    directory.changed(Notice("archived", digest="d" * 64))
    assert digests == ["d" * 64]


@pytest.mark.parametrize("payload", ["", "{}", '{"kind": "new"}', "[]", '{"kind": "key", "key_id"'])
def test_a_notice_of_another_release_is_not_understood(payload: str) -> None:
    assert parse(payload) is None


def test_listeners_are_told_which_tenant_changed(directory: CachedDirectory) -> None:
    told: list[int | None] = []
    directory.on_tenant(told.append)
    for notice in (
        Notice("key", tenant_id=10, key_id=1),
        Notice("adapters", tenant_id=10),
        Notice("limits", tenant_id=11),
        Notice("tenant", tenant_id=12),
        Notice("limits"),
        Notice("base_models"),
        Notice("archived", digest="d"),
        Notice("member", tenant_id=10, user_id=1),
        Notice("user", user_id=1),
        Notice("session", session="s"),
    ):
        directory.changed(notice)
    assert told == [10, 10, 11, 12, None, None]
    directory.reconnected()
    assert told[6:] == [None]


# --- Routes --------------------------------------------------------------------------------------


async def test_a_route_has_its_fit_which_is_read_once(
    directory: CachedDirectory, rows: Rows
) -> None:
    rows.kept_routes = [RouteRow(3, "auto", ["base", "support"], 1, 1, fit=2)]
    rows.fits = {(3, 2): FIT}
    grant = await directory.authenticate(TEXT)
    first = (await directory.resolve(grant, "auto")).route
    queries = rows.queries
    assert first is not None and first.fit is FIT
    assert (await directory.resolve(grant, "auto")).route == first and rows.queries == queries
    directory.changed(parse('{"kind": "adapters", "tenant_id": 10}'))
    rows.kept_routes = [RouteRow(3, "auto", ["base", "support"], 1, 1, fit=3)]
    second = (await directory.resolve(grant, "auto")).route
    assert second is not None and second.fit is None  # it was fitted again since


async def test_a_cascade_is_found_by_its_name(directory: CachedDirectory, rows: Rows) -> None:
    plain = RouteRow(3, "auto", ["base", "support"], 1, 1, fit=2)
    rows.kept_routes = [plain, RouteRow(4, "careful", ["base", "support"], 1, 1, sure_from=-0.5)]
    grant = await directory.authenticate(TEXT)
    found = await directory.cascade(grant, "careful")
    assert found is not None and (found.name, found.sure_from) == ("careful", -0.5)
    for name in ("auto", "support", "base", "nothing"):
        assert await directory.cascade(grant, name) is None


async def test_a_route_that_is_off_chooses_nothing(directory: CachedDirectory, rows: Rows) -> None:
    rows.kept_routes = [RouteRow(3, "auto", ["base", "support"], 1, 1)]
    grant = await directory.authenticate(TEXT)
    target = await directory.resolve(grant, "auto")
    assert target.route is not None and target.route.fit is None
    assert target.route.choose("Hello", 5).model == "support"
