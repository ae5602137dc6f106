"""Usage and costs, as pages and as CSV: sums are exact and of the caller's own tenant only."""

from __future__ import annotations

import csv
import gc
import io
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection
from django.test import AsyncClient
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from inference.shared_capacity import TENANT_SHARE
from tenants.api.tables import AT_ONCE, CHUNK_ROWS, download
from tenants.models import ApiKey, Tenant, UsageRollup
from tests.tenants.callers import Api, person, with_key
from tests.tenants.making import make_key, make_member, make_tenant
from tests.tenants.spending import NOON, spend

MAY = {"start": "2026-05-01", "end": "2026-06-01T00:00:00Z"}


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


@pytest.fixture
def key(tenant: Tenant) -> ApiKey:
    return make_key(tenant)[0]


@pytest.fixture
def used(key: ApiKey) -> ApiKey:
    """Two requests to an adapter on 1 May, one to the base model on 2 May, one in June, and one of
    another tenant."""
    spend(key, model="support", adapter="support")
    spend(key, NOON + timedelta(minutes=70), model="support@2", adapter="support")
    spend(key, NOON + timedelta(days=1))
    spend(key, NOON + timedelta(days=31), base_model="large", model="large")
    spend(make_key(make_tenant())[0])
    return key


def lines(ask: Api, path: str = "usage", **query: Any) -> list[dict[str, Any]]:
    answer = ask("GET", path, **(MAY | query))
    assert answer.status_code == 200, answer.content
    results: list[dict[str, Any]] = answer.json()["results"]
    return results


def errors(response: Any) -> dict[str, str]:
    assert response.status_code == 400, response.content
    return {error["field"]: error["message"] for error in response.json()["errors"]}


# --- Sums ----------------------------------------------------------------------------------------


def test_usage_is_summed_by_day(owner: Api, used: ApiKey) -> None:
    assert lines(owner) == [
        {
            "start": "2026-05-01T00:00:00Z", "requests": 2, "prompt_tokens": 200,
            "cached_tokens": 80, "completion_tokens": 14, "reasoning_tokens": 4,
        },
        {
            "start": "2026-05-02T00:00:00Z", "requests": 1, "prompt_tokens": 100,
            "cached_tokens": 40, "completion_tokens": 7, "reasoning_tokens": 2,
        },
    ]  # fmt: skip


def test_costs_are_exact(owner: Api, used: ApiKey) -> None:
    usd = {"currency": "usd"}
    assert lines(owner, "costs") == [
        {"start": "2026-05-01T00:00:00Z", "requests": 2, "cost": "0.000032400000", **usd},
        {"start": "2026-05-02T00:00:00Z", "requests": 1, "cost": "0.000016200000", **usd},
    ]
    UsageRollup.objects.filter(hour=NOON).update(cost=12345678901234567890123456789)
    (line,) = lines(owner, "costs", bucket="hour", end="2026-05-01T13:00:00Z")
    assert line["cost"] == "12345678901234567.890123456789"


@pytest.mark.parametrize(
    ("bucket", "starts"),
    [
        ("hour", ["2026-05-01T12:00:00Z", "2026-05-01T13:00:00Z", "2026-05-02T12:00:00Z"]),
        ("day", ["2026-05-01T00:00:00Z", "2026-05-02T00:00:00Z"]),
        ("month", ["2026-05-01T00:00:00Z", "2026-06-01T00:00:00Z"]),
        ("all", ["2026-05-01T00:00:00Z"]),
    ],
)
def test_buckets(owner: Api, used: ApiKey, bucket: str, starts: list[str]) -> None:
    query = {"end": "2026-07-01"} if bucket in ("month", "all") else {}
    found = lines(owner, bucket=bucket, **query)
    assert [line["start"] for line in found] == starts
    assert sum(line["requests"] for line in found) == (4 if query else 3)


def test_a_first_bucket_says_where_the_period_begins(owner: Api, used: ApiKey) -> None:
    (line, *_) = lines(owner, bucket="month", start="2026-05-01T13:00:00Z", end="2026-07-01")
    assert (line["start"], line["requests"]) == ("2026-05-01T13:00:00Z", 2)


def test_groups(owner: Api, used: ApiKey) -> None:
    def grouped(*columns: str, **query: str) -> list[tuple[Any, ...]]:
        found = lines(owner, "costs", bucket="all", end="2026-07-01", **query)
        return [tuple(line[column] for column in (*columns, "requests")) for line in found]

    assert grouped("adapter", by="adapter") == [(None, 2), ("support", 2)]
    assert grouped("model", by="model") == [
        ("base", 1), ("large", 1), ("support", 1), ("support@2", 1),
    ]  # fmt: skip
    assert grouped("base_model", by="base_model") == [("base", 3), ("large", 1)]
    assert grouped("key", "key_name", by="key") == [(used.pk, "a key", 4)]
    assert grouped("member", by="member") == [(None, 4)]
    maker = make_member(used.tenant, "developer")
    ApiKey.objects.filter(pk=used.pk).update(created_by=maker)
    assert grouped("member", by="member") == [(maker.username, 4)]
    assert len(grouped("start", by="adapter,model,key,base_model,adapter")) == 4
    assert [line.keys() for line in lines(owner, "costs", by="key,adapter")] == [
        {"start", "key", "key_name", "adapter", "requests", "cost", "currency"}
    ] * 2


@pytest.mark.parametrize(("role", "requests"), [("admin", 3), ("developer", 1), ("viewer", 3)])
def test_admins_see_everybodys_usage_and_others_their_own(
    tenant: Tenant, used: ApiKey, role: str, requests: int
) -> None:
    ask, user = person(tenant, role)
    if role == "developer":
        spend(make_key(tenant, created_by=user)[0])
    for path in ("usage", "costs"):
        assert sum(line["requests"] for line in lines(ask, path, bucket="all")) == requests


def test_filters(owner: Api, used: ApiKey) -> None:
    def requests(**query: Any) -> int:
        return sum(line["requests"] for line in lines(owner, bucket="all", **query))

    assert requests(adapter="support") == 2
    assert requests(model="support@2") == 1
    assert requests(base_model="base") == 3
    assert requests(key=used.pk) == 3
    assert requests(key=used.pk + 1000) == requests(key=10**30) == requests(adapter="none") == 0
    assert requests(start="2026-05-01T13:00:00Z") == 2
    assert requests(start="2026-05-01T15:00:00+02:00") == 2
    assert requests(end="2026-05-01T13:00:00Z") == 1
    assert requests(end="2026-07-01", tenant="acme") == 4


def test_the_default_period_is_the_last_30_days(owner: Api, key: ApiKey) -> None:
    now = timezone.now()
    spend(key, now)
    spend(key, now - timedelta(days=29))
    spend(key, now - timedelta(days=32))
    answer = owner("GET", "usage", bucket="all").json()
    assert [line["requests"] for line in answer["results"]] == [2]


def test_a_deleted_keys_bill_stays(owner: Api, used: ApiKey) -> None:
    pk = used.pk
    used.delete()
    (line,) = lines(owner, bucket="all", by="key")
    assert (line["key"], line["key_name"], line["requests"]) == (pk, None, 3)


def test_nothing_used_is_an_empty_list(owner: Api) -> None:
    for bucket in ("day", "all"):
        assert lines(owner, bucket=bucket) == []


def test_pages(owner: Api, key: ApiKey) -> None:
    for day in range(5):
        spend(key, NOON + timedelta(days=day))
    pages = [owner("GET", "costs", **MAY, limit=2, page=page).json() for page in (1, 2, 3)]
    assert pages[0]["count"] == 5 and "page=2" in pages[0]["next"] and pages[2]["next"] is None
    whole = owner("GET", "costs", **MAY, limit=2, bucket="all").json()
    assert (whole["count"], whole["next"], len(whole["results"])) == (1, None, 1)
    days = [line["start"][8:10] for page in pages for line in page["results"]]
    assert days == ["01", "02", "03", "04", "05"]
    assert owner("GET", "costs", **MAY, page=4, limit=2).status_code == 404


def test_a_page_takes_few_queries(owner: Api, used: ApiKey) -> None:
    """None of them reads events."""
    with CaptureQueriesContext(
        connection,
    ) as queries:
        lines(owner, by="key,model")
    assert len(queries) <= 8  # one, the first time, notes the session
    assert not any("tenants_usageevent" in query["sql"] for query in queries)


@pytest.mark.parametrize(
    ("query", "field", "message"),
    [
        ({"bucket": "week"}, "bucket", "'week' is not one of hour, day, month, all."),
        ({"by": ["key", "model"]}, "by", "The parameter must not be repeated."),
        ({"model": ["a", "b"]}, "model", "The parameter must not be repeated."),
        ({"key": "1.5"}, "key", "Ensure that there are no more than 0 decimal places."),
        ({"by": "tenant"}, "by", "'tenant' is not one of key, member, adapter, model, base_model."),
        ({"by": "key,day"}, "by", "'day' is not one of"),
        ({"start": "yesterday"}, "start", "'yesterday' is not a time such as"),
        ({"start": "2026-02-30"}, "start", "'2026-02-30' is not a time"),
        ({"end": "2026-05-01T12:30:00Z"}, "end", "2026-05-01T12:30:00Z is not a whole hour"),
        ({"end": "2026-05-01T12:00:00+05:30"}, "end", "is not a whole hour"),
        ({"end": "2026-05-01T00:00:00Z"}, "end", "T00:00:00Z is not after the start, 2026"),
        ({"end": "0001-01-01T00:00:00+14:00"}, "end", "is not between 2000-01-01T00:00:00Z and"),
        ({"end": "9999-12-31T23:00:00-14:00"}, "end", "is not between"),
        ({"bucket": "hour", "end": "2026-12-01"}, "start", "214 days; with the bucket `hour`"),
        ({"bucket": "day", "end": "2036-12-01"}, "start", "at most 1100 are allowed."),
        ({"key": "mine"}, "key", "Enter a number."),
        ({"adapter": "\0"}, "adapter", "Null characters are not allowed."),
        ({"from": "2026-05-01"}, "from", "Unknown parameter. Allowed are adapter, base_model"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["usage", "costs"])
def test_invalid_queries_are_refused(
    owner: Api, path: str, query: dict[str, str], field: str, message: str
) -> None:
    told = errors(owner("GET", path, **({"start": "2026-05-01"} | query)))
    assert list(told) == [field] and message in told[field]


# --- CSV -----------------------------------------------------------------------------------------


def read(response: Any) -> list[list[str]]:
    """The rows of a streamed answer, whose parts are read with this thread's connection."""
    assert response.streaming and response["Content-Type"] == "text/csv; charset=utf-8"

    async def collect() -> bytes:
        return b"".join([part async for part in response.streaming_content])

    text = async_to_sync(collect)().decode()
    return list(csv.reader(io.StringIO(text, newline="")))


def test_csv_has_the_same_lines(owner: Api, used: ApiKey) -> None:
    for path in ("usage", "costs"):
        query = {"by": "key,adapter,model,base_model"}
        expected = lines(owner, path, **query)
        answer = owner("GET", path, **MAY, **query, format="csv")
        header, *rows = read(answer)
        assert header == list(expected[0])
        assert rows == [
            ["" if value is None else str(value) for value in line.values()] for line in expected
        ]
        assert answer["Content-Disposition"] == (
            f'attachment; filename="{path}-acme-20260501T00-20260601T00.csv"'
        )


def test_csv_by_the_accept_header(tenant: Tenant, used: ApiKey) -> None:
    ask, _ = with_key(tenant, "usage:read")
    ask.headers["Accept"] = "text/csv"
    header, row, *_ = read(ask("GET", "costs", **MAY))
    assert header == ["start", "requests", "cost", "currency"]
    assert row == ["2026-05-01T00:00:00Z", "2", "0.000032400000", "usd"]
    refused = ask("GET", "costs", bucket="week")
    assert refused["Content-Type"] == "application/problem+json"
    assert errors(refused).keys() == {"bucket"}


def test_csv_of_nothing_has_its_header(owner: Api) -> None:
    rows = read(owner("GET", "usage", format="csv"))
    assert rows == [
        ["start", "requests", "prompt_tokens", "cached_tokens", "completion_tokens",
         "reasoning_tokens"]
    ]  # fmt: skip


def test_another_format_is_not_there(owner: Api) -> None:
    assert owner("GET", "usage", format="xml").status_code == 404


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_a_name_is_no_formula(owner: Api, used: ApiKey, name: str) -> None:
    ApiKey.objects.filter(pk=used.pk).update(name=name)
    _, row, *_ = read(owner("GET", "usage", **MAY, by="key", format="csv"))
    assert row[2] == f"'{name}"


def test_quotes_commas_and_lines_in_a_name_stay_in_their_cell(owner: Api, used: ApiKey) -> None:
    name = 'a "b", c;\r\nd =1 \u2028 ünï'
    ApiKey.objects.filter(pk=used.pk).update(name=name)
    _, row, *_ = read(owner("GET", "usage", **MAY, by="key", format="csv"))
    assert row[2] == name


def test_a_download_holds_one_chunk_at_a_time() -> None:
    """Rows of later chunks are not read before they are needed."""
    taken = []

    def rows() -> Any:
        for number in range(10 * CHUNK_ROWS):
            taken.append(number)
            yield [number]

    async def first_part() -> bytes:
        parts: Any = download("x.csv", ["n"], rows(), owner="acme").streaming_content
        part: bytes = await anext(parts)
        await parts.aclose()
        return part

    first = async_to_sync(first_part)()
    assert first.count(b"\r\n") == CHUNK_ROWS + 1
    assert len(taken) == CHUNK_ROWS


@pytest.mark.usefixtures("plain_files")
def test_a_tenant_has_its_share_of_downloads(owner: Api, used: ApiKey) -> None:
    kept = [owner("GET", "usage", **MAY, format="csv") for _ in range(AT_ONCE // TENANT_SHARE)]
    refused = owner("GET", "usage", **MAY, format="csv")
    assert (refused.status_code, refused["Retry-After"]) == (429, "1")
    assert refused.json()["code"] == "too_many_downloads"
    page = owner.client.get("/t/acme/requests/csv")
    assert (page.status_code, page["Retry-After"]) == (429, "1")
    other = download("x.csv", ["n"], [], owner="other")
    assert other.status_code == 200
    assert read(kept.pop())  # which also closes it
    kept.append(owner("GET", "usage", **MAY, format="csv"))
    assert owner("GET", "usage", **MAY, format="csv").status_code == 429
    kept.clear()  # responses that are never sent
    gc.collect()
    assert all(read(owner("GET", "usage", **MAY, format="csv")) for _ in range(AT_ONCE))


async def test_a_download_over_asgi(async_db: None) -> None:
    """Through the ASGI handler: it is sent in several parts, without Django's warning that all was
    read at once."""

    def prepare() -> Any:
        owner = make_member(make_tenant("acme"), "owner")
        tenant = Tenant.objects.get()
        key, _ = make_key(tenant)
        zero = {"key": key, "adapter": "", "base_model": "base", "hour": NOON, "requests": 1}
        zero |= dict.fromkeys(["prompt_tokens", "cached_tokens", "completion_tokens"], 0)
        rows = [
            UsageRollup(tenant=tenant, model=f"m{n:04}", reasoning_tokens=0, cost=n, **zero)
            for n in range(2 * CHUNK_ROWS + 1)
        ]
        UsageRollup.objects.bulk_create(rows)
        return owner

    client = AsyncClient()
    await client.aforce_login(await sync_to_async(prepare)())
    query = {**MAY, "by": "model", "format": "csv"}
    response: Any = await client.get("/api/v1/costs", query_params=query)
    parts = [part async for part in response]
    assert len(parts) == 3
    rows = list(csv.reader(io.StringIO(b"".join(parts).decode(), newline="")))
    assert len(rows) == 2 * CHUNK_ROWS + 2
    assert rows[-1] == ["2026-05-01T00:00:00Z", "m2000", "1", "0.000000002000", "usd"]
