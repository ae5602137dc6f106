"""Formats of money, numbers and times, one for each."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from frontend import formats
from inference.interfaces.directory import PICO
from tenants.sizes import size

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("pico", "rounded", "exact"),
    [
        (0, "$0.00", "$0.00"),
        (1, "$0.000000000001", "$0.000000000001"),
        (3_104_000_000, "$0.0031", "$0.003104"),
        (400_000_000, "$0.0004", "$0.0004"),
        (9_999_000_000, "$0.01", "$0.009999"),
        (10_000_000_000, "$0.01", "$0.01"),
        (1284 * PICO + PICO // 10, "$1,284.10", "$1,284.10"),
    ],
)
def test_money(pico: int, rounded: str, exact: str) -> None:
    assert (formats.money(pico), formats.exact_money(pico)) == (rounded, exact)


@pytest.mark.parametrize(
    ("difference", "shown"),
    [(0.042, "+4.2"), (-0.0151, "\u22121.5"), (0.0, "0.0"), (-0.0004, "0.0"), (1.0, "+100.0")],
)
def test_points(difference: float, shown: str) -> None:
    assert formats.points(difference) == shown


def test_durations_of_a_column_have_one_unit() -> None:
    found = [formats.seconds(one) for one in (None, 0.00126, 0.1824, 42.04, 1312.0)]
    assert found == ["\u2013", "0.001 s", "0.182 s", "42.040 s", "1,312.000 s"]


def test_small_amounts_beside_large_ones_are_less_than_a_cent() -> None:
    told = [formats.cents(pico) for pico in (0, 1, PICO // 100 - 1, PICO // 100, 1284 * PICO)]
    assert told == ["$0.00", "<$0.01", "<$0.01", "$0.01", "$1,284.00"]


def test_the_costs_and_rates_of_a_list_of_requests_have_as_many_decimals() -> None:
    told = [formats.millionths(pico) for pico in (0, 1, 14_000_000, PICO // 100, 1284 * PICO)]
    assert told == ["$0.000000", "<$0.000001", "$0.000014", "$0.010000", "$1,284.000000"]
    told = [formats.aligned_rate(share) for share in (None, 0, 0.00001, 0.00943, 0.0208, 1)]
    assert told == [formats.NONE, "0.00%", "<0.01%", "0.94%", "2.08%", "100.00%"]


def test_the_costs_of_a_column_are_exact_and_aligned() -> None:
    text = formats.aligned_money([0, 3_104_000_000, 1284 * PICO])
    assert [text(one) for one in (0, 3_104_000_000, 1284 * PICO)] == [
        "$0.000000", "$0.003104", "$1,284.000000",
    ]  # fmt: skip
    assert formats.aligned_money([5 * PICO])(5 * PICO) == "$5.00"


@pytest.mark.parametrize(
    ("number", "beside", "said"),
    [
        (0, 0, "0 bytes"),
        (812, 0, "812 bytes"),
        (1024, 0, "1 KB"),
        (26_214_400, 0, "25 MB"),
        (3 * 2**29, 0, "1.5 GB"),
        (2**60, 0, "1,048,576 TB"),
        (26_214_400, 26_214_400, "25.0 MB"),
        (300 * 1024, 26_214_400, "0.3 MB"),
        (1, 26_214_400, "<0.1 MB"),
        (0, 26_214_400, "0.0 MB"),
    ],
)
def test_sizes(number: int, beside: int, said: str) -> None:
    assert size(number, beside).replace("\u00a0", " ") == said


def test_a_currency_without_a_sign_is_told_by_its_code(settings: Any) -> None:
    settings.CURRENCY = "chf"
    assert formats.money(PICO) == "CHF\u00a01.00"


def test_prices_and_limits_are_exact() -> None:
    assert formats.price(150_000) == "$0.15" and formats.price(1_234_000_001) == "$1,234.000001"
    assert formats.entered(1_234_500_000) == "1234.50"


@pytest.mark.parametrize(
    ("until", "said"),
    [
        (timedelta(days=7) - timedelta(seconds=5), "in 7 days"),
        (timedelta(days=7), "in 7 days"),
        (timedelta(days=6, hours=11), "in 6 days"),
        (timedelta(days=13), "in 13 days"),
        (timedelta(days=15), "in 2 weeks"),
        (timedelta(days=45), "in 2 months"),
        (timedelta(days=364, hours=12), "in 1 year"),
        (timedelta(minutes=59, seconds=58), "in 1 hour"),
        (timedelta(minutes=59, seconds=29), "in 59 minutes"),
        (timedelta(minutes=59, seconds=36), "in 1 hour"),
        (timedelta(hours=23), "in 23 hours"),
        (timedelta(hours=23, minutes=36), "in 1 day"),
        (timedelta(days=13, hours=13), "in 2 weeks"),
        (timedelta(seconds=30), "in 1 minute"),
        (timedelta(seconds=50), "in 1 minute"),
        (timedelta(seconds=10), "just now"),
        (-timedelta(seconds=29), "just now"),
        (-timedelta(minutes=22), "22 minutes ago"),
        (-timedelta(days=1), "1 day ago"),
    ],
)
def test_a_distance_is_rounded_to_one_unit(until: timedelta, said: str) -> None:
    assert formats.distance(until) == said


@given(st.floats(0, 10 * 365 * 86_400))
def test_a_distance_never_names_as_many_of_a_unit_as_the_next_one_has(seconds: float) -> None:
    told = formats.distance(timedelta(seconds=seconds))
    if told != "just now":
        _, count, unit = told.split()
        most = {"minute": 59, "hour": 23, "day": 13, "week": 4, "month": 12, "year": 10}
        assert 1 <= int(count) <= most[unit.removesuffix("s")]


def test_a_moment_is_local_and_tells_utc_as_its_title() -> None:
    at = datetime(2020, 11, 22, 23, 31, 58, tzinfo=UTC)
    with timezone.override(ZoneInfo("Europe/Berlin")):
        shown = formats.second(at)
        assert ">23 Nov 2020, 00:31:58</time>" in shown
        assert 'title="23 Nov 2020, 00:31:58, 22 Nov 2020, 23:31:58 UTC"' in shown
        assert formats.day(at) == "23 Nov 2020" and formats.clock(at) == "00:31:58"
    assert ">22 Nov 2020, 23:31</time>" in formats.moment(at)
    assert formats.utc(at) == "22 Nov 2020, 23:31 UTC"


def test_the_year_is_told_if_it_is_another_one() -> None:
    now = timezone.now()
    assert str(now.year) not in formats.moment(now).partition(">")[2]
    assert "2020" in formats.moment(now.replace(year=2020, day=1)).partition(">")[2]


def test_a_small_share_is_told_from_none() -> None:
    assert [formats.percent(one) for one in (None, 0, 0.004, 0.006, 1)] == [
        formats.NONE, "0%", "<1%", "1%", "100%",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("share", "said"),
    [(None, formats.NONE), (0, "0%"), (0.00004, "<0.01%"), (0.0042, "0.42%"), (0.02, "2%"),
     (0.125, "12.5%"), (1.0, "100%")],
)  # fmt: skip
def test_the_share_of_failures_has_three_significant_figures(
    share: float | None, said: str
) -> None:
    assert formats.rate(share) == said


def test_a_month_is_the_same_to_every_reader() -> None:
    with timezone.override(ZoneInfo("America/New_York")):
        assert formats.month(datetime(2026, 11, 1, tzinfo=UTC)) == "November 2026"
