"""The command palette and the single-key shortcuts."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.people import Customer, create_key, go

pytestmark = pytest.mark.stack

A_DAY = "2100-01-01"


def test_anything_is_found_and_opened_by_keyboard(owner: Page, customer: Customer) -> None:
    go(owner, "API keys")
    create_key(owner, "billing robot")
    owner.keyboard.press("Control+K")
    words = owner.get_by_role("combobox", name="Find")
    expect(words).to_be_focused()
    options = owner.get_by_role("listbox", name="Found").get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    owner.keyboard.type("robot")
    expect(options).to_have_text(["billing robot API key"])
    expect(words).to_have_attribute("aria-activedescendant", "palette-option-0")
    owner.keyboard.press("Enter")
    owner.wait_for_url(re.compile(r"keys\?q=billing"))

    owner.keyboard.press("Control+K")
    owner.keyboard.type("engi")
    expect(options).to_have_text([f"Engines {customer.name}"])
    owner.keyboard.type("zz")
    expect(owner.get_by_text("Nothing matches.")).to_be_visible()
    expect(words).to_have_attribute("aria-expanded", "false")
    owner.keyboard.press("Escape")
    expect(words).to_be_hidden()


def test_the_arrows_go_round_the_options(owner: Page) -> None:
    owner.keyboard.press("Control+K")
    options = owner.get_by_role("listbox", name="Found").get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    owner.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    owner.keyboard.press("ArrowDown")
    owner.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    expect(owner.locator("[role=option][aria-selected=true]")).to_have_count(1)


def test_single_keys_go_places_unless_one_types_or_they_are_off(
    owner: Page, customer: Customer
) -> None:
    owner.clock.install()
    owner.clock.pause_at(A_DAY)  # on a slow machine the second key may be too late
    owner.keyboard.type("ga")
    owner.wait_for_url(f"**{customer.page('adapters')}")
    owner.keyboard.type("gk")
    owner.wait_for_url(f"**{customer.page('keys')}")
    owner.clock.resume()
    owner.get_by_role("button", name="Create key").first.click()
    name = owner.get_by_role("dialog", name="Create key").get_by_label("Name")
    name.fill("")
    name.press_sequentially("g?/a")
    expect(name).to_have_value("g?/a")
    owner.keyboard.press("Escape")
    owner.locator("body").evaluate("() => document.activeElement.blur()")

    shortcuts = owner.get_by_role("dialog", name="Keyboard shortcuts")
    owner.keyboard.press("?")
    expect(shortcuts).to_contain_text("Audit log")
    shortcuts.get_by_label("Single-key shortcuts").uncheck()
    owner.keyboard.press("Escape")
    owner.reload()
    owner.keyboard.press("?")
    owner.keyboard.press("Control+K")
    expect(owner.get_by_role("combobox", name="Find")).to_be_focused()
    expect(shortcuts).to_be_hidden()


def test_languages_of_the_quick_start_are_tabs(owner: Page) -> None:
    panel = owner.get_by_role("region", name="Quick start")
    curl = panel.get_by_role("tab", name="curl")
    expect(curl).to_have_attribute("aria-selected", "true")
    curl.press("ArrowLeft")
    expect(panel.get_by_role("tab", name="JavaScript")).to_be_focused()
    expect(panel.get_by_role("tabpanel")).to_contain_text("process.env.LORIKEET_KEY")
    owner.reload()
    expect(panel.get_by_role("tabpanel", name="JavaScript")).to_be_visible()
