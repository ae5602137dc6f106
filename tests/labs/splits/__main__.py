"""`python -m tests.labs.splits [--runs N]`: print the table that is in docs/roll-out.md."""

from __future__ import annotations

import argparse
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from statistics import median

from tests.labs.splits.simulation import Scenario, SimulatedRun, run

SCENARIOS = (
    Scenario("no difference"),
    Scenario("no difference, incidents of both versions", incidents=True),
    Scenario("no difference, a tenth of the users has most errors", sticky=True),
    Scenario("2 % errors instead of 1 %", bad=0.02),
    Scenario("5 % errors instead of 1 %", bad=0.05),
    Scenario("20 % errors instead of 1 %", bad=0.2),
    Scenario("5 % errors instead of 1 %, a tenth of the users has most", bad=0.05, sticky=True),
    Scenario("10 % slow instead of 5 %", usual=0.05, bad=0.1),
    Scenario("score 0.7 instead of 0.8, of each tenth request", score=0.7),
    Scenario("score 0.5 instead of 0.8, of each tenth request", score=0.5),
    Scenario("shadow: no difference", shadow=True),
    Scenario("shadow: 2 % errors instead of 1 %", bad=0.02, shadow=True),
    Scenario("shadow: 5 % errors instead of 1 %", bad=0.05, shadow=True),
)


def main() -> None:
    """Run all scenarios, and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.labs.splits", description=__doc__)
    parser.add_argument("--runs", type=int, default=400, help="of each scenario (%(default)s)")
    options = parser.parse_args()
    print("| the candidate | rolled back | after requests (median) | of the candidate's |")
    print("| --- | --- | --- | --- |")
    with ProcessPoolExecutor() as pool:
        for scenario in SCENARIOS:
            found = list(pool.map(partial(run, scenario), range(options.runs), chunksize=8))
            print(_row(scenario, found), flush=True)


def _row(scenario: Scenario, found: list[SimulatedRun]) -> str:
    ended = [one for one in found if one.requests is not None]
    share = f"{100 * len(ended) / len(found):.1f} %"
    if not ended:
        return f"| {scenario.name} | {share} | | |"
    after = median(one.requests or 0 for one in ended)
    of_candidate = median(one.of_candidate for one in ended)
    return f"| {scenario.name} | {share} | {after:,.0f} | {of_candidate:,.0f} |"


if __name__ == "__main__":
    main()
