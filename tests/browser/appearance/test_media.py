"""What a printed bill contains, and animations that stop when reduced motion is preferred."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.scenery import Scenery
from tests.browser.sweep import sweeping
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

MOVES = """() => {
  const row = document.querySelector(".requests tbody tr");
  row.classList.add("new");
  const [sidebar, cell] = [".sidebar", ".requests tr.new > *"].map((one) =>
    getComputedStyle(document.querySelector(one)));
  return [sidebar.transitionDuration !== "0s", cell.animationName !== "none"];
}"""
"""Whether the menu slides, and whether a new request is highlighted by an animation."""


@pytest.fixture
def page(stack: Stack, chromium: Browser, scenery: Scenery) -> Iterator[Page]:
    """A page of the owner of a tenant that was used for a month."""
    with sweeping(chromium, stack, "owner", scenery.sessions["owner"]) as sweep:
        yield sweep.page
        assert sweep.witness.strange == []


def test_a_printed_bill_has_the_figures_and_nothing_to_click(page: Page, scenery: Scenery) -> None:
    page.goto(f"/t/{scenery.slug}/usage?period=30d")
    period, stats = page.locator(".page-head p"), page.locator(".stats")
    chart, sums = page.locator("usage-chart table"), page.locator("tr.sum")
    for_screens = [page.locator(one) for one in (".sidebar", ".plot", ".segments", ".actions")]
    expect(chart).to_be_hidden()
    for one in for_screens:
        expect(one.first).to_be_visible()
    page.emulate_media(media="print", color_scheme="dark")
    for one in (page.get_by_role("heading", level=1), period, stats, chart, sums):
        expect(one).to_be_visible()
    assert " to " in period.inner_text()
    for one in for_screens:
        for each in one.all():
            expect(each).to_be_hidden()
    expect(page.get_by_role("button")).to_have_count(0)
    expect(page.locator("html")).to_have_css("color-scheme", "light")


def test_nothing_moves_where_less_motion_is_asked_for(page: Page, scenery: Scenery) -> None:
    page.goto(f"/t/{scenery.slug}/requests?period=30d")
    assert page.evaluate(MOVES) == [False, False]
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(MOVES) == [True, True]
