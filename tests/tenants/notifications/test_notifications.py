"""Notifications: what causes them, who gets them, and their delivery to webhooks."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import F
from django.utils import timezone
from openai import InvalidWebhookSignatureError, OpenAI

from inference.interfaces.directory import MICRO
from tenants.directory.registry import DirectoryRegistry
from tenants.errors import TooManyTargets
from tenants.models import (
    AuditEntry,
    Delivery,
    EngineCredential,
    IsolationCheck,
    LimitScope,
    LimitSet,
    Notification,
    State,
    Target,
    Tenant,
)
from tenants.models.notifications import (
    KEPT_FOR,
    MAX_TARGETS,
    OVERLAP,
    DeliveryState,
    NotificationKind,
    new_secret,
)
from tenants.notifications import sending, watching
from tenants.notifications.addresses import NOWHERE, Forbidden, check_address, check_form, pin
from tests.tenants.making import make_adapter, make_key, make_rollout, make_tenant, make_version
from tests.tenants.spending import spend

ALL = [kind.value for kind in NotificationKind]


def listen(
    tenant: Tenant | None, url: str = "https://hooks.example/x", *kinds: NotificationKind
) -> Target:
    return Target.objects.add(tenant, url, [kind.value for kind in kinds] or ALL, None)


def told() -> list[tuple[str, Any]]:
    found = Notification.objects.order_by("at", "kind").values_list("kind", "tenant__slug")
    return list(found)


# --- Causes --------------------------------------------------------------------------------------


@pytest.mark.django_db
def test_a_version_that_was_judged_is_told_of_to_its_tenant_alone(tenant: Tenant) -> None:
    target, other = listen(tenant), listen(make_tenant("other"))
    listen(tenant, "https://hooks.example/keys", NotificationKind.KEY_EXPIRING)
    adapter = make_adapter(tenant)
    ready = make_version(adapter, state=State.PROBING)
    ready.become_ready()
    rejected = make_version(adapter, state=State.VALIDATING)
    rejected.advance(State.REJECTED, report={"findings": [{"message": "rank 128 is above 64"}]})
    assert told() == [("adapter.ready", tenant.slug), ("adapter.rejected", tenant.slug)]
    first, second = Delivery.objects.order_by("id").select_related("notification")
    assert first.target == second.target == target and not other.deliveries.exists()
    assert first.notification.data["version"] == ready.number
    assert second.notification.data["reason"] == "rank 128 is above 64"


@pytest.mark.django_db
def test_rolled_back_changes_are_not_announced(tenant: Tenant) -> None:
    listen(tenant)
    version = make_version(make_adapter(tenant), state=State.PROBING)
    with transaction.atomic():
        version.become_ready()
        transaction.set_rollback(True)
    assert told() == []


@pytest.mark.django_db
def test_operators_hear_of_isolation_and_rollouts(tenant: Tenant) -> None:
    target = listen(None)
    listen(tenant)
    for passed in (True, None, False):
        IsolationCheck.objects.create(base_model="base", passed=passed, findings=["it leaks"])
    rollout = make_rollout(make_adapter(tenant).base_model)
    rollout.roll_back("4 % failed.")
    assert told() == [("isolation.failed", None), ("rollout.stopped", None)]
    assert {one.target for one in Delivery.objects.all()} == {target}
    stopped = Notification.objects.get(kind="rollout.stopped")
    assert stopped.data["reason"] == "4 % failed." and stopped.data["state"] == "rolled back"


@pytest.mark.django_db
def test_events_without_a_change_are_detected_and_announced_once(tenant: Tenant) -> None:
    now = timezone.now()
    listen(tenant)
    listen(None)
    key = make_key(tenant, expires_at=now + timedelta(days=3))[0]
    make_key(tenant, expires_at=now + timedelta(days=30))
    LimitScope(tenant).store(
        LimitSet.Author.TENANT, {"tokens_per_day": 130, "cost_per_month": MICRO}
    )
    spend(key, now)  # 107 tokens
    EngineCredential.objects.issue(name="gone")
    EngineCredential.objects.update(last_seen_at=now - timedelta(minutes=10))
    for _ in range(2):
        watching.watch(0)
    assert sorted(told()) == [
        ("budget.reached", tenant.slug), ("engine.lost", None), ("key.expiring", tenant.slug),
    ]  # fmt: skip
    assert Notification.objects.get(kind="budget.reached").data["percent"] == 80
    spend(key, now)
    watching.watch(0)
    percents = [one.data["percent"] for one in Notification.objects.filter(kind="budget.reached")]
    assert sorted(percents) == [80, 100]
    Notification.objects.update(at=now - KEPT_FOR - timedelta(days=1))
    Notification.objects.long_past().delete()
    assert not Delivery.objects.exists()


@pytest.mark.django_db
def test_keys_and_adapters_have_budgets_of_their_own(tenant: Tenant) -> None:
    listen(tenant, "https://hooks.example/x", NotificationKind.BUDGET_REACHED)
    adapter, others = make_adapter(tenant), make_adapter(make_tenant("other"))
    first, unused = make_key(tenant)[0], make_key(tenant)[0]
    for scope, figures in (
        (LimitScope(tenant, key=first), {"tokens_per_day": 130}),
        (LimitScope(tenant, key=unused), {"tokens_per_day": 1}),
        (LimitScope(tenant, adapter=adapter), {"tokens_per_month": 200}),
        (LimitScope(others.tenant, adapter=others), {"tokens_per_day": 1}),
    ):
        scope.store(LimitSet.Author.TENANT, figures)
    spend(first, timezone.now(), adapter=adapter.name)  # 107 tokens
    for _ in range(2):
        watching.watch(0)
    (of_key,) = Notification.objects.all()
    assert (of_key.tenant, of_key.data["percent"]) == (tenant, 80)
    assert (of_key.data["key"], of_key.data["prefix"]) == (first.name, first.prefix)
    second, _ = first.rotate(timedelta(0), None)
    spend(second, timezone.now(), adapter=adapter.name)  # counts with those of the first
    for _ in range(2):
        watching.watch(0)
    of_adapter = Notification.objects.get(data__adapter=adapter.name)
    again = Notification.objects.get(data__key=first.name, data__percent=100)
    assert of_adapter.data["percent"] == 100 and again.data["used"] == 214
    assert Notification.objects.count() == 3


async def test_an_engine_that_ended_on_purpose_is_not_lost(transactional_db: None) -> None:
    def lost() -> int:
        EngineCredential.objects.update(last_seen_at=F("last_seen_at") - timedelta(minutes=10))
        watching.watch(0)
        return Notification.objects.filter(kind="engine.lost").count()

    await sync_to_async(listen)(None)
    credential, _ = await sync_to_async(EngineCredential.objects.issue)(name="gpu-1")
    registry = DirectoryRegistry()
    await registry.open()
    try:
        await registry.saw_engines({credential.pk})
        await registry.engines_stopped({credential.pk})
        assert await sync_to_async(lost)() == 0
        await registry.saw_engines({credential.pk})  # it runs again
        assert await sync_to_async(lost)() == 1
    finally:
        await registry.close()
    assert await AuditEntry.objects.filter(kind="credential").acount() == 1  # of its creation


@pytest.mark.django_db
def test_targets_are_bounded_and_their_secrets_are_not_in_the_audit_log(tenant: Tenant) -> None:
    targets = [listen(tenant) for _ in range(MAX_TARGETS)]
    with pytest.raises(TooManyTargets):
        listen(tenant)
    listen(None)
    logged = AuditEntry.objects.filter(kind="webhook")
    assert logged.count() == MAX_TARGETS + 1
    assert not any(targets[0].secrets[0][6:] in json.dumps(one.after) for one in logged)


# --- Allowed URLs of webhooks --------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["http://example.com/", "ftp://example.com/", "https://", "https://a:b@example.com/", "x",
     "https://example.com:99999/", "https://example.com/ a", "https://ex\u00e4mple.com/",
     "https://@example.com/", "https://example.com\\@localhost/", "https://example.com:0/",
     "https://exa%6dple.com/", "https://a..example.com/", f"https://{'a' * 64}.com/",
     "https://example.com/\r\nhost: x", "https://ex{ample.com/", "https://[::1/", "https://[v1.x]/",
     "//example.com/", "https:example.com", "https://example.com/" + "a" * 500],
)  # fmt: skip
def test_invalid_webhook_urls(url: str) -> None:
    with pytest.raises(Forbidden):
        check_form(url, private=False)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "172.16.5.5", "192.168.1.1", "169.254.169.254", "0.0.0.0",
     "100.64.0.1", "224.0.0.1", "::1", "fe80::1%eth0", "fc00::1", "::ffff:10.0.0.1", "::",
     "2002:7f00:1::", "64:ff9b::7f00:1", "ff02::1", "::7f00:1", "fec0::1", "64:ff9b:1::a00:1",
     "2001::1", "2001:db8::1", "5f00::1", "192.0.0.8", "192.88.99.1", "3fff::1", "198.18.0.1",
     "240.0.0.1", "255.255.255.255"],
)  # fmt: skip
def test_private_addresses_are_forbidden(address: str) -> None:
    with pytest.raises(Forbidden):
        check_address(address, private=False)
    check_address(address, private=True)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses_are_not(address: str) -> None:
    check_address(address, private=False)


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.1", "0x7f.1", "2130706433", "0", "[::1]", "[::ffff:127.0.0.1]",
     "[0:0:0:0:0:ffff:a9fe:a9fe]", "169.254.169.254", "localhost.", "no-such-name.invalid"],
)  # fmt: skip
async def test_private_and_unknown_names_are_refused_alike(host: str) -> None:
    with pytest.raises(Forbidden) as refused:
        await pin(f"https://{host}/hook", private=False)
    assert str(refused.value) == NOWHERE


async def test_a_name_is_pinned_to_an_address_that_was_looked_at() -> None:
    pinned = await pin("http://localhost:8123/hook?a=1", private=True)
    assert pinned.url in ("http://127.0.0.1:8123/hook?a=1", "http://[::1]:8123/hook?a=1")
    assert (pinned.authority, pinned.host) == ("localhost:8123", "localhost")


def resolving(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> Iterator[list[str]]:
    """Make any name resolve to these answers, one after the other. Returns those that are left."""
    left = iter(answers)

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(None, None, 0, "", (address, port)) for address in next(left)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return left


async def test_one_private_address_among_public_ones_is_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolving(monkeypatch, ["93.184.216.34", "10.0.0.1"])
    with pytest.raises(Forbidden):
        await pin("https://hooks.example/", private=False)


async def test_a_name_that_is_rebound_leads_where_it_did_when_it_was_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is resolved once: the later, changed answer is never asked for."""
    left = resolving(monkeypatch, ["93.184.216.34"], ["127.0.0.1"])
    connected = list[tuple[str, str, str]]()

    async def connect(request: httpx.Request) -> httpx.Response:
        extension = str(request.extensions["sni_hostname"])
        connected.append((request.url.host, request.headers["host"], extension))
        return httpx.Response(204)

    async with httpx.AsyncClient(transport=httpx.MockTransport(connect)) as client:
        target = Target(url="https://hooks.example/x", kinds=ALL)
        told = Notification(kind="key.expiring", data={}, once="", at=timezone.now(), id=uuid4())
        result = await sending.Sender(client).attempt(
            Delivery(target=target, notification=told), timezone.now()
        )
    assert result == sending.SendResult("", 204)
    assert connected == [("93.184.216.34", "hooks.example", "hooks.example")]
    assert list(left) == [["127.0.0.1"]]


# --- Delivery ------------------------------------------------------------------------------------


class Receiver:
    """A webhook receiver on this machine. `status`, `may_answer` and `endless` set its answer."""

    def __init__(self) -> None:
        self.status, self.got = 204, list[tuple[dict[str, str], bytes]]()
        self.url = ""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.endless = False
        self.cut_off = asyncio.Event()

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
        self.got.append((headers, body))
        await self.may_answer.wait()
        if self.endless:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 999999999999\r\n\r\n")
            try:
                while True:
                    writer.write(b"x" * 65536)
                    await writer.drain()
            except ConnectionError:
                self.cut_off.set()
            return
        more = f"location: {self.url}elsewhere\r\n" if self.status == 302 else ""
        writer.write(f"HTTP/1.1 {self.status} X\r\n{more}content-length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = await asyncio.start_server(receiver, "127.0.0.1", 0)
    receiver.url = f"http://localhost:{server.sockets[0].getsockname()[1]}/"
    async with server:
        yield receiver


async def posted(url: str) -> Target:
    def make() -> Target:
        tenant = make_tenant("acme")
        target = listen(tenant, url)
        Notification.objects.post(NotificationKind.KEY_EXPIRING, {"key": "ci"}, tenant=tenant)
        return target

    target: Target = await sync_to_async(make)()
    return target


async def send() -> int:
    """Make all deliveries that are due. Returns their number."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        sender = sending.Sender(client)
        begun = await sender.start_due()
        await sender.finish()
    return begun


async def sent() -> Delivery:
    assert await send() == 1
    return await Delivery.objects.aget()


async def test_a_webhook_is_signed_and_delivered_once(
    transactional_db: None, settings: Any
) -> None:
    settings.WEBHOOKS_PRIVATE = True
    async with receiving() as receiver:
        target = await posted(receiver.url)
        delivery = await sent()
        assert await send() == 0
    assert (delivery.state, delivery.status, delivery.attempts) == ("delivered", 204, 1)
    ((headers, body),) = receiver.got
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(target.secrets[0].removeprefix("whsec_"))
    digest = base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert headers["webhook-signature"] == f"v1,{digest}"
    said = json.loads(body)
    assert said["type"] == "key.expiring" and said["data"] == {"tenant": "acme", "key": "ci"}


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """With the example of the specification's libraries."""
    secret, id, at = (
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
    )
    signature = sending.sign([secret], id, at, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_documented_ways_to_verify_a_signature() -> None:
    secret, now = new_secret(), int(time.time())
    page = Path("docs/webhooks.md").read_text()
    documented: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], documented)
    is_genuine, sdk = documented["is_genuine"], OpenAI(api_key="-", webhook_secret=secret).webhooks
    signature = sending.sign([new_secret(), secret], "msg_1", now, b"{}")
    headers = {
        "webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature
    }  # fmt: skip
    assert is_genuine(secret, headers, b"{}")
    sdk.verify_signature("{}", headers)
    for wrong, body in (
        ({}, b"{ }"), ({"webhook-id": "msg_2"}, b"{}"), ({"webhook-timestamp": "1"}, b"{}"),
        ({"webhook-signature": "v1,AAAA"}, b"{}"),
    ):  # fmt: skip
        assert not is_genuine(secret, headers | wrong, body)
        with pytest.raises(InvalidWebhookSignatureError):
            sdk.verify_signature(body.decode(), headers | wrong)


@pytest.mark.parametrize(("status", "state"), [(204, "delivered"), (500, "failed")])
async def test_a_test_event_is_signed_and_tried_once(
    transactional_db: None, settings: Any, status: int, state: str
) -> None:
    settings.WEBHOOKS_PRIVATE = True
    async with receiving() as receiver:
        receiver.status = status
        target = await sync_to_async(lambda: listen(make_tenant("acme"), receiver.url))()
        await sync_to_async(target.test)()
        delivery = await sent()
    ((headers, body),) = receiver.got
    assert json.loads(body)["type"] == "webhook.test" and "webhook-signature" in headers
    assert (delivery.state, delivery.status, delivery.attempts) == (state, status, 1)
    assert delivery.duration_ms is not None


async def test_a_test_event_goes_nowhere_that_others_do_not(transactional_db: None) -> None:
    async with receiving() as receiver:
        address = receiver.url.replace("http://localhost", "https://127.0.0.1")
        target = await sync_to_async(lambda: listen(make_tenant("acme"), address))()
        await sync_to_async(target.test)()
        delivery = await sent()
    assert (delivery.state, delivery.error, receiver.got) == ("failed", NOWHERE, [])


@pytest.mark.parametrize("status", [302, 400, 500])
async def test_a_failed_delivery_is_retried_later(
    transactional_db: None, settings: Any, status: int
) -> None:
    settings.WEBHOOKS_PRIVATE = True
    async with receiving() as receiver:
        receiver.status = status
        await posted(receiver.url)
        delivery = await sent()
        assert (delivery.state, delivery.status) == ("waiting", status)
        assert delivery.due_at > timezone.now() and len(receiver.got) == 1
        receiver.status = 200
        await sync_to_async(delivery.replay)()
        assert (await sent()).state == "delivered"
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1


async def test_a_target_that_is_gone_gets_nothing_more(
    transactional_db: None, settings: Any
) -> None:
    settings.WEBHOOKS_PRIVATE = True
    async with receiving() as receiver:
        receiver.status = 410
        target = await posted(receiver.url)
        assert (await sent()).state == "failed"
    await target.arefresh_from_db()
    assert target.ended_at is not None
    tenant = await Tenant.objects.aget()
    await sync_to_async(Notification.objects.post)(NotificationKind.KEY_EXPIRING, {}, tenant=tenant)
    assert await Delivery.objects.acount() == 1


async def test_a_private_address_is_never_connected_to(transactional_db: None) -> None:
    async with receiving() as receiver:
        await posted(receiver.url.replace("http:", "https:"))
        delivery = await sent()
    assert "private network" in delivery.error and receiver.got == []


async def test_an_answer_without_an_end_is_not_read(transactional_db: None, settings: Any) -> None:
    settings.WEBHOOKS_PRIVATE = True
    async with receiving() as receiver:
        receiver.endless = True
        await posted(receiver.url)
        assert (await sent()).state == "delivered"
        await receiver.cut_off.wait()


async def test_slow_receivers_of_a_tenant_hold_up_nobody_else(
    transactional_db: None, settings: Any
) -> None:
    settings.WEBHOOKS_PRIVATE = True

    def make(slow: str, quick: str) -> None:
        tenant, other = make_tenant("slow"), make_tenant("quick")
        for _ in range(MAX_TARGETS):
            listen(tenant, slow)
        listen(other, quick)
        for _ in range(3):
            Notification.objects.post(NotificationKind.KEY_EXPIRING, {}, tenant=tenant)
        Notification.objects.post(NotificationKind.KEY_EXPIRING, {}, tenant=other)

    async with (
        receiving() as slow,
        receiving() as quick,
        httpx.AsyncClient(trust_env=False, timeout=60) as client,
    ):
        slow.may_answer.clear()
        await sync_to_async(make)(slow.url, quick.url)
        sender = sending.Sender(client)
        assert await sender.start_due() == sending.OF_TENANT + 1
        while not quick.got:
            await sender.pause()
        delivered = Delivery.objects.filter(state="delivered")
        while not await delivered.acount():
            await sender.pause()
        assert await sender.start_due() == 0  # the slow tenant's others wait for its first ones
        assert await delivered.values_list("target__tenant__slug", flat=True).aget() == "quick"
        slow.may_answer.set()
        await sender.finish()
        assert await sender.start_due() == sending.OF_TENANT
        await sender.finish()


async def test_a_delivery_that_cannot_be_made_keeps_no_other_from_being_made(
    transactional_db: None, settings: Any
) -> None:
    """Whatever its URL is, even one that was stored before the present checks existed."""
    settings.WEBHOOKS_PRIVATE = True
    urls = ["https://[::1", f"https://{'a' * 64}.example/", "http://ex{ample/", ""]

    def make(url: str) -> None:
        for number, one in enumerate([*urls, url]):
            listen(make_tenant(f"t{number}"), one)
        for tenant in Tenant.objects.all():
            Notification.objects.post(NotificationKind.KEY_EXPIRING, {}, tenant=tenant)

    async with receiving() as receiver:
        await sync_to_async(make)(receiver.url)
        assert await send() == len(urls) + 1
        assert len(receiver.got) == 1
    assert await Delivery.objects.filter(state="waiting").exclude(error="").acount() == len(urls)


@pytest.mark.django_db
def test_after_a_rotation_both_secrets_sign_for_a_day(tenant: Tenant) -> None:
    target, now = listen(tenant), timezone.now()
    (old,) = target.signing_secrets(now)
    new = target.rotate()
    assert Target.objects.get().signing_secrets(now) == [new, old] and new != old
    one, other = sending.sign([new, old], "msg_1", 1, b"{}").split(" ")
    assert (one, other) == tuple(sending.sign([it], "msg_1", 1, b"{}") for it in (new, old))
    assert target.signing_secrets(now + OVERLAP + timedelta(seconds=1)) == [new]
    assert old not in str(list(AuditEntry.objects.values())) and len(target.rotate()) == len(new)
    assert old not in Target.objects.get().secrets


@pytest.mark.django_db
def test_a_delivery_is_given_up_after_three_days(tenant: Tenant) -> None:
    listen(tenant)
    Notification.objects.post(NotificationKind.KEY_EXPIRING, {}, tenant=tenant)
    now, waited = timezone.now(), timedelta()
    for _ in range(len(sending.PAUSES) + 1):
        (delivery,) = sending.claim(now)
        assert sending.claim(now) == []  # it is already claimed
        sending.record(delivery, sending.SendResult("no answer"), now)
        delivery.refresh_from_db()
        waited, now = waited + (delivery.due_at - now), delivery.due_at
    assert delivery.state == DeliveryState.FAILED and waited > timedelta(days=3)
    assert sending.claim(now + timedelta(days=9)) == []
