"""Service that engines count together by exchanging their totals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.scheduler import service_gossip
from inference.agent.scheduler.service_gossip import RemoteService, ServiceTotals

pytestmark = pytest.mark.pure


def test_each_reader_hears_of_every_change_once() -> None:
    served = ServiceTotals()
    assert served.since(0) == (0, {})
    served.add("acme", 10)
    served.add("globex", 5)
    first, changed = served.since(0)
    assert changed == {"acme": 10, "globex": 5}
    served.add("acme", 2.5)
    second, changed = served.since(first)
    assert changed == {"acme": 12.5}
    assert served.since(second) == (second, {})
    assert served.since(0)[1] == {"acme": 12.5, "globex": 5}, "another reader"


def test_what_was_gained_is_told_once() -> None:
    served = ServiceTotals()
    served.add("acme", 10)
    served.add("acme", 5)
    served.add("globex", 1)
    assert served.gained() == {"acme": 15, "globex": 1}
    served.add("acme", 2)
    assert served.gained() == {"acme": 2}
    assert served.gained() == {}


def test_totals_keep_the_latest_changes() -> None:
    served = ServiceTotals(max_names=2)
    for name in ("a", "b", "a", "c"):
        served.add(name, 1)
    assert served.since(0)[1] == {"a": 2, "c": 1}


def test_service_before_the_first_report_is_not_charged() -> None:
    others = RemoteService()
    assert others.heard("e2", "r1", {"acme": 10_000}) == {}
    assert others.heard("e2", "r1", {"acme": 10_100, "globex": 500}) == {"acme": 100}
    assert others.heard("e2", "r1", {"globex": 600}) == {"globex": 100}


def test_hearing_the_same_twice_or_late_changes_nothing() -> None:
    others = RemoteService()
    others.heard("e2", "r1", {"acme": 0})
    assert others.heard("e2", "r1", {"acme": 100}) == {"acme": 100}
    assert others.heard("e2", "r1", {"acme": 100}) == {}
    assert others.heard("e2", "r1", {"acme": 60}) == {}
    assert others.heard("e2", "r1", {"acme": 130}) == {"acme": 30}


def test_a_new_run_starts_at_zero_and_ends_the_old_one() -> None:
    others = RemoteService()
    others.heard("e2", "r1", {"acme": 900})
    assert others.heard("e2", "r2", {"acme": 50}) == {"acme": 50}
    assert others.heard("e2", "r1", {"acme": 950}) == {}, "a slow gateway"
    assert others.heard("e2", "r2", {"acme": 60, "globex": 7}) == {"acme": 10, "globex": 7}
    assert others.heard("e2", "r3", {"acme": 1}) == {"acme": 1}
    assert others.heard("e2", "r1", {"acme": 999}) == {}


def test_a_forgotten_name_is_not_charged_its_past() -> None:
    others = RemoteService(max_names=2)
    others.heard("e2", "r1", {})
    others.heard("e2", "r2", {"a": 10, "b": 10})
    assert others.heard("e2", "r2", {"c": 10}) == {"c": 10}
    assert others.heard("e2", "r2", {"a": 20}) == {}
    assert others.heard("e2", "r2", {"a": 25}) == {"a": 5}


def test_the_number_of_engines_is_bounded() -> None:
    others = RemoteService()
    for i in range(service_gossip.MAX_ENGINES + 1):
        others.heard(f"e{i}", "r", {"acme": 10})
    assert others.heard("e0", "r", {"acme": 20}) == {}, "forgotten, so heard for the first time"
    assert others.heard("e64", "r", {"acme": 20}) == {"acme": 10}


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=60),
)
def test_each_token_counts_once_however_reports_travel(
    services: list[int], travels: list[tuple[int, int]]
) -> None:
    """Frames arrive repeated, merged and in any order; in the end the total is complete."""
    served, others = ServiceTotals(), RemoteService()
    others.heard("e2", "r", {"acme": 0})
    frames, mark = [], 0
    for service in services:
        served.add("acme", service)
        mark, changed = served.since(mark)
        frames.append(changed)
    heard = 0.0
    for start, length in [*travels, (len(frames) - 1, 1)]:
        for frame in frames[start : start + length]:
            heard += others.heard("e2", "r", frame).get("acme", 0.0)
    assert heard == sum(services)
