"""Whole journeys by keyboard, without the mouse."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser.people import PASSWORD, Customer, Street, copied, staying
from tests.browser.playground import ENDLESS, foot, output, pane, settings

pytestmark = pytest.mark.stack

MOST_STOPS = 80
"""Presses of the Tab key that may be needed to reach anything on a page."""
SHOWS_FOCUS = (
    "one => getComputedStyle(one).outlineStyle !== 'none' && one.matches(':focus-visible')"
)


def tab_to(page: Page, target: Locator) -> None:
    """Press the Tab key until the target has a visible focus."""
    expect(target).to_be_visible()
    for _ in range(MOST_STOPS):
        page.keyboard.press("Tab")
        if target.evaluate("one => one === document.activeElement"):
            assert target.evaluate(SHOWS_FOCUS)
            return
    raise AssertionError(f"the tabulator never gets to {target}")


def press(page: Page, target: Locator, key: str = "Enter") -> None:
    """Tab to a button and press it."""
    tab_to(page, target)
    page.keyboard.press(key)


def lead(page: Page, target: Locator) -> None:
    """Tab to what leads to another page, and press it."""
    tab_to(page, target)
    with page.expect_event("domcontentloaded"):
        page.keyboard.press("Enter")


def write(page: Page, target: Locator, text: str) -> None:
    tab_to(page, target)
    page.keyboard.insert_text(text)


@pytest.fixture
def page(street: Street, owner: Page, customer: Customer) -> Page:
    """A new browser of the owner's, without cookies."""
    return street.person()


def test_from_signing_in_to_a_key(page: Page, customer: Customer) -> None:
    page.goto(customer.page())
    write(page, page.get_by_label("Username or email"), f"owner-of-{customer.slug}")
    write(page, page.get_by_label("Password"), PASSWORD)
    with page.expect_event("domcontentloaded"):
        page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()

    lead(page, page.get_by_role("complementary").get_by_role("link", name="API keys"))
    opener = page.get_by_role("button", name="Create key").first
    press(page, opener)
    dialog = page.get_by_role("dialog", name="Create key")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).not_to_be_visible()
    expect(opener).to_be_focused()

    page.keyboard.press("Enter")
    name = dialog.get_by_label("Name")
    if not name.evaluate("one => one === document.activeElement"):
        tab_to(page, name)
    page.keyboard.insert_text("by keyboard")
    lead(page, dialog.get_by_role("button", name="Create"))
    shown = page.get_by_role("region", name="Your new key")
    secret = copied(page, shown, lambda button: press(page, button))
    assert re.fullmatch(r"lk_\S{50,}", secret)


def test_an_answer_is_asked_for_and_stopped(owner: Page) -> None:
    lead(owner, owner.get_by_role("complementary").get_by_role("link", name="Playground"))
    press(owner, pane(owner).get_by_role("button", name="Settings"), "Space")
    write(owner, settings(owner).get_by_label("JSON schema for the answer"), '{"type": "string"}')
    write(owner, owner.get_by_label("Message"), ENDLESS)
    owner.keyboard.press("Control+Enter")
    expect(output(pane(owner))).to_contain_text("word5 ")
    press(owner, owner.get_by_role("button", name="Stop"))
    expect(owner.get_by_text("Stopped. Billed so far:")).to_be_visible()
    expect(foot(pane(owner))).to_contain_text(" out")


def test_what_is_typed_fast_is_what_is_opened(owner: Page, customer: Customer) -> None:
    owner.keyboard.press("Control+K")
    expect(owner.get_by_role("listbox", name="Found").get_by_role("option").first).to_be_visible()
    owner.keyboard.type("usage")
    owner.keyboard.press("Enter")  # before its results have arrived
    expect(owner).to_have_url(f"{customer.stack.console_url}{customer.page('usage')}")


def test_what_is_given_up_before_it_is_found_is_not_opened(owner: Page) -> None:
    words = owner.get_by_role("combobox", name="Find")
    options = owner.get_by_role("listbox", name="Found").get_by_role("option")

    def give_up(route: Route) -> None:
        owner.keyboard.press("Escape")
        route.continue_()

    owner.keyboard.press("Control+K")
    expect(options.first).to_be_visible()
    owner.route("**/find?q=usage", give_up, times=1)
    with staying(owner):
        owner.keyboard.type("usage")
        owner.keyboard.press("Enter")
        expect(words).to_be_hidden()
        owner.keyboard.press("Control+K")
        expect(options.first).to_contain_text("Usage")
