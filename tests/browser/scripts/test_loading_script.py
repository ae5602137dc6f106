"""loading.js alone in Chromium: the sign of loading while the test holds back what was asked for;
no Lorikeet runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.browser.scripts.static import serve

HOME = "http://loading.test/"
HTML = """<!doctype html><a href=/asked>Link</a> <form action=/asked><button>Form</button></form>
<a href=#below>Below</a> <a href=/asked download>File</a> <a href=/asked target=_blank>Tab</a>
<form method=dialog><button>Close</button></form> <a href=/asked id=kept>Kept</a>
<button hx-get=/asked>Part</button> <button id=fetched>Fetched</button>
<script src=/vendor/htmx.js></script><script type=module>
import { fetched } from "/js/loading.js";
document.querySelector("#fetched").onclick = () => fetched("/asked").catch(() => {});
document.querySelector("#kept").onclick = (event) => event.preventDefault();
addEventListener("click", (event) => event.target.matches("a") && event.preventDefault());
addEventListener("submit", (event) => event.preventDefault());
</script>"""
"""Links and forms are followed as far as loading.js can see, but the next page never comes."""
AFTER_MS = 300
"""From then on there is a sign."""
AT_MOST_MS = 30_000


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    page = chromium.new_page()
    page.clock.install(time=0)
    page.route(f"{HOME}**", lambda route: serve(route, HOME, HTML))
    page.goto(HOME)
    page.clock.pause_at(1_000)
    yield page
    page.close()


def sign(page: Page) -> Locator:
    return page.get_by_role("status").get_by_text("Loading")


def ask(page: Page, name: str) -> Route:
    """Ask for something that does not come until the route is answered."""
    asked: list[Route] = []
    page.route(f"{HOME}asked*", lambda route: asked.append(route))
    with page.expect_request(f"{HOME}asked*"):
        page.get_by_text(name, exact=True).click()
    while not asked:
        page.wait_for_timeout(10)  # lets Playwright handle the browser's events
    return asked[0]


@pytest.mark.parametrize("name", ["Part", "Fetched"])
@pytest.mark.parametrize("comes", [True, False], ids=["comes", "fails"])
def test_the_sign_lasts_until_an_answer_comes_or_fails(page: Page, name: str, comes: bool) -> None:
    route = ask(page, name)
    page.clock.run_for(AFTER_MS - 1)
    expect(sign(page)).to_have_count(0)
    page.clock.run_for(1)
    expect(sign(page)).to_have_count(1)
    route.fulfill(body="here") if comes else route.abort()
    expect(sign(page)).to_have_count(0)
    page.clock.run_for(AT_MOST_MS)
    expect(sign(page)).to_have_count(0)


def test_what_comes_quickly_has_no_sign(page: Page) -> None:
    ask(page, "Part").fulfill(body="here")
    expect(page.get_by_text("here")).to_be_visible()
    page.clock.run_for(AFTER_MS)
    expect(sign(page)).to_have_count(0)


@pytest.mark.parametrize("name", ["Link", "Form"])
def test_a_page_that_does_not_come_has_a_sign_for_some_time_only(page: Page, name: str) -> None:
    """It may be a download, after which no page comes."""
    page.get_by_text(name, exact=True).click()
    page.clock.run_for(AFTER_MS)
    expect(sign(page)).to_have_count(1)
    page.clock.run_for(AT_MOST_MS)
    expect(sign(page)).to_have_count(0)


def test_a_page_that_is_shown_again_has_no_sign(page: Page) -> None:
    page.get_by_text("Link", exact=True).click()
    page.clock.run_for(AFTER_MS)
    expect(sign(page)).to_have_count(1)
    page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
    expect(sign(page)).to_have_count(0)


@pytest.mark.parametrize("name", ["Below", "File", "Tab", "Close", "Kept"])
def test_what_keeps_the_page_has_no_sign(page: Page, name: str) -> None:
    page.get_by_text(name, exact=True).click()
    page.clock.run_for(AFTER_MS)
    expect(sign(page)).to_have_count(0)
