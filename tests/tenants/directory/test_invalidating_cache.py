"""The rules of `tenants.directory.invalidating_cache`, with given clock values and no loop."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tenants.directory.invalidating_cache import FRESH_S, InvalidatingCache

pytestmark = pytest.mark.pure


def filled(cache: InvalidatingCache[str, int], **values: int) -> InvalidatingCache[str, int]:
    for key, value in values.items():
        with cache.reading() as reading:
            assert cache.put(reading, key, value, [("key", key), "all"])
    return cache


@pytest.fixture
def cache() -> InvalidatingCache[str, int]:
    cache: InvalidatingCache[str, int] = InvalidatingCache(2)
    cache.note_alive(100.0)
    return cache


def test_nothing_counts_before_the_listener_was_heard() -> None:
    cache = filled(InvalidatingCache(2), a=1)
    assert cache.get("a", 0.0) is None
    assert not cache.has("all", 0.0)


def test_an_entry_counts_while_the_listener_is_heard(cache: InvalidatingCache[str, int]) -> None:
    filled(cache, a=1)
    assert cache.get("a", 100.0 + FRESH_S) == 1
    assert cache.get("a", 100.1 + FRESH_S) is None
    cache.note_alive(103.0)
    assert cache.get("a", 103.0 + FRESH_S) == 1


def test_the_last_value_counts_for_as_long_as_one_dares(
    cache: InvalidatingCache[str, int],
) -> None:
    filled(cache, a=1)
    with cache.reading() as reading:
        cache.put(reading, "b", 2, ["short"], until=105.0)
    assert cache.last("a", 160.0, within_s=60.0) == 1
    assert cache.last("a", 160.1, within_s=60.0) is None
    assert cache.last("b", 104.9, within_s=60.0) == 2
    assert cache.last("b", 105.0, within_s=60.0) is None
    assert cache.last("c", 100.0, within_s=60.0) is None
    assert cache.had(("key", "a"), 160.0, within_s=60.0)
    assert not cache.had(("key", "a"), 160.1, within_s=60.0)
    assert not cache.had("short", 105.0, within_s=60.0)
    cache.drop(("key", "a"))
    assert cache.last("a", 100.0, within_s=60.0) is None


def test_an_old_answer_does_not_turn_the_clock_back(cache: InvalidatingCache[str, int]) -> None:
    cache.note_alive(50.0)
    assert cache.fresh(100.0 + FRESH_S)


def test_a_change_drops_what_carries_its_tag(cache: InvalidatingCache[str, int]) -> None:
    filled(cache, a=1, b=2)
    cache.drop(("key", "a"))
    assert (cache.get("a", 100.0), cache.get("b", 100.0)) == (None, 2)
    assert not cache.has(("key", "a"), 100.0)
    assert cache.has("all", 100.0)
    cache.drop("all")
    assert len(cache) == 0


def test_a_return_drops_all(cache: InvalidatingCache[str, int]) -> None:
    filled(cache, a=1, b=2)
    cache.clear()
    assert len(cache) == 0 and not cache.has("all", 100.0)


def test_an_entry_ends_at_its_time(cache: InvalidatingCache[str, int]) -> None:
    with cache.reading() as reading:
        cache.put(reading, "a", 1, ["t"], until=101.0)
    assert cache.get("a", 100.9) == 1 and cache.has("t", 100.9)
    assert cache.get("a", 101.0) is None and not cache.has("t", 101.0)


def test_the_least_recently_used_entry_leaves(cache: InvalidatingCache[str, int]) -> None:
    filled(cache, a=1, b=2)
    cache.get("a", 100.0)
    filled(cache, c=3)
    assert [cache.get(key, 100.0) for key in "abc"] == [1, None, 3]


@pytest.mark.parametrize("change", ["drop", "clear"])
def test_values_read_during_a_change_are_not_cached(
    cache: InvalidatingCache[str, int], change: str
) -> None:
    with cache.reading() as reading:
        cache.drop("a") if change == "drop" else cache.clear()
        assert not cache.put(reading, "key", 1, ["a", "b"])
    assert len(cache) == 0


def test_a_change_of_something_else_during_a_read_does_not_matter(
    cache: InvalidatingCache[str, int],
) -> None:
    with cache.reading() as reading:
        cache.drop("other")
        assert cache.put(reading, "key", 1, ["a"])
    assert cache.get("key", 100.0) == 1


def test_a_change_before_a_read_does_not_matter(cache: InvalidatingCache[str, int]) -> None:
    cache.drop("a")
    with cache.reading() as reading:
        assert cache.put(reading, "key", 1, ["a"])


class AgainstAMap(RuleBasedStateMachine):
    """In any order of reads and changes, no answer is from before a change."""

    keys = st.sampled_from("abcdef")

    def __init__(self) -> None:
        super().__init__()
        self.cache: InvalidatingCache[str, int] = InvalidatingCache(4)
        self.truth = dict.fromkeys("abcdef", 0)
        self.cache.note_alive(0.0)

    @rule(key=keys)
    def read(self, key: str) -> None:
        with self.cache.reading() as reading:
            assert self.cache.put(reading, key, self.truth[key], [key])

    @rule(key=keys)
    def change(self, key: str) -> None:
        self.truth[key] += 1
        self.cache.drop(key)

    @rule(key=keys)
    def change_during_a_read(self, key: str) -> None:
        with self.cache.reading() as reading:
            seen = self.truth[key]
            self.change(key)
            assert not self.cache.put(reading, key, seen, [key])

    @invariant()
    def right(self) -> None:
        assert len(self.cache) <= 4
        for key, value in self.truth.items():
            assert self.cache.get(key, 0.0) in (None, value)
            assert self.cache.has(key, 0.0) == (self.cache.get(key, 0.0) is not None)


TestAgainstAMap = AgainstAMap.TestCase
