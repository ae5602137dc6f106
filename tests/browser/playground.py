"""What people do in the playground."""

from __future__ import annotations

import json

from playwright.sync_api import Locator, Page

LONG = " ".join(f"word{number}" for number in range(150))
"""A thousand tokens of the demo's: an answer of some seconds."""
ENDLESS = " ".join(f"word{number}" for number in range(650))
"""As much as the demo's context has room for, to be stopped."""


def pane(page: Page, number: int = 1) -> Locator:
    return page.get_by_role("group", name=f"Pane {number}")


def ask(page: Page, text: str) -> None:
    """In all panes."""
    message = page.get_by_label("Message")
    message.fill(text)
    message.press("Control+Enter")


def make_it_say(pane: Locator, text: str) -> None:
    """Leave a model no choice: whatever it is asked, it says this JSON string."""
    settings = pane.get_by_role("button", name="Settings")
    if settings.get_attribute("aria-expanded") == "false":
        settings.click()
    pane.get_by_label("JSON schema of the answer").fill(schema(text))


def schema(text: str) -> str:
    """The JSON schema of an answer that can only be this string."""
    return json.dumps({"const": text})


def said(pane: Locator) -> Locator:
    """Its last answer."""
    return pane.get_by_role("log").locator(".said").last


def feet(pane: Locator) -> Locator:
    """What each of its answers took and cost; there once one has ended."""
    return pane.get_by_role("log").get_by_text("req_")


def foot(pane: Locator) -> Locator:
    """That of its last answer."""
    return feet(pane).last
