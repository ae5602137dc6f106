"""`python -m tests.labs.routes [--runs N]`: print the table that is in docs/roll-out.md."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from statistics import median

from tests.labs.routes.simulation import RouteOutcome, RouteScenario, run

PLAIN = RouteScenario("easy and hard questions")
HINTED = replace(PLAIN, name="the wording tells in 7 of 10", told=0.7)
SCENARIOS = (
    PLAIN,
    replace(PLAIN, name="with 400 rows", rows=400),
    replace(PLAIN, name="with 3,000 rows", rows=3000),
    HINTED,
    replace(HINTED, name="and a large model at twice the price", times=2.0),
    RouteScenario("useless: the wording tells nothing", told=0.0),
    RouteScenario(
        "useless: and the small model is nearly as good", (0.93, 0.93), (0.95, 0.95), 0.0
    ),
    RouteScenario("useless: and with 400 rows", (0.93, 0.93), (0.95, 0.95), 0.0, rows=400),
    RouteScenario("useless: both models are alike", (0.9, 0.9), (0.9, 0.9), 0.0),
    RouteScenario("useless: the large model is only dearer", (0.95, 0.8), (0.95, 0.8), 1.0),
    replace(PLAIN, name="cascade: right answers are 3 deviations surer", told=0.0, sure=3.0),
    replace(PLAIN, name="cascade: 2 deviations", told=0.0, sure=2.0),
    replace(PLAIN, name="cascade, useless: right answers are no surer", told=0.0, sure=0.0),
    RouteScenario(
        "cascade, useless: and the small model is nearly as good",
        (0.93, 0.93),
        (0.95, 0.95),
        0.0,
        sure=0.0,
    ),
    RouteScenario(
        "cascade, useless: and with 400 rows", (0.93, 0.93), (0.95, 0.95), 0.0, rows=400, sure=0.0
    ),
    RouteScenario("cascade, useless: both models are alike", (0.9, 0.9), (0.9, 0.9), 0.0, sure=0.0),
)


def main() -> None:
    """Run all scenarios, and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.labs.routes", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="of each scenario (%(default)s)")
    parser.add_argument("--only", default="", help="scenarios whose name begins with this")
    options = parser.parse_args()
    print("| questions | turned on | saves of the best model's cost | passes more (points) |")
    print("| --- | --- | --- | --- |")
    with ProcessPoolExecutor() as pool:
        for scenario in (one for one in SCENARIOS if one.name.startswith(options.only)):
            found = list(pool.map(partial(run, scenario), range(options.runs), chunksize=4))
            print(_row(scenario, found), flush=True)


def _row(scenario: RouteScenario, found: list[RouteOutcome]) -> str:
    on = [one for one in found if one.is_on]
    share = f"{100 * len(on) / len(found):.1f} %"
    if not on:
        return f"| {scenario.name} | {share} | | |"
    saving = _interval([100 * one.saving for one in on], "{:.0f}")
    gain = _interval([100 * one.gain for one in on], "{:+.1f}")
    return f"| {scenario.name} | {share} | {saving} % | {gain} |"


def _interval(values: list[float], form: str) -> str:
    """The median, and between what 95 % of them are."""
    ranked, outside = sorted(values), int(0.025 * len(values))
    ends = ranked[outside], ranked[-1 - outside]
    return f"{form.format(median(values))} ({' to '.join(map(form.format, ends))})"


if __name__ == "__main__":
    main()
