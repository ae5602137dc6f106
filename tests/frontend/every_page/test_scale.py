"""A page makes at most twelve database queries, however many rows there are; and its links and
buttons have names that begin with what they show, which is what people who speak to it say.

Tested on a small crowd; `make bench ARGS=pages` measures how long pages take on a big one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from html import unescape

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.plugin import DjangoDbBlocker

from demo.crowd import Size, outcomes, usage
from demo.crowd.rows import BASES, Rows
from tenants.fleet.gateways import gateways
from tenants.models import ApiKey, BaseModel, Split, State, Tenant
from tests.frontend.addresses import ACCOUNT, PARTS, Page, names, pages, parts
from tests.frontend.clients import client_of
from tests.tenants.making import (
    make_batch,
    make_eval,
    make_eval_run,
    make_rollout,
    make_route,
    make_tuning_job,
    make_user,
    make_version,
)

MAX_QUERIES = 12
LABELLED = re.compile(r'<(a|button)\b[^>]* aria-label="([^"]*)"[^>]*>(.*?)</\1>', re.DOTALL)
TAG = re.compile(r"<[^>]*>")
SIZE = Size(
    tenants=30,
    adapters=300,
    events=10_000,
    audit_entries=3_000,
    until=datetime(2026, 11, 1, 15, tzinfo=UTC),
)


@pytest.fixture(scope="module")
def crowd(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Tenant]:
    """The big tenant of a crowd. Made once: each test rolls back only its own changes."""
    with django_db_blocker.unblock():
        with transaction.atomic():
            tenants = Rows(SIZE).make()
            usage.make(SIZE, [tenant.pk for tenant in tenants], BASES, lambda *_: None)
            outcomes.make(SIZE, [tenant.pk for tenant in tenants])
            make_rollout(BaseModel.objects.earliest("pk"))
            key = ApiKey.objects.filter(tenant=tenants[0]).earliest("pk")
            make_batch(key)
            eval = make_eval(tenants[0])
            for _ in range(2):
                make_eval_run(eval, key, [True, False, None] * 100)
            make_tuning_job(tenants[0], reports=200)
            make_route(tenants[0])
            adapter = tenants[0].adapters.filter(versions__state=State.READY).earliest("pk")
            alias = adapter.promote(adapter.versions.filter(state=State.READY).earliest("pk"))
            Split.objects.start(alias, make_version(adapter), None)
            yield tenants[0]
            transaction.set_rollback(True)


@pytest.fixture
def tenant(crowd: Tenant, db: None, monkeypatch: pytest.MonkeyPatch) -> Tenant:
    """The crowd's tenant, with gateways' answers cached for ever: the usual second is less than a
    slow page takes."""
    monkeypatch.setattr(gateways(), "_fresh_s", float("inf"))
    return crowd


LISTED = [*names(), *(name for account in ACCOUNT.values() for name in account)]


@pytest.mark.parametrize("name", [name for name in LISTED if name not in PARTS])
def test_a_page_needs_few_queries(tenant: Tenant, name: str) -> None:
    """For the role that sees most of it, and for the one that sees least."""
    looks = [page for page in pages(tenant) if page.name == name]
    for page in dict.fromkeys((*looks[:1], *looks[-1:])):
        body = asked(visitor(tenant, page), page)
        assert not misnamed(body.decode())
        assert body.lstrip().startswith(b"<!doctype html>"), f"{name} belongs to addresses.PARTS"


@pytest.mark.parametrize("name", [name for name in names() if name in PARTS])
def test_a_part_of_a_page_needs_few_queries(tenant: Tenant, name: str) -> None:
    looks = [part for part in parts(tenant) if part.name == name]
    assert looks
    for part in looks:
        asked(visitor(tenant, part), part)


def misnamed(html: str) -> list[tuple[str, str]]:
    """Names of links and buttons that do not begin with their text (WCAG 2.5.3), and the texts."""
    labels = [
        (unescape(label), " ".join(unescape(TAG.sub(" ", text)).split()))
        for _, label, text in LABELLED.findall(html)
    ]
    return [(label, text) for label, text in labels if not label.startswith(text)]


def visitor(tenant: Tenant, page: Page) -> Client:
    """A client of the role; for pages of the account its user has a password."""
    client = client_of(tenant, page.role)
    if page.name in ACCOUNT["viewer"]:
        client.force_login(make_user(password="right-and-long-enough"))
    return client


def asked(client: Client, page: Page) -> bytes:
    """The page's body. The first request may make more queries, if a second one does not."""
    for _ in range(2):
        with CaptureQueriesContext(connection) as queries:
            answer = client.get(page.url)
        assert answer.status_code == 200, f"{page} answered {answer.status_code}"
        if len(queries) <= MAX_QUERIES:
            return b"" if answer.streaming else answer.content
    told = "\n".join(query["sql"][:300] for query in queries)
    raise AssertionError(f"{page} asked {len(queries)} times:\n{told}")


@pytest.mark.parametrize(
    ("written", "status", "kept"),
    [
        ("", 302, None),
        (f"support-0000, {BASES[0]}", 302, [BASES[0], "support-0000"]),
        ("support-0000 no-such", 422, None),
        ("support-0000\0", 422, None),
    ],
)
def test_the_models_of_a_key_are_written_where_there_are_many(
    tenant: Tenant, written: str, status: int, kept: list[str] | None
) -> None:
    body = {"name": "of many", "scopes": ["inference"], "lane": "batch", "models": written}
    made = client_of(tenant, "admin").post(f"/t/{tenant.slug}/keys", body)
    assert made.status_code == status
    keys = list(tenant.keys.filter(name="of many"))
    assert [key.allowed_models for key in keys] == ([kept] if status == 302 else [])
