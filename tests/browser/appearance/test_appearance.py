"""The dark and the light theme, wide and narrow windows."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import Customer, Street, go, join, open_account
from tests.browser.playground import ask, foot, pane

pytestmark = pytest.mark.stack

DARK, LIGHT = "rgb(13, 16, 20)", "rgb(246, 247, 249)"
"""The colours of the canvas in both themes."""
SIDEWAYS = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


def test_the_switch_makes_it_dark_and_it_stays_dark(owner: Page) -> None:
    canvas, theme = owner.locator("html"), owner.get_by_label("Theme")
    expect(canvas).to_have_css("background-color", LIGHT)
    open_account(owner)
    theme.select_option("Dark")
    expect(canvas).to_have_css("background-color", DARK)
    go(owner, "Usage")
    expect(canvas).to_have_css("background-color", DARK)
    open_account(owner)
    expect(theme).to_have_value("dark")
    theme.select_option("System theme")
    expect(canvas).to_have_css("background-color", LIGHT)
    owner.emulate_media(color_scheme="dark")
    expect(canvas).to_have_css("background-color", DARK)


def test_a_dark_system_makes_it_dark_from_the_first_page(street: Street) -> None:
    page = street.person(dark=True)
    page.goto("/")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("html")).to_have_css("background-color", DARK)


def test_a_telephone_shows_every_page_and_runs_the_playground(
    street: Street, customer: Customer
) -> None:
    page = street.person(width=390, height=844)
    join(page, customer.invite("owner"), f"pocket-{customer.slug}")
    for title in menu(page):
        choose(page, title)
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert not page.evaluate(SIDEWAYS), title
    choose(page, "Playground")
    ask(page, "Hello")
    expect(foot(pane(page))).to_be_in_viewport()
    assert not page.evaluate(SIDEWAYS)


def menu(page: Page) -> list[str]:
    """Open the menu and close it with the Escape key. Returns its links."""
    sidebar = page.get_by_role("complementary")
    button = page.get_by_role("button", name="Menu")
    expect(sidebar).not_to_be_visible()
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    titles = sidebar.get_by_role("navigation").get_by_role("link").all_inner_texts()
    page.keyboard.press("Escape")
    expect(sidebar).not_to_be_visible()
    expect(button).to_have_attribute("aria-expanded", "false")
    return titles


def choose(page: Page, title: str) -> None:
    page.get_by_role("button", name="Menu").click()
    go(page, title)
