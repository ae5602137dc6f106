"""The training data of the demo's embedding model: pairs of sentences with the same meaning.

A sentence has a purpose (to send something back, to ask its price) and a thing (a kayak, a tent).
Two sentences that share both mean the same, however they are worded; two that share only one are
close, but mean something else. Some combinations of purpose and thing are held out: the model never
sees them, and is tested on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from random import Random
from typing import NamedTuple

PURPOSES: dict[str, tuple[str, ...]] = {
    "return": (
        "How do I return my {}?",
        "I want to send the {} back.",
        "Can I give the {} back and get a refund?",
        "A {} can be returned within 30 days for a full refund.",
        "Money back for a {} that was not used.",
    ),
    "price": (
        "How much is the {}?",
        "What does a {} cost?",
        "Tell me the price of the {}.",
        "The {} costs 40 euros.",
        "Is the {} expensive?",
    ),
    "delivery": (
        "When will my {} arrive?",
        "How long does delivery of a {} take?",
        "Where is the {} that I ordered?",
        "We deliver the {} in three days.",
        "The parcel with the {} is on its way.",
    ),
    "repair": (
        "My {} is broken.",
        "Can you repair a {}?",
        "The {} does not work any more.",
        "We mend a damaged {} in our workshop.",
        "There is a crack in my {}.",
    ),
    "stock": (
        "Do you have the {} in stock?",
        "Is the {} available?",
        "Are there any of the {} left?",
        "The {} is sold out until May.",
        "I can't find the {} in your shop.",
    ),
    "size": (
        "Which size of the {} do I need?",
        "How big is the {}?",
        "Is the {} too small for me?",
        "The {} comes in small, medium and large.",
        "The dimensions of the {}, please.",
    ),
    "cleaning": (
        "How do I clean the {}?",
        "Can I wash a {}?",
        "There is dirt on my {}.",
        "Wash the {} with cold water and no soap.",
        "Care instructions for the {}.",
    ),
    "colour": (
        "Do you have the {} in blue?",
        "Which colours does the {} come in?",
        "I would like a red {}.",
        "The {} is made in green and in black.",
        "Can I choose the colour of the {}?",
    ),
    "rental": (
        "Can I rent a {}?",
        "I would like to borrow the {} for a week.",
        "Do you hire out the {}?",
        "A {} can be rented by the day.",
        "What does it take to hire a {} for the weekend?",
    ),
    "warranty": (
        "How long is the warranty of the {}?",
        "Is there a guarantee on the {}?",
        "Does the warranty cover my {}?",
        "We guarantee the {} for two years.",
        "The {} is under warranty.",
    ),
}
THINGS = (
    "kayak", "tent", "rope", "helmet", "backpack", "lantern", "stove", "compass", "map", "jacket",
    "boot", "glove", "sleeping bag", "paddle", "bottle", "knife", "whistle", "hammock", "ladder",
    "bicycle", "lock", "pump", "saddle", "trailer", "camera", "tripod", "radio", "battery",
    "blanket", "pillow", "kettle", "chair", "table", "umbrella", "ski", "sled", "snowboard", "axe",
    "net", "raft",
)  # fmt: skip
HELD_OUT = 7
"""One of this many combinations of a purpose and a thing is held out."""


class Meaning(NamedTuple):
    """The purpose and the thing of a sentence."""

    purpose: str
    thing: str

    def wording(self, way: int) -> str:
        """The sentence in one of its wordings."""
        return PURPOSES[self.purpose][way].format(self.thing)


def _split() -> tuple[list[Meaning], list[Meaning]]:
    """The meanings that are taught and those that are held out, which include each purpose and each
    thing."""
    taught: list[Meaning] = []
    held_out: list[Meaning] = []
    for (p, purpose), (t, thing) in product(enumerate(PURPOSES), enumerate(THINGS)):
        (taught if (p + t) % HELD_OUT else held_out).append(Meaning(purpose, thing))
    return taught, held_out


TAUGHT, EXAMINED = _split()

Batch = list[tuple[str, str]]
"""Pairs of sentences; only the two of a pair mean the same."""


def batches(seed: str, things: int, purposes: int) -> Iterator[Batch]:
    """Endless batches that combine each of some things with each of some purposes, so that the
    model learns to tell close sentences apart."""
    rng = Random(seed)
    taught = set(TAUGHT)
    while True:
        crossed = product(rng.sample([*PURPOSES], purposes), rng.sample(THINGS, things))
        meanings = [one for one in map(Meaning._make, crossed) if one in taught]
        yield [_pair(rng, one) for one in meanings]


def _pair(rng: Random, meaning: Meaning) -> tuple[str, str]:
    one, other = rng.sample(range(len(PURPOSES[meaning.purpose])), 2)
    return meaning.wording(one), meaning.wording(other)


def examination() -> list[tuple[str, str]]:
    """A question and the sentence that it should find, for each held-out meaning."""
    return [(one.wording(i % 3), one.wording(3 + i % 2)) for i, one in enumerate(EXAMINED)]
