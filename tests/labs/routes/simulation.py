"""Generated questions, easy and hard ones, and models that answer them more or less often."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, count, islice
from random import Random
from statistics import fmean

from inference.routes import is_sure
from tenants.routes.cascading import fit_cascade
from tenants.routes.fitting import RoutedRow, RouteReport, fit

EASY = (
    "How do I reset my password", "What are your opening hours", "Where is my parcel",
    "Can I change my address", "How do I cancel order number", "Please send the invoice for",
    "What does delivery cost to", "Do you ship to", "Is this in stock in size", "Who do I call",
)  # fmt: skip
HARD = (
    "Reconcile these two statements and explain", "Compare both contracts and say",
    "Derive the tax that applies if", "Plan the migration of our orders from",
    "Prove that the refund of", "Find the error in this calculation of",
    "Which of the clauses conflicts with", "Estimate how much", "Rewrite this policy so that it",
    "Explain step by step why the totals of",
)  # fmt: skip
MORE = (
    "today please", "for my brother", "since Monday", "in Berlin", "for order {}", "thank you",
    "it is urgent", "as I said", "with the blue one", "under {} euros", "before Friday",
    "for both of us", "by email", "item {}",
)  # fmt: skip
FRESH = 4000
"""Further rows of a run, by which what a route does is measured for certain."""


@dataclass(frozen=True, slots=True)
class RouteScenario:
    """Questions of which half are hard, and two models with the share of easy and of hard ones that
    each answers. Of each question the wording shows with the chance `told` how hard it is, and
    is that of either kind otherwise. The large model's tokens cost `times` as much."""

    name: str
    small: tuple[float, float] = (0.96, 0.25)
    large: tuple[float, float] = (0.97, 0.92)
    told: float = 1.0
    times: float = 10.0
    rows: int = 1000
    sure: float | None = None
    """The route is a cascade; by how many standard deviations the small model's log-probabilities
    are higher where its answer passes."""


@dataclass(frozen=True, slots=True)
class RouteOutcome:
    """Whether the route was turned on; the share of the best model's cost that it saves, and how
    much more rows pass than with that alone, on fresh rows."""

    is_on: bool
    saving: float
    gain: float
    control_gain: float


def run(scenario: RouteScenario, seed: int, margin: float = 0.03) -> RouteOutcome:
    """Fit a route on generated rows, and use it for others."""
    drawn = questions(scenario, Random(f"{scenario.name} {seed}"))
    rows, fresh = list(islice(drawn, scenario.rows)), list(islice(drawn, FRESH))
    report, chosen = (_chosen if scenario.sure is None else _cascaded)(rows, fresh, margin)
    is_on, _ = report.verdict(margin)
    pairs = list(zip(fresh, chosen, strict=True))
    best = ["small", "large"].index(report.options[report.best].model)
    costs = [row.cost if scenario.sure is None else [*accumulate(row.cost)] for row in fresh]
    spent = fmean(cost[at] for cost, at in zip(costs, chosen, strict=True))
    cost = spent / fmean(row.cost[best] for row in fresh)
    quality = fmean(row.passed[at] for row, at in pairs)
    share = chosen.count(0) / len(chosen)
    small, large = (fmean(row.passed[at] for row in fresh) for at in range(2))
    control = share * small + (1 - share) * large
    return RouteOutcome(is_on, 1 - cost, quality - (small, large)[best], quality - control)


def _chosen(
    rows: list[RoutedRow], fresh: list[RoutedRow], margin: float
) -> tuple[RouteReport, list[int]]:
    """What a classifier has answer the fresh rows."""
    found, report = fit(["small", "large"], rows, margin)
    places = [["small", "large"].index(one.model) for one in report.options]
    return report, [places[found.choose(row.text, row.length, range(2))] for row in fresh]


def _cascaded(
    rows: list[RoutedRow], fresh: list[RoutedRow], margin: float
) -> tuple[RouteReport, list[int]]:
    """The same of a cascade, whose first option is the cheaper, small one."""
    threshold, report = fit_cascade(["small", "large"], rows, margin)
    return report, [0 if is_sure(row.logprobs[0], threshold) else 1 for row in fresh]


def questions(scenario: RouteScenario, random: Random) -> Iterator[RoutedRow]:
    """Without end, no text twice."""
    for number in count(1000):
        hard = random.random() < 0.5
        worded = hard if random.random() < scenario.told else random.random() < 0.5
        parts = [random.choice(HARD if worded else EASY), *random.sample(MORE, 3)]
        text = f"{', '.join(parts).format(*(random.randrange(10**5) for _ in parts))}? ({number})"
        passed = tuple(random.random() < model[hard] for model in (scenario.small, scenario.large))
        tokens = len(text) // 4 + random.randrange(40, 120)
        cost = tokens, round(scenario.times * tokens)
        sure = random.gauss((scenario.sure or 0.0) * passed[0]) - 5.0
        yield RoutedRow(text, len(text), passed, cost, (sure, None))
