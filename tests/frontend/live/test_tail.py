"""The live tail: requests that the ledger writes are told once to the pages with permission, which
then fetch them as rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from channels.db import database_sync_to_async
from django.test import Client
from django.utils import timezone

from frontend.live import tail
from frontend.live.board import Board
from inference.gateway.measuring.outcomes import Refusal
from inference.link.accounts import Account, LedgerEntry, Usage
from tenants.billing.lines import StatementLine
from tenants.listing import Listed
from tenants.models import ApiKey, Tenant, UsageEvent
from tenants.models.usage.listed import Mark
from tests.frontend.clients import client_of, user_of
from tests.frontend.live.test_live_board import Reader, board_of, whose
from tests.inference.rig import until
from tests.tenants.making import make_base, make_key, make_tenant
from tests.tenants.refusing import refuse
from tests.tenants.spending import patient_ledger, spend

USAGE = Usage(100, 40, 7, 0, 0.01, 0.0, 0.2, 0.9)


def line(
    tenant_id: int, key_id: int, id: str, reason: str = "stop", at: float = 0
) -> StatementLine:
    account = Account(tenant_id, key_id, at or timezone.now().timestamp(), "base")
    return StatementLine("e1", "j1", LedgerEntry(id, account, "base", USAGE, reason))


# --- Messages ------------------------------------------------------------------------------------


def test_of_each_key_the_newest_are_told_and_the_rest_is_counted() -> None:
    lines = [line(1, 10, f"a{n}", at=n + 1) for n in range(tail.MOST + 7)]
    lines += [line(1, 11, "b", at=5), line(2, 20, "c", at=6.25)]
    most, few, other = tail.by_key(lines)
    assert (most.tenant_id, most.key_id, most.more) == (1, 10, 7)
    assert len(most.marks) == tail.MOST
    assert most.marks[-1] == f"{(tail.MOST + 7) * 1_000_000}-a{tail.MOST + 6}"
    assert few == tail.TailEnded(1, 11, ["5000000-b"])
    assert other == tail.TailEnded(2, 20, ["6250000-c"])


@pytest.mark.parametrize(
    ("keys", "hears"), [(None, [1, 2, 12]), ([12, 2], [2, 12]), ([1], [1]), ([], [])]
)
def test_an_audience_hears_of_its_keys(keys: list[int] | None, hears: list[int]) -> None:
    audience = tail.audience(keys)
    assert [id for id in (1, 2, 12) if tail.hears(audience, id)] == hears


async def test_a_request_is_told_when_it_is_in_the_ledger(transactional_db: None) -> None:
    key: ApiKey = await made_key()
    async with board_of() as board:
        reader = Reader(board, whose(key.tenant_id))
        reader.read()
        await write(board, [line(key.tenant_id, key.pk, "one"), line(key.tenant_id + 1, 1, "two")])
        await until(lambda: reader.told > 0)
        (mark,) = reader.read()["ended"]
    event = await database_sync_to_async(UsageEvent.objects.get)()
    assert mark == tail.mark("one", event.started_at.timestamp())


def test_refused_requests_are_told_by_their_keys_too() -> None:
    def refused(key_id: int, id: str) -> Refusal:
        return Refusal(
            id=id, started_at=6.25, tenant_id=1, key_id=key_id, version_id=0, adapter="",
            base_model="", model="", surface="api", outcome="refused", status=429, code="c",
            message="m", limit_kind="", limit_scope="", total_s=0,
        )  # fmt: skip

    told = tail.refused_by_key([refused(10, "a"), refused(11, "b"), refused(10, "c")])
    assert list(told) == [
        tail.TailEnded(1, 10, ["6250000-a", "6250000-c"]), tail.TailEnded(1, 11, ["6250000-b"]),
    ]  # fmt: skip


async def made_key() -> ApiKey:
    def make() -> ApiKey:
        make_base()
        return make_key(make_tenant("acme"))[0]

    key: ApiKey = await database_sync_to_async(make)()
    return key


async def write(board: Board, lines: Sequence[StatementLine]) -> None:
    """Write the lines through the ledger of a gateway with this board."""
    async with patient_ledger() as ledger:
        ledger.on_written(tail.listener(board.ended))
        ledger.record("e1", "j1", [one.entry for one in lines], lambda ids: None)


# --- Rows ----------------------------------------------------------------------------------------


def rows(client: Client, where: str, events: Sequence[Listed], query: str = "") -> Any:
    """The rows that a page gets which was told of these requests."""
    answer = ask(client, where, [mark_of(event) for event in events], query)
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    return answer.json()["rows"]


def ask(client: Client, where: str, ended: Sequence[str], query: str = "") -> Any:
    return client.get(f"{where}?{query}&{urlencode({'ended': ended}, doseq=True)}")


def ids(client: Client, where: str, events: Sequence[Listed], query: str = "") -> list[str]:
    return [row["id"] for row in rows(client, where, events, query)]


def mark_of(event: Listed) -> str:
    return tail.mark(event.id, event.started_at.timestamp())


TAIL = "/t/acme/live/requests"
WHOLE = "/operate/live/requests"


def test_rows_are_those_of_the_page_the_oldest_first(
    tenant: Tenant, key: ApiKey, admin: Client
) -> None:
    now = timezone.now()
    early = spend(key, now - timedelta(minutes=9), finish_reason="engine_lost")
    late = spend(key, now)
    foreign = spend(make_key(make_tenant())[0], now)
    told = (late, foreign, early)
    assert ids(admin, TAIL, told) == [early.id, late.id]
    assert ids(admin, TAIL, told, "outcome=failed") == [early.id]
    html = rows(admin, TAIL, [late])[0]["html"]
    assert html.lstrip().startswith(f'<tr id="r-{late.id}">') and "a key" in html
    assert html.strip() in admin.get("/t/acme/requests").content.decode()


def test_refused_requests_have_rows_too(tenant: Tenant, key: ApiKey, admin: Client) -> None:
    now = timezone.now()
    refused, answered = refuse(key, now - timedelta(minutes=1)), spend(key, now)
    told = (answered, refused)
    assert ids(admin, TAIL, told) == [refused.id, answered.id]
    assert ids(admin, TAIL, told, "outcome=wrong") == [refused.id]
    assert ids(admin, TAIL, told, "outcome=answered") == [answered.id]
    html = rows(admin, TAIL, [refused])[0]["html"]
    assert ">429<" in html and html.strip() in admin.get("/t/acme/requests").content.decode()
    assert ids(client_of(tenant, "developer"), TAIL, told) == []


@pytest.mark.parametrize(
    ("role", "sees"),
    [("owner", 2), ("admin", 2), ("operator", 2), ("developer", 1), ("viewer", 1)],
)
def test_rows_are_for_those_who_see_them_on_the_page(
    tenant: Tenant, key: ApiKey, role: str, sees: int
) -> None:
    client = client_of(tenant, role)
    own = make_key(tenant, created_by=user_of(client))[0]
    events = [spend(key, timezone.now()), spend(own, timezone.now())]
    assert ids(client, TAIL, events)[-sees:] == [event.id for event in events[-sees:]]
    assert len(ids(client, TAIL, events)) == sees
    if sees == 1:  # nor with that key as the filter
        assert ask(client, TAIL, [mark_of(events[0])], f"key={key.pk}").status_code == 400


@pytest.mark.parametrize(("role", "status"), [("outsider", 404), ("nobody", 302)])
def test_other_roles_get_no_rows_of_the_tail(
    tenant: Tenant, key: ApiKey, role: str, status: int
) -> None:
    client = client_of(tenant, role)
    mark = mark_of(spend(key, timezone.now()))
    assert ask(client, TAIL, [mark]).status_code == status
    assert ask(client, WHOLE, [mark]).status_code == status


@pytest.mark.parametrize("role", ["owner", "admin", "developer", "viewer"])
def test_everybodys_requests_are_for_operators_alone(
    tenant: Tenant, key: ApiKey, role: str
) -> None:
    mark = mark_of(spend(key, timezone.now()))
    assert ask(client_of(tenant, role), WHOLE, [mark]).status_code == 404


def test_operators_see_everybodys_or_those_of_the_tenant_that_they_name(
    tenant: Tenant, key: ApiKey, operator: Client
) -> None:
    now = timezone.now()
    ours = spend(key, now)
    failed = spend(key, now, finish_reason="engine_lost")
    theirs = spend(make_key(make_tenant("b"))[0], now)
    told = (ours, failed, theirs)
    assert set(ids(operator, WHOLE, told)) == {ours.id, failed.id, theirs.id}
    assert set(ids(operator, WHOLE, told, "tenant=acme")) == {ours.id, failed.id}
    assert ids(operator, WHOLE, told, "tenant=acme&outcome=failed") == [failed.id]
    assert ask(operator, WHOLE, [mark_of(ours)], "tenant=nobody").status_code == 400
    assert "/operate/tenants/acme" in rows(operator, WHOLE, [ours])[0]["html"]


@pytest.mark.parametrize(
    "ended",
    [["x"], ["1-\0"], [f"{n}-a" for n in range(tail.MOST + 1)], ["9" * 18 + "-a"]],
    ids=["nonsense", "nul", "too many", "too late"],
)  # fmt: skip
def test_what_no_page_is_told_is_refused(tenant: Tenant, admin: Client, ended: list[str]) -> None:
    assert ask(admin, TAIL, ended).status_code == 400


def test_as_many_as_a_page_asks_for_are_a_few_queries(
    tenant: Tenant, key: ApiKey, admin: Client, django_assert_max_num_queries: Any
) -> None:
    events = [spend(key, timezone.now()) for _ in range(tail.MOST)]
    with django_assert_max_num_queries(10):
        assert len(ids(admin, TAIL, events)) == tail.MOST
    assert ids(admin, TAIL, []) == []


def test_an_operators_list_of_one_tenant_hears_of_that_tenant_alone(
    tenant: Tenant, key: ApiKey, operator: Client
) -> None:
    page = operator.get("/operate/requests?tenant=acme").content.decode()
    assert 'topic="requests" tenant="acme"' in page
    assert f'src="{WHOLE}?tenant=acme"' in page
    page = operator.get("/operate/requests").content.decode()
    assert 'topic="requests" tenant=""' in page and f'src="{WHOLE}"' in page


def test_marks_find_their_events_whatever_rounding_did(tenant: Tenant, key: ApiKey) -> None:
    events = UsageEvent.objects.all()
    made = [spend(key, timezone.now()) for _ in range(3)]
    marks = [Mark(one.started_at + timedelta(microseconds=7), one.id) for one in made]
    assert set(events.marked(marks[:2])) == set(made[:2])
    assert list(events.marked([])) == []
