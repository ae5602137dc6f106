"""What an agent knows of its engine's prefix cache, and reports of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.agent.engines.cache_news import Cleared, News, NewsLog, Removed, Stored
from inference.agent.warm_prefixes import MAX_EXPECTED, WarmPrefixes
from inference.gateway.routing.warmth import Warmth
from inference.link.prefixes import Prefix, numbers_of

pytestmark = pytest.mark.pure

BLOCK = 16
PROMPT = Prefix.of([1, 2, 3], [50, 100, 160])
"""With 40 tokens, the beginnings end after 12, 25 and 40: they contain no, one and two whole
blocks."""


def warm(prefixes: WarmPrefixes) -> set[int]:
    return set(numbers_of(prefixes.all()))


def stored(prefixes: WarmPrefixes, key: str, *blocks: str, parent: str | None = None) -> None:
    prefixes.update([Stored(key, parent, blocks, BLOCK)])


def test_a_beginning_is_warm_with_the_last_of_its_whole_blocks() -> None:
    prefixes = WarmPrefixes()
    prefixes.expect("r", PROMPT)
    prefixes.counted("r", 40)
    stored(prefixes, "r", "a")
    assert warm(prefixes) == {2}
    stored(prefixes, "r", "b", parent="a")
    assert warm(prefixes) == {2, 3}
    prefixes.update([Removed(["b"])])
    assert warm(prefixes) == {2}


@pytest.mark.parametrize("counted_first", [True, False])
def test_the_order_in_which_it_learns_does_not_matter(counted_first: bool) -> None:
    prefixes = WarmPrefixes()
    prefixes.expect("r", PROMPT)
    if counted_first:
        prefixes.counted("r", 40)
    stored(prefixes, "r", "a", "b")
    if not counted_first:
        assert warm(prefixes) == set(), "nobody knows yet how long it is"
        prefixes.counted("r", 40)
    assert warm(prefixes) == {2, 3}


def test_blocks_that_do_not_follow_are_of_another_choice() -> None:
    prefixes = WarmPrefixes()
    prefixes.expect("r", PROMPT)
    prefixes.counted("r", 40)
    stored(prefixes, "r", "b", parent="nothing")
    stored(prefixes, "r", "a")
    stored(prefixes, "r", "c", parent="b")
    assert warm(prefixes) == {2}


def test_blocks_of_unexpected_requests_are_not_reported() -> None:
    prefixes = WarmPrefixes()
    prefixes.counted("r", 40)
    stored(prefixes, "r", "a", "b")
    prefixes.update([Removed(["a"]), Cleared()])
    assert prefixes.since(0) == (0, b"", b"", False)


def test_a_block_is_of_several_prompts_and_a_beginning_may_move() -> None:
    prefixes = WarmPrefixes()
    other = Prefix.of([2, 9], [100, 160])
    for key, prefix in (("r", PROMPT), ("s", other)):
        prefixes.expect(key, prefix)
        prefixes.counted(key, 40)
        stored(prefixes, key, "a", "b")
    assert warm(prefixes) == {2, 3, 9}
    prefixes.expect("t", other)
    prefixes.counted("t", 40)
    stored(prefixes, "t", "x", "y")
    prefixes.update([Removed(["a"])])
    assert warm(prefixes) == {2, 3, 9}, "the last word counts"
    prefixes.update([Removed(["x"])])
    assert warm(prefixes) == {3, 9}


def test_how_much_of_a_prompt_is_held() -> None:
    prefixes = WarmPrefixes()
    assert prefixes.held_tokens(PROMPT, 40) == 0
    prefixes.expect("r", PROMPT)
    prefixes.counted("r", 40)
    stored(prefixes, "r", "a")
    assert prefixes.held_tokens(PROMPT, 40) == 25


def test_after_cleared_nothing_is_warm() -> None:
    prefixes = WarmPrefixes()
    prefixes.expect("r", PROMPT)
    prefixes.counted("r", 40)
    stored(prefixes, "r", "a", "b")
    mark = prefixes.mark
    prefixes.update([Cleared()])
    change = prefixes.since(mark)
    assert warm(prefixes) == set() and set(numbers_of(change.cold)) == {2, 3}
    stored(prefixes, "r", "c", "d")
    assert warm(prefixes) == set()


def test_a_reader_that_missed_too_much_is_told_everything() -> None:
    prefixes = WarmPrefixes(max_changes=4)
    for at in range(5):
        prefixes.expect(f"r{at}", Prefix.of([at], [1]))
        prefixes.counted(f"r{at}", BLOCK)
        stored(prefixes, f"r{at}", f"b{at}")
    assert prefixes.since(0).anew and set(numbers_of(prefixes.since(0).warm)) == set(range(5))
    assert numbers_of(prefixes.since(3).warm) == (4, 3)
    assert not prefixes.since(1).anew


def test_what_was_used_least_recently_is_forgotten() -> None:
    prefixes = WarmPrefixes(max_hashes=2)
    for key, hash in (("a", 1), ("b", 2), ("c", 1), ("d", 3)):
        prefixes.expect(key, Prefix.of([hash], [1]))
        prefixes.counted(key, BLOCK)
        stored(prefixes, key, f"block {hash}")
    assert warm(prefixes) == {1, 3}
    assert set(numbers_of(prefixes.since(0).cold)) == {2}


def test_requests_whose_blocks_never_come_are_forgotten() -> None:
    prefixes = WarmPrefixes()
    prefixes.expect("first", PROMPT)
    for at in range(MAX_EXPECTED):
        prefixes.expect(f"r{at}", PROMPT)
    prefixes.counted("first", 40)
    stored(prefixes, "first", "a", "b")
    assert warm(prefixes) == set()


def test_an_unread_log_reports_that_it_was_cleared() -> None:
    log = NewsLog(max_news=2)
    for block in "abc":
        log.add(Removed([block]))
    assert log.take() == [Cleared(), Removed(["c"])]
    log.add(Removed(["d"]))
    log.add(Cleared())
    assert log.take() == [Cleared()]
    assert log.take() == []


CHAINS = st.lists(st.integers(0, 3), min_size=1, max_size=5)
"""A prompt as the contents of its blocks. A block's key is the contents up to and including it."""
STEP = st.tuples(st.just("run"), CHAINS) | st.tuples(st.just("evict"), CHAINS)


def blocks_of(chain: list[int]) -> Iterator[tuple[int, ...]]:
    return (tuple(chain[: at + 1]) for at in range(len(chain)))


@given(st.lists(STEP, max_size=30), st.integers(1, 12), st.lists(st.booleans(), min_size=30))
def test_gateways_that_follow_know_what_is_warm(
    steps: list[tuple[str, list[int]]], max_hashes: int, hears: list[bool]
) -> None:
    """One gateway hears each change at once, another one now and then. Both know what the agent
    knows, which never includes blocks that the engine does not hold."""
    prefixes = WarmPrefixes(max_hashes=max_hashes, max_changes=2 * max_hashes)
    cache, always, sometimes = set[tuple[int, ...]](), Warmth(0, b""), Warmth(0, b"")
    marks = {0: 0, 1: 0}

    def tell(which: int, gateway: Warmth) -> None:
        change = prefixes.since(marks[which])
        marks[which] = change.mark
        gateway.update(change.warm, change.cold, anew=change.anew)

    for at, (what, chain) in enumerate(steps):
        blocks = list(blocks_of(chain))
        if what == "run":
            cache |= set(blocks)
            hashes = [hash(block) & 0xFFFF_FFFF for block in blocks]
            prefixes.expect(f"{at}", Prefix.of(hashes, range(1, len(hashes) + 1)))
            news: News = Stored(f"{at}", None, blocks, BLOCK)
            prefixes.update([news])
            prefixes.counted(f"{at}", BLOCK * len(blocks))
        else:
            gone = [block for block in cache if block[: len(chain)] == blocks[-1]]
            cache -= set(gone)
            prefixes.update([Removed(gone)])
        tell(0, always)
        if hears[at]:
            tell(1, sometimes)
    tell(1, sometimes)
    assert always.known == sometimes.known == warm(prefixes)
    assert warm(prefixes) <= {hash(block) & 0xFFFF_FFFF for block in cache}
    assert len(warm(prefixes)) <= max_hashes
