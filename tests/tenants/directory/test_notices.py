"""Changes in PostgreSQL reach a directory, whoever made them and even if notices were lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from psycopg.conninfo import conninfo_to_dict

from frontend.sign_in.sessions import SessionStore
from frontend.sockets.tickets import session_digest
from inference.errors import InferenceError, InvalidApiKey, Unavailable, UnknownModel
from inference.interfaces.directory import Limits, ResolvedTarget, TokenPrice
from inference.link.engine_info import AdapterRef, ModelInfo
from tenants.database import conninfo
from tenants.directory.auth import PostgresDirectory
from tenants.directory.notices import CHANNEL, LISTENER, Notice, parse
from tenants.directory.reader import Reader
from tenants.directory.registry import DirectoryRegistry
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    LimitScope,
    LimitSet,
    Membership,
    Tenant,
    User,
)
from tenants.models import Price as PriceRow
from tests.tenants.making import make_adapter, make_key, make_member, make_tenant, make_version

T = TypeVar("T")

pytestmark = pytest.mark.django_db(transaction=True)


def test_options_of_the_databases_url_hold_but_its_name_for_us(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {"application_name": "mine", "connect_timeout": "7"}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    found = conninfo_to_dict(conninfo("ours"))
    assert (found["application_name"], found["connect_timeout"]) == ("ours", "7")


def notices_of(*changes: Any) -> list[Notice | None]:
    """The notices that a listener receives of the changes, each in a transaction of its own."""
    with psycopg.connect(conninfo("test"), autocommit=True) as listening:
        listening.execute(f"LISTEN {CHANNEL}")
        for change in changes:
            change()
        connection.cursor().execute(f"NOTIFY {CHANNEL}, 'end'")
        heard: list[Notice | None] = []
        for notify in listening.notifies(timeout=30):
            if notify.payload == "end":
                return heard
            heard.append(parse(notify.payload))
    raise AssertionError("the last notice did not arrive")


def test_keys_and_tenants(tenant: Tenant) -> None:
    made = notices_of(lambda: make_key(tenant))
    key = ApiKey.objects.get()
    changed = Notice("key", tenant.pk, key.pk)
    assert made == [changed]
    keys = ApiKey.objects.filter(pk=key.pk)
    assert notices_of(key.revoke) == [changed]
    assert notices_of(lambda: keys.update(scopes=["admin"])) == [changed]
    assert notices_of(lambda: keys.update(last_used_at=datetime.now(UTC))) == []
    assert notices_of(lambda: keys.update(scopes=["admin"])) == []
    assert notices_of(key.delete) == [changed]
    suspend = Tenant.objects.filter(pk=tenant.pk)
    assert notices_of(lambda: suspend.update(status="suspended")) == [Notice("tenant", tenant.pk)]


def test_adapters(tenant: Tenant) -> None:
    adapters = Notice("adapters", tenant.pk)
    assert notices_of(lambda: make_adapter(tenant)) == [Notice("base_models"), adapters]
    adapter = Adapter.objects.get()
    version = make_version(adapter)
    archived = Notice("archived", digest=version.digest)
    assert notices_of(lambda: adapter.promote(version)) == [adapters]
    assert notices_of(Alias.objects.get().delete) == [adapters]
    assert notices_of(version.archive) == [archived, adapters]
    assert notices_of(version.delete) == [archived, adapters]
    assert notices_of(adapter.delete) == [adapters]


def test_a_version_and_how_its_checks_go(adapter: Adapter) -> None:
    changed, versions = Notice("adapters", adapter.tenant_id), adapter.versions
    assert notices_of(lambda: adapter.add_version("a" * 64, size_bytes=1, folder="a")) == [changed]
    report = {"waiting_for": "an engine"}
    assert notices_of(*[lambda: versions.update(report=report)] * 2) == [changed]


def test_a_rejected_version_leaves_the_engines(adapter: Adapter) -> None:
    version = make_version(adapter)
    probing = AdapterVersion.objects.filter(pk=version.pk)
    probing.update(state="probing")
    assert Notice("archived", digest=version.digest) in notices_of(
        lambda: probing.update(state="rejected")
    )


def test_a_base_model_that_was_known_is_no_news() -> None:
    async def note() -> None:
        registry = DirectoryRegistry()
        await registry.open()
        await registry.note_model(ModelInfo("base", 512, 8, 16, 4096, {}, "vllm"))
        await registry.close()

    notices = notices_of(*[lambda: asyncio.run(note())] * 3)
    assert notices == [Notice("base_models")]


def test_people(tenant: Tenant) -> None:
    user = make_member(tenant, "viewer")
    client = Client()
    client.force_login(user)
    assert client.session.session_key is not None
    digest = session_digest(client.session.session_key)
    membership = Membership.objects.filter(user=user)
    account = User.objects.filter(pk=user.pk)
    member = Notice("member", tenant.pk, user_id=user.pk)
    assert notices_of(client.logout) == [Notice("session", session=digest)]
    client.force_login(user)
    Session.objects.update(expire_date=datetime.now(UTC))
    assert notices_of(SessionStore.clear_expired) == []
    assert notices_of(lambda: membership.update(role="admin")) == [member]
    assert notices_of(lambda: membership.update(role="admin")) == []
    assert notices_of(membership.delete) == [msgspec.structs.replace(member, ended=True)]
    assert notices_of(lambda: account.update(last_login=datetime.now(UTC))) == []
    assert notices_of(lambda: account.update(is_staff=True)) == [Notice("user", user_id=user.pk)]
    switched_off = Notice("user", user_id=user.pk, ended=True)
    assert notices_of(lambda: account.update(is_active=False)) == [switched_off]
    assert notices_of(account.delete) == [switched_off]


def test_limits(adapter: Adapter) -> None:
    tenant = adapter.tenant
    other, (key, _) = make_tenant("other"), make_key(tenant)
    everybodys, tenants = Notice("limits"), Notice("limits", tenant.pk)

    def limit(tenant: Tenant | None, **scope: Any) -> None:
        LimitSet.objects.create(tenant=tenant, author="operator", tokens_per_day=5, **scope)

    assert notices_of(lambda: limit(None)) == [everybodys]
    for scope in ({}, {"key": key}, {"adapter": adapter}):
        assert notices_of(lambda scope=scope: limit(tenant, **scope)) == [tenants]
    whole = LimitSet.objects.filter(tenant=tenant, key=None, adapter=None)
    assert notices_of(lambda: whole.update(tokens_per_day=None)) == [tenants]
    assert notices_of(lambda: whole.update(updated_at=datetime.now(UTC))) == []
    assert notices_of(lambda: whole.update(tenant=other)) == [tenants, Notice("limits", other.pk)]
    assert notices_of(LimitSet.objects.filter(tenant=None).delete) == [everybodys]
    assert tenants in notices_of(key.delete)


def test_prices(adapter: Adapter) -> None:
    base = adapter.base_model
    bases, adapters = Notice("base_models"), Notice("adapters", adapter.tenant_id)
    figures = {"prompt": 2, "cached_prompt": 1, "output": 3, "starts_at": datetime.now(UTC)}
    prices = PriceRow.objects
    assert notices_of(lambda: prices.create(base_model=base, **figures)) == [bases]
    assert notices_of(lambda: prices.update(prompt=4)) == [bases]
    assert notices_of(prices.all().delete) == [bases]
    assert notices_of(lambda: prices.create(adapter=adapter, **figures)) == [adapters]
    assert notices_of(lambda: prices.update(adapter=None, base_model=base)) == [adapters, bases]


def test_pins(adapter: Adapter) -> None:
    pin = Adapter.objects.filter(pk=adapter.pk)
    assert notices_of(lambda: pin.update(pinned=True)) == [Notice("adapters", adapter.tenant_id)]


# --- End to end ----------------------------------------------------------------------------------


class Gateway:
    """A directory as a gateway runs it, and the calls of its callbacks."""

    def __init__(self, directory: PostgresDirectory) -> None:
        self.directory = directory
        self.revoked: asyncio.Queue[int] = asyncio.Queue()
        self.ended: set[int] = set()
        self.archived: asyncio.Queue[str] = asyncio.Queue()
        self.pinned: asyncio.Queue[dict[str, list[AdapterRef]]] = asyncio.Queue()
        directory.on_revoked(self._note)
        directory.on_archived(self.archived.put_nowait)
        directory.on_pinned(lambda pins, tried: self.pinned.put_nowait(pins))

    def _note(self, key_id: int, _: InferenceError) -> None:
        self.revoked.put_nowait(key_id)
        self.ended.add(key_id)

    async def next_revoked(self) -> int:
        return await asyncio.wait_for(self.revoked.get(), 30)

    async def catch_up(self) -> None:
        """Wait for all notices so far: they come in commit order, a new key's revocation last.

        It may be reported twice: the check of the key's creation can find it revoked already.
        """
        key, text = await given_key()
        await self.directory.authenticate(text)
        await sync_to_async(key.revoke)()
        while await self.next_revoked() != key.pk:  # after a reconnect all are reported again
            pass

    async def pins(self, *adapters: AdapterRef) -> None:
        """Wait until exactly these are reported as pinned."""
        wanted = {"base": list(adapters)} if adapters else {}
        while await asyncio.wait_for(self.pinned.get(), 30) != wanted:
            pass


@pytest.fixture
async def gateway(async_db: None) -> AsyncIterator[Gateway]:
    async with PostgresDirectory() as directory:
        yield Gateway(directory)


@sync_to_async
def given_key(**fields: Any) -> tuple[ApiKey, str]:
    return make_key(Tenant.objects.first() or make_tenant("acme"), **fields)


@sync_to_async
def execute(statement: str, *values: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)


async def test_a_key_and_its_end(gateway: Gateway) -> None:
    key, text = await given_key(allowed_models=["base"])
    grant = await gateway.directory.authenticate(text)
    stored = await Tenant.objects.aget()
    assert (grant.key_id, grant.tenant, grant.salt) == (key.pk, "acme", stored.salt)
    assert grant.models == frozenset({"base"})
    await sync_to_async(key.revoke)()
    assert await gateway.next_revoked() == key.pk
    with pytest.raises(InvalidApiKey, match="revoked"):
        await gateway.directory.authenticate(text)


async def test_work_of_a_rotated_key_continues_with_its_successor(gateway: Gateway) -> None:
    grant_of = gateway.directory.grant_of
    (first, _), (other, _) = await given_key(), await given_key()
    assert (await grant_of(first.pk)).key_id == first.pk
    second, _ = await sync_to_async(first.rotate)(timedelta(hours=1), None)
    await gateway.catch_up()
    assert (await grant_of(first.pk)).key_id == second.pk
    third, _ = await sync_to_async(second.rotate)(timedelta(), None)
    await gateway.catch_up()
    assert {(await grant_of(key.pk)).key_id for key in (first, second, third)} == {third.pk}
    await sync_to_async(third.revoke)()
    await gateway.catch_up()
    with pytest.raises(InvalidApiKey, match="revoked"):
        await grant_of(first.pk)
    assert (await grant_of(other.pk)).key_id == other.pk


async def test_work_of_a_member_stays_with_the_members_own_playground_key(gateway: Gateway) -> None:
    def given() -> list[ApiKey]:
        tenant = make_tenant("acme")
        members = [make_member(tenant, "developer") for _ in range(2)]
        keys = [ApiKey.objects.playground_of(member, tenant) for member in members]
        shared = ApiKey.objects.open_playground(tenant)
        limits = {"requests_per_minute": 7}
        LimitScope(tenant, key=shared).store(LimitSet.Author.TENANT, limits)
        return [*keys, shared]

    keys = await sync_to_async(given)()
    grants = [await gateway.directory.grant_of(key.pk) for key in keys]
    assert [grant.key_id for grant in grants] == [key.pk for key in keys]
    for grant in grants:
        assert {"requests_per_minute": 7} in [dict(one.values) for one in grant.limits]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE tenants_tenant SET status = 'suspended'",
        "UPDATE tenants_apikey SET scopes = '{admin}'",
        "UPDATE tenants_apikey SET expires_at = now()",
        "DELETE FROM tenants_apikey",
    ],
)
async def test_psql_ends_a_key_as_well(gateway: Gateway, statement: str) -> None:
    key, text = await given_key()
    await gateway.directory.authenticate(text)
    await execute(statement)
    assert await gateway.next_revoked() == key.pk


async def test_a_notice_that_was_missed_is_made_good_on_return(gateway: Gateway) -> None:
    key, text = await given_key()
    await gateway.directory.authenticate(text)
    silent = "SET session_replication_role = replica; {}; RESET session_replication_role"
    await execute(silent.format("UPDATE tenants_apikey SET revoked_at = now()"))
    await execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = %s AND datname = current_database()",
        LISTENER,
    )
    assert await gateway.next_revoked() == key.pk
    with pytest.raises(InvalidApiKey, match="revoked"):
        await gateway.directory.authenticate(text)


async def test_a_restart_of_the_database_is_survived(gateway: Gateway) -> None:
    _, text = await given_key()
    await gateway.directory.authenticate(text)
    await execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'lorikeet%%' AND datname = current_database()"
    )
    _, other = await given_key()
    assert (await gateway.directory.authenticate(other)).tenant == "acme"
    key, text = await given_key()
    await gateway.directory.authenticate(text)
    await sync_to_async(key.revoke)()
    assert await gateway.next_revoked() == key.pk


async def test_names_follow_the_aliases(gateway: Gateway) -> None:
    @sync_to_async
    def versions() -> tuple[Adapter, AdapterVersion, AdapterVersion]:
        adapter = make_adapter(Tenant.objects.get())
        first, second = make_version(adapter), make_version(adapter)
        adapter.promote(first)
        return adapter, first, second

    _, text = await given_key()
    grant = await gateway.directory.authenticate(text)
    adapter, first, second = await versions()

    async def names_mean(**expected: int | None) -> None:
        await gateway.catch_up()
        for name, version_id in expected.items():
            target = await gateway.directory.resolve(grant, name.replace("_at_", "@"))
            assert target.version_id == version_id

    await names_mean(support=first.pk, support_at_2=second.pk, base=None)
    target = await gateway.directory.resolve(grant, "support@" + first.digest[:8])
    assert target.adapter is not None and target.adapter.digest == first.digest
    await sync_to_async(adapter.promote)(second)
    await names_mean(support=second.pk, support_at_1=first.pk)
    await sync_to_async(first.archive)()
    assert await asyncio.wait_for(gateway.archived.get(), 30) == first.digest
    await names_mean(support=second.pk)
    with pytest.raises(UnknownModel):
        await gateway.directory.resolve(grant, "support@1")
    cards = await gateway.directory.models(grant)
    assert [(card.id, card.owned_by, card.root) for card in cards] == [
        ("base", "lorikeet", "base"),
        ("support", "acme", "base"),
    ]


LIMITED = """
INSERT INTO tenants_limitset (tenant_id, key_id, adapter_id, author, {fields}, updated_at)
VALUES (%s, %s, %s, %s, {values}, now())
"""


async def set_limits(author: str, *scope: int | None, **figures: int | None) -> None:
    """`scope`: the ids of the tenant, the key and the adapter."""
    statement = LIMITED.format(fields=", ".join(figures), values=", ".join(["%s"] * len(figures)))
    await execute(statement, *scope, author, *figures.values())


async def test_limits_follow_what_is_set(gateway: Gateway) -> None:
    key, text = await given_key()
    tenant, other = key.tenant_id, await sync_to_async(make_tenant)("other")

    def of_tenant(**values: int) -> Limits:
        return Limits(f"t{tenant}", "tenant `acme`", values)

    def of_key(**values: int) -> Limits:
        return Limits(f"k{key.pk}", f"key `a key` (lk_{key.prefix}…)", values)

    async def limits() -> tuple[Limits, ...]:
        await gateway.catch_up()
        return (await gateway.directory.authenticate(text)).limits

    await set_limits("operator", other.pk, None, None, tokens_per_minute=1)
    assert await limits() == ()
    await set_limits("operator", None, None, None, tokens_per_minute=1000, cost_per_day=10**12)
    assert await limits() == (of_tenant(tokens_per_minute=1000, cost_per_day=10**12),)
    await set_limits("operator", tenant, None, None, tokens_per_minute=5000)
    await set_limits("tenant", tenant, None, None, tokens_per_minute=4000, requests_per_minute=3)
    await set_limits("operator", tenant, key.pk, None, concurrent_streams=7)
    await set_limits("tenant", tenant, key.pk, None, concurrent_streams=9, tokens_per_day=0)
    assert await limits() == (
        of_tenant(tokens_per_minute=4000, requests_per_minute=3, cost_per_day=10**12),
        of_key(concurrent_streams=7, tokens_per_day=0),
    )
    await execute("DELETE FROM tenants_limitset WHERE key_id IS NOT NULL OR tenant_id IS NULL")
    assert await limits() == (of_tenant(tokens_per_minute=4000, requests_per_minute=3),)
    await execute("UPDATE tenants_apikey SET lane = 'batch' WHERE id = %s", key.pk)
    await limits()
    assert (await gateway.directory.authenticate(text)).lane == "batch"
    assert key.pk not in gateway.ended


@sync_to_async
def given_adapter() -> Adapter:
    adapter = make_adapter(Tenant.objects.get())
    adapter.promote(make_version(adapter))
    return adapter


async def test_a_target_follows_prices_and_limits(gateway: Gateway) -> None:
    _, text = await given_key()
    adapter = await given_adapter()

    async def target(name: str) -> ResolvedTarget:
        await gateway.catch_up()
        return await gateway.directory.resolve(await gateway.directory.authenticate(text), name)

    async def price(days: int, of: str, owner: int, *figures: int) -> None:
        await execute(
            f"INSERT INTO tenants_price ({of}_id, starts_at, prompt, cached_prompt, output, "
            "created_at) VALUES (%s, now() + make_interval(days => %s), %s, %s, %s, now())",
            *(owner, days, *figures),
        )

    found = await target("support")
    assert (found.adapter_id, found.price, found.limits) == (adapter.pk, TokenPrice(), ())
    assert found.max_model_len == (await target("base")).max_model_len == 512
    await price(-2, "base_model", adapter.base_model_id, 30, 20, 10)
    await price(-1, "base_model", adapter.base_model_id, 3, 2, 1)
    await price(1, "base_model", adapter.base_model_id, 300, 200, 100)
    await price(1, "adapter", adapter.pk, 7, 7, 7)
    assert (await target("base")).price == (await target("support")).price == TokenPrice(3, 2, 1)
    await execute("UPDATE tenants_price SET starts_at = now() WHERE adapter_id IS NOT NULL")
    assert (await target("support")).price == TokenPrice(7, 7, 7)
    assert (await target("base")).price == TokenPrice(3, 2, 1)
    await set_limits("tenant", adapter.tenant_id, None, adapter.pk, tokens_per_day=5)
    expected = (Limits(f"a{adapter.pk}", "adapter `support`", {"tokens_per_day": 5}),)
    assert (await target("support")).limits == expected
    await execute("UPDATE tenants_basemodel SET max_model_len = 1024")
    assert (await target("support")).max_model_len == 1024


async def test_pins_follow_the_live_versions(gateway: Gateway) -> None:
    await gateway.pins()
    await given_key()
    adapter = await given_adapter()
    first, second = [
        AdapterRef(f"acme/support@{version.digest}", version.digest, 16, ("q_proj",))
        for version in (
            await adapter.versions.aget(),
            await sync_to_async(make_version)(adapter),
        )
    ]
    await adapter.versions.aupdate(config={"r": 16, "target_modules": ["q_proj"]})
    newer = await adapter.versions.aget(digest=second.digest)
    await sync_to_async(adapter.promote)(newer, "canary")
    await Adapter.objects.aupdate(pinned=True)
    await gateway.pins(first)
    await sync_to_async(adapter.promote)(newer)
    await gateway.pins(second)
    await Tenant.objects.aupdate(status="suspended")
    await gateway.pins()
    await Tenant.objects.aupdate(status="active")
    await gateway.pins(second)
    await Alias.objects.all().adelete()
    await gateway.pins()


async def test_last_use_is_written(async_db: None) -> None:
    key, text = await given_key()
    async with PostgresDirectory() as directory:
        await directory.authenticate(text)
    await key.arefresh_from_db()
    assert key.last_used_at is not None


async def when_available(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer: on a busy machine a query may take longer than its timeout."""
    async with asyncio.timeout(60):
        while True:
            with suppress(Unavailable):
                return await ask()


async def test_a_database_that_does_not_answer_is_unavailable(async_db: None) -> None:
    reader = Reader(answer_s=0.2)
    await reader.open()
    async with await psycopg.AsyncConnection.connect(conninfo("test")) as other:
        await other.execute("LOCK TABLE tenants_apikey IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(Unavailable):
            await reader.key("a" * 12)
    assert await when_available(lambda: reader.key("a" * 12)) is None
    await reader.close()
    with pytest.raises(Unavailable):
        await reader.key("a" * 12)


async def test_a_database_that_is_away_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "PORT", "1")
    with pytest.raises(psycopg.OperationalError):
        await Reader().open(timeout_s=0.1)
