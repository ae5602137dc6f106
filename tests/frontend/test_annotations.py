"""Tags and scores of requests: who sets them, how lists are filtered by them, and datasets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from inference.gateway.measuring.content import KeptContent
from tenants import housekeeping
from tenants.content import datasets
from tenants.content.datasets import LeftOut, line_of
from tenants.errors import TooManyAnnotations
from tenants.files import blobs
from tenants.models import (
    ApiKey,
    AuditEntry,
    RequestScore,
    RequestTag,
    SavedView,
    Tenant,
    UsageEvent,
)
from tenants.models.annotations import MAX_SCORES, MAX_TAGS, ScoreValue
from tenants.models.audit import Actor
from tests.frontend.clients import client_of, user_of
from tests.frontend.test_content import stored
from tests.frontend.test_requests import at, listed
from tests.tenants.making import make_key, make_tenant
from tests.tenants.refusing import refuse
from tests.tenants.spending import spend

CHAT = {"messages": [{"role": "user", "content": "Hello"}]}
ANSWERED = {"choices": [{"message": {"content": "Hi"}}]}


def tagged(event: UsageEvent, *names: str) -> UsageEvent:
    for name in names:
        RequestTag.objects.put(event.tenant, event.id, event.started_at, None, name)
    return event


def scored(event: UsageEvent, name: str, value: object) -> UsageEvent:
    fields = {"name": name, "value": ScoreValue.of(value)}
    RequestScore.objects.put(event.tenant, event.id, event.started_at, None, **fields)
    return event


@pytest.fixture
def event(key: ApiKey) -> UsageEvent:
    return spend(key, timezone.now())


# --- In the drawer -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 302), ("admin", 302), ("developer", 404), ("viewer", 403), ("operator", 302),
     ("outsider", 404), ("nobody", 302)],
)  # fmt: skip
def test_who_tags_and_scores(tenant: Tenant, event: UsageEvent, role: str, status: int) -> None:
    """A developer does for requests of keys of his own alone."""
    client, where = client_of(tenant, role), at(tenant, event.id)
    tag = {"tag": "good"}
    score = {"score": "quality", "value": "0.5", "comment": "fair"}
    assert client.post(f"{where}/tags", tag).status_code == status
    assert client.post(f"{where}/scores", score).status_code == status
    changes = status == 302 and role != "nobody"
    assert RequestTag.objects.count() == RequestScore.objects.count() == int(changes)


def test_a_developer_tags_requests_of_an_own_key(tenant: Tenant) -> None:
    client = client_of(tenant, "developer")
    own = spend(make_key(tenant, created_by=user_of(client))[0], timezone.now())
    assert client.post(f"{at(tenant, own.id)}/tags", {"tag": "good"}).status_code == 302
    assert RequestTag.objects.get().created_by == user_of(client)


def test_the_drawer_shows_and_removes_them(
    tenant: Tenant, event: UsageEvent, admin: Client
) -> None:
    where, part = at(tenant, event.id), {"HX-Request": "true"}
    admin.post(f"{where}/tags", {"tag": " Good "}, headers=part)
    given = {"score": "quality", "value": "true", "comment": "<b>fair</b>"}
    page = admin.post(f"{where}/scores", given, headers=part).content.decode()
    assert "good" in page and "true" in page and "&lt;b&gt;fair" in page
    tag, score = RequestTag.objects.get(), RequestScore.objects.get()
    assert (score.value, score.source, score.created_by) == (True, "person", user_of(admin))
    admin.post(f"{where}/scores", given | {"value": "4"}, headers=part)
    assert RequestScore.objects.get().value == 4.0
    viewer = client_of(tenant, "viewer")
    assert viewer.get(where).status_code == 404
    other = spend(make_key(tenant)[0], timezone.now())
    wrong = f"{at(tenant, other.id)}/tags/{tag.pk}/delete"
    assert admin.post(wrong).status_code == 404
    admin.post(f"{where}/tags/{tag.pk}/delete", headers=part)
    page = admin.post(f"{where}/scores/{score.pk}/delete", headers=part).content.decode()
    assert "None yet." in page


@pytest.mark.parametrize(
    ("place", "given", "told"),
    [
        ("tags", {"tag": "-x"}, "lowercase letters"),
        ("tags", {"tag": "x" * 41}, "1 to 40"),
        ("tags", {}, "lowercase letters"),
        ("scores", {"score": "a", "value": "nan"}, "A number must be from"),
        ("scores", {"score": "a", "value": "2e9"}, "A number must be from"),
        ("scores", {"score": "a", "value": "A b"}, "lowercase letters"),
        ("scores", {"score": "a", "value": "1", "comment": "x" * 501}, "501 characters"),
    ],
)
def test_invalid_ones_are_refused(
    event: UsageEvent, admin: Client, place: str, given: Mapping[str, str], told: str
) -> None:
    where = f"{at(event.tenant, event.id)}/{place}"
    answer = admin.post(where, given, headers={"HX-Request": "true"})
    assert answer.status_code == 422 and told in answer.content.decode()


def test_their_number_is_bounded(event: UsageEvent, monkeypatch: pytest.MonkeyPatch) -> None:
    tagged(event, *(f"t{n}" for n in range(MAX_TAGS)), "t0")
    with pytest.raises(TooManyAnnotations, match="The request has 10 tags"):
        tagged(event, "more")
    for n in range(MAX_SCORES):
        scored(event, f"s{n}", n)
    scored(event, "s0", "replaced")
    with pytest.raises(TooManyAnnotations, match="The request has 20 scores"):
        scored(event, "more", 1)
    monkeypatch.setattr("tenants.models.annotations.MAX_OF_TENANT", MAX_TAGS)
    other = spend(event.key, timezone.now())
    with pytest.raises(TooManyAnnotations, match="The tenant has 10 tags"):
        tagged(other, "more")


def test_they_are_deleted_with_a_refused_request_and_kept_with_one_in_the_ledger(
    tenant: Tenant, key: ApiKey, settings: Any
) -> None:
    settings.REFUSED_REQUESTS_DAYS = 3
    long_ago = timezone.now() - timedelta(days=4)
    kept, gone = spend(key, long_ago), refuse(key, long_ago)
    for one in (kept, gone):
        RequestTag.objects.put(tenant, one.pk, one.started_at, None, "good")
    housekeeping.forget_requests()
    assert RequestTag.objects.get().request_id == kept.pk


# --- Filters -------------------------------------------------------------------------------------


def test_the_list_filters_by_tags_and_scores(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    now = timezone.now()
    first = scored(tagged(spend(key, now), "good", "checked"), "quality", 0.9)
    second = scored(tagged(spend(key, now - timedelta(minutes=1)), "good"), "quality", 0.2)
    refused = refuse(key, now - timedelta(minutes=2))
    RequestTag.objects.put(tenant, refused.pk, refused.started_at, None, "good")
    other = make_tenant("other")
    RequestTag.objects.put(other, second.id, second.started_at, None, "checked")

    def found(**query: str) -> list[str]:
        return listed(admin, at(tenant), **query)

    assert found(tags="good") == [first.id, second.id, refused.pk]
    assert found(tags="good, checked") == [first.id]
    assert found(score="quality") == [first.id, second.id]
    assert found(score="quality", least="0.5") == [first.id]
    assert found(score="quality", most="0.5", tags="good", outcome="answered") == [second.id]
    scored(first, "verdict", "good")
    scored(second, "verdict", True)
    assert found(score="verdict", value="good") == [first.id]
    assert found(score="verdict", value="true") == [second.id]
    assert found(score="quality", value="0.2") == [second.id]
    for wrong in (
        {"tags": "A"}, {"least": "1"}, {"score": "quality", "least": "x"}, {"value": "good"},
        {"score": "a", "value": "A b"}, {"score": "a", "value": "1", "most": "2"},
    ):  # fmt: skip
        assert admin.get(at(tenant), wrong).status_code == 422
    page = admin.get(at(tenant))
    assert page.context["rows"][0].tags == ["checked", "good"]
    assert '<span class="tag">checked</span>' in page.content.decode()


def test_a_saved_view_keeps_the_filters(tenant: Tenant, admin: Client) -> None:
    query = "tags=good&score=quality&least=0.5"
    admin.post(at(tenant, "views"), {"name": "mine", "query": query})
    assert SavedView.objects.get().query == query


# --- Datasets ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "status"),
    [("owner", 302), ("admin", 302), ("developer", 403), ("viewer", 403), ("operator", 403),
     ("outsider", 404)],
)  # fmt: skip
def test_who_saves_a_dataset(tenant: Tenant, role: str, status: int) -> None:
    id, client = stored(tenant, json.dumps(CHAT)), client_of(tenant, role)
    spend(make_key(tenant)[0], timezone.now())
    answer = client.post(at(tenant, "dataset"), {"query": "period=1h"}, follow=True)
    assert (answer.redirect_chain[-1][1] if answer.redirect_chain else answer.status_code) == status
    assert tenant.files.count() == (status == 302)
    if status == 302:
        file = tenant.files.get()
        assert f"“{file.filename}” has 1 request. Left out: 1 have no" in answer.content.decode()
        with blobs.open(file.pk) as content:
            line = json.loads(content.read())
        said = [(message["role"], message["content"]) for message in line["messages"]]
        assert said == [("user", "Hello"), ("assistant", "the answer to that")]
        assert (file.purpose, AuditEntry.objects.get(kind="content").name) == (
            "fine-tune",
            f"1 request in {file.pk}",
        )
        assert id not in json.dumps(line)


def test_no_file_is_made_of_nothing_or_of_a_wrong_filter(tenant: Tenant, admin: Client) -> None:
    stored(tenant)  # its body is no chat
    for query, told in (("", "no answered chat"), ("least=1", "the filter is not valid")):
        answer = admin.post(at(tenant, "dataset"), {"query": query}, follow=True)
        assert told in answer.content.decode()
    assert not tenant.files.exists()


def test_a_dataset_is_bounded(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (stored(tenant, json.dumps(CHAT)) for _ in range(2))
    monkeypatch.setattr(datasets, "MAX_BYTES", 150)
    actor = Actor("user", 1, "ann")
    found = datasets.save(tenant, [first, second], "d.jsonl", actor)
    assert (found.written, dict(found.left_out)) == (1, {LeftOut.TOO_MUCH: 1})


def test_lines_have_tools_and_calls_and_nothing_that_was_cut() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = {"function": {"name": "add", "arguments": "{}"}}
    answer = {"choices": [{"message": {"content": None, "tool_calls": [call]}}]}
    body = json.dumps(CHAT | {"tools": tools})
    line = line_of(KeptContent("chat", "base", body, response=json.dumps(answer)))
    assert isinstance(line, bytes)
    said = json.loads(line)
    assert said["tools"] == tools
    assert said["messages"][-1]["tool_calls"][0]["function"] == {"name": "add", "arguments": "{}"}
    text = json.dumps(ANSWERED)
    assert line_of(KeptContent("chat", "base", body, response=text, cut=True)) == LeftOut.CUT
    for wrong in ("[]", "{", '{"messages": []}', "[" * 100_000):
        assert line_of(KeptContent("chat", "base", wrong, response=text)) == LeftOut.NO_CHAT
    assert line_of(KeptContent("completion", "base", body, response=text)) == LeftOut.NO_CHAT
    assert line_of(KeptContent("chat", "base", body)) == LeftOut.NO_CHAT
    assert line_of(None) == LeftOut.NOT_STORED
