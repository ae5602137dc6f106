"""The charts alone in Chromium: they replace their tables and can be switched back to them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.scripts.static import serve

HOME = "http://charts.test/"
BUTTON = "<button data-table aria-pressed=false hidden>View as table</button>"
SERIES = """<li><svg><line stroke-dasharray="{dashes}"/></svg>{name}
<span class=value data-total="{total}">{total}</span></li>"""
USAGE = f"""<usage-chart><h2>Tokens</h2>{BUTTON}
<ul class=legend>{SERIES.format(name="support", dashes="none", total=30)}
{SERIES.format(name="returns", dashes="4 4", total=3)}</ul>
<div class=table-wrap><table><thead><tr><th>Day<th>support<th>returns</thead><tbody>
<tr><th data-at=1763596800>20 Nov<td data-value=10>10<td data-value=1>1
<tr><th data-at=1763683200>21 Nov<td data-value=20>20<td data-value=2>2
</tbody></table></div></usage-chart>"""
LOAD = f"""<load-chart>{BUTTON}<live-part><table><thead><tr><th>At</thead><tbody>
<tr><th data-at=1763683190>23:59<td data-value=100>100<td data-value=40>40<td data-value=2>2
<td data-value=0>0<td data-value=0.25>25 %
<tr><th data-at=1763683200>0:00<td data-value=300>300<td data-value=60>60<td data-value=3>3
<td data-value=1>1<td data-value=0.5>50 %
</tbody></table></live-part></load-chart>"""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def show(page: Page, script: str, html: str) -> None:
    scripts = f"""<script src=/vendor/uplot.js defer></script>
        <script type=module src=/js/{script}.js></script>"""
    page.route(f"{HOME}**", lambda route: serve(route, HOME, f"<!doctype html>{html}{scripts}"))
    page.goto(HOME)


@pytest.mark.parametrize(
    ("script", "html", "charts"), [("chart", USAGE, 1), ("load", LOAD, 3)], ids=["usage", "load"]
)
def test_a_chart_and_its_table_trade_places(
    page: Page, script: str, html: str, charts: int
) -> None:
    show(page, script, html)
    plots, table = page.get_by_role("img", name="chart; the table"), page.get_by_role("table")
    button = page.get_by_role("button", name="View as table")
    for _ in range(2):
        expect(table).to_be_hidden()
        expect(plots).to_have_count(charts)
        expect(plots.locator("canvas")).to_have_count(charts)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "true")
        expect(table).to_be_visible()
        expect(plots).to_have_count(0)
        button.click()
        expect(button).to_have_attribute("aria-pressed", "false")


def test_the_legend_has_the_sums_or_the_figures_under_the_pointer(page: Page) -> None:
    show(page, "chart", USAGE)
    values = page.locator(".legend .value")
    expect(values).to_have_text(["30", "3"])
    page.locator(".u-over").hover(position={"x": 1, "y": 50})
    expect(values).to_have_text(["10", "1"])
    expect(page.get_by_role("listitem").last).to_have_text("20 Nov")
    page.mouse.move(0, 0)
    expect(values).to_have_text(["30", "3"])


def test_the_last_figures_of_the_load_are_told(page: Page) -> None:
    show(page, "load", LOAD)
    for title, told in (
        ("Tokens per second", "Prompt300Output60"),
        ("Requests", "Running3Queued1"),
    ):
        expect(page.locator("figcaption").filter(has_text=title)).to_have_text(title + told)
    expect(page.locator("figcaption").last).to_contain_text("50%")
