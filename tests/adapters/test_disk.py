"""The adapter cache's bookkeeping: it stays within its budget, keeps pinned adapters and evicts
the least recently used first."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from inference.agent.adapters.disk import DiskIndex, NoRoom

pytestmark = pytest.mark.pure


def held_bytes(index: DiskIndex) -> int:
    return sum(index.size_of(digest) for digest in index.digests)


def test_least_recently_used_goes_first() -> None:
    index = DiskIndex(100)
    for digest in "abc":
        assert index.reserve(digest, 30) == []
    index.touch("a")
    assert index.digests == ["b", "c", "a"]
    assert index.reserve("d", 50) == ["b", "c"]
    assert index.digests == ["a", "d"]
    assert held_bytes(index) == 80


def test_pinned_is_passed_over() -> None:
    index = DiskIndex(100)
    index.pin("a")
    index.pin("a")
    index.reserve("a", 60)
    index.reserve("b", 40)
    index.unpin("a")
    assert index.reserve("c", 40) == ["b"]
    with pytest.raises(NoRoom, match="60 bytes do not fit"):
        index.reserve("d", 60)
    assert index.digests == ["a", "c"]
    index.unpin("a")
    assert not index.pinned("a")
    assert index.reserve("d", 60) == ["a"]


def test_what_is_kept_is_passed_over() -> None:
    index = DiskIndex(100)
    for digest in "ab":
        index.reserve(digest, 50)
    assert index.reserve("c", 50, kept={"a"}) == ["b"]
    with pytest.raises(NoRoom):
        index.reserve("d", 50, kept={"a", "c"})


def test_reserving_again_replaces_what_it_had() -> None:
    index = DiskIndex(100)
    index.reserve("a", 10)
    assert index.reserve("a", 100) == []
    assert index.size_of("a") == 100
    index.drop("a")
    index.drop("a")
    assert "a" not in index
    assert held_bytes(index) == 0


class Budget(RuleBasedStateMachine):
    """After any steps, the budget holds and pinned adapters stay until they are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.index = DiskIndex(100)
        self.pins: list[str] = []

    @rule(digest=st.sampled_from("abcdef"), size=st.integers(0, 120))
    def reserve(self, digest: str, size: int) -> None:
        before = set(self.index.digests)
        try:
            victims = self.index.reserve(digest, size)
        except NoRoom:
            assert set(self.index.digests) == before
            held = sum(self.index.size_of(d) for d in before if d in self.pins and d != digest)
            assert held + size > 100
            return
        assert not set(victims) & set(self.pins)
        assert set(self.index.digests) == (before - set(victims)) | {digest}
        assert self.index.digests[-1] == digest

    @rule(digest=st.sampled_from("abcdef"))
    def pin(self, digest: str) -> None:
        self.index.pin(digest)
        self.pins.append(digest)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        digest = data.draw(st.sampled_from(self.pins))
        self.index.unpin(digest)
        self.pins.remove(digest)

    @rule(digest=st.sampled_from("abcdef"))
    def drop(self, digest: str) -> None:
        self.index.drop(digest)

    @invariant()
    def within_budget(self) -> None:
        assert held_bytes(self.index) <= 100


TestBudget = Budget.TestCase
TestBudget.settings = settings(stateful_step_count=30)
