"""The service of all engines, summed by a gateway and reported to each of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.fleet import service
from inference.gateway.fleet.service import FleetService
from inference.link.wire import Others

pytestmark = pytest.mark.pure


def test_an_engine_hears_what_the_others_gave_and_how_many_they_are() -> None:
    fleet = FleetService()
    first, second, third = (fleet.join(f"e{i}") for i in range(3))
    assert fleet.answer(first, asks=True) == Others(3)
    assert fleet.answer(first, asks=True) is None, "nothing is new"
    fleet.add_gains(first, {"acme": 5.0, "globex": 1.0}, 1.0)
    fleet.add_gains(second, {"acme": 7.0}, 1.5)
    fleet.add_gains(third, {"initech": 2.0}, 2.0)
    assert fleet.answer(first, asks=True) == Others(3, {"acme": 7.0, "initech": 2.0})
    fleet.add_gains(first, {"acme": 1.0}, 2.9)
    assert fleet.answer(first, asks=True) is None, "the second is not over"
    assert fleet.answer(second, asks=False) == Others(3), "another gateway tells it"
    fleet.leave(third)
    fleet.add_gains(second, {}, 3.0)
    assert fleet.answer(second, asks=True) == Others(2), "it begins to ask now"
    assert fleet.answer(first, asks=True) == Others(2), "its own is no news"


def test_a_late_engine_gets_the_kept_rounds_and_a_new_one_none() -> None:
    fleet = FleetService()
    first, second = fleet.join("e0"), fleet.join("e1")
    fleet.answer(first, asks=True)
    for at in range(service.ROUNDS_KEPT + 2):
        fleet.add_gains(second, {"acme": 1.0}, float(at))
    assert fleet.answer(first, asks=True) == Others(2, {"acme": service.ROUNDS_KEPT})
    fleet.answer(first, asks=False)
    fleet.add_gains(second, {"acme": 1.0}, 100.0)
    assert fleet.answer(first, asks=True) is None


def test_small_gains_are_told_later_and_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ROUND_TENANTS", 2)
    fleet = FleetService()
    first, second = fleet.join("e0"), fleet.join("e1")
    fleet.answer(first, asks=True)
    fleet.add_gains(second, {"small": 2.0, "great": 9.0, "greater": 10.0}, 1.0)
    assert fleet.answer(first, asks=True) == Others(2, {"greater": 10.0, "great": 9.0})
    fleet.add_gains(second, {"small": 2.0, "great": 1.0, "greater": 3.0}, 2.0)
    assert fleet.answer(first, asks=True) == Others(2, {"small": 4.0, "greater": 3.0})


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ROUND_TENANTS", 1)
    monkeypatch.setattr(service, "MAX_WAITING", 2)
    fleet = FleetService()
    first, second = fleet.join("e0"), fleet.join("e1")
    fleet.answer(first, asks=True)
    told = Counter[str]()
    fleet.add_gains(second, {f"t{i}": 1.0 + i for i in range(10)}, 1.0)
    for at in range(2, 9):
        told += Counter((fleet.answer(first, asks=True) or Others(2)).served)
        fleet.add_gains(second, {}, float(at))
    assert told == {"t9": 10, "t8": 9, "t7": 8}


@pytest.mark.parametrize("more", [0.0, -5.0, float("nan")])
def test_gains_that_are_not_positive_are_ignored(more: float) -> None:
    fleet = FleetService()
    first, second = fleet.join("e0"), fleet.join("e1")
    fleet.answer(first, asks=True)
    fleet.add_gains(second, {"acme": more, "globex": 1.0}, 1.0)
    assert fleet.answer(first, asks=True) == Others(2, {"globex": 1.0})


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("abcd"), st.integers(1, 100)), max_size=60
    ),
    st.integers(1, 4),
)
def test_each_engine_hears_of_all_that_the_others_gave_once(
    gains: list[tuple[int, str, int]], tenants_at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "ROUND_TENANTS", tenants_at_once)
        fleet = FleetService()
        engines = [fleet.join(f"e{i}") for i in range(3)]
        received = [Counter[str]() for _ in engines]
        for engine in engines:
            fleet.answer(engine, asks=True)
        for at in range(len(gains) + 5):
            for number, engine in enumerate(engines):
                mine = gains[at : at + 1] if at < len(gains) and gains[at][0] == number else []
                fleet.add_gains(
                    engine, {tenant: float(more) for _, tenant, more in mine}, float(at)
                )
                if (others := fleet.answer(engine, asks=True)) is not None:
                    received[number].update(others.served)
                    assert len(others.served) <= 2 * tenants_at_once
    for number in range(3):
        expected = Counter[str]()
        for who, tenant, more in gains:
            expected[tenant] += more if who != number else 0
        assert received[number] == expected
