"""Prompt lengths learned from the size of bodies."""

from __future__ import annotations

import pytest

from inference.gateway.prompt_lengths import LEAST_PER_BYTE, PromptLengths

pytestmark = pytest.mark.pure


def test_prompt_lengths_are_learned_for_each_model() -> None:
    lengths = PromptLengths()
    assert lengths.estimate(1, "a", 1000) == 300
    for _ in range(200):
        lengths.learn(1, "a", 1000, 200)
    assert lengths.estimate(1, "a", 1000) == pytest.approx(200, abs=1)
    assert lengths.estimate(1, "b", 1000) == 300
    assert lengths.estimate(1, "a", 1) == 1


def test_bodies_stuffed_with_what_no_engine_reads_make_no_prompt_free() -> None:
    lengths = PromptLengths()
    for _ in range(1000):
        lengths.learn(1, "a", 100_000, 1)
    assert lengths.estimate(1, "a", 1000) == 1000 * LEAST_PER_BYTE
    assert lengths.estimate(2, "a", 1000) == 300, "and are no other tenant's matter"
