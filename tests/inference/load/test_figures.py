"""Percentiles, goodput and the report."""

from __future__ import annotations

import json
import math
import random
import re
from io import StringIO
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from inference.load.figures import LatencyTargets, LoadFigures, Spread, percentile
from inference.load.page import page, plots
from inference.load.planned import PlannedRequest
from inference.load.plots import PlotAxis
from inference.load.report import TrafficReport
from inference.load.sending import NOT_SENT, TIMED_OUT, LoadOutcome


@pytest.mark.parametrize("count", [1, 2, 7, 999, 20_000])
def test_percentiles_are_numpys(count: int) -> None:
    rng = random.Random(count)
    values = [rng.lognormvariate(0, 2) for _ in range(count)]
    spread = Spread.of(values)
    assert spread is not None
    for name, share in (("p50", 50), ("p90", 90), ("p99", 99), ("p99.9", 99.9)):
        assert spread.percentiles[name] == pytest.approx(np.percentile(values, share), rel=1e-9)
    assert (spread.count, spread.largest) == (count, max(values))
    assert spread.mean == pytest.approx(np.mean(values))
    assert Spread.of([]) is None


def test_percentiles_of_an_exponential_distribution_are_those_of_theory() -> None:
    rng = random.Random(1)
    ordered = sorted(rng.expovariate(2.0) for _ in range(200_000))
    for share in (0.5, 0.9, 0.99, 0.999):
        assert percentile(ordered, share) == pytest.approx(-math.log(1 - share) / 2, rel=0.05)


def outcome(
    at_s: float, ttft_s: float = 0.1, e2e_s: float = 0.5, *, tenant: str = "acme", code: str = ""
) -> LoadOutcome:
    request = PlannedRequest(at_s, tenant, "m", ((0, 10),), 5)
    if code:
        return LoadOutcome(request, code, sent_s=math.inf if code == NOT_SENT else at_s)
    return LoadOutcome(request, "", at_s, at_s + ttft_s, at_s + e2e_s, 10, 4, 5)


def test_goodput_counts_answers_within_all_targets() -> None:
    outcomes = [outcome(0), outcome(1, ttft_s=0.3), outcome(2, e2e_s=9.0), outcome(3, code="x")]
    found = LoadFigures.of(outcomes, LatencyTargets(ttft_s=0.2, e2e_s=1.0), wall_s=10.0)
    assert (found.planned, found.answered, found.good, found.goodput) == (4, 3, 1, 0.1)
    assert LoadFigures.of(outcomes, LatencyTargets(tpot_s=0.2), 10.0).good == 2
    assert LoadFigures.of(outcomes, LatencyTargets(), 10.0).good == 3
    assert (found.output_tokens, found.tokens_s, found.errors) == (15, 1.5, {"x": 1})


@pytest.fixture
def report() -> TrafficReport:
    outcomes = [outcome(i / 10, 0.05 + i / 1000, 1.0) for i in range(200)]
    outcomes += [outcome(20.0, code=NOT_SENT), outcome(21.0, code=TIMED_OUT)]
    outcomes += [outcome(i, tenant="<script>&[red]") for i in range(20)]
    about = {"Endpoint": "http://h/<v1>"}
    return TrafficReport(about, LatencyTargets(ttft_s=0.2), outcomes, wall_s=22.0)


def test_the_table_has_all_and_each_tenant(report: TrafficReport) -> None:
    out = StringIO()
    Console(file=out, width=200).print(report.table())
    said = out.getvalue()
    assert re.search(r"all +│ 222 +│ 220 +│ 1 not sent, 1 timeout +│", said)
    assert re.search(r"acme +│ 202 +│ 200 ", said)
    assert "<script>&[red]" in said
    assert "149 / 220" not in said and re.search(r"│ 1\d\d / \d+ / 2\d\d / 2\d\d ", said)


def test_notes_say_what_the_figures_leave_out(report: TrafficReport) -> None:
    assert any("of answered requests alone" in note for note in report.notes)
    assert any("p99.9" in note for note in report.notes)
    report.outcomes[0].sent_s = 5.0
    late = TrafficReport({}, LatencyTargets(), report.outcomes[:50], 22.0)
    assert "sender itself was late" in late.notes[0]


def test_json_has_every_tenants_figures(report: TrafficReport) -> None:
    found = json.loads(json.dumps(report.as_json()))
    assert found["tenants"]["acme"]["errors"] == {"not sent": 1, "timeout": 1}
    assert found["total"]["ttft"]["percentiles"].keys() == {"p50", "p90", "p99", "p99.9"}


def test_the_page_loads_nothing_and_escapes_names(report: TrafficReport) -> None:
    made = page(report)
    assert not re.search(r"<script|<link|src=|href=|url\(|@import|\son\w+=", made)
    assert "&lt;script&gt;&amp;[red]" in made and "http://h/&lt;v1&gt;" in made
    drawn = re.findall(r"<svg.*?</svg>", made)
    assert len(drawn) == 4
    for one in drawn:
        assert "nan" not in one and "inf" not in one
        assert ElementTree.fromstring(one).get("role") == "img"


def test_plots_of_nothing_and_of_one_value_are_drawn() -> None:
    for outcomes in ([], [outcome(0, 0.0, 0.0)], [outcome(0, code=TIMED_OUT)]):
        for plot in plots(TrafficReport({}, LatencyTargets(), outcomes, 1.0)):
            ElementTree.fromstring(plot.svg())


def test_axes() -> None:
    axis = PlotAxis.over("s", [0.02, 3.0, math.inf, 0.0], log=True)
    assert (axis.low, axis.high) == (0.01, 10.0) and axis.share(1.0) == pytest.approx(2 / 3)
    assert axis.ticks() == [0.01, 0.1, 1.0, 10.0]
    assert PlotAxis.over("s", [0.0, 7.0]).ticks() == [0.0, 2.0, 4.0, 6.0]
    assert PlotAxis.over("s", []).high == 10.0
