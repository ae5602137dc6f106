"""What a gateway knows of an engine's prefix cache."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.gateway.routing.warmth import CONFIRMED_WITHIN, MAX_GUESSED, MAX_REPORTED, Warmth
from inference.link.prefixes import hashes_of

pytestmark = pytest.mark.pure

PROMPT = (11, 12, 13, 14, 15)
"""Beginnings of one prompt, the shortest first."""
TOKENS = (10, 20, 30, 40, 50)


def telling(told: Sequence[int] = ()) -> Warmth:
    return Warmth(10**6, hashes_of(told))


def hear(
    warmth: Warmth, warm: Sequence[int] = (), cold: Sequence[int] = (), *, anew: bool = False
) -> None:
    warmth.update(hashes_of(warm), hashes_of(cold), anew=anew)


def silent(capacity_tokens: int = 10**6) -> Warmth:
    return Warmth(capacity_tokens, None)


@pytest.mark.parametrize("held", range(6))
def test_the_longest_beginning_that_is_held_is_found(held: int) -> None:
    assert telling(PROMPT[:held]).longest(PROMPT) == held


def test_nothing_is_held_of_no_prompt() -> None:
    assert telling(PROMPT).longest(()) == 0


def test_what_was_dispatched_is_warm_at_once() -> None:
    for warmth in (telling(), silent()):
        warmth.guess(PROMPT, TOKENS)
        assert warmth.longest(PROMPT) == 5


def test_what_the_engine_says_counts() -> None:
    warmth = telling(PROMPT[:2])
    hear(warmth, PROMPT[2:])
    assert warmth.longest(PROMPT) == 5
    hear(warmth, cold=PROMPT[3:])
    assert warmth.longest(PROMPT) == 3
    hear(warmth, PROMPT[:1], anew=True)
    assert warmth.longest(PROMPT) == 1


def test_a_guess_that_the_engine_denies_is_wrong() -> None:
    warmth = telling()
    warmth.guess(PROMPT, TOKENS)
    hear(warmth, cold=PROMPT[1:])
    assert warmth.longest(PROMPT) == 1


def test_a_guess_that_an_engine_never_confirms_ends() -> None:
    warmth = telling()
    warmth.guess(PROMPT, TOKENS)
    hear(warmth, PROMPT[:2])
    for _ in range(CONFIRMED_WITHIN - 1):
        hear(warmth)
    assert warmth.longest(PROMPT) == 5
    hear(warmth)
    assert warmth.longest(PROMPT) == 2


def test_a_guess_outlives_what_the_engine_held_before() -> None:
    warmth = telling([1, 2])
    warmth.guess(PROMPT, TOKENS)
    hear(warmth, anew=True)
    assert warmth.known == set(PROMPT)


def test_of_an_engine_that_does_not_tell_guesses_hold_until_its_cache_is_full() -> None:
    warmth = silent(capacity_tokens=90)
    warmth.guess(PROMPT, TOKENS)
    for _ in range(2 * CONFIRMED_WITHIN):
        hear(warmth)
    assert warmth.longest(PROMPT) == 5
    other = (21, 22, 23, 24, 25)
    warmth.guess(other, TOKENS)
    assert (warmth.longest(PROMPT), warmth.longest(other)) == (4, 5), "the longest goes first"
    warmth.guess(PROMPT[:1], TOKENS[:1])
    warmth.guess((31,), (40,))
    assert (warmth.longest(PROMPT), warmth.longest(other)) == (1, 4)


def test_a_prompt_larger_than_the_cache_leaves_what_fits_of_it() -> None:
    warmth = silent(capacity_tokens=30)
    warmth.guess(PROMPT, TOKENS)
    assert warmth.longest(PROMPT) == 3


HASHES = st.lists(st.integers(0, 40), unique=True, max_size=12)
GUESS = st.tuples(st.just("guess"), HASHES, HASHES)
HEAR = st.tuples(st.sampled_from(["hear", "anew"]), HASHES, HASHES)


@given(st.lists(GUESS | HEAR), st.booleans(), st.integers(0, 300))
def test_it_knows_what_was_told_and_guesses_no_more_than_fits(
    steps: list[tuple[str, list[int], list[int]]], tells: bool, capacity: int
) -> None:
    warmth = Warmth(capacity, b"" if tells else None)
    told, guesses = set[int](), list[set[int]]()
    for what, one, other in steps:
        if what == "guess":
            warmth.guess(one, [7 * (at + 1) for at in range(len(one))])
            guesses.append(set(one))
        else:
            cold = [] if what == "anew" else other
            hear(warmth, one, cold, anew=what == "anew")
            told = (set() if what == "anew" else told - set(cold)) | set(one)
            guesses = [each - set(cold) for each in guesses][-50:]
    assert told <= warmth.known
    assert warmth.known - told <= set().union(*guesses)
    assert 7 * len(warmth.known - told) <= max(0, capacity)


@pytest.mark.parametrize("tells", [True, False])
def test_its_memory_is_bounded(tells: bool) -> None:
    warmth = Warmth(1 << 60, b"" if tells else None)
    for start in range(0, 3 * MAX_REPORTED, 1000):
        hashes = range(start, start + 1000)
        warmth.guess(hashes, hashes)
        hear(warmth, range(10**6 + start, 10**6 + start + 1000))
    assert len(warmth.known) <= MAX_REPORTED + MAX_GUESSED


def test_an_endless_report_is_cut_off() -> None:
    warmth = telling(range(10**5))
    hear(warmth, range(10**6, 2 * 10**6), range(10**5))
    assert len(warmth.known) <= MAX_REPORTED
