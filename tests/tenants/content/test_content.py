"""Stored prompts and answers: which are stored, how they are encrypted, when they are deleted."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from io import StringIO
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from jwt import PyJWS
from jwt.exceptions import InvalidSignatureError
from jwt.utils import base64url_encode

from gateway.planes.recording import content as writing
from inference.gateway.measuring.content import Capture, KeptContent, RequestContents
from inference.interfaces.directory import Grant
from inference.link.accounts import Usage
from inference.link.wire import Delta, Done
from tenants.billing.receipts import TYPE as RECEIPT
from tenants.billing.receipts import InvalidReceipt, signer, verify
from tenants.content import reading, retention, sealing
from tenants.content.conversations import PostgresConversations
from tenants.content.responses import PostgresResponses
from tenants.content.sealing import Location, Unreadable
from tenants.content.store import ContentItem, PostgresContents
from tenants.content.turns import SpokenTurn, turns_of
from tenants.directory.reader import Reader
from tenants.errors import ContentUnavailable, NoContentKey
from tenants.housekeeping import forget_content
from tenants.models import ApiKey, AuditEntry, ContentKey, StoredContent, Tenant
from tenants.naming import REQUEST, RESPONSE
from tests.tenants.making import make_key, make_member, make_tenant, make_user

MASTER = "a master key of more than thirty-two characters"
TEXT = b"a secret prompt"


# --- Encryption ----------------------------------------------------------------------------------


@pytest.mark.pure
def test_only_the_tenants_key_opens_a_text_and_only_in_its_place() -> None:
    wrapped = sealing.new_key(MASTER, 1)
    key, location = sealing.tenant_key([MASTER], 1, wrapped), Location(1, REQUEST, "r1")
    sealed = key.seal(location, TEXT)
    assert key.open(location, sealed) == TEXT and TEXT not in sealed
    assert key.seal(location, TEXT) != sealed  # each has its own nonce
    for elsewhere in (
        Location(2, REQUEST, "r1"),
        Location(1, RESPONSE, "r1"),
        Location(1, REQUEST, "r2"),
    ):
        with pytest.raises(Unreadable):
            key.open(elsewhere, sealed)
    for changed in (b"", sealed[:-1], sealed[:20] + bytes([sealed[20] ^ 1]) + sealed[21:]):
        with pytest.raises(Unreadable):
            key.open(location, changed)
    another = sealing.tenant_key([MASTER], 1, sealing.new_key(MASTER, 1))
    with pytest.raises(Unreadable):
        another.open(location, sealed)
    for master, tenant in ((MASTER[:-1] + "x", 1), (MASTER, 2)):
        with pytest.raises(Unreadable):
            sealing.tenant_key([master], tenant, wrapped)


# --- Choosing ------------------------------------------------------------------------------------


async def test_a_key_can_keep_less_than_its_tenant_and_never_more(transactional_db: None) -> None:
    reader = Reader()
    await reader.open()

    async def keeps(key: ApiKey) -> bool:
        row = await reader.key(key.prefix)
        assert row is not None
        grant = row.verdict()
        assert isinstance(grant, Grant)
        return grant.keeps_content

    try:
        tenant = await sync_to_async(make_tenant)("acme")
        plain, _ = await sync_to_async(make_key)(tenant)
        quiet, _ = await sync_to_async(make_key)(tenant, keeps_nothing=True)
        assert not await keeps(plain) and not await keeps(quiet)
        await sync_to_async(retention.keep_for)(tenant, 7)
        assert await keeps(plain) and not await keeps(quiet)
        rotated, _ = await sync_to_async(quiet.rotate)(timedelta(days=1), None)
        assert not await keeps(rotated)
    finally:
        await reader.close()


@pytest.mark.django_db
@pytest.mark.parametrize("days", [31, -1])
def test_content_is_kept_for_thirty_days_at_most(tenant: Tenant, days: int) -> None:
    with pytest.raises(IntegrityError), transaction.atomic():
        retention.keep_for(tenant, days)


@pytest.mark.django_db
def test_without_a_master_key_nothing_can_be_kept(tenant: Tenant, settings: Any) -> None:
    settings.CONTENT_KEY = ""
    with pytest.raises(ContentUnavailable):
        retention.keep_for(tenant, 1)
    retention.keep_for(tenant, 0)
    assert not ContentKey.objects.exists()


@pytest.mark.django_db
def test_a_choice_is_in_the_audit_log_and_the_key_is_not(tenant: Tenant) -> None:
    retention.keep_for(tenant, 7)
    retention.keep_for(tenant, 3)
    key = ContentKey.objects.get()
    logged = list(AuditEntry.objects.filter(tenant=tenant).order_by("id").values())
    changed = [
        (one["after"] or {}).get("content_days") for one in logged if one["action"] == "changed"
    ]
    assert changed == [7, 3]
    assert key.wrapped is not None and bytes(key.wrapped).hex() not in str(logged)


# --- Keeping -------------------------------------------------------------------------------------


@pytest.fixture
async def store(transactional_db: None) -> AsyncIterator[PostgresContents]:
    store = PostgresContents()
    await store.open()
    yield store
    await store.close()


def keeping(slug: str = "acme", days: int = 7) -> Tenant:
    tenant = make_tenant(slug)
    retention.keep_for(tenant, days)
    return tenant


def item(tenant: Tenant, name: str = "r1", text: bytes = TEXT, kind: str = REQUEST) -> ContentItem:
    return ContentItem(tenant.pk, kind, name, time.time(), text)


async def test_content_is_found_by_its_own_tenant_only(store: PostgresContents) -> None:
    acme, globex = await sync_to_async(keeping)(), await sync_to_async(keeping)("globex")
    await store.keep([item(acme), item(globex, "r2"), item(acme, "r1", b"more", RESPONSE)])
    assert await store.read(acme.pk, REQUEST, "r1") == TEXT
    assert await store.read(acme.pk, RESPONSE, "r1") == b"more"
    assert await store.read(globex.pk, REQUEST, "r1") is None
    await store.keep([item(acme, text=b"anew")])
    assert await store.read(acme.pk, REQUEST, "r1") == b"anew"
    assert not await store.delete(globex.pk, REQUEST, "r1")
    assert await store.delete(acme.pk, REQUEST, "r1")
    assert await store.read(acme.pk, REQUEST, "r1") is None
    async for one in StoredContent.objects.all():
        assert TEXT not in bytes(one.data) and b"more" not in bytes(one.data)
        assert one.expires_at - one.at == timedelta(days=7)


async def test_nothing_is_written_of_who_keeps_nothing_whatever_is_in_memory(
    store: PostgresContents,
) -> None:
    never = await sync_to_async(make_tenant)("never")
    no_more = await sync_to_async(keeping)("no-more")
    await sync_to_async(retention.keep_for)(no_more, 0)
    destroyed = await sync_to_async(keeping)("destroyed")
    await sync_to_async(lambda: retention.destroy(destroyed, make_user("ann")))()
    await store.keep([item(never), item(no_more), item(destroyed)])
    assert not await StoredContent.objects.aexists()


async def test_a_shorter_time_holds_for_what_is_kept_already(store: PostgresContents) -> None:
    tenant = await sync_to_async(keeping)()
    await store.keep([item(tenant)])
    await sync_to_async(retention.keep_for)(tenant, 30)
    one = await StoredContent.objects.aget()
    assert one.expires_at - one.at == timedelta(days=7)  # as promised when it was stored
    await sync_to_async(retention.keep_for)(tenant, 1)
    one = await StoredContent.objects.aget()
    assert one.expires_at - one.at == timedelta(days=1)
    await StoredContent.objects.aupdate(expires_at=timezone.now())
    assert await store.read(tenant.pk, REQUEST, "r1") is None
    await sync_to_async(forget_content)()
    assert not await StoredContent.objects.aexists()


async def test_content_is_unreadable_with_another_master_key(
    store: PostgresContents, settings: Any
) -> None:
    tenant = await sync_to_async(keeping)()
    await store.keep([item(tenant)])
    settings.CONTENT_KEY = MASTER
    with pytest.raises(Unreadable):
        await store.read(tenant.pk, REQUEST, "r1")
    await store.keep([item(tenant, "r2")])  # nor is anything stored that could not be read
    assert await StoredContent.objects.acount() == 1
    assert await sync_to_async(reading.read)(tenant, "r1") is None


@pytest.mark.pure
def test_a_key_is_encrypted_anew_by_another_master_key() -> None:
    location, other = Location(1, REQUEST, "r1"), MASTER[::-1]
    wrapped = sealing.new_key(MASTER, 1)
    sealed = sealing.tenant_key([MASTER], 1, wrapped).seal(location, TEXT)
    assert sealing.tenant_key([other, MASTER], 1, wrapped).open(location, sealed) == TEXT
    anew = sealing.rewrapped([other, MASTER], 1, wrapped)
    assert sealing.tenant_key([other], 1, anew).open(location, sealed) == TEXT
    with pytest.raises(Unreadable):
        sealing.tenant_key([MASTER], 1, anew)
    for masters, tenant in (([other], 1), ([other, MASTER], 2)):
        with pytest.raises(Unreadable):
            sealing.rewrapped(masters, tenant, wrapped)


async def test_the_master_key_is_changed_while_content_is_read_and_written(
    store: PostgresContents, settings: Any
) -> None:
    acme, _ = await sync_to_async(keeping)(), await sync_to_async(keeping)("globex")
    gone = await sync_to_async(keeping)("gone")
    await sync_to_async(lambda: retention.destroy(gone, make_user("ann")))()
    await store.keep([item(acme)])
    before = settings.CONTENT_KEY
    settings.CONTENT_KEY, settings.CONTENT_KEY_PREVIOUS = MASTER, before
    assert await store.read(acme.pk, REQUEST, "r1") == TEXT
    await store.keep([item(acme, "r2")])
    for _ in range(2):
        assert (await sync_to_async(rewrapped)()).endswith(": 2.\n")
    settings.CONTENT_KEY_PREVIOUS = ""
    assert await store.read(acme.pk, REQUEST, "r1") == TEXT
    assert await store.read(acme.pk, REQUEST, "r2") == TEXT
    settings.CONTENT_KEY = before
    with pytest.raises(CommandError, match="acme"):
        await sync_to_async(rewrapped)()
    settings.CONTENT_KEY = ""
    with pytest.raises(CommandError, match="LORIKEET_CONTENT_KEY is not set"):
        await sync_to_async(rewrapped)()


def rewrapped() -> str:
    out = StringIO()
    call_command("rewrap_content_keys", stdout=out)
    return out.getvalue()


# --- Destroying ----------------------------------------------------------------------------------


async def test_destroying_the_key_makes_all_of_it_unreadable_and_is_confirmed(
    store: PostgresContents,
) -> None:
    acme, globex = await sync_to_async(keeping)(), await sync_to_async(keeping)("globex")
    await store.keep([item(acme, "r1"), item(acme, "r2"), item(globex)])
    before = await ContentKey.objects.aget(tenant=acme)
    ann = await sync_to_async(make_member)(acme, "owner")
    key = await sync_to_async(retention.destroy)(acme, ann)
    assert await store.read(acme.pk, REQUEST, "r1") is None
    assert await store.read(globex.pk, REQUEST, "r1") == TEXT
    assert (await Tenant.objects.aget(pk=acme.pk)).content_days == 0
    known = signer().public_key
    said = msgspec.json.decode(PyJWS().decode(key.confirmation, known.key, algorithms=["EdDSA"]))
    assert said | {"tenant": "acme", "items": 2, "destroyed_by": ann.username} == said
    head = PyJWS().get_unverified_header(key.confirmation)
    assert head["typ"] == retention.TYPE != RECEIPT and head["kid"] == known.id
    with pytest.raises(InvalidReceipt):  # it can't be taken for a receipt
        verify({"jws": key.confirmation}, [known])
    start, _, signature = key.confirmation.split(".")
    forged = base64url_encode(msgspec.json.encode(said | {"items": 1})).decode()
    changed = f"{start}.{forged}.{signature}"
    with pytest.raises(InvalidSignatureError):
        PyJWS().decode(changed, known.key, algorithms=["EdDSA"])

    def left() -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT password FROM tenants_contentkey WHERE id = %s", [before.pk])
            return list(cursor.fetchone())

    assert await sync_to_async(left)() == [None]
    await sync_to_async(forget_content)()
    assert [one.tenant_id async for one in StoredContent.objects.all()] == [globex.pk]


@pytest.mark.django_db
def test_a_key_is_destroyed_once_and_another_one_is_made_anew(tenant: Tenant) -> None:
    ann = make_user("ann")
    with pytest.raises(NoContentKey):
        retention.destroy(tenant, ann)
    retention.keep_for(tenant, 7)
    first = retention.destroy(tenant, ann)
    with pytest.raises(NoContentKey):
        retention.destroy(tenant, ann)
    retention.keep_for(tenant, 7)
    assert retention.live_key(tenant) != first and ContentKey.objects.count() == 2
    destroyed = AuditEntry.objects.get(kind="content key", action="changed")
    assert destroyed.after is not None and destroyed.after["confirmation"] == first.confirmation


# --- From a gateway's memory to readers ----------------------------------------------------------


def taken_up(contents: RequestContents, tenant: Tenant, id: str) -> Capture:
    grant = Grant(1, tenant.pk, tenant.slug, frozenset(), None, 1.0, "", keeps_content=True)
    capture = contents.begin(id, grant, "chat", b'{"messages":[]}')
    assert capture is not None
    return capture


async def test_content_captured_by_a_gateway_is_written_and_read(store: PostgresContents) -> None:
    tenant, contents = await sync_to_async(keeping)(), RequestContents()
    capture = taken_up(contents, tenant, "r1")
    capture.add(Delta("r1", "Hello", 1))
    capture.end(Done("r1", Usage(1, 0, 1), "stop"), "base", time.time())
    await writing.write(contents, store)
    found = await sync_to_async(reading.read)(tenant, "r1")
    said = [SpokenTurn("assistant", "Hello")]
    assert found == reading.ContentExchange('{\n  "messages": []\n}', said, False)
    assert contents.dropped == 0


async def test_responses_are_kept_apart_from_requests_and_by_their_tenant(
    store: PostgresContents, settings: Any
) -> None:
    acme, never = await sync_to_async(keeping)(), await sync_to_async(make_tenant)("never")
    responses = PostgresResponses(store, most=3)
    assert await responses.keep(acme.pk, "r1", TEXT)
    assert not await responses.keep(never.pk, "r1", TEXT)
    assert await responses.read(acme.pk, "r1") == TEXT
    assert await store.read(acme.pk, REQUEST, "r1") is None
    assert await responses.read(never.pk, "r1") is None
    assert not await responses.delete(never.pk, "r1")
    before, settings.CONTENT_KEY = settings.CONTENT_KEY, MASTER
    assert await responses.read(acme.pk, "r1") is None, "it can't be read, so it is not there"
    settings.CONTENT_KEY = before
    assert await responses.delete(acme.pk, "r1")
    assert await responses.read(acme.pk, "r1") is None
    assert await responses.keep(acme.pk, "r1", TEXT)
    ann = await sync_to_async(make_member)(acme, "owner")
    await sync_to_async(retention.destroy)(acme, ann)
    assert await responses.read(acme.pk, "r1") is None


async def test_content_that_cannot_be_written_is_dropped_without_blocking(
    transactional_db: None,
) -> None:
    tenant, contents = await sync_to_async(keeping)(), RequestContents()
    taken_up(contents, tenant, "r1").end(Done("r1", Usage(1, 0, 1), "stop"), "base", time.time())
    closed = PostgresContents(answer_s=0.2)
    await closed.open()
    await closed.close()
    await writing.write(contents, closed)
    assert (contents.dropped, contents.space.total) == (1, 0)


CHUNKS = [
    '{"choices": [{"index": 0, "delta": {"role": "assistant", "reasoning": "Which?"}}]}',
    '{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}',
    '{"choices": [{"index": 1, "delta": {"content": "Two"}}]}',
    '{"choices": [{"index": 0, "delta": {"content": "On"}}]}',
    '{"choices": [{"index": 0, "delta": {"content": "e"}}]}',
    '{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function":'
    ' {"name": "weather", "arguments": "{\\"in\\":"}}]}}]}',
    '{"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function":'
    ' {"arguments": " 1}"}}]}}]}',
    '{"choices": [], "usage": {}}',
]
WHOLE = (
    '{"choices": [{"message": {"content": null, "reasoning": "Hm", "tool_calls": [{"function":'
    ' {"name": "weather", "arguments": "{}"}}]}}, {"text": "Two"}]}'
)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({"text": "One"}, ["One"]),
        ({"chunks": CHUNKS}, ['Which?\nOne\nweather({"in": 1})', "Two"]),
        ({"response": WHOLE}, ["Hm\nweather({})", "Two"]),
        ({"response": '{"data": [1]}'}, ['{\n  "data": [\n    1\n  ]\n}']),
        ({"response": '{"choices": [{"mess', "cut": True}, ['{"choices": [{"mess']),
        ({"response": '{"choices": [3]}'}, ['{\n  "choices": [\n    3\n  ]\n}']),
    ],
)
def test_answers_as_people_read_them(fields: Any, answers: list[str]) -> None:
    kept = KeptContent("chat", "base", "{}", **fields)
    assert [one.whole for one in reading.answers_of(kept)] == answers


TOOL = {"name": "sky", "arguments": '{"in": 1}'}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("body", "turns"),
    [
        (
            {"messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [
                    {"type": "text", "text": "One"}, {"type": "image_url"}]},
                {"role": "assistant", "content": None, "tool_calls": [{"function": TOOL}]},
                {"role": "tool", "tool_call_id": "c1", "content": "clear"},
            ]},
            ["system: Be brief.", "user: One [1]", 'assistant: sky({"in": 1})', "tool: clear"],
        ),
        (
            {"system": [{"type": "text", "text": "Be brief."}], "messages": [
                {"role": "assistant", "content": [
                    {"type": "tool_use", "name": "sky", "input": {"in": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "content": [{"type": "text", "text": "clear"}]},
                    {"type": "text", "text": "So?"}]},
            ]},
            ["system: Be brief.", 'assistant: sky({"in": 1})', "tool: clear", "user: So?"],
        ),
        (
            {"instructions": "Be brief.", "input": [
                {"role": "user", "content": [{"type": "input_text", "text": "One"}]},
                {"type": "function_call", **TOOL},
                {"type": "function_call_output", "output": "clear"},
            ]},
            ["system: Be brief.", "user: One", 'assistant: sky({"in": 1})', "tool: clear"],
        ),
        ({"prompt": "One"}, ["user: One"]),
        ({"input": ["One", "Two"]}, ["user: One", "user: Two"]),
        ({"prompt": [[1, 2]]}, ["user: [1, 2]"]),
        ({"messages": 3}, []),
        (["One"], []),
    ],
)  # fmt: skip
def test_what_was_asked_by_speaker(body: Any, turns: list[str]) -> None:
    found = [
        f"{one.role}: {one.whole}{f' [{one.pictures}]' if one.pictures else ''}"
        for one in turns_of(json.dumps(body))
    ]
    assert found == turns
    assert turns_of('{"messages": [') == []


async def test_conversations_change_by_version_and_stay_as_long_as_they_were_to(
    store: PostgresContents,
) -> None:
    acme, other = await sync_to_async(keeping)(), await sync_to_async(make_tenant)("never")
    conversations = PostgresConversations(store)
    assert await conversations.keep(acme.pk, "c1", b"first")
    assert not await conversations.keep(other.pk, "c1", b"first")
    found = await conversations.read(acme.pk, "c1")
    assert found is not None and found[0] == b"first"
    expires_at = (await StoredContent.objects.aget()).expires_at
    assert await conversations.replace(acme.pk, "c1", found[1], b"second")
    assert not await conversations.replace(acme.pk, "c1", found[1], b"late")
    again = await conversations.read(acme.pk, "c1")
    assert again is not None and again[0] == b"second"
    assert not await conversations.replace(other.pk, "c1", again[1], b"theirs")
    kept = await StoredContent.objects.aget()
    assert kept.expires_at == expires_at and b"second" not in bytes(kept.data)
    await StoredContent.objects.aupdate(expires_at=timezone.now())
    assert not await conversations.replace(acme.pk, "c1", again[1], b"third")
    assert await conversations.read(acme.pk, "c1") is None
    assert not await conversations.delete(other.pk, "c1")
    assert await conversations.delete(acme.pk, "c1")


async def test_a_conversation_ends_with_its_tenants_key(store: PostgresContents) -> None:
    acme = await sync_to_async(keeping)()
    conversations = PostgresConversations(store)
    await conversations.keep(acme.pk, "c1", b"first")
    found = await conversations.read(acme.pk, "c1")
    assert found is not None
    ann = await sync_to_async(make_member)(acme, "owner")
    await sync_to_async(retention.destroy)(acme, ann)
    assert await conversations.read(acme.pk, "c1") is None
    await sync_to_async(retention.keep_for)(acme, 7)
    assert not await conversations.replace(acme.pk, "c1", found[1], b"second")
