"""Stored prompts: which roles enable storing, which read, and what is audited."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tenants.content import retention, sealing
from tenants.content.sealing import Location
from tenants.models import AuditEntry, ContentKey, StoredContent, Tenant
from tenants.models.content import MAX_COUNTED
from tenants.naming import CONVERSATION, REQUEST, RESPONSE
from tests.frontend.clients import client_of, user_of
from tests.tenants.callers import person
from tests.tenants.making import make_base, make_key, make_tenant
from tests.tenants.spending import spend

pytestmark = pytest.mark.django_db

PROMPT, ANSWER = "what only members may read", "the answer to that"


def stored(tenant: Tenant, request: str = f'["{PROMPT}"]') -> str:
    """Store a request with its prompt. Returns its id."""
    retention.keep_for(tenant, 7)
    event = spend(make_key(tenant)[0], timezone.now())
    key = ContentKey.objects.get(tenant=tenant, destroyed_at=None)
    assert key.wrapped is not None
    cipher = sealing.tenant_key(sealing.master_keys(), tenant.pk, bytes(key.wrapped))
    text = json.dumps({"operation": "chat", "model": "base", "request": request, "text": ANSWER})
    StoredContent.objects.create(
        tenant=tenant, kind=REQUEST, name=event.pk, content_key=key, at=timezone.now(),
        expires_at=timezone.now() + timedelta(days=7),
        data=cipher.seal(Location(tenant.pk, REQUEST, event.pk), text.encode()),
    )  # fmt: skip
    return event.pk


def test_page_and_api_count_as_far(tenant: Tenant) -> None:
    stored(tenant)
    ends = timezone.now() + timedelta(days=7)
    key = ContentKey.objects.get()
    StoredContent.objects.bulk_create(
        StoredContent(
            tenant=tenant, kind=kind, name=f"{kind}{n}", content_key=key, at=timezone.now(),
            expires_at=ends, data=b"",
        )
        for kind, count in ((RESPONSE, MAX_COUNTED + 2), (CONVERSATION, 3))
        for n in range(count)
    )  # fmt: skip
    page = client_of(tenant, "admin").get(f"/t/{tenant.slug}/content")
    assert (page.context["requests"], page.context["responses"]) == ("1", "10,000 or more")
    ask, _ = person(tenant, "admin")
    assert ask("GET", "content").json()["stored"] == 1 + MAX_COUNTED


@pytest.mark.parametrize(
    ("role", "sees", "chooses"),
    [("owner", 200, 302), ("admin", 200, 302), ("developer", 200, 403), ("viewer", 200, 403),
     ("operator", 200, 403), ("outsider", 404, 404), ("nobody", 302, 302)],
)  # fmt: skip
def test_who_chooses(tenant: Tenant, role: str, sees: int, chooses: int) -> None:
    client, where = client_of(tenant, role), f"/t/{tenant.slug}/content"
    assert client.get(where).status_code == sees
    assert client.post(where, {"days": "7"}).status_code == chooses
    tenant.refresh_from_db()
    chose = chooses == 302 and role != "nobody"
    assert tenant.content_days == (7 if chose else 0)
    retention.keep_for(tenant, 7)
    assert client.post(f"{where}/destroy").status_code == chooses
    assert ContentKey.objects.filter(destroyed_at=None).exists() != chose
    key = ContentKey.objects.get()
    downloaded = client.get(f"{where}/{key.pk}/confirmation")
    assert downloaded.status_code == (200 if chose else sees if sees != 200 else 404)
    if chose:
        assert downloaded.json()["confirmation"]["destroyed_by"] == user_of(client).username


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 302), ("admin", 302), ("developer", 403), ("viewer", 403), ("operator", 403),
     ("outsider", 404)],
)  # fmt: skip
def test_who_allows_that_prompts_leave(tenant: Tenant, role: str, status: int) -> None:
    client, where = client_of(tenant, role), f"/t/{tenant.slug}/content"
    page = client.get(where).content.decode()
    assert ("Allow overflow" in page) == (status == 302)
    assert ("Prompts do not leave this installation" in page) == (role != "outsider")
    answer = client.post(f"{where}/overflow", {"overflow": "allowed"})
    tenant.refresh_from_db()
    assert (answer.status_code, tenant.overflow) == (status, status == 302)
    if tenant.overflow:
        assert "servers outside of this installation" in client.get(where).content.decode()
        entry = AuditEntry.objects.get(tenant=tenant, kind="tenant", action="changed")
        assert (entry.after, entry.actor_name) == ({"overflow": True}, user_of(client).username)
        client.post(f"{where}/overflow", {"overflow": "never"})
        tenant.refresh_from_db()
        assert not tenant.overflow


@pytest.mark.parametrize("overflow", [False, True])
def test_a_requests_page_says_who_ran_it(tenant: Tenant, overflow: bool) -> None:
    event = spend(make_key(tenant)[0], timezone.now(), overflow=overflow)
    page = client_of(tenant, "owner").get(f"/t/{tenant.slug}/requests/{event.pk}")
    assert ("a server outside of this installation" in page.content.decode()) == overflow


@pytest.mark.parametrize("days", ["31", "-1", "2", "x", ""])
def test_invalid_numbers_of_days_are_refused(tenant: Tenant, days: str) -> None:
    answer = client_of(tenant, "owner").post(f"/t/{tenant.slug}/content", {"days": days})
    assert answer.status_code == 422
    assert not ContentKey.objects.exists()


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 200), ("admin", 200), ("developer", 403), ("viewer", 403), ("operator", 403),
     ("outsider", 404)],
)  # fmt: skip
def test_who_reads_is_in_the_audit_log(tenant: Tenant, role: str, status: int) -> None:
    id, client = stored(tenant), client_of(tenant, role)
    where = f"/t/{tenant.slug}/requests/{id}"
    page = client.get(where)
    if page.status_code == 200:
        text = page.content.decode()
        assert PROMPT not in text and "Not stored." not in text
        assert ("Show prompt and answer" in text) == (status == 200)
        assert ("Admins and owners of" in text) == (status != 200)
    for headers in ({}, {"HX-Request": "true"}):
        answer = client.post(f"{where}/content", headers=headers)
        assert answer.status_code == status
        if status == 200:
            assert PROMPT in answer.content.decode() and ANSWER in answer.content.decode()
            assert "no-store" in answer["Cache-Control"]
    read = AuditEntry.objects.filter(action="read", kind="content")
    assert read.count() == (2 if status == 200 else 0)
    if status == 200:
        assert read[0].name == f"req_{id}" and read[0].actor_name == user_of(client).username


def test_there_is_nothing_to_read_of_other_requests(tenant: Tenant) -> None:
    id = stored(tenant)
    other = make_tenant("other")
    client = client_of(other, "owner")
    assert client.post(f"/t/other/requests/{id}/content").status_code == 404
    bare = spend(make_key(tenant)[0], timezone.now()).pk
    owner, where = client_of(tenant, "owner"), f"/t/{tenant.slug}/requests/{bare}"
    page = owner.get(where).content.decode()
    assert "Show prompt" not in page and "Not stored." in page
    assert owner.post(f"{where}/content").status_code == 404
    retention.destroy(tenant, user_of(owner))
    assert owner.post(f"/t/{tenant.slug}/requests/{id}/content").status_code == 404
    assert not AuditEntry.objects.filter(kind="content").exists()


def test_without_a_master_key_the_page_says_so(tenant: Tenant, settings: Any) -> None:
    settings.CONTENT_KEY = ""
    page = client_of(tenant, "owner").get(f"/t/{tenant.slug}/content").content.decode()
    assert "has not set CONTENT_KEY" in page and 'data-opens="choose"' not in page


CHAT = {
    "model": "base",
    "temperature": 0.5,
    "stop": "END",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": PROMPT}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "sky", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "clear"},
        {"role": "user", "content": "So?"},
    ],
}  # fmt: skip


def test_what_is_stored_is_shown_by_speaker(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    tools = [{"type": "function", "function": {"name": "sky"}}]
    id = stored(tenant, json.dumps(CHAT | {"tools": tools}))
    shown = owner.post(f"/t/{tenant.slug}/requests/{id}/content")
    speakers = [turn.role for turn in shown.context["turns"]]
    assert speakers == ["system", "user", "assistant", "tool", "user"]
    settings = {"model": "base", "temperature": "0.5", "stop": "END", "tools": "sky"}
    assert dict(shown.context["settings"]) == settings
    for words in ("<h3>User</h3>", "Result of a tool", "Calls <code>sky</code>", "1 picture,"):
        assert words in shown.text
    assert "<summary>Request as JSON</summary>" in shown.text
    odd = owner.post(f"/t/{tenant.slug}/requests/{stored(tenant)}/content")
    assert odd.context["turns"] == [] == odd.context["settings"]


def test_a_stored_request_opens_in_the_playground(tenant: Tenant) -> None:
    make_base()
    owner, id = client_of(tenant, "owner"), stored(tenant, json.dumps(CHAT))
    where = f"/t/{tenant.slug}/requests/{id}"
    assert "Open with this prompt" in owner.post(f"{where}/content").text
    page = owner.post(f"{where}/open")
    assert "data-posted" in page.text
    (pane,) = page.context["panes"]
    parameters = {"system": "Be brief.", "temperature": 0.5, "stop": ["END"]}
    assert (pane["model"], pane["parameters"]) == ("base", parameters)
    assert [(one["role"], one["content"]) for one in pane["nodes"]] == [
        ("user", PROMPT), ("assistant", ""), ("user", "So?"), ("assistant", ANSWER)
    ]  # fmt: skip
    assert pane["nodes"][1]["calls"][0]["function"]["name"] == "sky"
    assert pane["nodes"][2]["results"] == {"c1": "clear"} and pane["leaf"] == 4
    assert "no-store" in page["Cache-Control"]
    assert AuditEntry.objects.filter(kind="content", action="read").count() == 2
    assert page.context["notice"] == "Not carried over from the request: 1 picture."
    for role, status in (("viewer", 403), ("developer", 403), ("operator", 403), ("outsider", 404)):
        assert client_of(tenant, role).post(f"{where}/open").status_code == status


@pytest.mark.parametrize("request_body", ['["x"]', "{", '{"model": "base", "prompt": "x"}'])
def test_only_chats_open_in_the_playground(tenant: Tenant, request_body: str) -> None:
    owner, id = client_of(tenant, "owner"), stored(tenant, request_body)
    where = f"/t/{tenant.slug}/requests/{id}"
    assert "Open with this prompt" not in owner.post(f"{where}/content").text
    assert owner.post(f"{where}/open").status_code == 404
