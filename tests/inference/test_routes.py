"""Which option of a route answers a text."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.interfaces.directory import ResolvedTarget, TrafficRoute
from inference.routes import BUCKETS, MAX_OPTIONS, MAX_TOKENS, RouteFit, buckets_of

pytestmark = pytest.mark.pure

EASY, HARD = "opening hours", "derive the tax"


def fit(threshold: float = 0.1, options: int = 2) -> RouteFit:
    """The cheapest option fails what has the words of HARD; the others pass everything."""
    numbers = array("f", [3.0] * options + [0.0] * (options * BUCKETS))
    for bucket in set(buckets_of(HARD, 14)) - set(buckets_of(EASY, 13)):
        numbers[options * (1 + bucket)] = -20.0
    return RouteFit.of(numbers.tobytes(), threshold)


def route(*usable: int, best: int = 1, fitted: RouteFit | None = None) -> TrafficRoute:
    options = [ResolvedTarget(f"model-{at}", "base") if at in usable else None for at in range(2)]
    return TrafficRoute("auto", options, best, fitted)


def test_the_cheapest_option_answers_what_it_can() -> None:
    chooses = route(0, 1, fitted=fit())
    assert chooses.choose(EASY, len(EASY)).model == "model-0"
    assert chooses.choose(HARD, len(HARD)).model == "model-1"


def test_a_threshold_above_the_difference_gives_the_cheapest_everything() -> None:
    assert route(0, 1, fitted=fit(threshold=1.0)).choose(HARD, len(HARD)).model == "model-0"


@pytest.mark.parametrize("text", [EASY, HARD])
def test_an_option_that_may_not_be_used_is_never_chosen(text: str) -> None:
    assert route(0, fitted=fit()).choose(text, len(text)).model == "model-0"
    assert route(1, fitted=fit()).choose(text, len(text)).model == "model-1"


def test_without_a_fit_or_a_text_the_best_option_answers() -> None:
    assert route(0, 1, best=0).choose(HARD, len(HARD)).model == "model-0"
    assert route(0, 1, fitted=fit()).choose("", 0).model == "model-1"
    assert route(0, best=1).choose("", 0).model == "model-0"


@pytest.mark.parametrize("numbers", [0, 2, BUCKETS + 1, (MAX_OPTIONS + 1) * (BUCKETS + 1)])
def test_other_numbers_than_those_of_options_are_refused(numbers: int) -> None:
    with pytest.raises(ValueError, match="not those of 2 to 4 options"):
        RouteFit.of(bytes(4 * numbers), 0.0)


@given(st.text(max_size=3000))
def test_any_text_has_bounded_buckets_and_a_choice(text: str) -> None:
    found = buckets_of(text, len(text))
    assert found == sorted(set(found)) and 0 < len(found) <= 2 * MAX_TOKENS + 1
    assert 0 <= found[0] <= found[-1] < BUCKETS
    assert fit().choose(text, len(text), [0, 1]) in (0, 1)
    assert all(0 <= one <= 1 for one in fit().chances(text, len(text)))


def test_what_makes_two_texts_alike() -> None:
    assert buckets_of("Order 12345", 11) == buckets_of("order 99999", 11)
    assert buckets_of("Order 12345", 11) != buckets_of("Order 123", 9)
    assert buckets_of("Order", 5) != buckets_of("Order", 5000)  # an excerpt of a longer one
    chinese = buckets_of("退货地址在哪里", 7)
    assert len(set(chinese) & set(buckets_of("退货要多久", 5))) >= 3
